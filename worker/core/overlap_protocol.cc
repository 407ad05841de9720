#include "worker/core/overlap_protocol.h"

#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {

bool OverlapProtocol::InBackground() const { return AveragesInBackground(core().plan()); }
bool OverlapProtocol::Scheduled() const { return FollowsSchedule(core().plan()); }

void OverlapProtocol::OnHello() {
  outstanding_ = slots_ = 0;
  inbox_ = 0;
  schedule_.reset();
}

bool OverlapProtocol::OnReplica(bool copied, Actions* out) {
  outstanding_ = 0;
  inbox_ = 0;
  return StepProtocol::OnReplica(copied, out);
}

void OverlapProtocol::OnCopyOrdered() {
  due_ = due_ || core().step_.ready_waiting;
  if (!Scheduled()) outstanding_ = 0;
}

// ---- the call in progress ----

void OverlapProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  arrived_ = ready;
  CountAdded(taken);
}

// The inbox was taken: this many averages were added to the parameters.
void OverlapProtocol::CountAdded(std::int64_t averages) {
  inbox_ = std::max<std::int64_t>(inbox_ - averages, 0);
  if (core().aim() != Aim::kStep || averages <= 0) return;
  core().step_.outcome.rounds += averages;
  core().step_.outcome.included = true;
  core().step_.outcome.group = newest_average_;
}

void OverlapProtocol::StartStep(Actions* out) {
  const bool arrives = !core().step_.discard && Synchronises();
  const bool stands = core().step_.ready_waiting;
  if (arrives && stands) ++outstanding_;
  due_ = arrives && (!stands || RunAhead(core().plan()) > 0);
  added_ = false;
  if (core().work_.holds() && !HoldsAhead()) return core().BeginHeld(out);
  if (!arrives) return core().StepDone(false, out);
  Continue(out);
}

void OverlapProtocol::Continue(Actions* out) {
  RunSlots(out);
  if (!core().work_.idle() || !core().trains()) return;
  if (core().aim() == Aim::kStep) return ContinueStep(out);
  if (core().Ends()) ContinueFinish(out);
}

void OverlapProtocol::ContinueStep(Actions* out) {
  if (due_ && !core().step_.ready_waiting) {
    // What the groups before have gained is part of what it signals.
    if (!DrawnAhead(core().plan()) && inbox_ > 0) return AddInbox(out);
    if (Scheduled()) {
      TakeSlot(out);
    } else {
      Signal(out);
    }
  }
  core().BeginHeld(out);
  if (!core().work_.idle() || core().aim() != Aim::kStep) return;
  const bool full = outstanding_ > RunAhead(core().plan());
  if (Scheduled() ? due_ || full : core().step_.ready_waiting && full) return;
  if (InBackground() && !added_) core().step_.outcome.waited = core().now_ - core().call_.at();
  if (inbox_ > 0 && !added_) return AddInbox(out);
  core().StepDone(false, out);
}

void OverlapProtocol::ContinueFinish(Actions* out) {
  if (Scheduled() ? outstanding_ == 0 : !core().step_.ready_waiting) {
    if (inbox_ > 0 && !added_) return AddInbox(out);
    core().SayEnd(out);
  }
  core().BeginHeld(out);
}

void OverlapProtocol::Signal(Actions* out) {
  due_ = false;
  outstanding_ = std::max<std::uint64_t>(outstanding_, 1);
  core().step_.ready = arrived_;
  core().step_.ready.iteration = core().step_.iteration;
  core().SayReady(out);
}

// The caller's thread adds the inbox, and says so with Applied.
void OverlapProtocol::AddInbox(Actions* out) {
  core().step_.outcome.waited = core().now_ - core().call_.at();
  asked_inbox_ = inbox_;
  core().work_.Apply(ApplyNow::What::kInboxOfChanges, core().step_.iteration, out);
}

void OverlapProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  core().step_.iteration = iteration;
  // None: what was counted had been given up. More may have come since.
  CountAdded(rounds);
  if (rounds == 0) inbox_ = std::max<std::int64_t>(inbox_ - asked_inbox_, 0);
  added_ = true;
  if (core().EndsCall(out)) return;
  core().BeginHeld(out);
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
  if (core().beside_.runs()) {
    return GroupName(core().beside_.group().id) + " still runs here";
  }
  if (core().work_.has_group()) return "another group still runs here";
  if (!core().standing_.has_replica || core().work_.fetches() || core().work_.holds()) {
    return "this worker has no replica yet";
  }
  return {};
}

bool OverlapProtocol::HoldsAhead() const {
  const Group* group = core().work_.held_group();
  return group != nullptr && group->kind == GroupKind::kTrain;
}

bool OverlapProtocol::OnGroup(const Group& group, Actions* out) {
  if (group.kind != GroupKind::kTrain) return false;
  const bool pauses = core().standing_.paused && !InBackground();
  if (core().call_.cancelled() || pauses) {
    core().Push(Finished{.group = group.id,
                         .outcome = Outcome::kFailed,
                         .detail = pauses ? "its training loop pauses" : "cancelled by its user"},
                out);
  } else if (InBackground()) {
    BeginInBackground(group, out);
  } else {
    core().work_.Hold(group);
    Continue(out);
  }
  return true;
}

void OverlapProtocol::BeginInBackground(Group group, Actions* out) {
  Iteration gain = 0;
  if (DrawnAhead(core().plan())) {
    group.iteration = core().step_.iteration;
  } else {
    gain = std::max<Iteration>(group.iteration - core().step_.ready.iteration, 0);
  }
  core().BeginBeside(std::move(group), gain, false, out);
}

// The group in the background is through. A failed one is forgotten.
void OverlapProtocol::OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) {
  BackgroundGroup& through = core().beside_;
  through.Forget();
  const bool ok = outcome == Outcome::kOk;
  const bool passive = core().Passive(through.group());
  if (ok) {
    ++inbox_;
    newest_average_ = through.group();
  }
  if (!Scheduled()) {
    const bool waited = core().step_.ready_waiting && !passive;
    core().Push(
        Finished{
            .group = through.group().id,
            .outcome = outcome,
            .detail = detail,
            .wait_ns = waited ? std::max<DurationNs>(through.at() - core().step_.ready_at, 0) : 0,
            .reduce_ns = core().now_ - through.at(),
            .bytes = through.bytes()},
        out);
  }
  OnThrough(ok, passive, out);
}

void OverlapProtocol::OnTrained(Outcome outcome, const std::string& detail, Actions* out) {
  const bool ok = outcome == Outcome::kOk;
  if (ok && core().aim() == Aim::kStep) {
    ++core().step_.outcome.rounds;
    core().step_.outcome.included = true;
  }
  core().Report(outcome, detail, out);
  OnThrough(ok, core().Passive(core().work_.group()), out);
  Continue(out);
}

// What a group that is through, and reported, means for the signal that stands, or the slots.
void OverlapProtocol::OnThrough(bool ok, bool passive, Actions* out) {
  if (Scheduled()) {
    --outstanding_;
    added_ = false;
  } else if (ok && !passive) {
    core().step_.ready_waiting = false;
    outstanding_ = 0;
    added_ = false;
  } else if (!DrawnAhead(core().plan())) {
    const bool may = core().trains() && !core().call_.cancelled() && !core().standing_.said_end();
    if (may && core().aim() != Aim::kLeave) Signal(out);
  }
}

// ---- messages ----

void OverlapProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnAnswer(*reply, out);
  const auto* schedule = std::get_if<Schedule>(&body);
  if (schedule != nullptr && Scheduled()) return OnSchedule(*schedule, out);
  StepProtocol::OnMessage(body, out);
}

// The signal needs no group.
void OverlapProtocol::OnAnswer(const QueryReply& reply, Actions* out) {
  SessionFlow& c = core();
  if (!DrawnAhead(c.plan())) return;
  if (!c.step_.ready_waiting || reply.ready || reply.iteration != c.step_.ready.iteration) return;
  if (!InBackground() && c.work_.idle()) c.step_.outcome.waited += c.now_ - c.step_.idle_at;
  c.step_.ready_waiting = false;
  outstanding_ = 0;
  added_ = false;
  Continue(out);
}

}  // namespace prd
