#include "tests/standin/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

namespace prd::testing {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::size_t kGuard = 256;  // between allocations
constexpr int kNoNumber = 0xff;      // NaN in every dtype
// More takes too long: a second under the thread sanitizer for 64 MiB, in which leases run out.
constexpr std::size_t kFill = 1 << 20;

std::byte* Map(std::size_t bytes, int protection) {
  void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

std::uintptr_t Address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Create(std::size_t bytes) {
  std::byte* handed = Map(bytes, PROT_NONE);
  std::byte* alias = Map(bytes, PROT_READ | PROT_WRITE);
  if (handed == nullptr || alias == nullptr) {
    const std::string why = std::strerror(errno);
    if (handed != nullptr) munmap(handed, bytes);
    if (alias != nullptr) munmap(alias, bytes);
    return Status(Code::kUnavailable, "stand-in: no addresses for its device memory: " + why);
  }
  return std::unique_ptr<Arena>(new Arena(handed, alias, bytes));
}

Arena::Arena(std::byte* handed, std::byte* alias, std::size_t bytes)
    : handed_(handed), alias_(alias), bytes_(bytes) {
  gaps_[0] = bytes;
}

Arena::~Arena() {
  for (const auto& [at, allocation] : allocations_) {
    if (!allocation.device) std::free(reinterpret_cast<void*>(at));
  }
  munmap(handed_, bytes_);
  munmap(alias_, bytes_);
}

Result<std::byte*> Arena::Malloc(std::size_t bytes) {
  const std::size_t taken = (bytes + kGuard + kAlign - 1) / kAlign * kAlign;
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(),
                                [taken](const auto& entry) { return entry.second >= taken; });
  if (gap == gaps_.end()) return Status(Code::kResourceExhausted, "stand-in: out of memory");
  const auto [offset, room] = *gap;
  gaps_.erase(gap);
  if (room > taken) gaps_[offset + taken] = room - taken;
  allocations_[Address(handed_ + offset)] = {.bytes = bytes, .device = true};
  std::memset(alias_ + offset, kNoNumber, std::min(bytes, kFill));
  return handed_ + offset;
}

Result<std::byte*> Arena::MallocHost(std::size_t bytes) {
  void* data = std::aligned_alloc(kAlign, (bytes + kAlign) / kAlign * kAlign);
  if (data == nullptr) return Status(Code::kResourceExhausted, "stand-in: out of pinned memory");
  allocations_[Address(data)] = {.bytes = bytes, .device = false};
  std::memset(data, kNoNumber, std::min(bytes, kFill));
  return static_cast<std::byte*>(data);
}

Arena::Allocations::iterator Arena::Find(const void* data) {
  auto it = allocations_.upper_bound(Address(data));
  if (it == allocations_.begin()) return allocations_.end();
  --it;
  return Address(data) <= it->first + it->second.bytes ? it : allocations_.end();
}

Arena::Allocations::const_iterator Arena::Find(const void* data) const {
  return const_cast<Arena*>(this)->Find(data);
}

bool Arena::Free(std::byte* data, bool device) {
  const auto it = allocations_.find(Address(data));
  if (it == allocations_.end() || it->second.freed || it->second.device != device) return false;
  it->second.freed = true;
  if (it->second.uses == 0) Release(it);
  return true;
}

void Arena::Release(Allocations::iterator it) {
  if (it->second.device) {
    const std::size_t offset = it->first - Address(handed_);
    const std::size_t taken = (it->second.bytes + kGuard + kAlign - 1) / kAlign * kAlign;
    std::memset(alias_ + offset, kNoNumber, std::min(it->second.bytes, kFill));
    gaps_[offset] = taken;
    auto here = gaps_.find(offset);
    if (const auto next = std::next(here);
        next != gaps_.end() && offset + here->second == next->first) {
      here->second += next->second;
      gaps_.erase(next);
    }
    if (here != gaps_.begin()) {
      const auto before = std::prev(here);
      if (before->first + before->second == offset) {
        before->second += here->second;
        gaps_.erase(here);
      }
    }
  } else {
    std::free(reinterpret_cast<void*>(it->first));
  }
  allocations_.erase(it);
}

bool Arena::InUse(std::byte* data) const {
  const auto it = allocations_.find(Address(data));
  return it != allocations_.end() && it->second.uses > 0;
}

std::size_t Arena::BytesOf(const std::byte* data) const {
  const auto it = allocations_.find(Address(data));
  return it == allocations_.end() ? 0 : it->second.bytes;
}

Arena::Kind Arena::KindOf(const void* data, std::size_t bytes) const {
  const auto it = Find(data);
  if (it == allocations_.end() || it->second.freed) return Kind::kNone;
  if (it->second.bytes - (Address(data) - it->first) < bytes) return Kind::kNone;
  return it->second.device ? Kind::kDevice : Kind::kPinned;
}

std::byte* Arena::Resolve(const void* data) const {
  const std::size_t offset = Address(data) - Address(handed_);
  if (Address(data) < Address(handed_) || offset >= bytes_) {
    return static_cast<std::byte*>(const_cast<void*>(data));
  }
  return alias_ + offset;
}

void Arena::Use(const void* data) { ++Find(data)->second.uses; }

void Arena::Unuse(const void* data) {
  const auto it = Find(data);
  if (it != allocations_.end() && --it->second.uses == 0 && it->second.freed) Release(it);
}

std::size_t Arena::allocations() const {
  return static_cast<std::size_t>(
      std::count_if(allocations_.begin(), allocations_.end(),
                    [](const auto& entry) { return !entry.second.freed; }));
}

std::size_t Arena::free_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [offset, gap] : gaps_) bytes += gap;
  return bytes;
}

}  // namespace prd::testing
