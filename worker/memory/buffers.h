// Host memory that is used again: for bytes that are pulled, and for copies that are sent while the
// original changes. A large new block of the system costs more to clear than to fill.
#ifndef PRD_WORKER_MEMORY_BUFFERS_H_
#define PRD_WORKER_MEMORY_BUFFERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/memory/memory.h"
#include "worker/memory/shared_bytes.h"

namespace prd {

// Its first content is undefined.
class Buffer {
 public:
  std::byte* data() { return memory_.data(); }
  const std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return size_; }

  // The transfer that fills the buffer; null: it is full.
  void Expect(std::shared_ptr<Transfer> transfer) { transfer_ = std::move(transfer); }
  // Bytes from the front that are here.
  std::size_t ready() const { return transfer_ == nullptr ? size_ : transfer_->ready(); }
  // Blocks until all are.
  void Wait() const {
    if (transfer_ != nullptr) transfer_->Wait();
  }

 private:
  friend class Buffers;
  Row memory_;
  std::size_t size_ = 0;
  std::shared_ptr<Transfer> transfer_;
};

// A part of the buffer, which it keeps. Nobody writes it.
inline SharedBytes Within(const std::shared_ptr<const Buffer>& buffer, std::size_t begin,
                          std::size_t size) {
  const std::shared_ptr<Buffer> owner = std::const_pointer_cast<Buffer>(buffer);
  return SharedBytes(owner, owner->data() + begin, size);
}

class Buffers {
 public:
  // With memory from there: Memory::AllocateHost. `sweep`: called before it, so that buffers come
  // back that a device has let go of: Memory::Sweep.
  explicit Buffers(std::function<Row(std::size_t)> allocate, std::function<void()> sweep = {})
      : allocate_(std::move(allocate)), sweep_(std::move(sweep)) {}

  // An unused buffer of this size. It returns to the pool when the last pointer to it goes, on any
  // thread, also after this object is gone.
  std::shared_ptr<Buffer> Get(std::size_t bytes);

  // Gives unused buffers back to the system.
  void Trim();
  // No buffer made so far is used again: unused ones go back now, the others with their last
  // pointer.
  void Forget() { unused_ = std::make_shared<Unused>(); }
  // Whether Get may give a buffer of `capacity` for so many bytes.
  static bool Fits(std::size_t capacity, std::size_t bytes) {
    return bytes <= capacity && capacity <= bytes + bytes / 4 + 64;
  }

 private:
  struct Unused {
    std::mutex mutex;
    std::vector<Buffer> list;
  };
  bool Take(std::size_t bytes, Buffer* buffer);

  std::function<Row(std::size_t)> allocate_;
  std::function<void()> sweep_;
  std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_BUFFERS_H_
