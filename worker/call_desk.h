// Where a session's caller asks its thread for something, and waits for the answer.
//
// Thread safety: Ask and Await are for the caller's thread, the others for the session's.
#ifndef PRD_WORKER_CALL_DESK_H_
#define PRD_WORKER_CALL_DESK_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "worker/core/session_core.h"

namespace prd {

class CallDesk {
 public:
  // What the caller has to do before it goes on with a call. Without a duty the call is done.
  struct Reply {
    std::optional<ApplyNow> duty;
    CallDone done;  // without a duty
    // Without a duty: the call goes on. `done` is its result if the reduction succeeds for which
    // the caller's stream waits.
    bool early = false;
    std::chrono::steady_clock::time_point at;  // of the answer
  };
  // Runs on the session's thread, and makes a call or goes on with one.
  using Request = std::function<void(SessionCore* core, Instant now, Actions* out)>;

  // One at a time: Await has given the reply before the next request. May_be_early: the reply may.
  void Ask(Request request, bool may_be_early);
  // The reply, once it is there. nullopt: it was not within that time; negative: for ever.
  std::optional<Reply> Await(std::chrono::nanoseconds wait);

  Request Take();  // empty: there is none
  void Answer(Reply reply);
  // Whether the call in progress may have an early reply. It has one at most.
  bool TakeMayBeEarly();
  // The session's thread is gone: each Await from now on fails with this.
  void Fail(Status why);

 private:
  std::mutex mutex_;
  std::condition_variable answered_;
  Request request_;
  std::optional<Reply> reply_;
  bool may_be_early_ = false;
  Status failure_;
};

}  // namespace prd

#endif  // PRD_WORKER_CALL_DESK_H_
