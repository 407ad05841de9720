#include "worker/core/session_core.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/core/session_core_limits.h"

namespace prd {
namespace {

constexpr DurationNs kResendMax = 2 * kSecond;
constexpr std::size_t kResendAtOnce = 32;
// Between Hellos of one incarnation and the next, so that a controller that refuses both is not
// flooded.
constexpr DurationNs kHelloGap = 100 * kMillisecond;
constexpr DurationNs kLeaveWait = kSecond;

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
  if (HasStore(plan())) GiveUpRead(out);
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
  if (!discard_ && section_ >= StepsPerSignal(plan())) section_ = 0;
  Done(Status::Ok(), out);
}

std::optional<StepOutcome> SessionCore::HandedOver(GroupId group) {
  if (work_ != Work::kReduce || group_.id != group) return std::nullopt;
  if (decides_ == Decides::kHere) decides_ = Decides::kDevice;
  const bool ends = call_ == Call::kStep && group_.kind == GroupKind::kTrain &&
                    CountsLocalSteps(plan()) && !DecouplesSteps(plan());
  if (!ends) return std::nullopt;
  StepOutcome outcome = step_;
  outcome.iteration = group_.iteration;
  outcome.rounds = 1;
  outcome.included = true;
  return outcome;
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
  if (!DecouplesSteps(plan())) {
    ready_ = ready;
    ready_at_ = now;
  }
  if (CountsLocalSteps(plan()) && (!discard || taken > 0)) iteration_ = ready.iteration;
  if (AsksBeforeGroups(plan()) && !discard) ++local_steps_;
  arrival_due_ = TrainsInRounds(plan());
  deposited_ = false;
  own_round_.reset();
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  if (contact_ == Contact::kOver) {
    return Done(over_.ok() ? Status(Code::kFailedPrecondition, "the session has finished") : over_,
                out);
  }
  if (DecouplesSteps(plan())) return ArriveDecoupled(now, out);
  if (held_) return BeginHeld(now, out);
  if (HasNeighbours(plan())) return ArriveNeighbours(now, out);
  if (HasStore(plan())) return ArriveStore(now, out);
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
  GiveUpWork(now, "cancelled by its user", out);
  Done(Status(Code::kCancelled, "the session was cancelled"), out);
}

void SessionCore::Fail(Instant now, const Status& why, Actions* out) {
  now_ = now;
  if (contact_ == Contact::kMember && call_ != Call::kLeave) {
    CancelRound(now, why.message(), out);
    FailHeld(why.message(), out);
    GiveUpWork(now, why.message(), out);
    Push(prd::Leave{.reason = why.message()}, out);
  }
  Over(why, out);
}

// What runs on the data plane for the call in progress.
void SessionCore::GiveUpWork(Instant now, const std::string& why, Actions* out) {
  if (work_ == Work::kReduce) {
    out->push_back(CancelReduce{});
    Report(now, Outcome::kFailed, why, out);
  } else if (work_ == Work::kFetch) {
    out->push_back(CancelFetch{});
    work_ = Work::kNone;
    Push(Adopted{.ok = false, .iteration = 0, .detail = why}, out);
  }
}

void SessionCore::SayReady(Instant now, Actions* out) {
  ready_waiting_ = ready_.waiting;
  ready_at_ = idle_at_ = now;
  ready_.rtt_ns = rtt_ns_;
  Push(ready_, out);
}

// Signals what the step in progress has to say, unless it is said already or cannot be yet.
void SessionCore::SignalAgain(Instant now, Actions* out) {
  if (TrainsInRounds(plan()) || DecouplesSteps(plan()) || !TrainsInGroups(plan()))
    return GoOn(now, out);
  // Nothing to offer. But one told to wait for a round's group has the steps that it completed.
  if (call_ == Call::kStep && discard_ && !told_) return StepDone(false, out);
  const bool stepping = call_ == Call::kStep || (call_ == Call::kFinish && !said_finish_);
  if (!stepping || contact_ != Contact::kMember || !has_replica_ || ready_waiting_) return;
  if (AsksBeforeGroups(plan())) return Query(now, out);
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

// ---- the data plane ----

void SessionCore::Report(Instant now, Outcome outcome, const std::string& detail, Actions* out) {
  const bool trained = group_.kind == GroupKind::kTrain;
  work_ = Work::kNone;
  idle_at_ = now;
  if (trained && FollowsSchedule(plan())) return;
  const bool waited = trained && !(DrawnAhead(plan()) && (Passive(group_) || !ready_waiting_));
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
  if (kind == GroupKind::kTrain && DecouplesSteps(plan())) {
    return OnTrained(now, status.ok() ? Outcome::kOk : Outcome::kFailed, status.message(), out);
  }
  if (!status.ok()) {
    const bool given_up = decides_ == Decides::kGivenUp;
    Report(now, given_up ? Outcome::kAborted : Outcome::kFailed, status.message(), out);
    if (kind == GroupKind::kTrain) SignalAgain(now, out);
    return BeginHeld(now, out);
  }
  if (kind == GroupKind::kTrain && ReducedInTraining(plan()).landing == Landing::kGradients) {
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

// Payload::kChange: what was counted and said since the round's start is past.
void SessionCore::NewRound() {
  local_steps_ = 0;
  told_ = false;
  asked_.reset();
}

void SessionCore::Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out) {
  now_ = now;
  PRD_CHECK(work_ == Work::kApply);
  work_ = Work::kNone;
  if (AveragesInBackground(plan())) return Added(now, iteration, rounds, out);
  iteration_ = iteration;
  if (HasNeighbours(plan())) return AppliedUpdate(now, out);
  if (group_.id != kNoGroup) Report(now, Outcome::kOk, {}, out);
  if (TrainsInRounds(plan())) AppliedRounds();
  if (call_ == Call::kStep && rounds > 0) {
    step_.rounds = rounds;
    if (!TrainsInRounds(plan())) step_.included = true;
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
  unapplied_ = TrainsInRounds(plan());  // it may bring an inbox
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
  if (HasNeighbours(plan())) BeginUpdates(now, out);
  // Trains on what it reads from the store; the call in progress ends with that.
  if (HasStore(plan())) return JoinStore(now, out);
  if (call_ == Call::kAttach) return Done(Status::Ok(), out);
  if (call_ == Call::kStep) return StepDone(true, out);
  GoOn(now, out);
  BeginHeld(now, out);
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
