// The call of a session that is in progress: a task (task.h) that stops where it wants something of
// the caller. One at a time; the caller's thread.
#ifndef PRD_WORKER_CALL_IN_PROGRESS_H_
#define PRD_WORKER_CALL_IN_PROGRESS_H_

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "prd/status.h"
#include "worker/background.h"
#include "worker/task.h"

namespace prd {

class CallInProgress {
 public:
  // What the call wants. kApply: Applied, once `apply` has run. kPending: nothing, until the
  // background thread answers. kDone: it is over, see status(); also where there is none.
  enum class Wants : std::uint8_t { kDone, kApply, kPending };

  // The background outlives it.
  explicit CallInProgress(Background* background) : background_(background) {}

  // `name`: of the call. Its error, if it is over at once. kFailedPrecondition: another one is in
  // progress.
  Status Begin(const char* name, Task<Status> call);
  // Goes on for about `wait`; negative: for ever, so never kPending.
  Wants Next(std::chrono::nanoseconds wait = std::chrono::nanoseconds(-1));
  // `failed`: why `apply` failed, empty if it did not. kFailedPrecondition: `apply` was not asked
  // for, or another thread has come to where it is.
  Status Applied(const std::string& failed);
  bool runs() const { return call_.has_value(); }
  // What became of the newest call that is over.
  const Status& status() const { return status_; }
  // It is over, as if it had not begun: the session can only leave after that. True: the background
  // thread was waited for, and has settled an early step.
  bool GiveUp();

  // ---- for the call itself to await ----

  struct Answer {
    CallInProgress* call;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> at) const noexcept {
      call->StopAt(at, Wants::kPending);
    }
    Background::Reply await_resume() const { return *std::exchange(call->reply_, std::nullopt); }
  };
  struct ApplyRun {  // gives whether it ran well
    CallInProgress* call;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> at) const noexcept {
      call->StopAt(at, Wants::kApply);
    }
    bool await_resume() const { return call->failed_.empty(); }
  };
  // Why `apply` failed.
  const std::string& failed() const { return failed_; }

 private:
  void StopAt(std::coroutine_handle<> at, Wants wants);
  void GoOn();

  Background* background_;
  const char* name_ = "";
  std::optional<Task<Status>> call_;
  std::coroutine_handle<> stopped_;
  Wants wants_ = Wants::kDone;
  std::optional<Background::Reply> reply_;
  bool asked_ = false;      // Next has said kApply
  std::thread::id thread_;  // that stopped the call: where `apply` is to run, it has the replica
  std::string failed_;
  Status status_;
};

}  // namespace prd

#endif  // PRD_WORKER_CALL_IN_PROGRESS_H_
