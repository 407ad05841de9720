// SessionFlow: what comes from the controller, and from peers outside of groups.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "worker/core/session_core_limits.h"
#include "worker/core/session_flow.h"

namespace prd {

// ---- from the controller ----

void SessionFlow::OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out) {
  now_ = now;
  Receive(envelope, out);
  LeaveIfIdle(out);
  UpdateInterrupt(out);
}

void SessionFlow::Receive(const ControllerEnvelope& envelope, Actions* out) {
  if (!link_.IsForMe(now_, envelope)) return;
  if (const auto* refused = std::get_if<Refused>(&envelope.body)) {
    return OnRefused(*refused, out);
  }
  if (link_.says_hello()) {
    const Welcome* welcome = link_.OnHelloAnswered(envelope);
    if (welcome == nullptr) return;
    report_.BeginRun();
    report_.OnProgress(envelope.progress);
    return OnWelcome(*welcome, out);
  }
  if (!link_.IsOfThisRun(now_, envelope.identity, out)) return;
  report_.OnProgress(envelope.progress);
  if (standing_.has_replica) link_.NoteHeard(now_);
  const ControllerLink::Acked acked = link_.OnAck(now_, envelope.ack);
  if (acked == ControllerLink::Acked::kWrong) {
    return OnRefused({.code = Code::kAborted,
                      .reason = "the controller acknowledges what this worker has not sent"},
                     out);
  }
  if (acked == ControllerLink::Acked::kMore) protocol_->OnAcked(out);
  if (const auto* ack = std::get_if<HeartbeatAck>(&envelope.body)) link_.OnHeartbeatAck(now_, *ack);
  if (!link_.Receive(now_, envelope.seq)) return;
  HearAnnounced(envelope.body, out);
  if (const auto* group = std::get_if<Group>(&envelope.body)) return OnGroup(*group, out);
  if (const auto* abort = std::get_if<Abort>(&envelope.body)) return OnAbort(*abort, out);
  if (const auto* released = std::get_if<Released>(&envelope.body)) {
    return OnReleased(*released, out);
  }
  if (const auto* adopt = std::get_if<Adopt>(&envelope.body)) return OnAdopt(*adopt, out);
  if (const auto* probe = std::get_if<Probe>(&envelope.body)) {
    probes_ = !probe->targets.empty();
    out->push_back(ProbePeers{probe->targets});
    return;
  }
  if (std::holds_alternative<Announce>(envelope.body)) return;
  if (const auto* gone = std::get_if<Gone>(&envelope.body)) {
    out->push_back(ForgetMembers{gone->incarnations});
    return;
  }
  if (std::holds_alternative<EndRun>(envelope.body)) return OnEndRun(out);
  if (std::holds_alternative<Resumed>(envelope.body)) return OnResumed(out);
  if (const auto* mean = std::get_if<NumbersMean>(&envelope.body)) {
    mean_.OnAnswer(*mean);
    return ContinueMean(out);
  }
  if (const auto* members = std::get_if<Members>(&envelope.body)) return OnMembers(*members, out);
  protocol_->OnMessage(envelope.body, out);
}

// Whoever a message of the controller names may turn to this worker from now on, and is told of
// this worker as well.
void SessionFlow::HearAnnounced(const ControllerBody& body, Actions* out) {
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

void SessionFlow::OnAdopt(const Adopt& adopt, Actions* out) {
  if (adopt.result != kNoGroup) return protocol_->OnAdoptResult(adopt, out);
  ExpectReplica(out);
  work_.Hold(adopt);
  BeginHeld(out);
}

// The controller gives this worker a replica, so it has dropped the worker's signal.
void SessionFlow::ExpectReplica(Actions* out) {
  FailHeld("its replica is to be replaced", out);
  protocol_->OnCopyOrdered();
  step_.ready_waiting = false;
}

// The step in progress is better cut short: its replica is about to be replaced, or others wait.
void SessionFlow::UpdateInterrupt(Actions* out) {
  const bool copies = work_.holds_copy() && CopyVoidsStep(plan());
  const bool computes = (call_.is(Call::kNone) || call_.is(Call::kAverage)) && !standing_.paused;
  const bool on = computes && is_member() && (copies || protocol_->IsAwaited());
  if (std::exchange(interrupt_, on) != on) out->push_back(Interrupt{on});
}

void SessionFlow::OnWelcome(const Welcome& welcome, Actions* out) {
  if (welcome.run == kNoRun || welcome.rank < 0) {
    return Over(Status(Code::kDataLoss, "the controller's Welcome has no run or rank"), out);
  }
  if (const std::string why = Unsupported(welcome.plan); !why.empty()) {
    return Over(Status(Code::kDataLoss,
                       "the controller's Welcome has a plan that no worker can "
                       "carry out: " +
                           why),
                out);
  }
  const Welcome& before = link_.welcome();
  if (!before.engine.empty() && welcome.engine != before.engine) {
    out->push_back(LogLine{"the job goes on with engine " + welcome.engine + ", in run " +
                           std::to_string(welcome.run)});
  }
  if (!(welcome.plan == before.plan)) protocol_ = MakeStepProtocol(welcome.plan, *this);
  link_.Admit(now_, welcome);
  report_.OnWelcome(welcome.own);
  out->push_back(JoinRun{welcome});
  link_.SendHeartbeat(now_, out);
  SayStop(out);
}

std::string SessionFlow::CheckGroup(const Group& group) {
  if (group.id <= standing_.last_group) return "its id is not above that of the one before";
  if (group.members.empty() || group.members.size() > options_.max_members) {
    return "it has " + std::to_string(group.members.size()) + " members";
  }
  const auto share = [](double weight) { return std::isfinite(weight) && weight >= 0; };
  std::set<Incarnation> members;
  for (const GroupMember& member : group.members) {
    if (!share(member.weight)) return "a weight is not a number from 0 on";
    members.insert(member.incarnation);
  }
  if (members.size() != group.members.size()) return "a member is in it twice";
  if (!members.contains(link_.incarnation())) return "this worker is not in it";
  if (!share(group.initial_weight) || group.iteration < 0 || group.iteration > kMaxIteration) {
    return "the initial model's weight or the iteration is out of range";
  }
  const bool rounds = group.kind == GroupKind::kRound || group.kind == GroupKind::kAverage;
  const bool trains = group.kind == GroupKind::kTrain;
  const bool in_rounds = TrainsInRounds(plan());
  if ((rounds != in_rounds && (rounds || trains)) || (trains && !TrainsInGroups(plan()))) {
    return "its kind does not belong to the job's plan";
  }
  return protocol_->Check(group);
}

void SessionFlow::OnGroup(const Group& group, Actions* out) {
  if (call_.is(Call::kLeave)) {
    Push(Finished{.group = group.id, .outcome = Outcome::kFailed, .detail = "its session leaves"},
         out);
    return;
  }
  const std::string wrong = CheckGroup(group);
  if (!wrong.empty()) {
    return Over(Status(Code::kDataLoss, "the controller announced group " +
                                            std::to_string(group.id) + ", but " + wrong),
                out);
  }
  standing_.last_group = group.id;
  standing_.final_announced = group.kind == GroupKind::kFinal;
  if (protocol_->OnGroup(group, out)) return;
  if (group.kind == GroupKind::kInitial) ExpectReplica(out);
  if (group.kind == GroupKind::kTrain) step_.ready_waiting = false;
  if (group.kind == GroupKind::kTrain || group.kind == GroupKind::kAverage) {
    const bool busy = group.kind == GroupKind::kAverage && !work_.idle();
    const bool back = call_.is(Call::kResume) || call_.is(Call::kMean);
    if (!call_.lends() || back || call_.cancelled() || busy) {
      Push(Finished{.group = group.id,
                    .outcome = Outcome::kFailed,
                    .detail = "its training loop is not in a step any more"},
           out);
      return;
    }
  }
  Group held = group;
  // Nobody has told the controller how many steps were made under a schedule.
  if (standing_.final_announced && DrawnAhead(plan())) {
    held.iteration = std::max(held.iteration, step_.iteration);
  }
  work_.Hold(std::move(held));
  BeginHeld(out);
}

void SessionFlow::OnAbort(const Abort& abort, Actions* out) {
  const Group* held = work_.held_group();
  if (held != nullptr && held->id == abort.group) {
    work_.DropHeld();
    Push(Finished{.group = abort.group, .outcome = Outcome::kAborted, .detail = abort.reason}, out);
    return;
  }
  if (AbortBeside(abort, out)) return;
  if (!work_.reduces(abort.group)) return;  // through with it already
  if (work_.handed_over()) return work_.GiveUp(abort.reason, out);
  work_.Cancel(out);
  step_.outcome.reduced += now_ - work_.at();
  if (work_.group().kind == GroupKind::kTrain) {
    return protocol_->OnTrained(Outcome::kAborted, abort.reason, out);
  }
  Report(Outcome::kAborted, abort.reason, out);
}

void SessionFlow::OnReleased(const Released& released, Actions* out) {
  const Status status = standing_.said_leave
                            ? departure_.Left()
                            : Status(Code::kAborted, "released: " + released.reason);
  Over(standing_.final_done ? Status::Ok() : status, out);
}

void SessionFlow::OnRefused(const Refused& refused, Actions* out) {
  const bool again = refused.code == Code::kUnavailable;
  link_.OnRefused(now_, refused, again);
  if (again) return;
  if (refused.code != Code::kAborted) {
    // A worker that was in a run before is told that the job is over.
    const bool joining = call_.is(Call::kAttach) && !link_.was_in_run();
    return Over(joining ? Status(refused.code, refused.reason)
                        : Status(Code::kAborted, "refused: " + refused.reason),
                out);
  }
  // This incarnation is over. If it had nothing to do but to hear so, that is all.
  if (call_.is(Call::kLeave) || standing_.final_done) {
    return Over(
        standing_.final_done ? Status::Ok() : Status(Code::kAborted, "the session has left"), out);
  }
  if (departure_.soon() && !call_.is(Call::kSwitch)) return Over(departure_.Left(), out);
  DropWork(out);
  SayHello(out);
  if (call_.is(Call::kAverage)) {
    FailCall(Status(Code::kUnavailable, "the job has lost this worker: " + refused.reason), out);
  }
}

// ---- from peers ----

void SessionFlow::OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out) {
  now_ = now;
  if (!is_member()) return;
  protocol_->OnNote(from, note, out);
  protocol_->Continue(out);
}

void SessionFlow::OnRequest(Instant now, Incarnation from, Request request, const PeerItem& parcel,
                            Actions* out) {
  now_ = now;
  if (is_member()) {
    protocol_->OnRequest(from, request, parcel, out);
  } else {
    out->push_back(Refuse{request});
  }
  protocol_->Continue(out);
}

void SessionFlow::OnOutOfReach(Instant now, Rank rank, Actions* out) {
  now_ = now;
  if (!trains()) return;
  if (auto report = unreachable_.Report(now, {rank})) Push(std::move(*report), out);
}

void SessionFlow::OnProbed(Instant now, Rank rank, Incarnation incarnation, Actions* out) {
  now_ = now;
  if (is_member()) Push(Probed{.rank = rank, .incarnation = incarnation}, out);
}

void SessionFlow::OnPulled(Instant now, Ticket ticket, const Status& status,
                           const ShardHeader& enclosure, Actions* out) {
  now_ = now;
  if (!is_member()) return;
  protocol_->OnPulled(ticket, status, enclosure, out);
  protocol_->Continue(out);
}

}  // namespace prd
