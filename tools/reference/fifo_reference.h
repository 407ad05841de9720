// What plain FIFO grouping (P-Reduce without its group filter) gives when signals, decisions and
// reductions take no time: the yardstick for real runs.
#ifndef PRD_TOOLS_REFERENCE_FIFO_REFERENCE_H_
#define PRD_TOOLS_REFERENCE_FIFO_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "common/base/prng.h"
#include "common/base/time.h"

namespace prd {

// How long each worker's steps take.
struct StepTimes {
  std::vector<double> mean_s;  // by worker, > 0
  double jitter = 0;           // each step is uniform in mean * [1 - jitter, 1 + jitter], < 1
  std::uint64_t seed = 1;      // each worker draws from a sequence of its own
};

// Draws the steps of StepTimes.
class StepSource {
 public:
  explicit StepSource(const StepTimes& times);
  // In whole nanoseconds, so that equal times are equal whatever they were added up from.
  DurationNs Next(std::size_t worker);

 private:
  const StepTimes times_;
  std::vector<Prng> draws_;
};

// Updates per second that no grouping can exceed: (sum of 1/step) / P. An update is one group.
double UpdateBound(const StepTimes& times, int group_size);

// Updates per second of plain FIFO grouping over `updates` groups, after as many for the pattern to
// settle. All workers start at time 0 in the order of their numbers; who is ready first is first in
// the queue, equal times in the order of release. REQUIRES: 1 <= group_size <= workers.
double FifoUpdatesPerSecond(const StepTimes& times, int group_size, std::int64_t updates);

}  // namespace prd

#endif  // PRD_TOOLS_REFERENCE_FIFO_REFERENCE_H_
