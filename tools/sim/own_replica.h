// What a worker does to its own replica: the gradient of its passes, and what `apply` makes of it.
#ifndef PRD_TOOLS_SIM_OWN_REPLICA_H_
#define PRD_TOOLS_SIM_OWN_REPLICA_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/base/plan.h"
#include "tools/sim/loader.h"
#include "tools/sim/plane.h"
#include "tools/sim/worker_parts.h"
#include "tools/sim/world.h"
#include "worker/core/step_procedure.h"

namespace prd::sim {

class OwnReplica {
 public:
  void Init(WorkerParts* parts, std::uint32_t worker) {
    parts_ = parts;
    worker_ = worker;
  }
  Replica& operator*() const { return parts_->world->replicas[worker_]; }
  Replica* operator->() const { return &**this; }

  // The loader's pass is in the gradient, which is the mean over all samples of the step so far.
  void AddPass(Loader* loader);
  // The fault that changes a replica by itself, in what the next group is applied to.
  void Flip(const Plan& plan);
  // `group`: what a group gave is applied. `tag`: what that makes of the tags, which stand for the
  // parameters.
  template <typename F>
  void Run(StepProcedure* procedure, bool group, F&& tag) {
    Replica& own = **this;
    Plane* plane = parts_->plane;
    StepReplica* lent = plane->Lent(worker_);
    if (const std::optional<Iteration> at = procedure->Begin(lent)) {
      plane->BeforeApply(worker_);
      const double rate = parts_->world->workload.training.learning_rate;
      for (std::size_t j = 0; j < own.x.size(); ++j) own.x[j] -= rate * own.gradient[j];
      tag();
      own.iteration = *at;
      plane->AfterApply(worker_, *at, group);
    }
    procedure->End(lent);
    own.iteration = lent->iteration();
  }

 private:
  WorkerParts* parts_ = nullptr;
  std::uint32_t worker_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_OWN_REPLICA_H_
