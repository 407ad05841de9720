// Bytes that stay as long as anybody has them: the payload of a frame.
//
// A copy shares the bytes. Whoever has the only one may write them. Copies may be in several
// threads; one copy may not.
#ifndef PRD_WORKER_MEMORY_SHARED_BYTES_H_
#define PRD_WORKER_MEMORY_SHARED_BYTES_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace prd {

class SharedBytes {
 public:
  SharedBytes() = default;  // none
  // Their first content is undefined.
  explicit SharedBytes(std::size_t size) : size_(size) {
    if (size == 0) return;
    auto bytes = std::make_shared_for_overwrite<std::byte[]>(size);
    data_ = bytes.get();
    owner_ = std::move(bytes);
  }
  // A copy of these.
  SharedBytes(const void* data, std::size_t size) : SharedBytes(size) {
    if (size != 0) std::memcpy(data_, data, size);
  }
  // Those at `data`, which `owner` keeps.
  SharedBytes(std::shared_ptr<void> owner, std::byte* data, std::size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}
  // The other one has none afterwards.
  SharedBytes(SharedBytes&& other) noexcept
      : owner_(std::move(other.owner_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  SharedBytes& operator=(SharedBytes&& other) noexcept {
    owner_ = std::move(other.owner_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  SharedBytes(const SharedBytes&) = default;
  SharedBytes& operator=(const SharedBytes&) = default;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> span() const { return {data_, size_}; }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_SHARED_BYTES_H_
