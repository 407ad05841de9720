// SessionFlow: how long calls wait, and what they say about it.
#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {
namespace {

// When a call that waits says for whom: after these, and then every minute. The controller answers
// heartbeats; without any word for kSilence (or three heartbeats) it is what is waited for.
constexpr DurationNs kFirstLine = 5 * kSecond;
constexpr DurationNs kSecondLine = 15 * kSecond;
constexpr DurationNs kMinute = 60 * kSecond;
constexpr DurationNs kSilence = 4 * kSecond;
constexpr std::size_t kNamedInLine = 16;

std::string Ms(DurationNs ns) { return std::to_string(ns / kMillisecond) + " ms"; }
std::string Seconds(DurationNs ns) { return std::to_string(ns / kSecond) + " s"; }

const char* NameOf(SessionFlow::Call call) {
  switch (call) {
    case SessionFlow::Call::kAttach:
      return "Attach";
    case SessionFlow::Call::kStep:
    case SessionFlow::Call::kSwitch:
      return "Step";
    case SessionFlow::Call::kFinish:
      return "Finish";
    case SessionFlow::Call::kPause:
      return "Pause";
    case SessionFlow::Call::kResume:
      return "Resume";
    case SessionFlow::Call::kAverage:
      return "Average";
    case SessionFlow::Call::kMean:
      return "Mean";
    case SessionFlow::Call::kLeave:
      return "Leave";
    case SessionFlow::Call::kNone:
      break;
  }
  return "no call";
}

}  // namespace

std::optional<Instant> SessionFlow::TimeoutEnds() const {
  const bool calling = call_ != Call::kNone && call_ != Call::kLeave;
  if (!calling || !work_.idle() || beside_.runs() || average_.running()) return std::nullopt;
  const bool starts = is_member() && !has_replica_ && options_.start_timeout != 0;
  std::optional<Instant> ends;
  if (options_.timeout != 0) {
    ends = std::max(call_at_, starts ? answered_ : heard_) + options_.timeout;
  }
  if (starts) {
    const Instant start = std::max(call_at_, heard_) + options_.start_timeout;
    if (!ends || start < *ends) ends = start;
  }
  return ends;
}

std::optional<Instant> SessionFlow::GraceEnds() const {
  const bool here = contact_ == Contact::kHello || contact_ == Contact::kMember;
  return here && call_ != Call::kLeave ? departure_.by() : std::nullopt;
}

// ---- what a call waits for ----

std::string SessionFlow::WaitsFor() const {
  const auto group = [this](const Group& running) {
    std::string text = GroupName(running.id) + " is reduced, with rank";
    std::size_t named = 0;
    for (const GroupMember& member : running.members) {
      if (member.incarnation == incarnation_) continue;
      if (++named > kNamedInLine) return text + " and others";
      text += (named == 1 ? " " : ", ") + std::to_string(member.rank);
    }
    return text;
  };
  if (work_.reduces()) return group(work_.group());
  if (work_.fetches()) return "the model of rank " + std::to_string(work_.source()) + " is copied";
  if (average_.running()) {
    return "the model of rank " + std::to_string(average_.source()) + " is copied";
  }
  const DurationNs silence = now_ - answered_;
  if (silence >= std::max(kSilence, 3 * kMillisecond * welcome_.heartbeat_ms)) {
    return "the controller at " + options_.controller + " has not answered for " + Seconds(silence);
  }
  if (contact_ == Contact::kHello) {
    return last_refusal_.empty() ? "the controller has not admitted this worker yet"
                                 : "not admitted yet: " + last_refusal_;
  }
  if (!waits_for_.empty()) return waits_for_;
  if (!has_replica_) return "the job has not begun for this worker";
  if (beside_.runs()) return group(beside_.group());
  if (Finishes() && ends_run_ && said_finish_) {
    return "other workers have not ended their steps; then the job goes on in another run";
  }
  if (said_leave_) return "the controller has not let this worker go, which leaves the job";
  if (call_ == Call::kFinish && said_finish_) return "other workers have not finished";
  return "the engine " + welcome_.engine +
         " has not let this worker go on; prdctl explain says for whom it waits";
}

// A waiting call says so once a minute.
Instant SessionFlow::FirstLine() const {
  const Instant at = call_at_ + kFirstLine;
  const auto said = said_line_.find(call_);
  return said == said_line_.end() ? at : std::max(at, said->second + kMinute);
}

std::optional<Instant> SessionFlow::LineAt() const {
  const bool waits = call_ != Call::kNone && call_ != Call::kLeave && !work_.applies();
  return waits ? std::optional<Instant>(line_at_) : std::nullopt;
}

void SessionFlow::SayLine(Actions* out) {
  const DurationNs waited = now_ - call_at_;
  const bool leaves = departure_.soon() && call_ == Call::kPause;
  out->push_back(LogLine{(leaves ? "LeaveSoon" : std::string(NameOf(call_))) + " has waited for " +
                         Seconds(waited) + ": " + WaitsFor()});
  said_line_[call_] = now_;
  const DurationNs next = waited < kSecondLine ? kSecondLine : (waited / kMinute + 1) * kMinute;
  line_at_ = call_at_ + next;
}

void SessionFlow::TimedOut(Actions* out) {
  const bool starts = is_member() && !has_replica_;
  const DurationNs start = options_.start_timeout != 0 ? options_.start_timeout : options_.timeout;
  std::string text = "the controller at " + options_.controller + " has not answered for " +
                     Ms(options_.timeout) + ": does prd run there, and is PRD_CONTROLLER right?";
  if (!last_refusal_.empty()) {
    text = "not admitted for " + Ms(options_.timeout) + ": " + last_refusal_;
  }
  if (starts && now_ >= std::max(call_at_, heard_) + start) {
    text = "the job has not begun for this worker within " + Ms(start) +
           (waits_for_.empty() ? std::string() : ": " + waits_for_);
  }
  if (call_ == Call::kAttach) contact_ = Contact::kNone;
  FailCall(Status(Code::kUnavailable, text), out);
}

}  // namespace prd
