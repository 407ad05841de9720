// Where a replica lives, and the arithmetic there: host memory, or a device's memory
// (worker/device/device_memory.h). The data plane does everything to a replica with the one
// operation of this class, Combine.
//
// A device works later, in the order of the calls, and reports failures later still. So no call
// returns a Status. After a failure no call has an effect; the session's background thread asks
// failure() and ends the session.
//
// Threads: as replica_store.h says of the rows; failure() any.
#ifndef PRD_WORKER_MEMORY_MEMORY_H_
#define PRD_WORKER_MEMORY_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "prd/status.h"
#include "worker/memory/kernels.h"
#include "worker/memory/layout.h"
#include "worker/memory/memory_use.h"

namespace prd {

// A row of bytes that a Memory gave. Its first content is undefined. Movable.
class Row {
 public:
  using Free = std::function<void(std::byte*)>;

  Row() = default;  // empty
  Row(std::byte* data, std::size_t size, Free free) : data_(data, std::move(free)), size_(size) {}
  Row(Row&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        host_(other.host_),
        counted_(std::move(other.counted_)) {}
  Row& operator=(Row&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    host_ = other.host_;
    counted_ = std::move(other.counted_);
    return *this;
  }
  void Count(CountedBytes counted) { counted_ = std::move(counted); }

  // In host memory, by Memory::AllocateHost.
  bool host() const { return host_; }
  void SetHost() { host_ = true; }
  // On a device, an address that the processor may not touch, unless host().
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::unique_ptr<std::byte, Free> data_{nullptr, [](std::byte*) {}};
  std::size_t size_ = 0;
  bool host_ = false;
  CountedBytes counted_;
};

// A copy to host memory that is under way, in order. A null pointer to one: all bytes are there.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // How many bytes of the combined range are there, from its front. Does not block. After a failure
  // no more come: so nobody sends what was never written.
  virtual std::size_t ready() = 0;
  // Blocks, in the kernel, until all bytes are there, or the memory has failed.
  virtual void Wait() = 0;
};

class Memory {
 public:
  // One operand: the bytes of a range of a row, from its first one on.
  struct Place {
    // Null: the tensors of the layout, where they are.
    std::byte* data = nullptr;
    // `data` is a part of a row of AllocateHost. Of host memory it makes no difference.
    bool host = false;
    // Owns a host place until it is no longer in use. Null: the caller keeps the place unchanged
    // until the Transfer is complete, or for as long as this Memory exists.
    std::shared_ptr<const void> owner;
  };
  struct Input {
    Place from;
    Weight weight = {1, 1};
  };
  static Place Tensors() { return {}; }
  static Place In(std::byte* data) { return {.data = data, .host = false, .owner = nullptr}; }
  static Place In(const std::byte* data) { return In(const_cast<std::byte*>(data)); }
  // From the row's byte `offset` on.
  static Place In(const Row& row, std::size_t offset = 0) {
    return {
        .data = const_cast<std::byte*>(row.data()) + offset, .host = row.host(), .owner = nullptr};
  }
  static Place InHost(const std::byte* data, std::shared_ptr<const void> owner = nullptr) {
    return {.data = const_cast<std::byte*>(data), .host = true, .owner = std::move(owner)};
  }

  virtual ~Memory() = default;

  virtual bool device() const { return false; }
  // Rows of kOutbox, kInbox and kBase are in host memory, though the replica is on a device.
  virtual bool rows_on_host() const { return false; }

  // A row of this memory, and a row of host memory for bytes that go to and fro. After a failure, a
  // row that no call changes. Host memory that is not there is a NoMemory, thrown.
  Row Allocate(MemoryUse use, std::size_t bytes) {
    Row row = Make(use, bytes);
    row.Count({meter_, use, device(), bytes});
    return row;
  }
  Row AllocateHost(MemoryUse use, std::size_t bytes) {
    Row row = MakeHost(use, bytes);
    row.Count({meter_, use, false, bytes});
    row.SetHost();
    return row;
  }
  // Gives the row this size, 0 for empty. A row that has the size already keeps its bytes.
  void Size(Row* row, MemoryUse use, std::size_t bytes) {
    if (row->size() == bytes) return;
    *row = Row();
    if (bytes != 0) *row = OnHost(use) ? AllocateHost(use, bytes) : Allocate(use, bytes);
  }
  // The row is used for that from now on.
  void Use(Row* row, MemoryUse use) {
    if (row->empty()) return;
    row->Count({});  // not twice
    row->Count({meter_, use, device() && !row->host(), row->size()});
  }
  // Where the rows are counted; rows of other memories, too, if these are given the same one.
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }
  void UseMeter(std::shared_ptr<MemoryMeter> meter) { meter_ = std::move(meter); }

  // to = factor * (sum of weight * from), each of `to`, over [offset, offset + length) of the row
  // (layout.h): dtype by dtype, in this order, as kernels.h does it, with the same bits everywhere.
  // An input of weight 0 is not read. With no input left, or factor 0, the result is zeros,
  // whatever the inputs hold. An output may be the first input, and overlaps no other input. At
  // most one output is in host memory; the returned Transfer is of that one. `to` is not empty.
  // REQUIRES: the range is as layout.h wants it.
  virtual std::shared_ptr<Transfer> Combine(const Layout& layout, std::size_t offset,
                                            std::size_t length, std::span<const Place> to,
                                            std::span<const Input> from,
                                            Weight factor = {1, 1}) = 0;
  // The same over a whole row, into one place.
  std::shared_ptr<Transfer> Combine(const Layout& layout, const Place& to,
                                    std::initializer_list<Input> from, Weight factor = {1, 1}) {
    return Combine(layout, 0, layout.bytes(), std::span(&to, 1),
                   std::span(from.begin(), from.size()), factor);
  }
  virtual void Zero(std::byte* data, std::size_t bytes) = 0;

  // The digest of the bits of the row that these tensors are; never 0. Equal rows have the same,
  // whatever memory they are in. Blocks until it is there. After a failure, of anything.
  std::uint64_t DigestOf(const Layout& layout);
  // The first element of the row (so by dtype, layout.h) that is infinite or no number; nullopt:
  // all are finite. Blocks.
  std::optional<Layout::Element> FirstNonfinite(const Layout& layout);

  // A device orders its work after the work on the caller's stream so far (TakeFromCaller), or
  // before later work there (GiveToCaller); see DeviceMemory. Called with the store's mutex held,
  // or while the caller waits.
  virtual void TakeFromCaller() {}
  virtual void GiveToCaller() {}

  // Lets go of what the device does not use any more (DeviceMemory).
  virtual void Sweep() {}

  // The first failure, after which no call has an effect. kUnavailable, kResourceExhausted,
  // kInternal.
  virtual Status failure() const { return Status::Ok(); }

 private:
  bool OnHost(MemoryUse use) const {
    const bool moves =
        use == MemoryUse::kOutbox || use == MemoryUse::kInbox || use == MemoryUse::kBase;
    return moves && rows_on_host();
  }
  virtual Row Make(MemoryUse use, std::size_t bytes) = 0;
  virtual Row MakeHost(MemoryUse use, std::size_t bytes) = 0;
  // Calls f(dtype, data, bytes, at) for runs of the row, in order, with the bytes in host memory;
  // `at` is the run's place in the row. Stops where f returns false.
  using Visitor = std::function<bool(DType, const std::byte*, std::size_t, std::size_t)>;
  void Visit(const Layout& layout, const Visitor& f);

  std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>();
};

// Memory of the processor. Every call works at once, on the calling thread.
class HostMemory : public Memory {
 public:
  using Memory::Combine;
  std::shared_ptr<Transfer> Combine(const Layout& layout, std::size_t offset, std::size_t length,
                                    std::span<const Place> to, std::span<const Input> from,
                                    Weight factor) override;
  void Zero(std::byte* data, std::size_t bytes) override;

 private:
  Row Make(MemoryUse use, std::size_t bytes) override;
  Row MakeHost(MemoryUse use, std::size_t bytes) override { return Make(use, bytes); }
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_MEMORY_H_
