// One worker's replica in prdsim mesh: a few numbers of every dtype, in host memory or on a device,
// which a training loop changes; and the versions that it has been.
#ifndef PRD_TOOLS_SIM_MESH_REPLICA_H_
#define PRD_TOOLS_SIM_MESH_REPLICA_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "tools/sim/mesh_setting.h"
#include "tools/sim/mesh_values.h"
#include "tools/sim/sim_device.h"
#include "worker/mesh/mesh.h"

namespace prd::sim::mesh {

class MeshReplica {
 public:
  MeshReplica() = default;
  MeshReplica(const MeshReplica&) = delete;
  MeshReplica& operator=(const MeshReplica&) = delete;
  ~MeshReplica() { Unlock(); }

  // Another one, in a new process. `clock`: of its device, if it is on one.
  void Make(const Setting& setting, const SimDevice::Clock& clock, Prng* prng);
  // Its process has ended.
  void Drop();

  bool there() const { return store_ != nullptr; }
  ReplicaStore* store() const { return store_.get(); }
  bool on_device() const { return device_ != nullptr; }

  // What its memory is asked for so far is done, as the caller's stream waits for it.
  void Settle() const {
    if (device_ != nullptr) device_->Settle();
  }
  // Its device fails at its n-th next operation (SimDevice); no-op in host memory.
  void FailAt(std::size_t n) const {
    if (device_ != nullptr) device_->FailAt(n);
  }
  void MayFail(bool may) const {
    if (device_ != nullptr) device_->MayFail(may);
  }
  // Its session is about to end: what that says of the replica counts no more.
  bool Failed() const { return device_ != nullptr && !device_->failure().ok(); }
  // As Failed; if not, all is done, and nothing fails while somebody looks.
  bool Lost() const;

  void RefillParameters(Prng* prng) const;
  void RefillGradients(Prng* prng) const;
  // The caller's `apply`: half of the replica, and after a while the rest. Between Lock and Unlock
  // nobody else reads it.
  bool applying() const { return applying_; }
  void Lock();
  void ApplyHalf(Prng* prng) const;
  void ApplyRest(Prng* prng) const;
  void Unlock() {
    if (std::exchange(applying_, false)) store_->mutex.unlock();
  }

  // It is another version from now on, unless nothing has changed.
  void SetVersion(Instant now);
  const Version& newest() const { return versions_.back().version; }
  // A version of which that is true was there at `since` or later.
  bool WasVersion(Instant since, const std::function<bool(const Version&)>& is) const;

 private:
  struct Dated {
    Instant since;
    Version version;
  };

  Tensors parameters_, gradients_, kept_;
  std::unique_ptr<ReplicaStore> store_;
  SimDevice* device_ = nullptr;  // null: in host memory
  bool applying_ = false;
  std::vector<Dated> versions_;
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_REPLICA_H_
