// Freed memory back to the system.
#ifndef PRD_COMMON_IO_HEAP_H_
#define PRD_COMMON_IO_HEAP_H_

#include <malloc.h>

#include <mutex>

namespace prd {

// Thread-safe, unlike malloc_trim (glibc 2.36, malloc/malloc.c): in a process with another
// allocator (jemalloc, AddressSanitizer's), its first call prepares glibc's heap without a lock,
// and two threads that do so crash.
inline void TrimHeap() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  (void)::malloc_trim(0);
}

}  // namespace prd

#endif  // PRD_COMMON_IO_HEAP_H_
