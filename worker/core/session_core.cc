#include "worker/core/session_core.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

// The controller acknowledges within 100 ms; what it has not by then was lost, or it is away.
constexpr DurationNs kResendFirst = 250 * kMillisecond;
constexpr DurationNs kResendMax = 2 * kSecond;
constexpr std::size_t kResendAtOnce = 32;
// Between Hellos of one incarnation and the next, so that a controller that refuses both is not
// flooded.
constexpr DurationNs kHelloGap = 100 * kMillisecond;
constexpr DurationNs kLeaveWait = kSecond;
// What a damaged message may bring without an overflow later.
constexpr Iteration kMaxIteration = std::numeric_limits<Iteration>::max() / 2;

std::string Ms(DurationNs ns) { return std::to_string(ns / kMillisecond) + " ms"; }

}  // namespace

// ---- messages out ----

WorkerEnvelope SessionCore::Envelope(Seq seq, WorkerBody body) const {
  return {.run = run_,
          .rank = run_ == kNoRun ? kNoRank : welcome_.rank,
          .incarnation = incarnation_,
          .seq = seq,
          .ack = link_.last_in(),
          .body = std::move(body)};
}

void SessionCore::Push(WorkerBody body, Actions* out) {
  if (link_.unacked().empty()) {
    resend_after_ = kResendFirst;
    resend_at_ = now_ + resend_after_;
  }
  const auto& [seq, kept] = link_.Push(std::move(body));
  out->push_back(SendToController{Envelope(seq, kept)});
}

void SessionCore::SendHeartbeat(Instant now, Actions* out) {
  const std::uint32_t every = std::clamp<std::uint32_t>(welcome_.heartbeat_ms, 10, 60'000);
  heartbeat_at_ = now + every * kMillisecond;
  heartbeat_sent_ = now;
  ++heartbeats_out_;
  out->push_back(SendToController{Envelope(0, Heartbeat{})});
}

void SessionCore::Resend(Instant now, Actions* out) {
  resend_after_ = std::min(2 * resend_after_, kResendMax);
  resend_at_ = now + resend_after_;
  std::size_t sent = 0;
  for (const auto& [seq, body] : link_.unacked()) {
    if (++sent > kResendAtOnce) break;
    out->push_back(SendToController{Envelope(seq, body)});
  }
}

// A new life: as a new incarnation, as soon as there is one.
void SessionCore::SayHello(Instant now, Actions* out) {
  contact_ = Contact::kHello;
  link_ = {};
  run_ = kNoRun;
  has_replica_ = ready_waiting_ = said_finish_ = final_announced_ = false;
  last_group_ = kNoGroup;
  held_.reset();
  round_ = {};
  unapplied_ = arrival_due_ = told_ = false;
  owed_ = 0;
  outstanding_ = slots_ = 0;
  inbox_ = 0;
  schedule_.reset();
  phase_ = Phase::kReceive;
  next_.reset();
  updates_ = {};
  store_ = {};
  sharing_ = {};
  asked_.reset();
  heartbeats_out_ = 0;
  heard_ = now;
  hello_due_ = true;
  OnTime(now, out);
}

// ---- calls ----

void SessionCore::Done(Status status, Actions* out) {
  if (Uses(Strategy::kShardedStore)) GiveUpRead(out);
  call_ = Call::kNone;
  arrival_due_ = false;
  UpdateInterrupt(out);
  out->push_back(CallDone{std::move(status), step_});
}

void SessionCore::StepDone(bool adopted, Actions* out) {
  step_.iteration = iteration_;
  step_.adopted = adopted;
  step_.local_steps = local_steps_;
  step_.attempts += since_.attempts;
  step_.sent_bytes += since_.sent_bytes;
  step_.reduced += since_.reduced;
  since_ = {};
  if (!discard_ && section_ >= welcome_.plan.section_length) section_ = 0;
  Done(Status::Ok(), out);
}

// Calls off what runs on the data plane; nobody is told.
void SessionCore::DropWork(Actions* out) {
  if (work_ == Work::kReduce || round_.state == Round::State::kReduce) {
    out->push_back(CancelReduce{});
  }
  if (work_ == Work::kFetch || round_.state == Round::State::kFetch) out->push_back(CancelFetch{});
  if (work_ != Work::kApply) work_ = Work::kNone;
  group_.id = kNoGroup;
  round_ = {};
}

// The session can do nothing more.
void SessionCore::Over(Status status, Actions* out) {
  DropWork(out);
  contact_ = Contact::kOver;
  over_ = status;
  held_.reset();
  if (call_ != Call::kNone && work_ == Work::kNone) {
    Done(call_ == Call::kLeave ? Status::Ok() : std::move(status), out);
  }
}

void SessionCore::Attach(Instant now, Options options, Actions* out) {
  now_ = now;
  PRD_CHECK(call_ == Call::kNone);
  call_ = Call::kAttach;
  call_at_ = now;
  step_ = {};
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  options_ = std::move(options);
  iteration_ = options_.hello.iteration;
  home_run_ = kNoRun;
  SayHello(now, out);
}

void SessionCore::Step(Instant now, const Ready& ready, bool discard, std::int64_t taken,
                       Actions* out) {
  now_ = now;
  PRD_CHECK(call_ == Call::kNone);
  call_ = Call::kStep;
  call_at_ = now;
  step_ = {};
  arrived_ = ready;
  idle_at_ = now;
  discard_ = discard;
  Took(taken);
  UpdateInterrupt(out);
  if (!Decoupled()) {
    ready_ = ready;
    ready_at_ = now;
  }
  if (Uses(Strategy::kAverageModels) && (!discard || taken > 0)) iteration_ = ready.iteration;
  if (Uses(Strategy::kLocalSteps) && !discard) ++local_steps_;
  arrival_due_ = Uses(Strategy::kEagerGradients);
  deposited_ = false;
  own_round_.reset();
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  if (contact_ == Contact::kOver) {
    return Done(over_.ok() ? Status(Code::kFailedPrecondition, "the session has finished") : over_,
                out);
  }
  if (Decoupled()) return ArriveDecoupled(now, out);
  if (held_) return BeginHeld(now, out);
  if (Uses(Strategy::kNeighbours)) return ArriveNeighbours(now, out);
  if (Uses(Strategy::kShardedStore)) return ArriveStore(now, out);
  if (!Synchronises()) return StepDone(false, out);
  SignalAgain(now, out);
}

void SessionCore::Finish(Instant now, Actions* out) {
  now_ = now;
  PRD_CHECK(call_ == Call::kNone);
  call_ = Call::kFinish;
  call_at_ = now;
  step_ = {};
  discard_ = false;
  added_ = false;
  UpdateInterrupt(out);
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  if (contact_ == Contact::kOver) return Done(over_, out);
  if (held_ && !HoldsAhead()) return BeginHeld(now, out);
  GoOn(now, out);
}

void SessionCore::Leave(Instant now, const std::string& reason, Actions* out) {
  now_ = now;
  PRD_CHECK(call_ == Call::kNone || work_ == Work::kApply);
  work_ = Work::kNone;
  call_ = Call::kLeave;
  call_at_ = now;
  if (contact_ != Contact::kMember)
    return Over(Status(Code::kAborted, "the session has left"), out);
  FailHeld("its session leaves", out);
  held_.reset();
  CancelRound(now, "its session leaves", out);
  leave_by_ = now + kLeaveWait;
  Push(prd::Leave{.reason = reason}, out);
}

void SessionCore::Cancel(Instant now, Actions* out) {
  now_ = now;
  cancelled_ = true;
  CancelRound(now, "cancelled by its user", out);
  FailHeld("cancelled by its user", out);
  if (call_ == Call::kNone || call_ == Call::kLeave || work_ == Work::kApply) return;
  if (work_ == Work::kReduce) {
    out->push_back(CancelReduce{});
    Report(now, Outcome::kFailed, "cancelled by its user", out);
  } else if (work_ == Work::kFetch) {
    out->push_back(CancelFetch{});
    work_ = Work::kNone;
    Push(Adopted{.ok = false, .iteration = 0, .detail = "cancelled by its user"}, out);
  }
  Done(Status(Code::kCancelled, "the session was cancelled"), out);
}

void SessionCore::SayReady(Instant now, Actions* out) {
  ready_waiting_ = ready_.waiting;
  ready_at_ = idle_at_ = now;
  ready_.rtt_ns = rtt_ns_;
  Push(ready_, out);
}

// Signals what the step in progress has to say, unless it is said already or cannot be yet.
void SessionCore::SignalAgain(Instant now, Actions* out) {
  if (Uses(Strategy::kEagerGradients) || Decoupled() || Exchanges()) return GoOn(now, out);
  // Nothing to offer. But one told to wait for a round's group has the steps that it completed.
  if (call_ == Call::kStep && discard_ && !told_) return StepDone(false, out);
  const bool stepping = call_ == Call::kStep || (call_ == Call::kFinish && !said_finish_);
  if (!stepping || contact_ != Contact::kMember || !has_replica_ || ready_waiting_) return;
  if (Uses(Strategy::kLocalSteps)) return Query(now, out);
  SayReady(now, out);
}

void SessionCore::SayFinish(Actions* out) {
  if (contact_ != Contact::kMember || !has_replica_ || ready_waiting_ || said_finish_ ||
      work_ != Work::kNone) {
    return;
  }
  said_finish_ = true;
  Push(prd::Finish{}, out);
}

// ---- messages in ----

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
    if (Uses(Strategy::kLocalSteps)) QueryDue(now, out);
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
    if (Uses(Strategy::kNeighbours)) OnNeighbourhood(now, *hood, out);
  }
  if (const auto* placement = std::get_if<Placement>(&envelope.body)) {
    if (Uses(Strategy::kShardedStore)) OnPlacement(now, *placement, out);
  }
  if (const auto* opened = std::get_if<Opened>(&envelope.body)) {
    if (Uses(Strategy::kShardedStore)) OnOpened(now, *opened, out);
  }
  if (const auto* released = std::get_if<Released>(&envelope.body)) OnReleased(*released, out);
  if (const auto* adopt = std::get_if<Adopt>(&envelope.body)) OnAdopt(now, *adopt, out);
  if (const auto* set = std::get_if<Schedule>(&envelope.body)) OnSchedule(now, *set, out);
}

void SessionCore::OnReply(Instant now, const QueryReply& reply, Actions* out) {
  if (Uses(Strategy::kNeighbours)) return OnEntered(now, reply, out);
  if (Uses(Strategy::kShardedStore)) return OnMayRead(now, reply, out);
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
  if (!Scheduled()) outstanding_ = 0;
  ready_waiting_ = false;
  held_ = adopt;
  BeginHeld(now, out);
}

// The step in progress is better cut short: its replica is about to be replaced, or others wait.
void SessionCore::UpdateInterrupt(Actions* out) {
  const bool adopts = held_ && std::holds_alternative<Adopt>(*held_) &&
                      (Uses(Strategy::kReduceGradients) || Uses(Strategy::kLocalSteps));
  const bool on = call_ == Call::kNone && contact_ == Contact::kMember && (adopts || told_);
  if (std::exchange(interrupt_, on) != on) out->push_back(Interrupt{on});
}

void SessionCore::OnWelcome(Instant now, const Welcome& welcome, Actions* out) {
  if (welcome.run == kNoRun || welcome.rank < 0) {
    return Over(Status(Code::kDataLoss, "the controller's Welcome has no run or rank"), out);
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
  const bool eager = Uses(Strategy::kEagerGradients);
  const bool trains = group.kind == GroupKind::kTrain;
  if ((rounds != eager && (rounds || trains)) || (trains && Exchanges())) {
    return "its kind does not belong to the job's strategy";
  }
  if (Decoupled() && group.kind == GroupKind::kTrain) return CheckTrain();
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
  if (Decoupled() && group.kind == GroupKind::kTrain) return OnTrainGroup(now, group, out);
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
  if (final_announced_ && Ahead()) {
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
    if (Uses(Strategy::kShardedStore) && FinalReadDue(now, out)) return;
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
  group_ = std::move(group);
  if (group_.kind == GroupKind::kTrain && Ahead()) group_.iteration = iteration_;
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
  out->push_back(CancelReduce{});
  step_.reduced += now - group_at_;
  const GroupKind kind = group_.kind;
  if (kind == GroupKind::kTrain && Decoupled()) {
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

// ---- the data plane ----

void SessionCore::Report(Instant now, Outcome outcome, const std::string& detail, Actions* out) {
  const bool trained = group_.kind == GroupKind::kTrain;
  work_ = Work::kNone;
  idle_at_ = now;
  if (trained && Scheduled()) return;
  const bool waited = trained && !(Ahead() && (Passive(group_) || !ready_waiting_));
  Push(Finished{.group = group_.id,
                .outcome = outcome,
                .detail = detail,
                .wait_ns = waited ? group_at_ - ready_at_ : 0,
                .reduce_ns = now - group_at_,
                .bytes = group_bytes_},
       out);
}

void SessionCore::OnReduced(Instant now, GroupId group, const Status& status,
                            std::uint64_t sent_bytes, Actions* out) {
  now_ = now;
  if (round_.state == Round::State::kReduce && round_.group.id == group) {
    group_bytes_ = sent_bytes;
    return OnRoundReduced(now, status, out);
  }
  if (work_ != Work::kReduce || group_.id != group) return;
  group_bytes_ = sent_bytes;
  step_.sent_bytes += sent_bytes;
  step_.reduced += now - group_at_;
  const GroupKind kind = group_.kind;
  if (kind == GroupKind::kTrain && Decoupled()) {
    return OnTrained(now, status.ok() ? Outcome::kOk : Outcome::kFailed, status.message(), out);
  }
  if (!status.ok()) {
    Report(now, Outcome::kFailed, status.message(), out);
    if (kind == GroupKind::kTrain) SignalAgain(now, out);
    return BeginHeld(now, out);
  }
  if (kind == GroupKind::kTrain && Uses(Strategy::kReduceGradients)) {
    work_ = Work::kApply;
    out->push_back(ApplyNow{group_.iteration});
    return;
  }
  iteration_ = newest_ = group_.iteration;
  Report(now, Outcome::kOk, {}, out);
  if (kind == GroupKind::kInitial) {
    unapplied_ = false;
    return HasReplica(now, out);
  }
  if (kind == GroupKind::kFinal) {
    final_done_ = true;
    return;
  }
  if (kind == GroupKind::kTrain) NewRound();
  if (kind == GroupKind::kTrain && call_ == Call::kStep) {
    step_.rounds = 1;
    step_.included = true;
    return StepDone(false, out);
  }
  GoOn(now, out);
}

// kLocalSteps: what was counted and said since the round's start is past.
void SessionCore::NewRound() {
  local_steps_ = 0;
  told_ = false;
  asked_.reset();
}

void SessionCore::Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out) {
  now_ = now;
  PRD_CHECK(work_ == Work::kApply);
  work_ = Work::kNone;
  if (Background()) return Added(now, iteration, rounds, out);
  iteration_ = iteration;
  if (Uses(Strategy::kNeighbours)) return AppliedUpdate(now, out);
  if (group_.id != kNoGroup) Report(now, Outcome::kOk, {}, out);
  if (Uses(Strategy::kEagerGradients)) AppliedRounds();
  if (call_ == Call::kStep && rounds > 0) {
    step_.rounds = rounds;
    if (!Uses(Strategy::kEagerGradients)) step_.included = true;
    return StepDone(false, out);
  }
  if (contact_ == Contact::kOver) return Done(over_, out);
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  GoOn(now, out);
  BeginHeld(now, out);
}

void SessionCore::OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out) {
  now_ = now;
  if (round_.state == Round::State::kFetch) return OnResultFetched(now, status, out);
  if (work_ != Work::kFetch) return;
  work_ = Work::kNone;
  if (status.ok() && (iteration < 0 || iteration > kMaxIteration)) {
    return Over(Status(Code::kDataLoss, "a peer's replica is of no possible iteration"), out);
  }
  Push(Adopted{.ok = status.ok(),
               .iteration = status.ok() ? iteration : 0,
               .detail = status.ok() ? std::string() : status.message()},
       out);
  if (!status.ok()) {
    SignalAgain(now, out);
    return BeginHeld(now, out);
  }
  iteration_ = newest_ = iteration;
  if (said_finish_ && final_announced_) {
    final_done_ = true;  // the others' average
    return;
  }
  unapplied_ = Uses(Strategy::kEagerGradients);  // it may bring an inbox
  HasReplica(now, out);
}

void SessionCore::HasReplica(Instant now, Actions* out) {
  has_replica_ = true;
  home_run_ = run_;
  round_ = {};
  owed_ = 0;
  arrival_due_ = false;
  section_ = 0;
  outstanding_ = 0;
  inbox_ = 0;
  NewRound();
  if (Uses(Strategy::kNeighbours)) BeginUpdates(now, out);
  // Trains on what it reads from the store; the call in progress ends with that.
  if (Uses(Strategy::kShardedStore)) return JoinStore(now, out);
  if (call_ == Call::kAttach) return Done(Status::Ok(), out);
  if (call_ == Call::kStep) return StepDone(true, out);
  GoOn(now, out);
  BeginHeld(now, out);
}

// ---- exchanges with peers ----

void SessionCore::OnNote(Instant now, Incarnation from, const Note& note, Actions* out) {
  now_ = now;
  if (contact_ != Contact::kMember) return;
  if (Uses(Strategy::kNeighbours)) updates_.OnNote(from, note, out);
  if (Uses(Strategy::kShardedStore)) store_.OnNote(now, from, note, out);
  GoOn(now, out);
}

void SessionCore::OnRequest(Instant now, Incarnation from, Request request, const Parcel& parcel,
                            Actions* out) {
  now_ = now;
  if (contact_ == Contact::kMember && Uses(Strategy::kNeighbours)) {
    updates_.OnRequest(from, request, parcel, out);
  } else if (contact_ == Contact::kMember && Uses(Strategy::kShardedStore)) {
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
  if (Uses(Strategy::kNeighbours)) updates_.OnPulled(now, ticket, status, out);
  if (Uses(Strategy::kShardedStore)) store_.OnPulled(now, ticket, status, enclosure, out);
  GoOn(now, out);
}

// ---- time ----

void SessionCore::OnConnected(Instant now, Actions* out) {
  now_ = now;
  if (contact_ != Contact::kHello && contact_ != Contact::kMember) return;
  resend_after_ = kResendFirst / 2;
  Resend(now, out);
  if (contact_ == Contact::kMember) SendHeartbeat(now, out);
}

std::optional<Instant> SessionCore::PatienceEnds() const {
  const bool calling = call_ == Call::kAttach || call_ == Call::kStep || call_ == Call::kFinish;
  if (!calling || work_ != Work::kNone || RoundRuns() || options_.patience == 0) {
    return std::nullopt;
  }
  return std::max(call_at_, heard_) + options_.patience;
}

void SessionCore::OnTime(Instant now, Actions* out) {
  now_ = now;
  if (hello_due_ && now >= hello_at_ && next_incarnation_ != 0) {
    hello_due_ = false;
    hello_at_ = now + kHelloGap;
    incarnation_ = std::exchange(next_incarnation_, 0);
    out->push_back(BecomeIncarnation{incarnation_});
    Hello hello = options_.hello;
    if (welcome_.run != kNoRun) hello.rank = welcome_.rank;
    hello.iteration = iteration_;
    Push(std::move(hello), out);
  }
  const bool talking = contact_ == Contact::kHello || contact_ == Contact::kMember;
  if (talking && !link_.unacked().empty() && now >= resend_at_) Resend(now, out);
  if (contact_ == Contact::kMember && now >= heartbeat_at_) SendHeartbeat(now, out);
  if (contact_ == Contact::kMember) {
    updates_.OnTime(now, out);
    store_.OnTime(now, out);
  }
  if (call_ == Call::kLeave && now >= leave_by_) {
    return Over(Status(Code::kAborted, "the session has left"), out);
  }
  const std::optional<Instant> patience = PatienceEnds();
  if (patience && now >= *patience) {
    std::string text = "the controller has not answered for " + Ms(options_.patience);
    if (!last_refusal_.empty())
      text = "not admitted for " + Ms(options_.patience) + ": " + last_refusal_;
    if (contact_ == Contact::kMember && other_run_ && !has_replica_) {
      text =
          "the run ended without this worker, and no other began within " + Ms(options_.patience);
    }
    if (call_ == Call::kAttach) contact_ = Contact::kNone;
    Done(Status(Code::kUnavailable, text), out);
  }
}

std::optional<Instant> SessionCore::NextDeadline() const {
  std::optional<Instant> next = PatienceEnds();
  const auto consider = [&next](Instant at) {
    if (!next || at < *next) next = at;
  };
  if (contact_ == Contact::kHello || contact_ == Contact::kMember) {
    if (hello_due_) {
      consider(hello_at_);
    } else if (!link_.unacked().empty()) {
      consider(resend_at_);
    }
  }
  if (contact_ == Contact::kMember) {
    consider(heartbeat_at_);
    if (const auto at = updates_.NextDeadline()) consider(*at);
    if (const auto at = store_.NextDeadline()) consider(*at);
  }
  if (call_ == Call::kLeave) consider(leave_by_);
  return next;
}

}  // namespace prd
