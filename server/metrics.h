// Prometheus metrics at http://ADDRESS:PORT/metrics. Set and Observe are for the daemon's thread;
// the library serves them from threads of its own.
#ifndef PRD_SERVER_METRICS_H_
#define PRD_SERVER_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "prd/status.h"

namespace prd {

class Metrics {
 public:
  static Result<std::unique_ptr<Metrics>> Serve(const std::string& address);
  ~Metrics();

  // Counters by name without "prd_" and "_total"; they only grow.
  // REQUIRES: no name is "groups_formed". SetGroups serves that family with a label; a sample
  // without the label would make sums over the family double.
  void SetCounters(const std::vector<std::pair<std::string, std::uint64_t>>& counters);
  void SetGroups(const std::string& engine, std::uint64_t formed);
  // Of a job, by the names of the jobs that run.
  struct OfJob {
    std::size_t links_broken = 0;     // between its workers
    std::size_t replicas_differ = 0;  // that are to be equal
    std::uint64_t nonfinite_steps = 0;
  };
  void SetJobs(const std::map<std::string, OfJob>& jobs);
  void SetGauge(const std::string& name, double value);
  // From the first message of a turn to the last send.
  void ObserveFlush(DurationNs took);

 private:
  struct Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prd

#endif  // PRD_SERVER_METRICS_H_
