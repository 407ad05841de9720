// The loss of the mean of all live replicas, as time goes on.
#ifndef PRD_TOOLS_SIM_LOSS_CURVE_H_
#define PRD_TOOLS_SIM_LOSS_CURVE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/sim/objective.h"
#include "tools/sim/sim_worker.h"
#include "tools/sim/stats.h"
#include "tools/sim/world.h"

namespace prd::sim {

class LossCurve {
 public:
  // The pointers outlive it; null: nothing is trained.
  LossCurve(World* world, const Objective* objective, const std::vector<SimWorker>* workers)
      : world_(world), objective_(objective), workers_(workers) {}

  // The event kEvaluate, when so many updates have been made. Schedules the next one. Gives whether
  // the target has been met now for the first time.
  bool Evaluate(std::uint64_t updates);
  const std::vector<LossPoint>& curve() const { return curve_; }
  const std::optional<LossPoint>& target() const { return target_; }

 private:
  World* world_;
  const Objective* objective_;
  const std::vector<SimWorker>* workers_;
  std::vector<LossPoint> curve_;
  std::optional<LossPoint> target_;  // when the target loss was first met
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_LOSS_CURVE_H_
