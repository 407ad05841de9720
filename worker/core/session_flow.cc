#include "worker/core/session_flow.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/core/session_core_limits.h"

namespace prd {

// With the default plan until the first Welcome.
SessionFlow::SessionFlow() : protocol_(MakeStepProtocol(Plan(), *this)) {}

namespace {

// A step that ends tells what was trained, where nothing has for so long; not while so many
// messages are not acknowledged.
constexpr DurationNs kTellEvery = 100 * kMillisecond;
constexpr std::size_t kTellUnacked = 16;
constexpr DurationNs kLeaveWait = kSecond;

}  // namespace

// ---- messages out ----

void SessionFlow::Push(WorkerBody body, Actions* out) {
  if (auto* finished = std::get_if<Finished>(&body)) unreachable_.Complete(finished);
  link_.Push(now_, std::move(body), out);
}

// A new life: as a new incarnation, as soon as there is one. What it brings is the replica as it is
// once `apply` has run, if it runs now; results in the inbox are given up.
void SessionFlow::SayHello(Actions* out) {
  link_.BeginHello(now_);
  unreachable_.Clear();
  // This worker pauses still, unless it is about to train again.
  const bool resumes = call_.is(Call::kResume) || call_.is(Call::kMean);
  standing_ = {.final_done = standing_.final_done, .paused = standing_.paused && !resumes};
  step_.ready_waiting = false;
  mean_.OnHello();
  work_.DropHeld();
  beside_.Forget();
  protocol_->OnHello();
  OnTime(now_, out);
}

// ---- calls ----

void SessionFlow::BeginCall(Call call) {
  call_.Begin(now_, call);
  step_.outcome = {};
  handed_over_ = false;
  if (standing_.has_replica) link_.ForgetWaitsFor();
}

void SessionFlow::Done(Status status, Actions* out) {
  protocol_->OnCallEnds(out);
  const bool trains_on = call_.is(Call::kAttach) || call_.is(Call::kStep) ||
                         call_.is(Call::kSwitch) || call_.is(Call::kResume) ||
                         (call_.is(Call::kMean) && !standing_.paused);
  if (departure_.soon() && status.ok() && trains_on && is_member() && !handed_over_) {
    call_.Become(Call::kPause);  // for good
    return End(out);
  }
  call_.End();
  UpdateInterrupt(out);
  out->push_back(CallDone{std::move(status), step_.outcome, mean_.TakeNumbers()});
}

void SessionFlow::StepDone(bool copied, Actions* out) {
  step_.outcome.iteration = step_.iteration;
  step_.outcome.own = own();
  // Of a newer replica than that of this worker's last group: no group ends this step. The others
  // have stopped with that replica, or stop without this worker.
  const bool caught_up = copied && step_.iteration != work_.group().iteration;
  step_.outcome.done = caught_up ? progress().done : IsDone();
  step_.outcome.adopted = copied;
  beside_.MoveCosts(&step_.outcome);
  protocol_->OnStepEnds();
  if (standing_.ends_run && is_member() && !handed_over_) return EndRunAfterStep(out);
  if (now_ - report_.told_at() >= kTellEvery) TellTrainedSoon(out);
  Done(Status::Ok(), out);
}

// The step has ended, and is the last of this run.
void SessionFlow::EndRunAfterStep(Actions* out) {
  ended_step_ = step_.outcome;
  ended_at_ = now_;
  protocol_->OnCallEnds(out);
  call_.Become(Call::kSwitch);
  End(out);
}

void SessionFlow::EndSwitch(Actions* out) {
  step_.outcome = std::exchange(ended_step_, {});
  step_.outcome.iteration = step_.iteration;
  step_.outcome.adopted = true;
  step_.outcome.waited += now_ - ended_at_;
  Done(Status::Ok(), out);
}

// Whether the step that ends now is the last that the goal needs. Workers that end a step with one
// result stop with the same one.
bool SessionFlow::IsDone() const {
  const bool together = AllOrNone(plan()) && !TrainsInRounds(plan());
  return together ? work_.group().last : progress().done;
}

Aim SessionFlow::aim() const {
  switch (call_.kind()) {
    case Call::kNone:
    case Call::kAverage:
      return Aim::kNone;
    case Call::kAttach:
    case Call::kResume:
      return Aim::kJoin;
    case Call::kStep:
      return Aim::kStep;
    case Call::kFinish:
      return Aim::kFinish;
    case Call::kSwitch:
      return standing_.ends_run ? Aim::kFinish : Aim::kJoin;
    case Call::kPause:
      return Aim::kPause;
    case Call::kMean:  // pauses, and resumes once it is answered
      if (standing_.paused) return Aim::kNone;
      return mean_.answered() && mean_.resumes() ? Aim::kJoin : Aim::kPause;
    case Call::kLeave:
      return Aim::kLeave;
  }
  return Aim::kNone;
}

// By Progressed, where no Ready has told it.
void SessionFlow::TellTrained(Actions* out) {
  if (!trains()) return;
  if (auto progressed = report_.Tell(now_)) Push(std::move(*progressed), out);
}

// The same, where the controller answers.
void SessionFlow::TellTrainedSoon(Actions* out) {
  if (link_.unacked() < kTellUnacked) TellTrained(out);
}

// The call in progress ends, if the session is over or cancelled.
bool SessionFlow::EndsCall(Actions* out) {
  if (call_.cancelled()) {
    Done(Status(Code::kCancelled, "the session was cancelled"), out);
  } else if (link_.is_over()) {
    const Status& over = link_.over();
    Done(over.ok() ? Status(Code::kFailedPrecondition, "the session has finished") : over, out);
  } else {
    return false;
  }
  return true;
}

std::optional<StepOutcome> SessionFlow::HandedOver(GroupId group) {
  if (!work_.reduces(group)) return std::nullopt;
  const bool last = standing_.ends_run || departure_.soon();  // more follows before the call ends
  work_.HandOver();
  const bool trains = work_.group().kind == GroupKind::kTrain;
  if (!call_.is(Call::kStep) || !trains || last || !protocol_->EndsWithReduction()) {
    return std::nullopt;
  }
  handed_over_ = true;
  StepOutcome outcome = step_.outcome;
  outcome.iteration = work_.group().iteration;
  outcome.rounds = 1;
  outcome.included = true;
  outcome.done = IsDone();
  return outcome;
}

// Calls off what runs on the data plane; nobody is told.
void SessionFlow::DropWork(Actions* out) {
  work_.Drop(out);
  beside_.Drop(out);
  average_.Cancel(out);
}

// The session can do nothing more.
void SessionFlow::Over(Status status, Actions* out) {
  DropWork(out);
  if (std::exchange(probes_, false)) out->push_back(ProbePeers{});
  link_.Close(status);
  work_.DropHeld();
  if (call_.in_progress() && work_.idle()) {
    Done(call_.is(Call::kLeave) ? Status::Ok() : std::move(status), out);
  }
}

void SessionFlow::Attach(Instant now, SessionCore::Options options, Actions* out) {
  now_ = now;
  BeginCall(Call::kAttach);
  if (call_.cancelled()) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  if (departure_.soon()) return Done(departure_.Left(), out);
  options_ = std::move(options);
  call_.SetTimeouts(options_.timeout, options_.start_timeout);
  step_.iteration = options_.hello.iteration;
  report_.Begin(options_.hello.own, options_.hello.job_trained);
  standing_.paused = false;
  departure_.ForgetStop();
  mean_.Forget();
  link_.Attach(now, options_.token);
  SayHello(out);
}

void SessionFlow::Step(Instant now, const Ready& ready, bool discard, std::int64_t taken,
                       Actions* out) {
  now_ = now;
  step_.idle_at = now;
  step_.discard = discard;
  BeginCall(Call::kStep);
  protocol_->OnStep(ready, taken);
  UpdateInterrupt(out);
  if (CountsLocalSteps(plan()) && (!discard || taken > 0)) step_.iteration = ready.iteration;
  if (EndsCall(out) || standing_.said_leave) return;
  // The step before was given up since (timeout): this one is void.
  if (standing_.said_finish && standing_.ends_run) {
    step_.outcome.own = own();
    return EndRunAfterStep(out);
  }
  if (!discard) report_.AddStep(ready.samples);
  step_.outcome.own = own();
  protocol_->StartStep(out);
}

void SessionFlow::Finish(Instant now, Actions* out) {
  now_ = now;
  BeginCall(Call::kFinish);
  End(out);
}

// Finish, and Pause.
void SessionFlow::End(Actions* out) {
  step_.discard = false;
  protocol_->OnFinish();
  UpdateInterrupt(out);
  if (EndsCall(out)) return;
  if (work_.holds() && !protocol_->HoldsAhead()) return BeginHeld(out);
  protocol_->Continue(out);
}

void SessionFlow::Leave(Instant now, const std::string& reason, Actions* out) {
  now_ = now;
  PRD_CHECK(call_.is(Call::kNone) || work_.applies());
  work_.End();
  call_.BeginLeave(now);
  if (!is_member()) return Over(Status(Code::kAborted, "the session has left"), out);
  FailHeld("its session leaves", out);
  work_.DropHeld();
  CancelBeside("its session leaves", out);
  leave_by_ = now + kLeaveWait;
  TellTrained(out);
  Push(prd::Leave{.reason = reason}, out);
}

void SessionFlow::LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out) {
  now_ = now;
  std::optional<Instant> by;
  if (grace > 0) by = now + grace;
  if (!departure_.LeaveSoon(std::move(reason), by)) return;
  LeaveIfIdle(out);
}

// Where no boundary is to come, or not soon: nobody has admitted this worker, the job has not begun
// for it, it pauses, or it waits in Finish.
void SessionFlow::LeaveIfIdle(Actions* out) {
  if (!departure_.soon() || standing_.said_leave || call_.is(Call::kLeave)) return;
  // On its way to another run it is awaited there, and leaves from there.
  if (link_.says_hello() && !call_.is(Call::kSwitch)) return Over(departure_.Left(), out);
  if (!is_member()) return;
  const bool waits = !standing_.has_replica && work_.idle() && !work_.holds();
  const bool in_mean = call_.is(Call::kMean) && !standing_.said_resume;
  const bool pauses = standing_.paused && (call_.is(Call::kNone) || in_mean);
  const bool finishing = standing_.said_finish && !standing_.final_announced;
  if (waits || pauses || finishing) SayLeave(out);
}

void SessionFlow::SayLeave(Actions* out) {
  standing_.said_leave = true;
  Push(prd::Leave{.reason = departure_.reason()}, out);
}

void SessionFlow::Cancel(Instant now, Actions* out) {
  now_ = now;
  call_.Cancel();
  CancelBeside("cancelled by its user", out);
  FailHeld("cancelled by its user", out);
  if (call_.is(Call::kNone) || call_.is(Call::kLeave) || work_.applies()) return;
  GiveUpWork("cancelled by its user", out);
  FailCall(Status(Code::kCancelled, "the session was cancelled"), out);
}

void SessionFlow::Fail(Instant now, const Status& why, Actions* out) {
  now_ = now;
  if (is_member() && !call_.is(Call::kLeave)) {
    CancelBeside(why.message(), out);
    FailHeld(why.message(), out);
    GiveUpWork(why.message(), out);
    TellTrained(out);
    Push(prd::Leave{.reason = why.message()}, out);
  }
  Over(why, out);
}

void SessionFlow::SayReady(Actions* out) {
  step_.ready_waiting = step_.ready.waiting;
  step_.ready_at = step_.idle_at = now_;
  step_.ready.rtt_ns = link_.rtt();
  report_.TellIn(now_, &step_.ready);
  Push(step_.ready, out);
}

// The call in progress Ends, and has nothing left to do for training.
void SessionFlow::SayEnd(Actions* out) {
  if (!trains() || step_.ready_waiting || standing_.said_end() || !work_.idle()) return;
  TellTrained(out);
  if (departure_.soon()) {
    Push(prd::Pause{}, out);
    return SayLeave(out);
  }
  if (aim() == Aim::kFinish) {
    standing_.said_finish = true;
    Push(prd::Finish{}, out);
    return;
  }
  FailHeld("its training loop pauses", out);
  Push(prd::Pause{}, out);
  standing_.paused = true;
  if (call_.is(Call::kMean)) return ContinueMean(out);
  Done(Status::Ok(), out);
}

// ---- the data plane, for the call in progress ----

// Starts the pending group or copy, if the caller is inside Attach, Step or Finish: only then may
// parameters be written.
void SessionFlow::BeginHeld(Actions* out) {
  if (!work_.holds() || !work_.idle() || !call_.lends() || beside_.runs()) return;
  const Group* group = work_.held_group();
  const bool final = group != nullptr && group->kind == GroupKind::kFinal;
  if (final && protocol_->DelaysFinal(out)) return;
  CallWork::Held held = work_.TakeHeld();
  if (const auto* adopt = std::get_if<Adopt>(&held)) return work_.Fetch(adopt->source, out);
  Begin(std::move(std::get<Group>(held)), out);
}

bool SessionFlow::Passive(const Group& group) const {
  if (!DrawnAhead(plan()) || group.kind != GroupKind::kTrain) return false;
  return std::any_of(group.members.begin(), group.members.end(), [this](const GroupMember& member) {
    return member.incarnation == link_.incarnation() && member.passive;
  });
}

Reduced SessionFlow::WhatReduces(GroupKind kind) const {
  const bool trains = kind == GroupKind::kTrain || kind == GroupKind::kRound;
  return trains ? ReducedInTraining(plan()) : Reduced();
}

void SessionFlow::Begin(Group group, Actions* out) {
  const bool trains = group.kind == GroupKind::kTrain;
  if (trains && DrawnAhead(plan())) group.iteration = step_.iteration;
  step_.outcome.group = group;
  if (!Passive(group)) ++step_.outcome.attempts;
  if (trains) step_.outcome.waited += now_ - step_.idle_at;
  const Reduced what = WhatReduces(group.kind);
  work_.Reduce(now_, std::move(group), what, out);
}

void SessionFlow::Report(Outcome outcome, const std::string& detail, Actions* out) {
  const Group& group = work_.group();
  const bool trained = group.kind == GroupKind::kTrain;
  work_.End();
  step_.idle_at = now_;
  if (trained && FollowsSchedule(plan())) {
    if (outcome != Outcome::kFailed) return;
    if (auto report = unreachable_.ReportGroup(now_, group.id)) Push(std::move(*report), out);
    return;
  }
  const bool waited = trained && !(DrawnAhead(plan()) && (Passive(group) || !step_.ready_waiting));
  Push(work_.Report(now_, outcome, detail, waited ? work_.at() - step_.ready_at : 0), out);
}

void SessionFlow::GiveUpWork(const std::string& why, Actions* out) {
  if (work_.fetches()) {
    work_.Cancel(out);
    RefuseCopy(why, out);
  } else if (work_.reduces()) {
    work_.Cancel(out);
    Report(Outcome::kFailed, why, out);
  }
}

// A group that was announced ahead will not be begun.
void SessionFlow::FailHeld(const std::string& why, Actions* out) {
  if (!protocol_->HoldsAhead()) return;
  const GroupId id = work_.held_group()->id;
  work_.DropHeld();
  Push(Finished{.group = id, .outcome = Outcome::kFailed, .detail = why}, out);
}

void SessionFlow::OnReduced(Instant now, GroupId group, const Status& status,
                            std::uint64_t sent_bytes, Actions* out, std::vector<Rank> unreachable,
                            std::uint64_t digest) {
  now_ = now;
  unreachable_.OnReduced(group, status.ok(), std::move(unreachable));
  if (beside_.reduces() && beside_.is(group)) {
    EndBeside(status.ok() ? Outcome::kOk : Outcome::kFailed, status.message(), out, sent_bytes);
    BeginHeld(out);
    return protocol_->Continue(out);
  }
  if (!work_.reduces(group)) return;
  work_.OnReduced(sent_bytes, digest);
  step_.outcome.sent_bytes += sent_bytes;
  step_.outcome.reduced += now - work_.at();
  const Outcome outcome = status.ok()        ? Outcome::kOk
                          : work_.given_up() ? Outcome::kAborted
                                             : Outcome::kFailed;
  const GroupKind kind = work_.group().kind;
  if (kind == GroupKind::kTrain) {
    protocol_->OnTrained(outcome, status.message(), out);
  } else if (!status.ok()) {
    Report(outcome, status.message(), out);
  }
  if (!status.ok()) return BeginHeld(out);
  if (kind == GroupKind::kTrain) return;
  step_.iteration = work_.group().iteration;
  step_.in_inbox = 0;
  Report(Outcome::kOk, {}, out);
  if (kind == GroupKind::kInitial) return HasReplica(false, out);
  if (kind == GroupKind::kFinal) {
    standing_.final_done = !standing_.ends_run;
    return;
  }
  protocol_->OnAveraged();
  protocol_->Continue(out);
}

void SessionFlow::Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
                          std::uint64_t digest) {
  now_ = now;
  PRD_CHECK(work_.applies());
  work_.OnApplied(digest);
  protocol_->OnApplied(iteration, rounds, out);
}

void SessionFlow::OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out,
                            Iteration in_inbox) {
  now_ = now;
  if (beside_.fetches()) return protocol_->OnResultFetched(status, out);
  if (!work_.fetches()) return;
  work_.End();
  if (status.ok() && (iteration < 0 || iteration > kMaxIteration)) {
    return Over(Status(Code::kDataLoss, "a peer's replica is of no possible iteration"), out);
  }
  Push(Adopted{.ok = status.ok(),
               .iteration = status.ok() ? iteration : 0,
               .detail = status.ok() ? std::string() : status.message()},
       out);
  if (!status.ok()) {
    protocol_->SignalAgain(out);
    return BeginHeld(out);
  }
  step_.iteration = iteration;
  step_.in_inbox = in_inbox;
  if (standing_.said_finish && standing_.final_announced) {
    standing_.final_done = !standing_.ends_run;  // the others' average
    return;
  }
  HasReplica(true, out);
}

void SessionFlow::HasReplica(bool copied, Actions* out) {
  standing_.has_replica = true;
  link_.OnReplica();
  beside_.Forget();
  if (!protocol_->OnReplica(copied, out)) return;
  if (call_.is(Call::kStep)) return StepDone(true, out);
  if (EndJoin(out)) return;
  protocol_->Continue(out);
  BeginHeld(out);
}

// The replica is the job's, all of it: the call in progress ends, or goes on, if it waited for
// that.
bool SessionFlow::EndJoin(Actions* out) {
  if (call_.is(Call::kAttach)) {
    Done(Status::Ok(), out);
  } else if (call_.is(Call::kSwitch) && !standing_.ends_run) {
    EndSwitch(out);
  } else if (call_.is(Call::kResume) || call_.is(Call::kMean)) {
    step_.outcome.adopted = true;
    EndResume(out);
  } else {
    return false;
  }
  return true;
}

// ---- the data plane, beside the call ----

void SessionFlow::BeginBeside(Group group, Iteration gain, bool contributes, Actions* out) {
  if (!Passive(group)) beside_.CountAttempt();
  beside_.Begin(now_, std::move(group), contributes);
  if (call_.cancelled()) return EndBeside(Outcome::kFailed, "cancelled by its user", out);
  out->push_back(StartReduce{
      .group = beside_.group(), .what = WhatReduces(beside_.group().kind), .gain = gain});
}

// The group beside the call is through.
void SessionFlow::EndBeside(Outcome outcome, const std::string& detail, Actions* out,
                            std::uint64_t sent_bytes) {
  beside_.End(now_, sent_bytes);
  protocol_->OnBesideThrough(outcome, detail, out);
}

// False if the abort does not concern the group beside the call.
bool SessionFlow::AbortBeside(const Abort& abort, Actions* out) {
  if (!beside_.is(abort.group)) return false;
  if (beside_.reduces()) {
    out->push_back(CancelReduce{});
    EndBeside(Outcome::kAborted, abort.reason, out);
  }
  if (!abort.undone && TrainsInRounds(plan())) return true;
  if (beside_.fetches()) {
    out->push_back(CancelFetch{});
    RefuseCopy(abort.reason, out);
  }
  beside_.Forget();  // what was given is still in the outbox
  BeginHeld(out);
  protocol_->Continue(out);
  return true;
}

void SessionFlow::CancelBeside(const std::string& why, Actions* out) {
  if (beside_.reduces()) {
    out->push_back(CancelReduce{});
    EndBeside(Outcome::kFailed, why, out);
  } else if (beside_.fetches()) {
    out->push_back(CancelFetch{});
    beside_.Fail();
    RefuseCopy(why, out);
  }
}

// A replica, or a round's result, is not copied.
void SessionFlow::RefuseCopy(const std::string& why, Actions* out) {
  Push(Adopted{.ok = false, .iteration = 0, .detail = why}, out);
}

// ---- time ----

void SessionFlow::OnConnected(Instant now, Actions* out) {
  now_ = now;
  link_.OnConnected(now, out);
}

void SessionFlow::OnTime(Instant now, Actions* out) {
  now_ = now;
  if (MaySayHello() && link_.MaySayHello(now)) {
    step_.iteration -= std::exchange(step_.in_inbox, 0);
    Hello hello = options_.hello;
    hello.iteration = step_.iteration;
    report_.TellIn(now, &hello);
    link_.SayHello(now, std::move(hello), out);
  }
  if (link_.OnTime(now, out) && !call_.is(Call::kLeave)) TellTrainedSoon(out);
  if (is_member()) protocol_->OnTime(out);
  if (GraceEnds() && now >= *GraceEnds()) {
    departure_.OnGraceOver();
    return Fail(now, departure_.Left(), out);
  }
  if (call_.is(Call::kLeave) && now >= leave_by_) {
    return Over(Status(Code::kAborted, "the session has left"), out);
  }
  if (const auto line = LineAt(); line && now >= *line) SayLine(out);
  const std::optional<Instant> timeout = TimeoutEnds();
  if (timeout && now >= *timeout) TimedOut(out);
}

std::optional<Instant> SessionFlow::NextDeadline() const {
  std::optional<Instant> next = TimeoutEnds();
  const auto consider = [&next](Instant at) {
    if (!next || at < *next) next = at;
  };
  if (const auto at = link_.NextDeadline(MaySayHello())) consider(*at);
  if (is_member()) {
    if (const auto at = protocol_->NextDeadline()) consider(*at);
  }
  if (GraceEnds()) consider(*GraceEnds());
  if (call_.is(Call::kLeave)) consider(leave_by_);
  if (const auto at = LineAt()) consider(*at);
  return next;
}

}  // namespace prd
