#include "worker/core/controller_inbox.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "worker/core/session_core_limits.h"

namespace prd {
namespace {

// Announces the members that a message of the controller names. They are told of this worker as
// well, and may turn to it from now on.
void HearAnnounced(const ControllerBody& body, Actions* out) {
  const auto* announce = std::get_if<Announce>(&body);
  const bool copies = announce != nullptr && announce->copies;
  const auto hear = [out, copies](const SharedList<GroupMember>& members) {
    if (!members.empty()) out->push_back(AnnouncedMembers{members, copies});
  };
  std::visit(
      [&hear](const auto& message) {
        if constexpr (requires { hear(message.members); }) hear(message.members);
        if constexpr (requires { hear(message.targets); }) hear(message.targets);
        if constexpr (requires { hear(message.in); }) hear(message.in);
        if constexpr (requires { hear(message.out); }) hear(message.out);
        if constexpr (requires { message.source.incarnation; }) {
          SharedList<GroupMember> source;
          source.push_back(message.source);
          hear(source);
        }
      },
      body);
}

}  // namespace

void ControllerInbox::Receive(const ControllerEnvelope& envelope, Actions* out) {
  if (!p_.link.IsForMe(p_.now, envelope)) return;
  if (const auto* refused = std::get_if<Refused>(&envelope.body)) {
    return OnRefused(*refused, out);
  }
  if (p_.link.says_hello()) {
    const Welcome* welcome = p_.link.OnHelloAnswered(envelope);
    if (welcome == nullptr) return;
    p_.report.BeginRun();
    p_.report.OnProgress(envelope.progress);
    return OnWelcome(*welcome, out);
  }
  if (!p_.link.IsOfThisRun(p_.now, envelope.identity, out)) return;
  p_.report.OnProgress(envelope.progress);
  if (p_.standing.has_replica) p_.link.NoteHeard(p_.now);
  const ControllerLink::Acked acked = p_.link.OnAck(p_.now, envelope.ack);
  if (acked == ControllerLink::Acked::kWrong) {
    return OnRefused({.code = Code::kAborted,
                      .reason = "the controller acknowledges what this worker has not sent"},
                     out);
  }
  if (acked == ControllerLink::Acked::kMore) flow_.protocol().OnAcked(out);
  if (const auto* ack = std::get_if<HeartbeatAck>(&envelope.body)) {
    p_.link.OnHeartbeatAck(p_.now, *ack);
  }
  if (!p_.link.Receive(p_.now, envelope.seq)) return;
  HearAnnounced(envelope.body, out);
  if (const auto* group = std::get_if<Group>(&envelope.body)) return OnGroup(*group, out);
  if (const auto* abort = std::get_if<Abort>(&envelope.body)) return OnAbort(*abort, out);
  if (const auto* released = std::get_if<Released>(&envelope.body)) {
    return OnReleased(*released, out);
  }
  if (const auto* adopt = std::get_if<Adopt>(&envelope.body)) return OnAdopt(*adopt, out);
  if (const auto* probe = std::get_if<Probe>(&envelope.body)) {
    return p_.unreachable.Probe(probe->targets, out);
  }
  if (std::holds_alternative<Announce>(envelope.body)) return;
  if (const auto* gone = std::get_if<Gone>(&envelope.body)) {
    out->push_back(ForgetMembers{gone->incarnations});
    return;
  }
  if (std::holds_alternative<EndRun>(envelope.body)) return OnEndRun(out);
  if (std::holds_alternative<Resumed>(envelope.body)) return OnResumed(out);
  if (const auto* share = std::get_if<SetShare>(&envelope.body)) {
    if (share->samples > 0) flow_.OnShare(*share, out);
    return;
  }
  if (const auto* mean = std::get_if<NumbersMean>(&envelope.body)) {
    p_.mean.OnAnswer(*mean);
    return flow_.ContinueMean(out);
  }
  if (const auto* members = std::get_if<Members>(&envelope.body)) return OnMembers(*members, out);
  flow_.protocol().OnMessage(envelope.body, out);
}

void ControllerInbox::OnWelcome(const Welcome& welcome, Actions* out) {
  if (welcome.run == kNoRun || welcome.rank < 0) {
    return flow_.Over(Status(Code::kDataLoss, "the controller's Welcome has no run or rank"), out);
  }
  if (const std::string why = Unsupported(welcome.plan); !why.empty()) {
    return flow_.Over(Status(Code::kDataLoss,
                             "the controller's Welcome has a plan that no worker can "
                             "carry out: " +
                                 why),
                      out);
  }
  const Welcome& before = p_.link.welcome();
  if (!before.engine.empty() && welcome.engine != before.engine) {
    out->push_back(LogLine{"the job goes on with engine " + welcome.engine + ", in run " +
                           std::to_string(welcome.run)});
  }
  if (!(welcome.plan == before.plan)) flow_.SetPlan(welcome.plan);
  p_.link.Admit(p_.now, welcome);
  p_.report.OnWelcome(welcome.own);
  p_.shares.OnWelcome(welcome);
  out->push_back(JoinRun{welcome});
  p_.link.SendHeartbeat(p_.now, out);
  flow_.SayStop(out);
}

void ControllerInbox::OnRefused(const Refused& refused, Actions* out) {
  const bool again = refused.code == Code::kUnavailable;
  p_.link.OnRefused(p_.now, refused, again);
  if (again) return;
  if (refused.code != Code::kAborted) {
    // A worker that was in a run before is told that the job is over.
    const bool joining = p_.call.is(Call::kAttach) && !p_.link.was_in_run();
    return flow_.Over(joining ? Status(refused.code, refused.reason)
                              : Status(Code::kAborted, "refused: " + refused.reason),
                      out);
  }
  // This incarnation is over. A worker that only waited to hear so is done.
  if (p_.call.is(Call::kLeave) || p_.standing.final_done) {
    return flow_.Over(
        p_.standing.final_done ? Status::Ok() : Status(Code::kAborted, "the session has left"),
        out);
  }
  if (p_.departure.soon() && !p_.call.is(Call::kSwitch)) {
    return flow_.Over(p_.departure.Left(), out);
  }
  flow_.DropWork(out);
  flow_.SayHello(out);
  if (p_.call.is(Call::kAverage)) {
    flow_.FailCall(Status(Code::kUnavailable, "the job has lost this worker: " + refused.reason),
                   out);
  }
}

std::string ControllerInbox::CheckGroup(const Group& group) const {
  if (group.id <= p_.standing.last_group) return "its id is not above that of the one before";
  if (group.members.empty() || group.members.size() > p_.options.max_members) {
    return "it has " + std::to_string(group.members.size()) + " members";
  }
  const auto share = [](double weight) { return std::isfinite(weight) && weight >= 0; };
  std::set<Incarnation> members;
  for (const GroupMember& member : group.members) {
    if (!share(member.weight)) return "a weight is not a number from 0 on";
    members.insert(member.incarnation);
  }
  if (members.size() != group.members.size()) return "a member is in it twice";
  if (!members.contains(p_.link.incarnation())) return "this worker is not in it";
  if (!share(group.initial_weight) || group.iteration < 0 || group.iteration > kMaxIteration) {
    return "the initial model's weight or the iteration is out of range";
  }
  const bool rounds = group.kind == GroupKind::kRound || group.kind == GroupKind::kAverage;
  const bool trains = group.kind == GroupKind::kTrain;
  const bool in_rounds = TrainsInRounds(flow_.plan());
  if ((rounds != in_rounds && (rounds || trains)) || (trains && !TrainsInGroups(flow_.plan()))) {
    return "its kind does not belong to the job's plan";
  }
  return flow_.protocol().Check(group);
}

void ControllerInbox::OnGroup(const Group& group, Actions* out) {
  if (p_.call.is(Call::kLeave)) {
    flow_.Push(
        Finished{.group = group.id, .outcome = Outcome::kFailed, .detail = "its session leaves"},
        out);
    return;
  }
  const std::string wrong = CheckGroup(group);
  if (!wrong.empty()) {
    return flow_.Over(Status(Code::kDataLoss, "the controller announced group " +
                                                  std::to_string(group.id) + ", but " + wrong),
                      out);
  }
  p_.standing.last_group = group.id;
  p_.standing.final_announced = group.kind == GroupKind::kFinal;
  if (flow_.protocol().OnGroup(group, out)) return;
  if (group.kind == GroupKind::kInitial) flow_.ExpectReplica(out);
  if (group.kind == GroupKind::kTrain) p_.step.ready_waiting = false;
  if (group.kind == GroupKind::kTrain || group.kind == GroupKind::kAverage) {
    const bool busy = group.kind == GroupKind::kAverage && !p_.work.idle();
    const bool joins = p_.aim() == Aim::kNone || p_.aim() == Aim::kJoin;  // in Resume, or Mean
    const bool back = (p_.call.is(Call::kResume) || p_.call.is(Call::kMean)) && joins;
    if (!p_.call.lends() || back || p_.call.cancelled() || busy) {
      flow_.Push(Finished{.group = group.id,
                          .outcome = Outcome::kFailed,
                          .detail = "its training loop is not in a step any more"},
                 out);
      return;
    }
  }
  Group held = group;
  // The controller does not know how many steps were made under a schedule.
  if (p_.standing.final_announced && DrawnAhead(flow_.plan())) {
    held.iteration = std::max(held.iteration, p_.step.iteration);
  }
  p_.work.Hold(std::move(held));
  flow_.BeginHeld(out);
}

void ControllerInbox::OnAbort(const Abort& abort, Actions* out) {
  const Group* held = p_.work.held_group();
  if (held != nullptr && held->id == abort.group) {
    p_.work.DropHeld();
    flow_.Push(Finished{.group = abort.group, .outcome = Outcome::kAborted, .detail = abort.reason},
               out);
    return;
  }
  if (AbortBeside(abort, out)) return;
  if (!p_.work.reduces(abort.group)) return;  // through with it already
  if (p_.work.handed_over()) return p_.work.GiveUp(abort.reason, out);
  p_.work.Cancel(out);
  p_.step.outcome.reduced += p_.now - p_.work.at();
  if (p_.work.group().kind == GroupKind::kTrain) {
    return flow_.protocol().OnTrained(Outcome::kAborted, abort.reason, out);
  }
  flow_.Report(Outcome::kAborted, abort.reason, out);
}

// False if the abort does not concern the group beside the call.
bool ControllerInbox::AbortBeside(const Abort& abort, Actions* out) {
  if (!p_.beside.is(abort.group)) return false;
  if (p_.beside.reduces()) {
    out->push_back(CancelReduce{});
    flow_.EndBeside(Outcome::kAborted, abort.reason, out);
  }
  if (!abort.undone && TrainsInRounds(flow_.plan())) return true;
  if (p_.beside.fetches()) {
    out->push_back(CancelFetch{});
    flow_.RefuseCopy(abort.reason, out);
  }
  p_.beside.Forget();  // what was given is still in the outbox
  flow_.BeginHeld(out);
  flow_.protocol().Continue(out);
  return true;
}

void ControllerInbox::OnAdopt(const Adopt& adopt, Actions* out) {
  if (adopt.result != kNoGroup) return flow_.protocol().OnAdoptResult(adopt, out);
  // Ordered before the controller had heard of the pause; the others do not wait for its end.
  if (p_.standing.paused && !p_.standing.said_resume && !p_.call.lends()) {
    return flow_.RefuseCopy("its training loop pauses", out);
  }
  flow_.ExpectReplica(out);
  p_.work.Hold(adopt);
  flow_.BeginHeld(out);
}

void ControllerInbox::OnReleased(const Released& released, Actions* out) {
  const Status status = p_.standing.said_leave
                            ? p_.departure.Left()
                            : Status(Code::kAborted, "released: " + released.reason);
  flow_.Over(p_.standing.final_done ? Status::Ok() : status, out);
}

void ControllerInbox::OnResumed(Actions* out) {
  if (!std::exchange(p_.standing.said_resume, false)) return;
  p_.standing.paused = false;
  const bool resumes = p_.call.is(Call::kResume) || p_.call.is(Call::kMean);
  if (resumes && p_.standing.has_replica && !flow_.protocol().OnResumed(out)) return;
  flow_.EndResume(out);
}

// The run ends with the step in progress; at once, if that step has ended in the run before.
void ControllerInbox::OnEndRun(Actions* out) {
  p_.standing.ends_run = true;
  if (p_.call.is(Call::kSwitch)) flow_.End(out);
}

void ControllerInbox::OnMembers(const Members& members, Actions* out) {
  if (!p_.call.is(Call::kAverage) || p_.average.running()) return;
  p_.average.Begin(members.members, p_.link.incarnation());
  flow_.ContinueAverage(out);
}

}  // namespace prd
