// How much memory the library holds, and what for.
#ifndef PRD_WORKER_MEMORY_MEMORY_USE_H_
#define PRD_WORKER_MEMORY_MEMORY_USE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "prd/session_types.h"

namespace prd {

enum class MemoryUse : std::uint8_t {
  kResults,  // of reductions, until they are whole; a device's part on its way through host memory
  kOutbox,   // replica_store.h has this row and the next three
  kInbox,
  kBase,
  kInitial,
  kState,      // copies of averaged state, and of kept state for a peer
  kCopies,     // replicas on their way to or from a peer
  kExchanged,  // updates of neighbours, and shards of a store
  kMean,       // Session::Average
  kReading,    // a device's tensors that are looked at on the host
};
inline constexpr std::size_t kMemoryUses = 10;
inline constexpr std::array<const char*, kMemoryUses> kMemoryUseNames = {
    "results", "outbox", "inbox",     "base", "initial",
    "state",   "copies", "exchanged", "mean", "reading"};

// The same name, for as long as the program runs.
inline const char* MemoryUseName(const std::string& name) {
  const auto found = std::find(kMemoryUseNames.begin(), kMemoryUseNames.end(), name);
  return found != kMemoryUseNames.end() ? *found : "all";
}

// "no memory for 4096 bytes of \"outbox\"": and where to read what that is and how to do without.
inline std::string WhatFor(MemoryUse use, std::size_t bytes) {
  return std::to_string(bytes) + " bytes of \"" + kMemoryUseNames[static_cast<std::size_t>(use)] +
         "\" (worker/README.md, Memory: which engine needs them, and which option saves them)";
}

class NoMemory : public std::bad_alloc {
 public:
  NoMemory(MemoryUse use, std::size_t bytes) : text_("no memory for " + WhatFor(use, bytes)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Counts bytes by use and by place. Threads: any.
class MemoryMeter {
 public:
  void Add(MemoryUse use, bool device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Count& of = uses_[static_cast<std::size_t>(use)][device ? 1 : 0];
    Grow(&of, bytes);
    Grow(&all_[device ? 1 : 0], bytes);
  }
  void Remove(MemoryUse use, bool device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    uses_[static_cast<std::size_t>(use)][device ? 1 : 0].held -= bytes;
    all_[device ? 1 : 0].held -= bytes;
  }

  HeldMemory all() const {
    const std::lock_guard lock(mutex_);
    return {all_[0].held, all_[0].peak, all_[1].held, all_[1].peak};
  }
  // "all" first, and then the uses that there have been.
  std::vector<MemoryHeld> Uses() const {
    const std::lock_guard lock(mutex_);
    std::vector<MemoryHeld> uses = {Line("all", all_)};
    for (std::size_t i = 0; i < kMemoryUses; ++i) {
      if (uses_[i][0].peak + uses_[i][1].peak != 0) {
        uses.push_back(Line(kMemoryUseNames[i], uses_[i]));
      }
    }
    return uses;
  }

 private:
  struct Count {
    std::uint64_t held = 0;
    std::uint64_t peak = 0;
  };
  using Places = std::array<Count, 2>;  // the host's, the device's

  static void Grow(Count* count, std::size_t bytes) {
    count->held += bytes;
    count->peak = std::max(count->peak, count->held);
  }
  static MemoryHeld Line(const char* use, const Places& of) {
    const auto bytes = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
    return {.use = use,
            .host = bytes(of[0].held),
            .host_peak = bytes(of[0].peak),
            .device = bytes(of[1].held),
            .device_peak = bytes(of[1].peak)};
  }

  mutable std::mutex mutex_;
  std::array<Places, kMemoryUses> uses_{};
  Places all_{};
};

// Bytes that are counted for as long as this exists. Movable.
class CountedBytes {
 public:
  CountedBytes() = default;
  CountedBytes(std::shared_ptr<MemoryMeter> meter, MemoryUse use, bool device,
               std::size_t bytes = 0)
      : meter_(std::move(meter)), use_(use), device_(device) {
    Set(bytes);
  }
  CountedBytes(CountedBytes&& other) noexcept
      : meter_(std::move(other.meter_)),
        use_(other.use_),
        device_(other.device_),
        bytes_(std::exchange(other.bytes_, 0)) {}
  CountedBytes& operator=(CountedBytes&& other) noexcept {
    if (this == &other) return *this;
    Set(0);
    meter_ = std::move(other.meter_);
    use_ = other.use_;
    device_ = other.device_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~CountedBytes() { Set(0); }

  // So many from now on.
  void Set(std::size_t bytes) {
    if (meter_ == nullptr || bytes == bytes_) return;
    if (bytes > bytes_) meter_->Add(use_, device_, bytes - bytes_);
    if (bytes < bytes_) meter_->Remove(use_, device_, bytes_ - bytes);
    bytes_ = bytes;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<MemoryMeter> meter_;
  MemoryUse use_ = MemoryUse::kResults;
  bool device_ = false;
  std::size_t bytes_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_MEMORY_USE_H_
