// A whole job in virtual time: the pump with a history in memory, workers too simple to be wrong,
// and a network that loses, duplicates, delays and reorders. Safety is checked as it runs;
// afterwards, with faults off, everybody must finish.
#ifndef PRD_TESTS_ENGINES_CLUSTER_SIM_H_
#define PRD_TESTS_ENGINES_CLUSTER_SIM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/link.h"
#include "common/base/prng.h"
#include "engines/pump.h"
#include "tools/sim/mutation.h"

namespace prd::sim {

struct Faults {
  double loss = 0;  // of a message, each way
  double duplicate = 0;
  double reduce_fails = 0;  // of a member in a group
  double fetch_fails = 0;
  double worker_dies = 0;      // per step; comes back after a while as a new incarnation
  double late = 0;             // of a worker to start seconds after the others
  double append_fails = 0;     // of a write to the history
  double controller_dies = 0;  // per 50 ms
};

struct Scenario {
  std::uint64_t seed = 1;
  int workers = 8;
  int steps = 20;  // local steps per worker before it finishes
  EngineOptions engine;
  Faults faults;
  DurationNs step_ns = 20 * kMillisecond;
  double slow_factor = 1;  // of rank 0
  DurationNs faults_until = 3 * kSecond;
  DurationNs give_up = 120 * kSecond;
  Mutation mutation = Mutation::kNone;
};

struct Verdict {
  std::vector<std::string> violations;
  bool all_finished = false;
  std::uint64_t groups = 0;  // formed by the engine
  std::uint64_t failed_groups = 0;
  std::uint64_t restarts = 0;  // of the controller
  std::uint64_t expired = 0;   // leases
  std::uint64_t adoptions = 0;
  std::uint64_t hash = 0;  // over the whole history: equal for equal scenarios
  std::vector<std::uint64_t> final_models;
  std::string stuck;  // why those who did not finish say they wait
};

Verdict RunCluster(const Scenario& scenario);

}  // namespace prd::sim

#endif  // PRD_TESTS_ENGINES_CLUSTER_SIM_H_
