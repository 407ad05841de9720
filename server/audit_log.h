// Arrivals, what operators did, and refusals with their reasons: one line each, in a file of its
// own or in the log. Limited: the same refusal of the same party from the same address again is
// told every 10 s, and refusals of strangers fill no disk. Thread safe.
#ifndef PRD_SERVER_AUDIT_LOG_H_
#define PRD_SERVER_AUDIT_LOG_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/time.h"
#include "common/io/log.h"
#include "prd/status.h"
#include "server/access.h"

namespace prd {

class AuditLog {
 public:
  AuditLog() = default;
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // Writes to this file from now on, made for its owner alone if it is not there. Empty: to the
  // log, where who is let in is at the level debug. After an error nothing has changed.
  Status Open(const std::string& file);

  // `what` is what the party wanted: "train in job mnist".
  void Admitted(const Peer& peer, const Rights* rights, const std::string& what);
  // `what` the operator has done: "evict rank 3 of job mnist". Told each time.
  void Acted(const Peer& peer, const Rights* rights, const std::string& what);
  void Refused(const Peer& peer, const Rights* rights, const std::string& what,
               const std::string& why);

  std::uint64_t refused() const { return refused_; }

 private:
  // Lines per second, on average, and how many may come at once.
  struct Budget {
    double per_s;
    double most;
    double left = most;
    std::int64_t at_ns = 0;
    bool Take(std::int64_t now_ns);
  };
  enum class What : std::uint8_t { kLetIn, kActed, kRefused };
  void Write(What what, const std::string& line);

  std::atomic<std::uint64_t> refused_ = 0;
  std::mutex mutex_;  // guards what follows
  int file_ = -1;     // -1: the log
  std::uint64_t left_out_ = 0;
  Budget admissions_{.per_s = 100, .most = 1000};
  Budget refusals_{.per_s = 2, .most = 100};
  std::map<std::string, LogLimit> told_;  // by party, address and what it wanted
};

}  // namespace prd

#endif  // PRD_SERVER_AUDIT_LOG_H_
