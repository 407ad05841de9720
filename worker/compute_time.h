// How long the caller of a session has computed its step so far: since the last call returned, or
// its reduction ended, and not while the session was paused.
#ifndef PRD_WORKER_COMPUTE_TIME_H_
#define PRD_WORKER_COMPUTE_TIME_H_

#include <algorithm>
#include <chrono>

namespace prd {

class ComputeTime {
 public:
  using Clock = std::chrono::steady_clock;

  Clock::duration so_far() const { return Clock::now() - begun_; }
  // A step begins now.
  void Begin() { begun_ = Clock::now(); }
  // Not before this.
  void BeginAfter(Clock::time_point at) { begun_ = std::max(begun_, at); }
  // From Pause to Resume nothing is computed.
  void Pause() { paused_ = so_far(); }
  void Resume() { begun_ = Clock::now() - paused_; }

 private:
  Clock::time_point begun_;
  Clock::duration paused_{};
};

}  // namespace prd

#endif  // PRD_WORKER_COMPUTE_TIME_H_
