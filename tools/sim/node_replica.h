// A worker's real replica in a run with real meshes (mesh_plane.h): its parameters in two tensors
// of float64, with averaged and kept state beside them, in host memory or on a device.
#ifndef PRD_TOOLS_SIM_NODE_REPLICA_H_
#define PRD_TOOLS_SIM_NODE_REPLICA_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/sim/sim_device.h"
#include "worker/core/step_procedure.h"
#include "worker/mesh/mesh.h"

namespace prd::sim {

class NodeReplica final : public StepReplica {
 public:
  // In a new process. `x`, `gradient`: what it trains, which outlive it. `device`: that it is on,
  // or null.
  void Make(std::vector<double>* x, std::vector<double>* gradient,
            std::unique_ptr<SimDevice> device);

  ReplicaStore* store() const { return store_.get(); }
  // What its memory is asked for so far is done, before anybody looks.
  void Settle() const {
    if (device_ != nullptr) device_->Settle();
  }
  // A step, which changes all state, has been applied.
  void Applied(Iteration iteration);
  // A fault changes what is to be equal everywhere.
  void FlipBase();

  // All that it holds: parameters, averaged state, and what is to be added to them.
  std::vector<double> Held() const;
  std::vector<double> Parameters() const;  // with averaged state
  // Equal for equal replicas; also with kept state.
  std::uint64_t Digest() const override { return store_->memory->DigestOf(store_->trained); }
  std::uint64_t DigestOfAll() const;

  // StepReplica
  Iteration iteration() const override { return store_->iteration; }
  std::int64_t AddInbox() override;
  Inbox TakeInbox() override;

 private:
  std::vector<double> averaged_, kept_;
  std::unique_ptr<ReplicaStore> store_;
  SimDevice* device_ = nullptr;  // null: in host memory
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_NODE_REPLICA_H_
