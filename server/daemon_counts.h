// What there is in a daemon, and what it has counted: for prdctl, for metrics and for systemd. Not
// thread safe.
#ifndef PRD_SERVER_DAEMON_COUNTS_H_
#define PRD_SERVER_DAEMON_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/admin.h"
#include "common/base/time.h"
#include "common/io/connection_guard.h"
#include "engines/controller.h"
#include "server/admin_server.h"
#include "server/gate.h"
#include "server/history/rocks_history.h"
#include "server/history_writer.h"
#include "server/metrics.h"
#include "server/recorder.h"
#include "server/worker_socket.h"
#include "server/zap.h"

namespace prd {

class DaemonCounts {
 public:
  // What is counted. All must outlive this.
  struct Sources {
    const Controller* controller;
    const Recorder* recorder;
    const RocksHistory* history;
    const HistoryWriter* writer;
    WorkerSocket* workers;
    const AdminServer* admin;
    const ZapHandler* zap;
    const Gate* gate;
  };

  // The daemon started at this time (Unix time: `started_wall_ns`).
  DaemonCounts(const Sources& sources, std::int64_t started_ns, std::int64_t started_wall_ns)
      : of_(sources), started_ns_(started_ns), started_wall_ns_(started_wall_ns) {}

  // Workers that are there, in all jobs.
  std::size_t Workers() const;
  // Connections of workers and of prdctl; `open`: of workers alone.
  ConnectionGuard::Counters Connections() const;

  DaemonStatus StatusAt(Instant now) const;
  void Write(MetricsPage* page) const;

 private:
  // Without the groups that were formed: Prometheus has these by engine.
  std::vector<std::pair<std::string, std::uint64_t>> Counters() const;

  const Sources of_;
  const std::int64_t started_ns_;
  const std::int64_t started_wall_ns_;
};

}  // namespace prd

#endif  // PRD_SERVER_DAEMON_COUNTS_H_
