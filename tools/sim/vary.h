// Workloads drawn from a seed: around a base workload, the number of workers, the engine and its
// options, speeds and sizes vary, so that a sweep meets what nobody thought of.
#ifndef PRD_TOOLS_SIM_VARY_H_
#define PRD_TOOLS_SIM_VARY_H_

#include <cstdint>
#include <vector>

#include "tools/sim/workload.h"

namespace prd::sim {

// The engines a sweep runs: every one there is, with options drawn from the seed.
EngineOptions DrawEngine(std::uint64_t seed, std::int64_t workers);

// `base` with what the seed says. Faults stay as they are; the job and the cluster change.
Workload Vary(const Workload& base, std::uint64_t seed);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_VARY_H_
