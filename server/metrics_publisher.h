// Publishes the daemon's metrics (metrics.h): what it counts, what its jobs count, and the disk.
// Not thread safe.
#ifndef PRD_SERVER_METRICS_PUBLISHER_H_
#define PRD_SERVER_METRICS_PUBLISHER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "common/base/time.h"
#include "server/daemon_counts.h"
#include "server/history/disk_use.h"
#include "server/job_meters.h"
#include "server/metrics.h"

namespace prd {

class MetricsPublisher {
 public:
  // `state_dir`: of the history.
  MetricsPublisher(std::unique_ptr<Metrics> metrics, std::string state_dir)
      : metrics_(std::move(metrics)), state_dir_(std::move(state_dir)) {}

  Metrics* metrics() { return metrics_.get(); }
  JobMeters* meters() { return &meters_; }

  // `waiting`: jobs that wait for their start.
  void Publish(Instant now, const DaemonCounts& counts, const JobMeters::Jobs& jobs,
               std::size_t waiting);
  // Before there is a history: the disk has no room for it.
  void TellFull(const std::string& why);
  // Before the first Publish; the daemon's thread is alive.
  void TellUnready(const std::string& why);
  // Publish is due then at the latest: some of it changes by itself.
  Instant refresh_at() const { return refresh_at_; }

 private:
  const std::unique_ptr<Metrics> metrics_;
  const std::string state_dir_;
  JobMeters meters_;
  Instant refresh_at_;
  DiskUse disk_;
};

}  // namespace prd

#endif  // PRD_SERVER_METRICS_PUBLISHER_H_
