#include "worker/core/session_flow.h"

#include <algorithm>
#include <utility>

#include "worker/core/call_waiting.h"

namespace prd {
namespace {

// A step that ends tells what was trained, where nothing has for so long; not while so many
// messages are not acknowledged.
constexpr DurationNs kTellEvery = 100 * kMillisecond;
constexpr std::size_t kTellUnacked = 16;

Reduced WhatReduces(const Plan& plan, GroupKind kind) {
  const bool trains = kind == GroupKind::kTrain || kind == GroupKind::kRound;
  return trains ? ReducedInTraining(plan) : Reduced();
}

}  // namespace

// With the default plan until the first Welcome.
SessionFlow::SessionFlow(SessionParts& parts)
    : StepContext(parts), p_(parts), protocol_(MakeStepProtocol(Plan(), *this)) {}

void SessionFlow::SetPlan(const Plan& plan) { protocol_ = MakeStepProtocol(plan, *this); }

// ---- to the controller ----

void SessionFlow::Push(WorkerBody body, Actions* out) {
  if (auto* finished = std::get_if<Finished>(&body)) p_.unreachable.Complete(finished);
  p_.link.Push(p_.now, std::move(body), out);
}

void SessionFlow::SayHello(Actions* out) {
  p_.link.BeginHello(p_.now);
  p_.unreachable.Clear();
  // This worker pauses still, unless it is about to train again.
  const bool resumes = p_.call.is(Call::kResume) || p_.call.is(Call::kMean);
  p_.standing = {.final_done = p_.standing.final_done, .paused = p_.standing.paused && !resumes};
  p_.step.ready_waiting = false;
  p_.mean.OnHello();
  p_.shares.Forget();
  p_.work.DropHeld();
  p_.beside.Forget();
  protocol_->OnHello();
  OnTime(out);
}

void SessionFlow::SayReady(Actions* out) {
  p_.step.ready_waiting = p_.step.ready.waiting;
  p_.step.ready_at = p_.step.idle_at = p_.now;
  p_.step.ready.rtt_ns = p_.link.rtt();
  p_.report.TellIn(p_.now, &p_.step.ready);
  Push(p_.step.ready, out);
}

// It was told while nothing waited for it: in a copy, or a group, that failed.
bool SessionFlow::EndsPartial(Actions* out) {
  const Iteration at = p_.step.iteration + 1;
  if (p_.step.discard || !p_.shares.Lacks(at, p_.step.ready.made_up)) return false;
  p_.shares.Reopen(at);
  StepPartial(out);
  return true;
}

void SessionFlow::SayEnd(Actions* out) {
  if (!trains() || p_.step.ready_waiting || p_.standing.said_end() || !p_.work.idle()) return;
  TellTrained(out);
  if (p_.departure.soon()) {
    Push(prd::Pause{}, out);
    return SayLeave(out);
  }
  if (aim() == Aim::kFinish) {
    p_.standing.said_finish = true;
    Push(prd::Finish{}, out);
    return;
  }
  FailHeld("its training loop pauses", out);
  Push(prd::Pause{}, out);
  p_.standing.paused = true;
  if (p_.call.is(Call::kMean)) return ContinueMean(out);
  Done(Status::Ok(), out);
}

void SessionFlow::TellTrained(Actions* out) {
  if (!trains()) return;
  if (auto progressed = p_.report.Tell(p_.now)) Push(std::move(*progressed), out);
}

void SessionFlow::TellTrainedSoon(Actions* out) {
  if (p_.link.unacked() < kTellUnacked) TellTrained(out);
}

void SessionFlow::SayStop(Actions* out) {
  const auto& reason = p_.departure.stop();
  if (!reason || !p_.link.welcome().job_calls || p_.report.progress().done) return;
  Push(StopJob{.reason = *reason}, out);
}

void SessionFlow::SayLeave(Actions* out) {
  p_.standing.said_leave = true;
  Push(prd::Leave{.reason = p_.departure.reason()}, out);
}

// ---- calls and their end ----

void SessionFlow::BeginCall(Call kind) {
  p_.call.Begin(p_.now, kind);
  p_.step.outcome = {};
  handed_over_ = false;
  if (p_.standing.has_replica) p_.link.ForgetWaitsFor();
}

void SessionFlow::Done(Status status, Actions* out) {
  protocol_->OnCallEnds(out);
  const bool trains_on = p_.call.is(Call::kAttach) || p_.call.is(Call::kStep) ||
                         p_.call.is(Call::kSwitch) || p_.call.is(Call::kResume) ||
                         (p_.call.is(Call::kMean) && !p_.standing.paused);
  if (p_.departure.soon() && status.ok() && trains_on && is_member() && !handed_over_) {
    p_.call.Become(Call::kPause);  // for good
    return End(out);
  }
  p_.call.End();
  UpdateInterrupt(out);
  out->push_back(CallDone{std::move(status), p_.step.outcome, p_.mean.TakeNumbers()});
}

bool SessionFlow::EndsCall(Actions* out) {
  if (p_.call.cancelled()) {
    Done(Status(Code::kCancelled, "the session was cancelled"), out);
  } else if (p_.link.is_over()) {
    const Status& over = p_.link.over();
    Done(over.ok() ? Status(Code::kFailedPrecondition, "the session has finished") : over, out);
  } else {
    return false;
  }
  return true;
}

void SessionFlow::FailCall(Status status, Actions* out) {
  p_.average.Cancel(out);
  Done(std::move(status), out);
}

void SessionFlow::StepDone(bool copied, Actions* out) {
  p_.step.outcome.iteration = p_.step.iteration;
  p_.step.outcome.own = p_.report.own();
  // The copied replica is newer than that of this worker's last group, so no group ends this step.
  // The others have stopped with that replica, or stop without this worker.
  const bool caught_up = copied && p_.step.iteration != p_.work.group().iteration;
  p_.step.outcome.done = caught_up ? p_.report.progress().done : IsDone();
  p_.step.outcome.adopted = copied;
  if (!copied && p_.step.outcome.rounds == 0) p_.step.outcome.group = {};  // it failed
  p_.beside.MoveCosts(&p_.step.outcome);
  protocol_->OnStepEnds();
  if (p_.standing.ends_run && is_member() && !handed_over_) return EndRunAfterStep(out);
  const bool due = p_.now - p_.report.told_at() >= kTellEvery || p_.report.memory_is_news(p_.now);
  if (due) TellTrainedSoon(out);
  Done(Status::Ok(), out);
}

void SessionFlow::StepPartial(Actions* out) {
  p_.step.outcome.iteration = p_.step.iteration;
  p_.step.outcome.own = p_.report.own();
  p_.step.outcome.partial = true;
  Done(Status::Ok(), out);
}

void SessionFlow::OnShare(const SetShare& share, Actions* out) {
  p_.shares.Set(share);
  const bool waits = p_.call.is(Call::kStep) && p_.step.ready_waiting && !p_.step.discard;
  if (!share.more || share.from != p_.step.iteration + 1 || !waits) return;
  p_.step.ready_waiting = false;  // the controller has dropped the signal, or will
  p_.shares.Reopen(share.from);
  p_.step.outcome.waited += p_.now - p_.step.idle_at;
  StepPartial(out);
}

bool SessionFlow::IsDone() const {
  const bool together = AllOrNone(plan()) && !TrainsInRounds(plan());
  return together ? p_.work.group().last : p_.report.progress().done;
}

void SessionFlow::EndRunAfterStep(Actions* out) {
  ended_step_ = p_.step.outcome;
  ended_at_ = p_.now;
  protocol_->OnCallEnds(out);
  p_.call.Become(Call::kSwitch);
  End(out);
}

void SessionFlow::EndSwitch(Actions* out) {
  p_.step.outcome = std::exchange(ended_step_, {});
  p_.step.outcome.iteration = p_.step.iteration;
  p_.step.outcome.adopted = true;
  p_.step.outcome.waited += p_.now - ended_at_;
  Done(Status::Ok(), out);
}

std::optional<StepOutcome> SessionFlow::HandedOver(GroupId group) {
  if (!p_.work.reduces(group)) return std::nullopt;
  p_.work.HandOver();
  const bool trains = p_.work.group().kind == GroupKind::kTrain;
  const bool more_follows = p_.standing.ends_run || p_.departure.soon();  // before the call ends
  if (!p_.call.is(Call::kStep) || !trains || more_follows || !protocol_->EndsWithReduction()) {
    return std::nullopt;
  }
  handed_over_ = true;
  StepOutcome outcome = p_.step.outcome;
  outcome.iteration = p_.work.group().iteration;
  outcome.rounds = 1;
  outcome.included = true;
  outcome.done = IsDone();
  return outcome;
}

void SessionFlow::End(Actions* out) {
  p_.step.discard = false;
  protocol_->OnFinish();
  UpdateInterrupt(out);
  if (EndsCall(out)) return;
  if (p_.work.holds() && !protocol_->HoldsAhead()) return BeginHeld(out);
  protocol_->Continue(out);
}

void SessionFlow::Over(Status status, Actions* out) {
  DropWork(out);
  p_.unreachable.StopProbing(out);
  p_.link.Close(status);
  p_.work.DropHeld();
  if (p_.call.in_progress() && p_.work.idle()) {
    Done(p_.call.is(Call::kLeave) ? Status::Ok() : std::move(status), out);
  }
}

void SessionFlow::LeaveNow(const Status& why, bool failed, Actions* out) {
  if (is_member() && !p_.call.is(Call::kLeave)) {
    CancelBeside(why.message(), out);
    FailHeld(why.message(), out);
    GiveUpWork(why.message(), out);
    TellTrained(out);
    Push(prd::Leave{.reason = why.message(), .failed = failed}, out);
  }
  Over(why, out);
}

void SessionFlow::LeaveIfIdle(Actions* out) {
  if (!p_.departure.soon() || p_.standing.said_leave || p_.call.is(Call::kLeave)) return;
  // A worker on its way to another run is awaited there, and leaves from there.
  if (p_.link.says_hello() && !p_.call.is(Call::kSwitch)) return Over(p_.departure.Left(), out);
  if (!is_member()) return;
  const bool waits = !p_.standing.has_replica && p_.work.idle() && !p_.work.holds();
  const bool in_mean = p_.call.is(Call::kMean) && !p_.standing.said_resume;
  const bool pauses = p_.standing.paused && (p_.call.is(Call::kNone) || in_mean);
  const bool finishing = p_.standing.said_finish && !p_.standing.final_announced;
  if (waits || pauses || finishing) SayLeave(out);
}

void SessionFlow::UpdateInterrupt(Actions* out) {
  const bool copies = p_.work.holds_copy() && CopyVoidsStep(plan());
  const bool computes =
      (p_.call.is(Call::kNone) || p_.call.is(Call::kAverage)) && !p_.standing.paused;
  const bool on = computes && is_member() && (copies || protocol_->IsAwaited());
  if (std::exchange(interrupt_, on) != on) out->push_back(Interrupt{on});
}

// ---- the data plane, for the call in progress ----

void SessionFlow::HasReplica(bool copied, Actions* out) {
  p_.standing.has_replica = true;
  p_.link.OnReplica();
  p_.beside.Forget();
  if (!protocol_->OnReplica(copied, out)) return;
  if (p_.call.is(Call::kStep)) return StepDone(true, out);
  if (EndJoin(out)) return;
  protocol_->Continue(out);
  BeginHeld(out);
}

bool SessionFlow::EndJoin(Actions* out) {
  if (p_.call.is(Call::kAttach)) {
    Done(Status::Ok(), out);
  } else if (p_.call.is(Call::kSwitch) && !p_.standing.ends_run) {
    EndSwitch(out);
  } else if (p_.call.is(Call::kResume) || p_.call.is(Call::kMean)) {
    p_.step.outcome.adopted = true;
    EndResume(out);
  } else {
    return false;
  }
  return true;
}

void SessionFlow::ExpectReplica(Actions* out) {
  FailHeld("its replica is to be replaced", out);
  protocol_->OnCopyOrdered();
  p_.step.ready_waiting = false;
}

void SessionFlow::BeginHeld(Actions* out) {
  if (!p_.work.holds() || !p_.work.idle() || !p_.call.lends() || p_.beside.runs()) return;
  const Group* group = p_.work.held_group();
  const bool final = group != nullptr && group->kind == GroupKind::kFinal;
  if (final && protocol_->DelaysFinal(out)) return;
  CallWork::Held held = p_.work.TakeHeld();
  if (const auto* adopt = std::get_if<Adopt>(&held)) {
    return p_.work.Fetch(adopt->source, p_.call.is(Call::kAttach), out);
  }
  Begin(std::move(std::get<Group>(held)), out);
}

void SessionFlow::Begin(Group group, Actions* out) {
  p_.standing.last_group = std::max(p_.standing.last_group, group.id);
  const bool trains = group.kind == GroupKind::kTrain;
  if (trains && DrawnAhead(plan())) group.iteration = p_.step.iteration;
  p_.step.outcome.group = group;
  if (!Passive(group)) ++p_.step.outcome.attempts;
  if (trains) p_.step.outcome.waited += p_.now - p_.step.idle_at;
  const Reduced what = WhatReduces(plan(), group.kind);
  const bool in_place =
      group.kind == GroupKind::kInitial && p_.call.is(Call::kAttach) && !Contributes(group);
  p_.work.Reduce(p_.now, std::move(group), what, in_place, out);
}

void SessionFlow::Report(Outcome outcome, const std::string& detail, Actions* out) {
  const Group& group = p_.work.group();
  const bool trained = group.kind == GroupKind::kTrain;
  p_.work.End();
  p_.step.idle_at = p_.now;
  if (trained && FollowsSchedule(plan())) {
    if (outcome != Outcome::kFailed) return;
    if (auto report = p_.unreachable.ReportGroup(p_.now, group.id)) Push(std::move(*report), out);
    return;
  }
  const bool waited =
      trained && !(DrawnAhead(plan()) && (Passive(group) || !p_.step.ready_waiting));
  Push(p_.work.Report(p_.now, outcome, detail, waited ? p_.work.at() - p_.step.ready_at : 0), out);
}

void SessionFlow::GiveUpWork(const std::string& why, Actions* out) {
  if (p_.work.fetches()) {
    p_.work.Cancel(out);
    RefuseCopy(why, out);
  } else if (p_.work.reduces()) {
    p_.work.Cancel(out);
    Report(Outcome::kFailed, why, out);
  }
}

void SessionFlow::DropWork(Actions* out) {
  p_.work.Drop(out);
  p_.beside.Drop(out);
  p_.average.Cancel(out);
}

void SessionFlow::FailHeld(const std::string& why, Actions* out) {
  if (!protocol_->HoldsAhead()) return;
  const GroupId id = p_.work.held_group()->id;
  p_.work.DropHeld();
  Push(Finished{.group = id, .outcome = Outcome::kFailed, .detail = why}, out);
}

// ---- the data plane, beside the call ----

void SessionFlow::BeginBeside(Group group, Iteration gain, bool contributes, Actions* out) {
  p_.standing.last_group = std::max(p_.standing.last_group, group.id);
  if (!Passive(group)) p_.beside.CountAttempt();
  p_.beside.Begin(p_.now, std::move(group), contributes);
  if (p_.call.cancelled()) return EndBeside(Outcome::kFailed, "cancelled by its user", out);
  out->push_back(StartReduce{.group = p_.beside.group(),
                             .what = WhatReduces(plan(), p_.beside.group().kind),
                             .gain = gain});
}

void SessionFlow::EndBeside(Outcome outcome, const std::string& detail, Actions* out,
                            std::uint64_t sent_bytes) {
  p_.beside.End(p_.now, sent_bytes);
  protocol_->OnBesideThrough(outcome, detail, out);
}

void SessionFlow::CancelBeside(const std::string& why, Actions* out) {
  if (p_.beside.reduces()) {
    out->push_back(CancelReduce{});
    EndBeside(Outcome::kFailed, why, out);
  } else if (p_.beside.fetches()) {
    out->push_back(CancelFetch{});
    p_.beside.Fail();
    RefuseCopy(why, out);
  }
}

// ---- time ----

void SessionFlow::OnTime(Actions* out) {
  if (MaySayHello() && p_.link.MaySayHello(p_.now)) {
    p_.step.iteration -= std::exchange(p_.step.in_inbox, 0);
    Hello hello = p_.options.hello;
    hello.iteration = p_.step.iteration;
    p_.report.TellIn(p_.now, &hello);
    p_.link.SayHello(p_.now, std::move(hello), out);
  }
  if (p_.link.OnTime(p_.now, out) && !p_.call.is(Call::kLeave)) TellTrainedSoon(out);
  if (is_member()) protocol_->OnTime(out);
  if (const auto at = GraceEnds(p_); at && p_.now >= *at) {
    p_.departure.OnGraceOver();
    return LeaveNow(p_.departure.Left(), false, out);
  }
  if (const auto at = p_.call.LeaveEnds(); at && p_.now >= *at) {
    return Over(Status(Code::kAborted, "the session has left"), out);
  }
  if (const auto at = LineAt(p_); at && p_.now >= *at) {
    out->push_back(WaitingLine(p_));
    p_.call.OnLine(p_.now);
  }
  const std::optional<Instant> timeout = TimeoutEnds(p_);
  if (!timeout || p_.now < *timeout) return;
  const Status late(Code::kUnavailable, TimeoutText(p_));
  if (p_.call.is(Call::kAttach)) p_.link.Detach();
  FailCall(late, out);
}

std::optional<Instant> SessionFlow::NextDeadline() const {
  std::optional<Instant> next = TimeoutEnds(p_);
  const auto consider = [&next](Instant at) {
    if (!next || at < *next) next = at;
  };
  if (const auto at = p_.link.NextDeadline(MaySayHello())) consider(*at);
  if (is_member()) {
    if (const auto at = protocol_->NextDeadline()) consider(*at);
  }
  if (const auto at = GraceEnds(p_)) consider(*at);
  if (const auto at = p_.call.LeaveEnds()) consider(*at);
  if (const auto at = LineAt(p_)) consider(*at);
  return next;
}

}  // namespace prd
