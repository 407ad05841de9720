// What all workers of a run share.
#ifndef PRD_TOOLS_SIM_WORKER_PARTS_H_
#define PRD_TOOLS_SIM_WORKER_PARTS_H_

#include <vector>

#include "common/base/prng.h"
#include "tools/sim/batch_book.h"
#include "tools/sim/mesh_doors.h"
#include "tools/sim/mutation.h"
#include "tools/sim/objective.h"
#include "tools/sim/plane.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/run_book.h"
#include "tools/sim/stats.h"
#include "tools/sim/step_times.h"
#include "tools/sim/world.h"
#include "worker/core/actions.h"

namespace prd::sim {

// All pointers outlive the workers; `objective` may be null.
struct WorkerParts {
  World* world = nullptr;
  Plane* plane = nullptr;
  MeshDoors* doors = nullptr;
  RunBook* runs = nullptr;
  ReplicaBook* replicas = nullptr;
  BatchBook* batches = nullptr;
  StepTimes* times = nullptr;
  Devices* devices = nullptr;
  const Objective* objective = nullptr;
  Stats* stats = nullptr;
  std::vector<Prng> draws;               // by worker, for gradients
  Actions spare;                         // kept for its memory
  std::vector<Devices::Finish> changed;  // the same
  Mutation mutation = Mutation::kNone;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_WORKER_PARTS_H_
