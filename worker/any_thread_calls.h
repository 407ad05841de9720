// The calls of a session that any thread may make, also while another one is in a call of it.
#ifndef PRD_WORKER_ANY_THREAD_CALLS_H_
#define PRD_WORKER_ANY_THREAD_CALLS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prd/session.h"
#include "worker/background.h"
#include "worker/entrance.h"
#include "worker/session_checks.h"

namespace prd {

class AnyThreadCalls {
 public:
  // The pointers outlive it.
  AnyThreadCalls(const SessionOptions* options, const Entrance* entrance, Background* background)
      : options_(options),
        entrance_(entrance),
        background_(background),
        meter_(background->store()->memory->meter()) {}

  // ---- as prd::Session has them; the first two and interrupted() in signal handlers, too ----

  void Cancel() { background_->Cancel(); }
  void LeaveSoon(const char* reason, std::chrono::milliseconds grace) {
    background_->LeaveSoon(reason, std::min(grace, kLongestTimeout));
  }
  void TellLoss(double loss) {
    if (!entrance_->forked()) background_->TellLoss(loss);
  }
  Status Stop(const std::string& reason);
  double clock() const;
  BatchShare share(int ahead) const;
  int rank() const { return in_job() ? welcome().rank : -1; }
  int workers() const { return in_job() ? welcome().workers : 0; }
  std::string engine() const { return in_job() ? welcome().engine : std::string(); }
  bool needs_gradients() const;
  bool interrupted() const { return background_->view().interrupted(); }
  Progress progress() const;
  GroupTransports group_transports() const;
  std::vector<MemoryHeld> memory() const { return meter_->Uses(); }
  Iteration iteration() const;

  // ---- the caller's thread ----

  void SetAttached() { attached_ = true; }
  bool attached() const { return attached_; }
  // A step has said that the replica is at this iteration, and its reduction is not through yet.
  // nullopt: none has.
  void SetEarly(std::optional<Iteration> iteration) { early_ = iteration.value_or(kNotEarly); }
  // For so many steps shares were asked ahead.
  std::uint32_t lead() const { return lead_.load(); }

 private:
  static constexpr Iteration kNotEarly = -1;

  // Attached, in the process that is.
  bool in_job() const { return attached_ && !entrance_->forked(); }
  Welcome welcome() const { return background_->view().welcome(); }

  const SessionOptions* options_;
  const Entrance* entrance_;
  Background* background_;
  const std::shared_ptr<MemoryMeter> meter_;
  std::atomic<bool> attached_ = false;
  std::atomic<Iteration> early_ = kNotEarly;
  mutable std::atomic<std::uint32_t> lead_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_ANY_THREAD_CALLS_H_
