// How a user ends a session early, or the job: SessionCore::LeaveSoon and Stop. Pure; a part of
// SessionCore.
#ifndef PRD_WORKER_CORE_DEPARTURE_H_
#define PRD_WORKER_CORE_DEPARTURE_H_

#include <optional>
#include <string>
#include <utility>

#include "common/base/time.h"
#include "prd/status.h"

namespace prd {

class Departure {
 public:
  // The session leaves at the next boundary, and `by` then at the latest. The first one counts;
  // false for others.
  bool LeaveSoon(std::string reason, std::optional<Instant> by) {
    if (soon_) return false;
    soon_ = true;
    reason_ = std::move(reason);
    by_ = by;
    return true;
  }
  bool soon() const { return soon_; }
  const std::string& reason() const { return reason_; }
  std::optional<Instant> by() const { return by_; }
  void OnGraceOver() { reason_ += ", whose grace is over"; }
  // What a call ends with once the session has left. REQUIRES: soon().
  Status Left() const { return {Code::kAborted, "left: " + reason_}; }

  // The job is done, for this reason. The first one counts; false for others.
  bool Stop(std::string reason) {
    if (stop_) return false;
    stop_ = std::move(reason);
    return true;
  }
  void ForgetStop() { stop_.reset(); }
  const std::optional<std::string>& stop() const { return stop_; }

 private:
  bool soon_ = false;
  std::string reason_;
  std::optional<Instant> by_;
  std::optional<std::string> stop_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_DEPARTURE_H_
