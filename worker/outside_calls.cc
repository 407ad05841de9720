#include "worker/outside_calls.h"

#include <cstddef>
#include <utility>

#include "common/base/text.h"
#include "worker/core/trained_report.h"

namespace prd {

void OutsideCalls::LeaveSoon(const char* reason, std::chrono::nanoseconds grace) {
  if (leave_asked_.exchange(true)) return;
  if (reason == nullptr) reason = "";
  for (std::size_t i = 0; i + 1 < leave_reason_.size() && reason[i] != 0; ++i) {
    leave_reason_[i] = reason[i];
  }
  leave_grace_ = grace;
  leave_ = true;
}

void OutsideCalls::Stop(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!stop_reason_) stop_reason_ = CutText(reason);
}

void OutsideCalls::TellLoss(double loss) {
  const std::lock_guard lock(mutex_);
  losses_.Add({.count = 1, .mean = loss});
}

void OutsideCalls::Take(SessionCore* core, Instant now, Actions* out) {
  if (cancel_ && !std::exchange(cancelled_, true)) core->Cancel(now, out);
  if (leave_ && !std::exchange(left_, true)) {
    core->LeaveSoon(now, leave_reason_.data(), leave_grace_.count(), out);
  }
  std::optional<std::string> stop;
  {
    const std::lock_guard lock(mutex_);
    stop.swap(stop_reason_);
    core->report().NoteLosses(std::exchange(losses_, {}));
  }
  if (stop) core->Stop(now, *std::move(stop), out);
}

}  // namespace prd
