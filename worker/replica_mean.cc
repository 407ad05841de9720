#include "worker/replica_mean.h"

#include <cstring>
#include <mutex>
#include <utility>

namespace prd {
namespace {

Weight Share(double share) { return {share, static_cast<float>(share)}; }

}  // namespace

void ReplicaMean::Begin() {
  const std::lock_guard lock(store_->mutex);
  mean_ = buffers_.Get(store_->parameters.bytes());
  mean_->Expect(store_->ReadShared(Memory::InHost(mean_->data(), mean_)));
  replicas_ = 1;
}

void ReplicaMean::Add(const Buffer& replica) {
  mean_->Wait();
  const double n = static_cast<double>(++replicas_);
  const Memory::Place mean = Memory::InHost(mean_->data());
  HostMemory host;
  host.Combine(store_->parameters, mean,
               {{mean, Share((n - 1) / n)}, {Memory::InHost(replica.data()), Share(1 / n)}});
}

// The parameters' row has them before the state, type by type.
std::shared_ptr<Buffer> ReplicaMean::Take() {
  if (mean_ == nullptr) return nullptr;
  mean_->Wait();
  for (const Layout::Piece& trained : store_->trained.Runs()) {
    for (const Layout::Piece& run : store_->parameters.Runs()) {
      if (run.dtype != trained.dtype) continue;
      std::memmove(mean_->data() + trained.begin, mean_->data() + run.begin,
                   trained.end - trained.begin);
    }
  }
  return std::exchange(mean_, nullptr);
}

void ReplicaMean::Forget() {
  mean_.reset();
  buffers_.Forget();
}

}  // namespace prd
