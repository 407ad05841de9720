// Workloads drawn from a seed: around a base workload, the number of workers, the engine and its
// options, speeds and sizes vary, so that a sweep meets what nobody thought of.
#ifndef PRD_TOOLS_SIM_VARY_H_
#define PRD_TOOLS_SIM_VARY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/sim/workload.h"

namespace prd::sim {

// What a sweep keeps to, where it is not to draw every engine there is.
struct OneEngine {
  EngineOptions engine;
  bool as_given = false;  // its options; else they are drawn, too
};

constexpr int kMaxVaried = 10;  // workers

// `base` with what the seed says. Faults stay as they are; the job and the cluster change. The
// number of workers is one that options as given allow, if any up to kMaxVaried is.
Workload Vary(const Workload& base, std::uint64_t seed, const std::optional<OneEngine>& only = {});

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_VARY_H_
