// A run that really happened, from `prdctl export --format jsonl`: what its workers needed for
// their steps, what reductions cost, and how many updates per second it made.
#ifndef PRD_TOOLS_SIM_RECORDED_H_
#define PRD_TOOLS_SIM_RECORDED_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "prd/status.h"
#include "tools/sim/workload.h"

namespace prd::sim {

struct RecordedRun {
  std::string job;
  std::string engine;  // its name
  JobSpec spec;        // as it was configured
  // By rank: each step's own time and, on top, the median time that passed at the controller
  // between a worker's report and its next signal beyond that (messages, the library, the loop).
  std::vector<std::vector<DurationNs>> steps;
  DurationNs round_trip_ns = 0;  // signal to announcement, when nobody else had to come
  double group_size = 0;         // mean members of training groups
  DurationNs reduce_ns = 0;      // median of a training group's reduction
  double bytes = 0;              // reduced per group: the parameters
  std::size_t hosts = 0;         // that workers were on; 0: not told
  // From the end of the common start until the first worker finished.
  double seconds = 0;
  double updates_per_s = 0;  // from the first update's end to the last's
};

// kDataLoss names the first line that is not what export writes. Reads any number of lines, keeps
// at most kMaxSteps steps per worker (the first ones), and takes the file's first run.
inline constexpr std::size_t kMaxSteps = 1'000'000;
Result<RecordedRun> ReadRecorded(std::istream* in, const std::string& name);
Result<RecordedRun> LoadRecorded(const std::string& path);

// The recorded workers under an engine: their steps over and over, messages as fast, reductions as
// long. A group of another size n is costed in proportion to
//   2 (n - 1) / n on several hosts: a ring, whose links are there for each member, beyond latency;
//   n - 1 on one host: its members share the cores and the memory that all its bytes go through.
Workload AsWorkload(const RecordedRun& run, const EngineOptions& engine);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_RECORDED_H_
