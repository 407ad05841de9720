#include "tools/sim/mesh_replica.h"

#include "tools/reference/numbers.h"

namespace prd::sim::mesh {
namespace {

void Refill(const Tensors& tensors, std::size_t from, std::size_t to, Prng* prng) {
  for (std::size_t i = from; i < to; ++i) {
    const Tensor& tensor = tensors.views[i];
    const std::size_t size = DTypeSize(tensor.dtype);
    for (std::size_t j = 0; j < tensor.count; ++j) {
      reference::Encode(tensor.dtype, static_cast<int>(prng->Below(17)) - 8,
                        static_cast<std::byte*>(tensor.data) + j * size);
    }
  }
}
void Refill(const Tensors& tensors, Prng* prng) { Refill(tensors, 0, tensors.views.size(), prng); }

}  // namespace

void MeshReplica::Make(const Setting& setting, const SimDevice::Clock& clock, Prng* prng) {
  parameters_ = gradients_ = kept_ = {};
  parameters_.Make(setting.shapes);
  gradients_.Make(setting.shapes);
  kept_.Make(setting.kept);
  store_ = std::make_unique<ReplicaStore>();
  device_ = nullptr;
  if (prng->Unit() < setting.devices) {
    auto device = std::make_unique<SimDevice>(prng->Next(), clock);
    device_ = device.get();
    store_->UseMemory(std::move(device));
  }
  std::vector<StateTensor> state;
  for (const Tensor& tensor : kept_.views) {
    state.push_back({tensor.data, tensor.count, tensor.dtype});
  }
  store_->SetTensors(parameters_.views, gradients_.views, state);
  store_->kept.lent = true;
  Refill(parameters_, prng);
  Refill(kept_, prng);
  versions_.clear();
}

void MeshReplica::Drop() {
  store_.reset();
  device_ = nullptr;
}

bool MeshReplica::Lost() const {
  MayFail(false);
  Settle();
  return Failed();
}

void MeshReplica::RefillParameters(Prng* prng) const { Refill(parameters_, prng); }
void MeshReplica::RefillGradients(Prng* prng) const { Refill(gradients_, prng); }

void MeshReplica::Lock() {
  store_->mutex.lock();
  applying_ = true;
}

void MeshReplica::ApplyHalf(Prng* prng) const {
  Settle();
  Refill(parameters_, 0, (parameters_.views.size() + 1) / 2, prng);
}

void MeshReplica::ApplyRest(Prng* prng) const {
  Settle();
  Refill(parameters_, (parameters_.views.size() + 1) / 2, parameters_.views.size(), prng);
  Refill(kept_, prng);
  ++store_->iteration;
}

void MeshReplica::SetVersion(Instant now) {
  Settle();
  Version version = VersionOf(*store_);
  if (!versions_.empty() && newest() == version) return;
  versions_.push_back({now, std::move(version)});
}

bool MeshReplica::WasVersion(Instant since, const std::function<bool(const Version&)>& is) const {
  for (std::size_t i = versions_.size(); i-- > 0;) {
    if (is(versions_[i].version)) return true;
    if (versions_[i].since < since) return false;
  }
  return false;
}

}  // namespace prd::sim::mesh
