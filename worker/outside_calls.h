// What is asked of a session from any thread, also while another one is in a call of it. The
// session's thread takes it at its next turn.
#ifndef PRD_WORKER_OUTSIDE_CALLS_H_
#define PRD_WORKER_OUTSIDE_CALLS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "worker/core/session_core.h"

namespace prd {

class OutsideCalls {
 public:
  // From any thread, and from signal handlers. Of several LeaveSoon the first counts.
  void Cancel() { cancel_ = true; }
  void LeaveSoon(const char* reason, std::chrono::nanoseconds grace);
  // From any thread. The job is done (SessionCore::Stop).
  void Stop(const std::string& reason);
  // From any thread. The loss goes with the next report of this worker.
  void TellLoss(double loss);

  // The session's thread: gives *core what is new.
  void Take(SessionCore* core, Instant now, Actions* out);

 private:
  std::atomic<bool> cancel_{false};
  std::atomic<bool> leave_asked_{false};
  std::atomic<bool> leave_{false};  // then these are there:
  std::array<char, 128> leave_reason_{};
  std::chrono::nanoseconds leave_grace_{};
  std::mutex mutex_;  // of the next two
  std::optional<std::string> stop_reason_;
  Losses losses_;
  // The session's thread's own.
  bool cancelled_ = false;
  bool left_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_OUTSIDE_CALLS_H_
