// Host memory that is used again: for what is pulled, and for what is sent while its owner goes on.
// A large block that came fresh from the system would cost more to clear than to fill.
#ifndef PRD_WORKER_MEMORY_BUFFERS_H_
#define PRD_WORKER_MEMORY_BUFFERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "worker/memory/memory.h"

namespace prd {

// A message whose bytes live in `owner`.
template <typename T>
zmq::message_t Borrow(const std::byte* data, std::size_t size, const std::shared_ptr<T>& owner) {
  using Owner = std::shared_ptr<T>;
  return zmq::message_t(
      const_cast<std::byte*>(data), size,
      [](void*, void* hint) { delete static_cast<Owner*>(hint); }, new Owner(owner));
}

// What it holds at first is anything.
class Buffer {
 public:
  std::byte* data() { return memory_.data(); }
  const std::byte* data() const { return memory_.data(); }
  std::size_t size() const { return size_; }

  // What it is to hold is on its way here; null: it is here.
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

class Buffers {
 public:
  // With memory from there: Memory::AllocateHost.
  explicit Buffers(std::function<Row(std::size_t)> allocate) : allocate_(std::move(allocate)) {}

  // One that nobody uses, of this size. It comes back by itself when the last pointer to it goes:
  // on any thread, and also when this object is gone.
  std::shared_ptr<Buffer> Get(std::size_t bytes);

  // Gives back to the system what nobody uses.
  void Trim();
  // Nothing that was made until now is used again.
  void Forget() { unused_ = std::make_shared<Unused>(); }

 private:
  struct Unused {
    std::mutex mutex;
    std::vector<Buffer> list;
  };
  std::function<Row(std::size_t)> allocate_;
  std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_BUFFERS_H_
