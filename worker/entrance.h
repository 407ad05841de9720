// Lets one thread at a time into a session, in the process that made it.
#ifndef PRD_WORKER_ENTRANCE_H_
#define PRD_WORKER_ENTRANCE_H_

#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "prd/status.h"

namespace prd {

class Entrance {
 public:
  // In a forked child a lock may be held for ever.
  bool forked() const { return getpid() != pid_; }
  // Runs enter() for the caller, unless another thread is inside, or this one, or this process is
  // not the session's. `name`: of the entry, for the error.
  template <typename F>
  auto Enter(const char* name, F&& enter) -> decltype(enter());

 private:
  const pid_t pid_ = getpid();
  std::atomic<const char*> running_ = nullptr;  // who is inside
  std::atomic<std::thread::id> caller_;         // and on which thread
};

template <typename F>
auto Entrance::Enter(const char* name, F&& enter) -> decltype(enter()) {
  if (forked()) {
    return Status(Code::kFailedPrecondition, "this process was forked from pid " +
                                                 std::to_string(pid_) + ", which has the session");
  }
  const char* running = nullptr;
  if (!running_.compare_exchange_strong(running, name)) {
    const bool same = caller_ == std::this_thread::get_id();
    return Status(
        Code::kFailedPrecondition,
        same ? std::string(name) + " was called inside " + running + ", from `apply` or the log"
             : std::string("two threads call this session at once (") + name + " while " + running +
                   " runs)");
  }
  caller_ = std::this_thread::get_id();
  const struct Leaver {
    Entrance* entrance;
    ~Leaver() {
      entrance->caller_ = std::thread::id();
      entrance->running_ = nullptr;
    }
  } leaver{this};
  return enter();
}

}  // namespace prd

#endif  // PRD_WORKER_ENTRANCE_H_
