// SessionFlow: how long calls wait, and what they say about it.
#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {
namespace {

// The controller answers heartbeats; without any word for kSilence (or three heartbeats) it is what
// is waited for.
constexpr DurationNs kSilence = 4 * kSecond;
constexpr std::size_t kNamedInLine = 16;

std::string Ms(DurationNs ns) { return std::to_string(ns / kMillisecond) + " ms"; }
std::string Seconds(DurationNs ns) { return std::to_string(ns / kSecond) + " s"; }

}  // namespace

std::optional<Instant> SessionFlow::TimeoutEnds() const {
  const bool works = !work_.idle() || beside_.runs() || average_.running();
  if (!call_.waits() || works) return std::nullopt;
  return call_.TimeoutEnds(is_member() && !standing_.has_replica, link_.heard(), link_.answered());
}

std::optional<Instant> SessionFlow::GraceEnds() const {
  const bool here = link_.talks();
  return here && !call_.is(Call::kLeave) ? departure_.by() : std::nullopt;
}

// ---- what a call waits for ----

std::string SessionFlow::WaitsFor() const {
  const auto group = [this](const Group& running) {
    std::string text = GroupName(running.id) + " is reduced, with rank";
    std::size_t named = 0;
    for (const GroupMember& member : running.members) {
      if (member.incarnation == incarnation()) continue;
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
  const DurationNs silence = now_ - link_.answered();
  if (silence >= std::max(kSilence, 3 * kMillisecond * welcome().heartbeat_ms)) {
    return "the controller at " + options_.controller + " has not answered for " + Seconds(silence);
  }
  if (link_.says_hello()) {
    return link_.refusal().empty() ? "the controller has not admitted this worker yet"
                                   : "not admitted yet: " + link_.refusal();
  }
  if (!link_.waits_for().empty()) return link_.waits_for();
  if (!standing_.has_replica) return "the job has not begun for this worker";
  if (beside_.runs()) return group(beside_.group());
  if (aim() == Aim::kFinish && standing_.ends_run && standing_.said_finish) {
    return "other workers have not ended their steps; then the job goes on in another run";
  }
  if (standing_.said_leave) {
    return "the controller has not let this worker go, which leaves the job";
  }
  if (call_.is(Call::kFinish) && standing_.said_finish) return "other workers have not finished";
  return "the engine " + welcome().engine +
         " has not let this worker go on; prdctl explain says for whom it waits";
}

std::optional<Instant> SessionFlow::LineAt() const {
  return call_.waits() && !work_.applies() ? std::optional(call_.line_at()) : std::nullopt;
}

void SessionFlow::SayLine(Actions* out) {
  const DurationNs waited = now_ - call_.at();
  const bool leaves = departure_.soon() && call_.is(Call::kPause);
  out->push_back(LogLine{(leaves ? "LeaveSoon" : std::string(call_.name())) + " has waited for " +
                         Seconds(waited) + ": " + WaitsFor()});
  call_.OnLine(now_);
}

void SessionFlow::TimedOut(Actions* out) {
  const bool starts = is_member() && !standing_.has_replica;
  std::string text = "the controller at " + options_.controller + " has not answered for " +
                     Ms(call_.timeout()) + ": does prd run there, and is PRD_CONTROLLER right?";
  if (!link_.refusal().empty()) {
    text = "not admitted for " + Ms(call_.timeout()) + ": " + link_.refusal();
  }
  if (starts && call_.StartIsLate(now_, link_.heard())) {
    text = "the job has not begun for this worker within " + Ms(call_.start_timeout()) +
           (link_.waits_for().empty() ? std::string() : ": " + link_.waits_for());
  }
  if (call_.is(Call::kAttach)) link_.Detach();
  FailCall(Status(Code::kUnavailable, text), out);
}

}  // namespace prd
