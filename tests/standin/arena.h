// The addresses of a device that is none: what the processor may not touch, and pinned memory.
//
// An address of "device memory" is one of pages without any permission: who uses it as if it were
// host memory dies at once. The bytes are elsewhere, at the same distance from their beginning; the
// stand-in alone knows where.
//
// Not thread safe: StandInDevice's mutex keeps calls apart.
#ifndef PRD_TESTS_STANDIN_ARENA_H_
#define PRD_TESTS_STANDIN_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prd/status.h"

namespace prd::testing {

class Arena {
 public:
  // For so many bytes of the device. kUnavailable: the system has not so many addresses.
  static Result<std::unique_ptr<Arena>> Create(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Filled with what is no number. Aligned to 256. kResourceExhausted.
  Result<std::byte*> Malloc(std::size_t bytes);
  Result<std::byte*> MallocHost(std::size_t bytes);
  // False: there is no such allocation. One that is in use is gone for callers, but its memory
  // stays.
  bool Free(std::byte* data, bool device);
  bool InUse(std::byte* data) const;
  // The size of an allocation; 0: it is none.
  std::size_t BytesOf(const std::byte* data) const;

  enum class Kind { kNone, kDevice, kPinned };
  // Of [data, data + bytes), if it is inside one allocation that is not freed.
  Kind KindOf(const void* data, std::size_t bytes) const;
  // Where the bytes are. REQUIRES: KindOf is not kNone.
  std::byte* Resolve(const void* data) const;

  // Queued work uses it. REQUIRES: KindOf is not kNone.
  void Use(const void* data);
  void Unuse(const void* data);

  // Allocations that are not freed.
  std::size_t allocations() const;
  // Bytes of the device's memory.
  std::size_t free_bytes() const;

 private:
  struct Allocation {
    std::size_t bytes = 0;
    bool device = true;
    bool freed = false;
    int uses = 0;
  };
  using Allocations = std::map<std::uintptr_t, Allocation>;

  Arena(std::byte* handed, std::byte* alias, std::size_t bytes);
  Allocations::iterator Find(const void* data);
  Allocations::const_iterator Find(const void* data) const;
  void Release(Allocations::iterator it);

  std::byte* handed_;
  std::byte* alias_;
  std::size_t bytes_;
  std::map<std::size_t, std::size_t> gaps_;  // offset, bytes
  Allocations allocations_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_STANDIN_ARENA_H_
