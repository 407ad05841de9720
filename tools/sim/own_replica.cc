#include "tools/sim/own_replica.h"

#include <vector>

namespace prd::sim {

void OwnReplica::AddPass(Loader* loader) {
  const std::int64_t before = loader->Add();
  if (parts_->objective == nullptr) return;
  Replica& own = **this;
  const std::vector<double> mean = before > 0 ? own.gradient : std::vector<double>();
  own.gradient.resize(own.x.size());
  parts_->objective->Gradient(worker_, own.x, &parts_->draws[worker_], &own.gradient);
  if (mean.size() != own.gradient.size()) return;
  const auto had = static_cast<double>(before);
  const auto has = static_cast<double>(before + loader->samples());
  for (std::size_t j = 0; j < mean.size(); ++j) {
    own.gradient[j] = (mean[j] * had + own.gradient[j] * (has - had)) / has;
  }
}

void OwnReplica::Flip(const Plan& plan) {
  if (!AllOrNone(plan)) return;
  World* world = parts_->world;
  if (!world->Rolled(world->workload.faults.flips)) return;
  parts_->replicas->Flipped();
  parts_->plane->Flip(worker_);
}

}  // namespace prd::sim
