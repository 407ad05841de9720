// How many seeds a driver needs to find a planted bug: one cell of mutants.md.
#ifndef PRD_TESTS_SIM_MUTANT_HUNT_H_
#define PRD_TESTS_SIM_MUTANT_HUNT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/mutation.h"

namespace prd::sim {

// A planted bug, and the engine that it is planted in; without one, any.
struct Mutant {
  Mutation mutation = Mutation::kNone;
  std::optional<EngineOptions> engine;
};

// Every planted bug, once for each engine that it can be planted in; first none, as the control.
std::vector<Mutant> AllMutants();

// The bug, if any, is in what the engine decides, and not only in its plan.
bool ChangesDecisions(Mutation mutation);

// True if a run of the seed shows that something is wrong.
using Finds = std::function<bool(const Mutant&, std::uint64_t seed)>;

// Prints a line "driver  mutant  engine  median  seeds until found, by base seed" to stdout. A
// base seed finds a bug if one of the `most` seeds from there on does, or kills the process, in
// which case it is the one that was run then: every base seed has a process of its own. After two
// base seeds that find nothing, the others are not tried. Without a bug a tenth of the seeds run.
void Hunt(const std::string& driver, const std::vector<Mutant>& mutants, std::uint64_t most,
          const Finds& finds);

}  // namespace prd::sim

#endif  // PRD_TESTS_SIM_MUTANT_HUNT_H_
