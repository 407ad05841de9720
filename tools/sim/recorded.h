// A run that really happened, from `prdctl export --format jsonl`: what its workers needed for
// their steps, what reductions cost, and how many updates per second it made.
#ifndef PRD_TOOLS_SIM_RECORDED_H_
#define PRD_TOOLS_SIM_RECORDED_H_

#include <cstdint>
#include <istream>
#include <map>
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
  // Where a batch is divided: what a step of `samples` would take, if each takes as long.
  std::vector<std::vector<DurationNs>> steps;
  std::int64_t batch = 0;        // that is divided; 0: none
  std::int64_t samples = 0;      // of a step: the batch by workers, or the median; 0: not told
  DurationNs round_trip_ns = 0;  // signal to announcement, when nobody else had to come
  double group_size = 0;         // mean members of training groups
  DurationNs reduce_ns = 0;      // median of a training group's reduction
  double bytes = 0;              // reduced per group: the parameters
  std::size_t hosts = 0;         // that workers were on; 0: not told
  // From the end of the common start until the first worker finished, without the time that an
  // operator had the job paused.
  double seconds = 0;
  double updates_per_s = 0;  // from the first update's end to the last's, without that too
  std::int64_t id = -1;
  std::map<std::int64_t, std::string> left_out;  // the file's other runs, and their engines
};

// kDataLoss names the first line that is not what export writes. Reads any number of lines, keeps
// at most kMaxSteps steps per worker (the first ones), and takes the file's first run.
inline constexpr std::size_t kMaxSteps = 1'000'000;
Result<RecordedRun> ReadRecorded(std::istream* in, const std::string& name);
Result<RecordedRun> LoadRecorded(const std::string& path);

// The recorded workers under an engine: their steps over and over, messages as fast, reductions as
// long, no pause. A group of another size n is costed in proportion to
//   2 (n - 1) / n on several hosts: a ring, whose links are there for each member, beyond latency;
//   n - 1 on one host: its members share the cores and the memory that all its bytes go through.
Workload AsWorkload(const RecordedRun& run, const EngineOptions& engine);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_RECORDED_H_
