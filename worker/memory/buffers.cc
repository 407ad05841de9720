#include "worker/memory/buffers.h"

#include <algorithm>
#include <iterator>

namespace prd {
namespace {

// A buffer serves for less than it could hold, but not for much less.
bool Fits(std::size_t capacity, std::size_t bytes) {
  return bytes <= capacity && capacity <= bytes + bytes / 4 + 64;
}

}  // namespace

std::shared_ptr<Buffer> Buffers::Get(std::size_t bytes) {
  auto buffer = std::make_unique<Buffer>();
  {
    const std::lock_guard lock(unused_->mutex);
    std::vector<Buffer>& list = unused_->list;
    const auto found = std::find_if(list.begin(), list.end(), [bytes](const Buffer& candidate) {
      return Fits(candidate.memory_.size(), bytes) && candidate.ready() == candidate.size_;
    });
    if (found != list.end()) {
      *buffer = std::move(*found);
      *found = std::move(list.back());
      list.pop_back();
    }
  }
  if (buffer->memory_.data() == nullptr) buffer->memory_ = allocate_(bytes);
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

std::size_t Buffers::TrimOthers(std::size_t bytes) {
  std::vector<Buffer> others;
  const std::lock_guard lock(unused_->mutex);
  std::vector<Buffer>& list = unused_->list;
  const auto kept = std::partition(list.begin(), list.end(), [bytes](const Buffer& buffer) {
    return bytes != 0 && Fits(buffer.memory_.size(), bytes);
  });
  others.assign(std::make_move_iterator(kept), std::make_move_iterator(list.end()));
  list.erase(kept, list.end());
  return list.size();
}

}  // namespace prd
