// One workload under several engines and settings.
#ifndef PRD_TOOLS_SIM_COMPARE_H_
#define PRD_TOOLS_SIM_COMPARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/report.h"

namespace prd::sim {

struct BrokenRun {
  std::uint64_t seed = 0;
  std::string invariant;
  std::string violation;  // the whole sentence
};

struct Compared {
  EngineOptions engine;
  std::uint64_t runs = 0;
  std::uint64_t reached = 0;  // runs that met the target loss
  // Means over the runs; the first two over those that met it.
  double time_to_target_s = 0;
  double updates_to_target = 0;
  double updates_per_s = 0;
  double bound_share = 0;  // of bound_updates_per_s
  // Local steps of all workers together, and bytes of each, while the updates were measured.
  double steps_per_s = 0;
  double bytes_per_step = 0;
  double idle_share = 0;
  double staleness = 0;
  double gap = 0;
  std::optional<double> loss;  // the last one; nullopt: there is no objective
  std::optional<double> rho;
  std::vector<LossPoint> curve;  // of the first run
  std::string pace;              // why one slow worker sets the pace of all, if it does
  std::vector<BrokenRun> broken;
};

// Every engine on the seeds first_seed, first_seed + 1, ...: the same steps for all. Sorted by how
// often the target was met, then time to it; without a target, by local steps per second.
std::vector<Compared> Compare(const Workload& workload, const std::vector<EngineOptions>& engines,
                              std::uint64_t first_seed, std::uint64_t seeds);

// The table, and a line for each engine with a `pace` and each run that has broken an invariant.
std::string TextTable(const std::vector<Compared>& rows);
Json JsonTable(const std::vector<Compared>& rows);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_COMPARE_H_
