#include "tools/sim/node_replica.h"

#include <cstring>
#include <utility>

#include "common/base/archive.h"
#include "tools/sim/mesh_values.h"

namespace prd::sim {
namespace {

constexpr std::size_t kAveraged = 2;  // numbers of averaged state
constexpr std::size_t kKept = 1;      // and of kept state

std::vector<Tensor> Halves(std::vector<double>* all) {
  const std::size_t half = (all->size() + 1) / 2;
  return {{all->data(), half, DType::kF64}, {all->data() + half, all->size() - half, DType::kF64}};
}

}  // namespace

void NodeReplica::Make(std::vector<double>* x, std::vector<double>* gradient,
                       std::unique_ptr<SimDevice> device) {
  averaged_.assign(kAveraged, 0.0);
  kept_.assign(kKept, 0.0);
  store_ = std::make_unique<ReplicaStore>();
  device_ = device.get();
  if (device != nullptr) store_->UseMemory(std::move(device));
  store_->SetTensors(Halves(x), Halves(gradient),
                     {{averaged_.data(), kAveraged, DType::kF64, true},
                      {kept_.data(), kKept, DType::kF64, false}});
}

void NodeReplica::Applied(Iteration iteration) {
  for (double& value : averaged_) value += 0.125;
  for (double& value : kept_) value += 1;
  store_->TakeAveraged();
  Settle();
  store_->iteration = iteration;
}

void NodeReplica::FlipBase() {
  Row& base = store_->base;
  if (base.empty()) return;
  double first = 0;
  std::memcpy(&first, base.data(), sizeof first);
  first += 1;
  std::memcpy(base.data(), &first, sizeof first);
}

std::vector<double> NodeReplica::Parameters() const {
  return mesh::Values(store_->parameters, mesh::Read(store_->parameters));
}

std::vector<double> NodeReplica::Held() const {
  if (!store_->background) return Parameters();
  return mesh::Values(store_->parameters, mesh::SharedOf(*store_));
}

std::uint64_t NodeReplica::DigestOfAll() const {
  const auto* bytes = reinterpret_cast<const char*>(kept_.data());
  return HashBytes({bytes, kKept * sizeof kept_[0]}, Digest());
}

std::int64_t NodeReplica::AddInbox() {
  const std::optional<std::int64_t> rounds = store_->AddInbox();
  Settle();
  return rounds.value_or(kNotNow);
}

StepReplica::Inbox NodeReplica::TakeInbox() {
  const Inbox inbox{.rounds = store_->inbox.rounds, .iteration = store_->inbox.iteration};
  const bool taken = store_->TakeInbox();
  Settle();
  return taken ? inbox : Inbox();
}

}  // namespace prd::sim
