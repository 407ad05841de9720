// The log of a daemon: lines on stderr, through spdlog's default logger (spdlog::info and so on).
#ifndef PRD_COMMON_IO_LOG_H_
#define PRD_COMMON_IO_LOG_H_

#include <spdlog/spdlog.h>

#include <cstdint>
#include <string>

#include "common/base/time.h"

namespace prd {

// Lines go to stderr from now on: with time (UTC) and level for a terminal or a file, with
// systemd's priority marks when stderr is the journal. Where nobody reads, lines are left out and
// counted; a caller waits for 0.2 s at most, and then for 10 s not at all. REQUIRES: level as in
// the config
// ("info").
void StartLog(const std::string& level);
void SetLogLevel(const std::string& level);

// For log lines that peers can cause: lets one through per interval, with the number left out.
class LogLimit {
 public:
  explicit LogLimit(DurationNs interval) : interval_(interval) {}

  // True when a line may be written now; *skipped is then the number of those that were not.
  bool Allow(std::int64_t now_ns, std::uint64_t* skipped) {
    if (next_ns_ != 0 && now_ns < next_ns_) {
      ++skipped_;
      return false;
    }
    next_ns_ = now_ns + interval_;
    *skipped = skipped_;
    skipped_ = 0;
    return true;
  }

 private:
  DurationNs interval_;
  std::int64_t next_ns_ = 0;
  std::uint64_t skipped_ = 0;
};

// What a line says of those that LogLimit left out.
inline std::string MoreSince(std::uint64_t skipped) {
  return skipped == 0 ? "" : " (" + std::to_string(skipped) + " more since the last such line)";
}

}  // namespace prd

#endif  // PRD_COMMON_IO_LOG_H_
