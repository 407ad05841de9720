// A call of a session as a coroutine on the caller's thread. Where the call wants something of the
// caller, the coroutine stops, and whoever resumes it brings what it waits for
// (session_calls.h). Between stops it runs as any function does.
//
// Arguments of an awaited call are plain values: GCC 12 destroys twice what an aggregate in braces
// there holds.
#ifndef PRD_WORKER_TASK_H_
#define PRD_WORKER_TASK_H_

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "prd/status.h"

namespace prd {

// Begins when it is awaited or resumed for the first time; whoever awaits it goes on when it has
// returned. To destroy a task that has stopped destroys its local variables, the inner ones first.
template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    struct GoOn {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle ended) const noexcept {
        const std::coroutine_handle<> next = ended.promise().awaits;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() const noexcept {}
    };
    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    GoOn final_suspend() const noexcept { return {}; }
    void return_value(T returned) { value = std::move(returned); }
    void unhandled_exception() { error = std::current_exception(); }

    std::optional<T> value;
    std::exception_ptr error;
    std::coroutine_handle<> awaits;  // the task that awaits this one
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  std::coroutine_handle<> handle() const { return handle_; }
  // What it returned, or throws what it threw. REQUIRES: it has ended.
  T Take() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return *std::move(handle_.promise().value);
  }

  // To await it, in another task.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaits) noexcept {
    handle_.promise().awaits = awaits;
    return handle_;
  }
  T await_resume() { return Take(); }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

}  // namespace prd

// PRD_RETURN_IF_ERROR in a task.
#define PRD_CO_RETURN_IF_ERROR(expr)              \
  do {                                            \
    ::prd::Status prd_status_ = (expr);           \
    if (!prd_status_.ok()) co_return prd_status_; \
  } while (false)

#endif  // PRD_WORKER_TASK_H_
