// What a thread does now and then while it goes over a row of gigabytes, which may take seconds: a
// session's thread keeps its lease, and tells peers that it is still there.
#ifndef PRD_WORKER_MEMORY_MEANWHILE_H_
#define PRD_WORKER_MEMORY_MEANWHILE_H_

#include <cstddef>
#include <functional>

namespace prd {

// The thread that makes it has it as long as it lives. One at a time.
class Meanwhile {
 public:
  // HostMemory calls it after so many bytes of one operation: well under a second, however slow the
  // machine.
  static constexpr std::size_t kBytes = 8 << 20;

  // `what` may not change the memory, or what else is in use where the row is gone over.
  explicit Meanwhile(std::function<void()> what);
  ~Meanwhile();
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

  // Does it, if the calling thread has one.
  static void Do();
};

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_MEANWHILE_H_
