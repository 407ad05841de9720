// Many seeds, each of a workload of its own, each run twice.
//
//   deterministic   the same seed gives the same history and the same replicas
#ifndef PRD_TOOLS_SIM_SWEEP_H_
#define PRD_TOOLS_SIM_SWEEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/cluster.h"
#include "tools/sim/vary.h"

namespace prd::sim {

struct SweepOptions {
  std::uint64_t first_seed = 1;
  std::uint64_t seeds = 1000;
  int threads = 1;
  Mutation mutation = Mutation::kNone;
  bool vary = true;                    // false: workloads as they are
  std::optional<OneEngine> only = {};  // vary: instead of all engines
  bool twice = true;
  MakePlane plane = {};                           // as RunOptions'
  std::uint64_t stop_after = 1;                   // failing seeds
  std::function<bool()> ends;                     // true: no further seed
  std::function<void(const std::string&)> trace;  // as RunOptions'; for one seed on one thread
};

struct SweepFailure {
  std::uint64_t seed = 0;
  std::string workload;
  std::string engine;
  RunResult result;
};

struct SweepResult {
  std::uint64_t seeds = 0;  // run
  std::uint64_t events = 0;
  double seconds = 0;  // of wall time
  std::uint64_t groups = 0, failed_groups = 0, restarts = 0, expired = 0, adoptions = 0;
  std::map<std::string, std::uint64_t> by_engine;  // seeds
  std::vector<SweepFailure> failures;              // by seed
};

// Seed s takes the workload s modulo their number. Stops soon after `stop_after` failures, of which
// the one with the smallest seed is always the same.
SweepResult Sweep(const std::vector<Workload>& workloads, const SweepOptions& options);

// One seed of a sweep, as Sweep runs it.
SweepFailure RunSeed(const std::vector<Workload>& workloads, const SweepOptions& options,
                     std::uint64_t seed);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SWEEP_H_
