#include "worker/replica_mean.h"

#include <cstring>
#include <mutex>
#include <utility>

namespace prd {

// The parameters' row has them before the state, type by type.
template <typename Each>
void ReplicaMean::EachTrained(Each each) const {
  for (const Layout::Piece& trained : store_->trained.Runs()) {
    for (const Layout::Piece& run : store_->parameters.Runs()) {
      if (run.dtype == trained.dtype) each(run.begin, trained.begin, trained.end - trained.begin);
    }
  }
}

void ReplicaMean::Begin(bool own_parameters) {
  const std::lock_guard lock(store_->mutex);
  store_->Unfold();
  const std::size_t bytes = store_->parameters.bytes();
  mean_ = buffers_.Get(bytes);
  mean_->Expect(store_->ReadShared(Memory::InHost(mean_->data(), mean_)));
  own_.reset();
  if (own_parameters) {
    own_ = buffers_.Get(bytes);
    own_->Expect(store_->ReadShared(Memory::InHost(own_->data(), own_)));
  }
  replicas_ = 1;
}

void ReplicaMean::Add(const Buffer& replica) {
  mean_->Wait();
  const double n = static_cast<double>(++replicas_);
  const Memory::Place mean = Memory::InHost(mean_->data());
  HostMemory host;
  host.Combine(store_->parameters, mean,
               {{mean, WeightOf((n - 1) / n)}, {Memory::InHost(replica.data()), WeightOf(1 / n)}});
}

std::shared_ptr<Buffer> ReplicaMean::Take(bool with_state) {
  if (mean_ == nullptr) return nullptr;
  mean_->Wait();
  if (own_ != nullptr) {
    own_->Wait();
    EachTrained([this](std::size_t in_all, std::size_t, std::size_t bytes) {
      std::memcpy(mean_->data() + in_all, own_->data() + in_all, bytes);
    });
    own_.reset();
  }
  if (!with_state) {
    EachTrained([this](std::size_t in_all, std::size_t in_trained, std::size_t bytes) {
      std::memmove(mean_->data() + in_trained, mean_->data() + in_all, bytes);
    });
  }
  return std::exchange(mean_, nullptr);
}

void ReplicaMean::Forget() {
  mean_.reset();
  own_.reset();
  buffers_.Forget();
}

}  // namespace prd
