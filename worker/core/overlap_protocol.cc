#include "worker/core/overlap_protocol.h"

#include <algorithm>
#include <utility>

#include "worker/core/step_procedure.h"

namespace prd {

bool OverlapProtocol::InBackground() const { return AveragesInBackground(ctx().plan()); }
bool OverlapProtocol::Postponed() const { return postponed_ && ctx().beside.runs(); }
bool OverlapProtocol::Scheduled() const { return FollowsSchedule(ctx().plan()); }

void OverlapProtocol::OnHello() {
  outstanding_ = slots_ = 0;
  inbox_ = 0;
  overdue_ = false;
  schedule_.reset();
}

bool OverlapProtocol::OnReplica(bool copied, Actions* out) {
  outstanding_ = 0;
  inbox_ = 0;
  overdue_ = false;
  return StepProtocol::OnReplica(copied, out);
}

void OverlapProtocol::OnCopyOrdered() {
  due_ = due_ || ctx().step.ready_waiting;
  if (!Scheduled()) outstanding_ = 0;
}

// ---- the call in progress ----

void OverlapProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  arrived_ = ready;
  overdue_ = overdue_ || taken == StepReplica::kNotNow;
  CountAdded(taken);
}

// The inbox was taken: this many averages were added to the parameters.
void OverlapProtocol::CountAdded(std::int64_t averages) {
  if (averages <= 0) return;
  overdue_ = false;
  inbox_ = std::max<std::int64_t>(inbox_ - averages, 0);
  if (ctx().aim() != Aim::kStep) return;
  ctx().step.outcome.rounds += averages;
  ctx().step.outcome.included = true;
  ctx().step.outcome.group = newest_average_;
}

void OverlapProtocol::StartStep(Actions* out) {
  const bool arrives = !ctx().step.discard && Synchronises();
  const bool stands = ctx().step.ready_waiting;
  if (arrives && stands) ++outstanding_;
  due_ = arrives && (!stands || RunAhead(ctx().plan()) > 0);
  added_ = false;
  if (ctx().work.holds() && !HoldsAhead()) return ctx().BeginHeld(out);
  if (!arrives) return ctx().StepDone(false, out);
  Continue(out);
}

void OverlapProtocol::Continue(Actions* out) {
  RunSlots(out);
  if (!ctx().work.idle() || !ctx().trains()) return;
  if (ctx().aim() == Aim::kStep) return ContinueStep(out);
  if (ctx().Ends()) ContinueFinish(out);
}

void OverlapProtocol::ContinueStep(Actions* out) {
  if (HoldsSlots() && !ctx().beside.runs()) return AddInbox(out);
  if (due_ && !ctx().step.ready_waiting) {
    // The signal includes what the groups before have gained.
    if (!DrawnAhead(ctx().plan()) && inbox_ > 0) return AddInbox(out);
    if (Scheduled()) {
      TakeSlot(out);
    } else {
      Signal(out);
    }
  }
  ctx().BeginHeld(out);
  if (!ctx().work.idle() || ctx().aim() != Aim::kStep) return;
  const bool full = outstanding_ > RunAhead(ctx().plan());
  if (Scheduled() ? due_ || full : ctx().step.ready_waiting && full) return;
  if (InBackground() && !added_) ctx().step.outcome.waited = ctx().now - ctx().call.at();
  if (inbox_ > 0 && !added_) return AddInbox(out);
  if (Postponed() && RunAhead(ctx().plan()) == 0) return;
  ctx().StepDone(false, out);
}

void OverlapProtocol::ContinueFinish(Actions* out) {
  if (HoldsSlots() && !ctx().beside.runs()) return AddInbox(out);
  if (!Postponed() && (Scheduled() ? outstanding_ == 0 : !ctx().step.ready_waiting)) {
    if (inbox_ > 0 && !added_) return AddInbox(out);
    ctx().SayEnd(out);
  }
  ctx().BeginHeld(out);
}

void OverlapProtocol::Signal(Actions* out) {
  due_ = false;
  outstanding_ = std::max<std::uint64_t>(outstanding_, 1);
  ctx().step.ready = arrived_;
  ctx().step.ready.iteration = ctx().step.iteration;
  ctx().SayReady(out);
}

// The caller's thread adds the inbox, and says so with Applied.
void OverlapProtocol::AddInbox(Actions* out) {
  ctx().step.outcome.waited = ctx().now - ctx().call.at();
  asked_inbox_ = inbox_;
  ctx().work.Apply(ApplyNow::What::kInboxOfChanges, ctx().step.iteration, out);
}

void OverlapProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  ctx().step.iteration = iteration;
  // No rounds: the inbox that was counted had been given up. More may have come since.
  CountAdded(rounds);
  if (rounds == 0) inbox_ = std::max<std::int64_t>(inbox_ - asked_inbox_, 0);
  postponed_ = rounds == StepReplica::kNotNow;
  overdue_ = overdue_ || postponed_;
  added_ = !postponed_ || ctx().beside.runs();
  if (ctx().EndsCall(out)) return;
  ctx().BeginHeld(out);
  Continue(out);
}

bool OverlapProtocol::DelaysFinal(Actions* out) {
  if (inbox_ == 0) return false;
  AddInbox(out);
  return true;
}

// ---- groups ----

std::string OverlapProtocol::Check(const Group& group) const {
  if (group.kind != GroupKind::kTrain) return {};
  if (Scheduled()) return "the job's workers draw such groups themselves";
  if (ctx().beside.runs()) {
    return GroupName(ctx().beside.group().id) + " still runs here";
  }
  if (ctx().work.has_group()) return "another group still runs here";
  if (!ctx().standing.has_replica || ctx().work.fetches() || ctx().work.holds()) {
    return "this worker has no replica yet";
  }
  return {};
}

bool OverlapProtocol::HoldsAhead() const {
  const Group* group = ctx().work.held_group();
  return group != nullptr && group->kind == GroupKind::kTrain;
}

bool OverlapProtocol::OnGroup(const Group& group, Actions* out) {
  if (group.kind != GroupKind::kTrain) return false;
  const bool pauses = ctx().standing.paused && !InBackground();
  if (ctx().call.cancelled() || pauses) {
    ctx().Push(Finished{.group = group.id,
                        .outcome = Outcome::kFailed,
                        .detail = pauses ? "its training loop pauses" : "cancelled by its user"},
               out);
  } else if (InBackground()) {
    BeginInBackground(group, out);
  } else {
    ctx().work.Hold(group);
    Continue(out);
  }
  return true;
}

void OverlapProtocol::BeginInBackground(Group group, Actions* out) {
  Iteration gain = 0;
  if (DrawnAhead(ctx().plan())) {
    group.iteration = ctx().step.iteration;
  } else {
    gain = std::max<Iteration>(group.iteration - ctx().step.ready.iteration, 0);
  }
  ctx().BeginBeside(std::move(group), gain, false, out);
}

// The group in the background is through. A failed one is forgotten.
void OverlapProtocol::OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) {
  BackgroundGroup& through = ctx().beside;
  through.Forget();
  if (std::exchange(postponed_, false)) added_ = false;
  const bool ok = outcome == Outcome::kOk;
  const bool passive = ctx().Passive(through.group());
  if (ok) {
    ++inbox_;
    newest_average_ = through.group();
  }
  if (!Scheduled()) {
    const bool waited = ctx().step.ready_waiting && !passive;
    ctx().Push(
        Finished{
            .group = through.group().id,
            .outcome = outcome,
            .detail = detail,
            .wait_ns = waited ? std::max<DurationNs>(through.at() - ctx().step.ready_at, 0) : 0,
            .reduce_ns = ctx().now - through.at(),
            .bytes = through.bytes()},
        out);
  }
  OnThrough(ok, passive, out);
}

void OverlapProtocol::OnTrained(Outcome outcome, const std::string& detail, Actions* out) {
  const bool ok = outcome == Outcome::kOk;
  if (ok && ctx().aim() == Aim::kStep) {
    ++ctx().step.outcome.rounds;
    ctx().step.outcome.included = true;
  }
  ctx().Report(outcome, detail, out);
  OnThrough(ok, ctx().Passive(ctx().work.group()), out);
  Continue(out);
}

// A group is through, and reported: settles the signal that stands, or the slot.
void OverlapProtocol::OnThrough(bool ok, bool passive, Actions* out) {
  if (Scheduled()) {
    --outstanding_;
    added_ = false;
  } else if (ok && !passive) {
    ctx().step.ready_waiting = false;
    outstanding_ = 0;
    added_ = false;
  } else if (!DrawnAhead(ctx().plan())) {
    const bool may = ctx().trains() && !ctx().call.cancelled() && !ctx().standing.said_end();
    if (may && ctx().aim() != Aim::kLeave) Signal(out);
  }
}

// ---- messages ----

void OverlapProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnAnswer(*reply, out);
  const auto* schedule = std::get_if<Schedule>(&body);
  if (schedule != nullptr && Scheduled()) return OnSchedule(*schedule, out);
  StepProtocol::OnMessage(body, out);
}

// The controller answers that the signal needs no group.
void OverlapProtocol::OnAnswer(const QueryReply& reply, Actions* out) {
  StepContext& c = ctx();
  if (!DrawnAhead(c.plan())) return;
  if (!c.step.ready_waiting || reply.ready || reply.iteration != c.step.ready.iteration) return;
  if (!InBackground() && c.work.idle()) c.step.outcome.waited += c.now - c.step.idle_at;
  c.step.ready_waiting = false;
  outstanding_ = 0;
  added_ = false;
  Continue(out);
}

}  // namespace prd
