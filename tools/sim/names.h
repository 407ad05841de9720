// For the sentences of violations.
#ifndef PRD_TOOLS_SIM_NAMES_H_
#define PRD_TOOLS_SIM_NAMES_H_

#include <cstdint>
#include <string>

namespace prd::sim {

// "worker 3": a simulated process, whichever rank it has.
inline std::string WorkerName(std::uint32_t worker) { return "worker " + std::to_string(worker); }

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_NAMES_H_
