// SessionCore: what comes from the controller, and from peers outside of groups.
#include <cmath>
#include <set>
#include <utility>

#include "worker/core/session_core.h"
#include "worker/core/session_core_limits.h"

namespace prd {

// ---- from the controller ----

void SessionCore::OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out) {
  now_ = now;
  Receive(now, envelope, out);
  UpdateInterrupt(out);
}

void SessionCore::Receive(Instant now, const ControllerEnvelope& envelope, Actions* out) {
  if (contact_ == Contact::kNone || contact_ == Contact::kOver ||
      envelope.incarnation != incarnation_ || hello_due_) {
    return;
  }
  if (contact_ == Contact::kMember && (has_replica_ || !other_run_)) heard_ = now;
  if (const auto* refused = std::get_if<Refused>(&envelope.body)) {
    return OnRefused(now, *refused, out);
  }
  if (contact_ == Contact::kHello) {
    const auto* welcome = std::get_if<Welcome>(&envelope.body);
    if (welcome == nullptr || envelope.seq != 1) return;
    link_.OnReceive(envelope.seq);
    link_.OnAck(envelope.ack);
    return OnWelcome(now, *welcome, out);
  }
  const std::size_t unacked = link_.unacked().size();
  link_.OnAck(envelope.ack);
  if (link_.unacked().size() < unacked) {
    resend_after_ = kResendFirst;
    resend_at_ = now + resend_after_;
    if (AsksBeforeGroups(plan())) QueryDue(now, out);
  }
  if (std::holds_alternative<HeartbeatAck>(envelope.body)) OnHeartbeatAck(now);
  if (envelope.seq == 0) return;
  if (link_.OnReceive(envelope.seq) != LinkEnd<WorkerBody>::Verdict::kDeliver) {
    heartbeat_at_ = now;  // says what was received, and so what was not
    return;
  }
  if (const auto* group = std::get_if<Group>(&envelope.body)) OnGroup(now, *group, out);
  if (const auto* abort = std::get_if<Abort>(&envelope.body)) OnAbort(now, *abort, out);
  if (const auto* reply = std::get_if<QueryReply>(&envelope.body)) OnReply(now, *reply, out);
  if (const auto* hood = std::get_if<Neighbourhood>(&envelope.body)) {
    if (HasNeighbours(plan())) OnNeighbourhood(now, *hood, out);
  }
  if (const auto* placement = std::get_if<Placement>(&envelope.body)) {
    if (HasStore(plan())) OnPlacement(now, *placement, out);
  }
  if (const auto* opened = std::get_if<Opened>(&envelope.body)) {
    if (HasStore(plan())) OnOpened(now, *opened, out);
  }
  if (const auto* released = std::get_if<Released>(&envelope.body)) OnReleased(*released, out);
  if (const auto* adopt = std::get_if<Adopt>(&envelope.body)) OnAdopt(now, *adopt, out);
  if (const auto* set = std::get_if<Schedule>(&envelope.body)) OnSchedule(now, *set, out);
}

void SessionCore::OnReply(Instant now, const QueryReply& reply, Actions* out) {
  if (HasNeighbours(plan())) return OnEntered(now, reply, out);
  if (HasStore(plan())) return OnMayRead(now, reply, out);
  OnQueryReply(now, reply, out);
}

// Also acknowledges other messages, so that an answer may seem to come too early: smoothed, and
// not measured when it could be that to an earlier heartbeat.
void SessionCore::OnHeartbeatAck(Instant now) {
  if (std::exchange(heartbeats_out_, 0) != 1) return;
  const DurationNs rtt = now - heartbeat_sent_;
  rtt_ns_ = rtt_ns_ == 0 ? rtt : rtt_ns_ + (rtt - rtt_ns_) / 8;
}

void SessionCore::OnAdopt(Instant now, const Adopt& adopt, Actions* out) {
  if (adopt.result != kNoGroup) return OnAdoptResult(now, adopt, out);
  FailHeld("its replica is to be replaced", out);
  due_ = due_ || ready_waiting_;
  if (!FollowsSchedule(plan())) outstanding_ = 0;
  ready_waiting_ = false;
  held_ = adopt;
  BeginHeld(now, out);
}

// The step in progress is better cut short: its replica is about to be replaced, or others wait.
void SessionCore::UpdateInterrupt(Actions* out) {
  const bool adopts = held_ && std::holds_alternative<Adopt>(*held_) && CopyVoidsStep(plan());
  const bool on = call_ == Call::kNone && contact_ == Contact::kMember && (adopts || told_);
  if (std::exchange(interrupt_, on) != on) out->push_back(Interrupt{on});
}

void SessionCore::OnWelcome(Instant now, const Welcome& welcome, Actions* out) {
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
  contact_ = Contact::kMember;
  // Its run ended, or the controller lost its history, while this worker was away. A new run may
  // never get the workers it waits for.
  if (home_run_ == kNoRun) home_run_ = welcome.run;
  other_run_ = home_run_ != welcome.run;
  welcome_ = welcome;
  run_ = welcome.run;
  heard_ = now;
  last_refusal_.clear();
  out->push_back(JoinRun{welcome});
  SendHeartbeat(now, out);
}

std::string SessionCore::CheckGroup(const Group& group) const {
  if (group.id <= last_group_) return "its id is not above that of the one before";
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
  if (!members.contains(incarnation_)) return "this worker is not in it";
  if (!share(group.initial_weight) || group.iteration < 0 || group.iteration > kMaxIteration) {
    return "the initial model's weight or the iteration is out of range";
  }
  const bool rounds = group.kind == GroupKind::kRound || group.kind == GroupKind::kAverage;
  const bool eager = TrainsInRounds(plan());
  const bool trains = group.kind == GroupKind::kTrain;
  if ((rounds != eager && (rounds || trains)) || (trains && !TrainsInGroups(plan()))) {
    return "its kind does not belong to the job's strategy";
  }
  if (DecouplesSteps(plan()) && group.kind == GroupKind::kTrain) return CheckTrain();
  return eager ? CheckRound(group) : std::string();
}

void SessionCore::OnGroup(Instant now, const Group& group, Actions* out) {
  if (call_ == Call::kLeave) return;
  const std::string wrong = CheckGroup(group);
  if (!wrong.empty()) {
    return Over(Status(Code::kDataLoss, "the controller announced group " +
                                            std::to_string(group.id) + ", but " + wrong),
                out);
  }
  last_group_ = group.id;
  final_announced_ = group.kind == GroupKind::kFinal;
  if (group.kind == GroupKind::kRound) return BeginRound(now, group, out);
  if (DecouplesSteps(plan()) && group.kind == GroupKind::kTrain)
    return OnTrainGroup(now, group, out);
  if (group.kind == GroupKind::kTrain) ready_waiting_ = false;
  if (group.kind == GroupKind::kTrain || group.kind == GroupKind::kAverage) {
    const bool busy = group.kind == GroupKind::kAverage && work_ != Work::kNone;
    if (call_ == Call::kNone || cancelled_ || busy) {
      Push(Finished{.group = group.id,
                    .outcome = Outcome::kFailed,
                    .detail = "its training loop is not in a step any more"},
           out);
      return;
    }
  }
  held_ = group;
  // Nobody has told the controller how many steps were made under a schedule.
  if (final_announced_ && DrawnAhead(plan())) {
    auto& final = std::get<Group>(*held_);
    final.iteration = std::max(final.iteration, iteration_);
  }
  BeginHeld(now, out);
}

// Starts what was ordered, if the user's thread has lent the replica.
void SessionCore::BeginHeld(Instant now, Actions* out) {
  if (!held_ || work_ != Work::kNone || call_ == Call::kNone || call_ == Call::kLeave) return;
  if (RoundRuns()) return;
  const auto* final = std::get_if<Group>(&*held_);
  if (final != nullptr && final->kind == GroupKind::kFinal) {
    if (unapplied_) return ApplyRounds(now, out);
    if (inbox_ > 0) return AddInbox(out);
    if (HasStore(plan()) && FinalReadDue(now, out)) return;
  }
  auto held = std::move(*held_);
  held_.reset();
  if (const auto* adopt = std::get_if<Adopt>(&held)) {
    work_ = Work::kFetch;
    out->push_back(StartFetch{.source = adopt->source});
    return;
  }
  Begin(now, std::move(std::get<Group>(held)), out);
}

// For the call in progress.
void SessionCore::Begin(Instant now, Group group, Actions* out) {
  work_ = Work::kReduce;
  decides_ = Decides::kHere;
  group_ = std::move(group);
  if (group_.kind == GroupKind::kTrain && DrawnAhead(plan())) group_.iteration = iteration_;
  group_at_ = now;
  group_bytes_ = 0;
  step_.group = group_;
  if (!Passive(group_)) ++step_.attempts;
  if (group_.kind == GroupKind::kTrain) step_.waited += now - idle_at_;
  out->push_back(StartReduce{group_});
}

void SessionCore::OnAbort(Instant now, const Abort& abort, Actions* out) {
  if (held_ && std::holds_alternative<Group>(*held_) && std::get<Group>(*held_).id == abort.group) {
    held_.reset();
    Push(Finished{.group = abort.group, .outcome = Outcome::kAborted, .detail = abort.reason}, out);
    return;
  }
  if (AbortRound(now, abort, out)) return;
  if (work_ != Work::kReduce || group_.id != abort.group) return;  // through with it already
  if (decides_ != Decides::kHere) {
    decides_ = Decides::kGivenUp;
    out->push_back(GiveUpReduce{abort.reason});
    return;
  }
  out->push_back(CancelReduce{});
  step_.reduced += now - group_at_;
  const GroupKind kind = group_.kind;
  if (kind == GroupKind::kTrain && DecouplesSteps(plan())) {
    return OnTrained(now, Outcome::kAborted, abort.reason, out);
  }
  Report(now, Outcome::kAborted, abort.reason, out);
  if (kind == GroupKind::kTrain) SignalAgain(now, out);
}

void SessionCore::OnReleased(const Released& released, Actions* out) {
  Over(final_done_ ? Status::Ok() : Status(Code::kAborted, "released: " + released.reason), out);
}

void SessionCore::OnRefused(Instant now, const Refused& refused, Actions* out) {
  last_refusal_ = refused.reason;
  if (refused.code == Code::kUnavailable) {
    if (contact_ != Contact::kHello) return;
    resend_after_ = kResendFirst;
    resend_at_ = now + std::max<std::uint32_t>(refused.retry_ms, 10) * kMillisecond;
    return;
  }
  if (refused.code != Code::kAborted) {
    const bool joining = call_ == Call::kAttach;
    return Over(joining ? Status(refused.code, refused.reason)
                        : Status(Code::kAborted, "refused: " + refused.reason),
                out);
  }
  // This incarnation is over. If it had nothing to do but to hear so, that is all.
  if (call_ == Call::kLeave || final_done_) {
    return Over(final_done_ ? Status::Ok() : Status(Code::kAborted, "the session has left"), out);
  }
  DropWork(out);
  SayHello(now, out);
}

// ---- from peers ----

void SessionCore::OnNote(Instant now, Incarnation from, const Note& note, Actions* out) {
  now_ = now;
  if (contact_ != Contact::kMember) return;
  if (HasNeighbours(plan())) updates_.OnNote(from, note, out);
  if (HasStore(plan())) store_.OnNote(now, from, note, out);
  GoOn(now, out);
}

void SessionCore::OnRequest(Instant now, Incarnation from, Request request, const Parcel& parcel,
                            Actions* out) {
  now_ = now;
  if (contact_ == Contact::kMember && HasNeighbours(plan())) {
    updates_.OnRequest(from, request, parcel, out);
  } else if (contact_ == Contact::kMember && HasStore(plan())) {
    store_.OnRequest(from, request, parcel, out);
  } else {
    out->push_back(Refuse{request});
  }
  GoOn(now, out);
}

void SessionCore::OnPulled(Instant now, Ticket ticket, const Status& status,
                           const Enclosure& enclosure, Actions* out) {
  now_ = now;
  if (contact_ != Contact::kMember) return;
  if (HasNeighbours(plan())) updates_.OnPulled(now, ticket, status, out);
  if (HasStore(plan())) store_.OnPulled(now, ticket, status, enclosure, out);
  GoOn(now, out);
}

}  // namespace prd
