// The daemon's log lines about what lasts or comes often, each kind at a bounded rate. Not thread
// safe.
#ifndef PRD_SERVER_NOTICES_H_
#define PRD_SERVER_NOTICES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/time.h"
#include "common/io/connection_guard.h"
#include "common/io/log.h"
#include "engines/controller.h"
#include "server/history/rocks_history.h"

namespace prd {

class Notices {
 public:
  // Runs that wait for their common start: after 5 s, and then with growing pauses.
  void TellStarts(Instant now, const Controller& controller);
  std::size_t runs_that_wait() const { return start_waits_.size(); }

  // Connections that were ended since the last line.
  void TellConnections(const ConnectionGuard::Counters& now);

  // A worker that belongs to no run was refused. One line per kind of error and ten seconds: a
  // worker that comes again and again hides no other mistake.
  void TellRefused(const std::string& job, const HelloRefused& refused);

  // What has been removed from the history.
  void TellTrimmed(const RocksHistory::Trimmed& trimmed);

 private:
  struct StartWait {
    Instant at;  // of the next line
    DurationNs pause = 0;
  };
  std::map<RunId, StartWait> start_waits_;
  LogLimit connections_log_{60 * kSecond};
  ConnectionGuard::Counters told_connections_;
  std::map<Code, LogLimit> refused_log_;
  LogLimit trimmed_log_{60 * kSecond};
  std::uint64_t told_trimmed_ = 0;
};

}  // namespace prd

#endif  // PRD_SERVER_NOTICES_H_
