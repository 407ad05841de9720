#include "worker/core/call_waiting.h"

#include <algorithm>

namespace prd {
namespace {

// The controller answers heartbeats; without any word for kSilence (or three heartbeats) it is what
// is waited for.
constexpr DurationNs kSilence = 4 * kSecond;
constexpr std::size_t kNamedInLine = 16;

std::string Ms(DurationNs ns) { return std::to_string(ns / kMillisecond) + " ms"; }
std::string Seconds(DurationNs ns) { return std::to_string(ns / kSecond) + " s"; }

std::string WaitsFor(const SessionParts& p) {
  const auto group = [&p](const Group& running) {
    std::string text = GroupName(running.id) + " is reduced, with rank";
    std::size_t named = 0;
    for (const GroupMember& member : running.members) {
      if (member.incarnation == p.link.incarnation()) continue;
      if (++named > kNamedInLine) return text + " and others";
      text += (named == 1 ? " " : ", ") + std::to_string(member.rank);
    }
    return text;
  };
  if (p.work.reduces()) return group(p.work.group());
  if (p.work.fetches()) {
    return "the model of rank " + std::to_string(p.work.source()) + " is copied";
  }
  if (p.average.running()) {
    return "the model of rank " + std::to_string(p.average.source()) + " is copied";
  }
  const DurationNs silence = p.now - p.link.answered();
  if (silence >= std::max(kSilence, 3 * kMillisecond * p.link.welcome().heartbeat_ms)) {
    return "the controller at " + p.options.controller + " has not answered for " +
           Seconds(silence);
  }
  if (p.link.says_hello()) {
    return p.link.refusal().empty() ? "the controller has not admitted this worker yet"
                                    : "not admitted yet: " + p.link.refusal();
  }
  if (!p.link.waits_for().empty()) return p.link.waits_for();
  if (!p.standing.has_replica) return "the job has not begun for this worker";
  if (p.beside.runs()) return group(p.beside.group());
  if (p.aim() == Aim::kFinish && p.standing.ends_run && p.standing.said_finish) {
    return "other workers have not ended their steps; then the job goes on in another run";
  }
  if (p.standing.said_leave) {
    return "the controller has not let this worker go, which leaves the job";
  }
  if (p.call.is(Call::kFinish) && p.standing.said_finish) return "other workers have not finished";
  return "the engine " + p.link.welcome().engine +
         " has not let this worker go on; prdctl explain says for whom it waits";
}

}  // namespace

std::optional<Instant> TimeoutEnds(const SessionParts& p) {
  const bool works = !p.work.idle() || p.beside.runs() || p.average.running();
  if (!p.call.waits() || works) return std::nullopt;
  return p.call.TimeoutEnds(p.link.is_member() && !p.standing.has_replica, p.link.heard(),
                            p.link.answered());
}

std::optional<Instant> GraceEnds(const SessionParts& p) {
  if (!p.link.talks() || p.call.is(Call::kLeave)) return std::nullopt;
  return p.departure.by();
}

std::optional<Instant> LineAt(const SessionParts& p) {
  if (!p.call.waits() || p.work.applies()) return std::nullopt;
  return p.call.line_at();
}

LogLine WaitingLine(const SessionParts& p) {
  const bool leaves = p.departure.soon() && p.call.is(Call::kPause);
  return {(leaves ? "LeaveSoon" : std::string(p.call.name())) + " has waited for " +
          Seconds(p.now - p.call.at()) + ": " + WaitsFor(p)};
}

std::string TimeoutText(const SessionParts& p) {
  const bool starts = p.link.is_member() && !p.standing.has_replica;
  if (starts && p.call.StartIsLate(p.now, p.link.heard())) {
    return "the job has not begun for this worker within " + Ms(p.call.start_timeout()) +
           (p.link.waits_for().empty() ? std::string() : ": " + p.link.waits_for());
  }
  if (!p.link.refusal().empty()) {
    return "not admitted for " + Ms(p.call.timeout()) + ": " + p.link.refusal();
  }
  return "the controller at " + p.options.controller + " has not answered for " +
         Ms(p.call.timeout()) + ": does prd run there, and is PRD_CONTROLLER right?";
}

}  // namespace prd
