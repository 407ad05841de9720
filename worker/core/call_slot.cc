#include "worker/core/call_slot.h"

#include <algorithm>

#include "common/base/check.h"

namespace prd {
namespace {

constexpr DurationNs kLeaveWait = kSecond;
constexpr DurationNs kFirstLine = 5 * kSecond;
constexpr DurationNs kSecondLine = 15 * kSecond;
constexpr DurationNs kMinute = 60 * kSecond;

}  // namespace

const char* NameOf(Call call) {
  switch (call) {
    case Call::kAttach:
      return "Attach";
    case Call::kStep:
    case Call::kSwitch:
      return "Step";
    case Call::kFinish:
      return "Finish";
    case Call::kPause:
      return "Pause";
    case Call::kResume:
      return "Resume";
    case Call::kAverage:
      return "Average";
    case Call::kMean:
      return "Mean";
    case Call::kLeave:
      return "Leave";
    case Call::kNone:
      break;
  }
  return "no call";
}

void CallSlot::SetTimeouts(DurationNs timeout, DurationNs start) {
  timeout_ = timeout;
  start_ = start;
}

void CallSlot::Begin(Instant now, Call call) {
  PRD_CHECK(!in_progress());
  call_ = call;
  at_ = now;
  line_at_ = now + kFirstLine;
  const auto said = said_line_.find(call);
  if (said != said_line_.end()) line_at_ = std::max(line_at_, said->second + kMinute);
}

void CallSlot::BeginLeave(Instant now) {
  call_ = Call::kLeave;
  at_ = now;
}

std::optional<Instant> CallSlot::LeaveEnds() const {
  return is(Call::kLeave) ? std::optional(at_ + kLeaveWait) : std::nullopt;
}

std::optional<Instant> CallSlot::TimeoutEnds(bool starts, Instant heard, Instant answered) const {
  std::optional<Instant> ends;
  if (timeout_ != 0) ends = std::max(at_, starts && start_ != 0 ? answered : heard) + timeout_;
  if (starts && start_ != 0) {
    const Instant start = std::max(at_, heard) + start_;
    if (!ends || start < *ends) ends = start;
  }
  return ends;
}

bool CallSlot::StartIsLate(Instant now, Instant heard) const {
  return now >= std::max(at_, heard) + start_timeout();
}

void CallSlot::OnLine(Instant now) {
  said_line_[call_] = now;
  const DurationNs waited = now - at_;
  line_at_ = at_ + (waited < kSecondLine ? kSecondLine : (waited / kMinute + 1) * kMinute);
}

}  // namespace prd
