#include "worker/memory/buffers.h"

#include <algorithm>

namespace prd {
bool Buffers::Take(std::size_t bytes, Buffer* buffer) {
  const std::lock_guard lock(unused_->mutex);
  std::vector<Buffer>& list = unused_->list;
  const auto found = std::find_if(list.begin(), list.end(), [bytes](const Buffer& candidate) {
    return Fits(candidate.memory_.size(), bytes) && candidate.ready() == candidate.size_;
  });
  if (found == list.end()) return false;
  *buffer = std::move(*found);
  *found = std::move(list.back());
  list.pop_back();
  return true;
}

std::shared_ptr<Buffer> Buffers::Get(std::size_t bytes) {
  auto buffer = std::make_unique<Buffer>();
  if (!Take(bytes, buffer.get())) {
    if (sweep_) sweep_();
    if (!sweep_ || !Take(bytes, buffer.get())) buffer->memory_ = allocate_(bytes);
  }
  buffer->size_ = bytes;
  buffer->transfer_ = nullptr;
  return {buffer.release(), [home = std::weak_ptr<Unused>(unused_)](Buffer* used) {
            const std::unique_ptr<Buffer> owner(used);
            const std::shared_ptr<Unused> unused = home.lock();
            if (unused == nullptr) return;
            const std::lock_guard lock(unused->mutex);
            unused->list.push_back(std::move(*used));
          }};
}

void Buffers::Trim() {
  std::vector<Buffer> list;
  const std::lock_guard lock(unused_->mutex);
  list.swap(unused_->list);
}

}  // namespace prd
