// Models averaged where steps and groups are not one to one (DrawnAhead, background,
// scheduled): what a step waits for, what answers a signal, and groups that run beside the
// training loop.
#include <algorithm>
#include <utility>

#include "worker/core/session_core.h"

namespace prd {

// Whether this step is one that synchronises; it counts the step.
bool SessionCore::Synchronises() {
  if (!CountsLocalSteps(plan()) || discard_) return true;
  return ++section_ >= StepsPerSignal(plan());
}

bool SessionCore::Passive(const Group& group) const {
  if (!DrawnAhead(plan()) || group.kind != GroupKind::kTrain) return false;
  return std::any_of(group.members.begin(), group.members.end(), [this](const GroupMember& member) {
    return member.incarnation == incarnation_ && member.passive;
  });
}

// What is wrong with a group to train with, or empty.
std::string SessionCore::CheckTrain() const {
  if (FollowsSchedule(plan())) return "the job's workers draw such groups themselves";
  if (RoundRuns()) return "group " + std::to_string(round_.group.id) + " still runs here";
  if (work_ == Work::kReduce || (held_ && std::holds_alternative<Group>(*held_))) {
    return "another group still runs here";
  }
  if (!has_replica_ || work_ == Work::kFetch || held_) return "this worker has no replica yet";
  return {};
}

// ---- the call in progress ----

// The inbox was taken: this many averages were added to the parameters.
void SessionCore::Took(std::int64_t rounds) {
  inbox_ = std::max<std::int64_t>(inbox_ - rounds, 0);
  if (call_ != Call::kStep || rounds <= 0) return;
  step_.rounds += rounds;
  step_.included = true;
  step_.group = last_round_;
}

void SessionCore::ArriveDecoupled(Instant now, Actions* out) {
  const bool arrives = !discard_ && Synchronises();
  if (arrives && ready_waiting_) ++outstanding_;
  due_ = arrives && (!ready_waiting_ || RunAhead(plan()) > 0);
  added_ = false;
  if (held_ && !HoldsAhead()) return BeginHeld(now, out);
  if (!arrives) return StepDone(false, out);
  GoOn(now, out);
}

// What the call in progress does next.
void SessionCore::Proceed(Instant now, Actions* out) {
  if (work_ != Work::kNone || contact_ != Contact::kMember || !has_replica_) return;
  if (call_ == Call::kStep) return ProceedStep(now, out);
  if (call_ == Call::kFinish) ProceedFinish(now, out);
}

void SessionCore::ProceedStep(Instant now, Actions* out) {
  if (due_ && !ready_waiting_) {
    // What the groups before have gained is part of what it signals.
    if (!DrawnAhead(plan()) && inbox_ > 0) return AddInbox(out);
    if (FollowsSchedule(plan())) {
      TakeSlot(now, out);
    } else {
      SignalDecoupled(now, out);
    }
  }
  BeginHeld(now, out);
  if (work_ != Work::kNone || call_ != Call::kStep) return;
  const bool full = outstanding_ > RunAhead(plan());
  if (FollowsSchedule(plan()) ? due_ || full : ready_waiting_ && full) return;
  if (AveragesInBackground(plan()) && !added_) step_.waited = now - call_at_;
  if (inbox_ > 0 && !added_) return AddInbox(out);
  StepDone(false, out);
}

void SessionCore::ProceedFinish(Instant now, Actions* out) {
  if (FollowsSchedule(plan()) ? outstanding_ == 0 : !ready_waiting_) {
    if (inbox_ > 0 && !added_) return AddInbox(out);
    SayFinish(out);
  }
  BeginHeld(now, out);
}

void SessionCore::SignalDecoupled(Instant now, Actions* out) {
  due_ = false;
  outstanding_ = std::max<std::uint64_t>(outstanding_, 1);
  ready_ = arrived_;
  ready_.iteration = iteration_;
  SayReady(now, out);
}

// The caller's thread adds the inbox, and says so with Applied.
void SessionCore::AddInbox(Actions* out) {
  work_ = Work::kApply;
  group_.id = kNoGroup;  // no report follows
  step_.waited = now_ - call_at_;
  asked_inbox_ = inbox_;
  out->push_back(ApplyNow{iteration_});
}

void SessionCore::Added(Instant now, Iteration iteration, std::int64_t rounds, Actions* out) {
  iteration_ = iteration;
  // None: what was counted had been given up. More may have come since.
  Took(rounds);
  if (rounds == 0) inbox_ = std::max<std::int64_t>(inbox_ - asked_inbox_, 0);
  added_ = true;
  if (contact_ == Contact::kOver) return Done(over_, out);
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  BeginHeld(now, out);
  GoOn(now, out);
}

// ---- announced groups ----

bool SessionCore::HoldsAhead() const {
  const auto* group = DecouplesSteps(plan()) && held_ ? std::get_if<Group>(&*held_) : nullptr;
  return group != nullptr && group->kind == GroupKind::kTrain;
}

// A group that was announced ahead will not be begun.
void SessionCore::FailHeld(const std::string& why, Actions* out) {
  if (!HoldsAhead()) return;
  const GroupId id = std::get<Group>(*held_).id;
  held_.reset();
  Push(Finished{.group = id, .outcome = Outcome::kFailed, .detail = why}, out);
}

void SessionCore::OnTrainGroup(Instant now, const Group& group, Actions* out) {
  if (cancelled_) {
    Push(
        Finished{.group = group.id, .outcome = Outcome::kFailed, .detail = "cancelled by its user"},
        out);
    return;
  }
  if (AveragesInBackground(plan())) return BeginBackground(now, group, out);
  held_ = group;
  GoOn(now, out);
}

void SessionCore::BeginBackground(Instant now, Group group, Actions* out) {
  Iteration gain = 0;
  if (DrawnAhead(plan())) {
    group.iteration = iteration_;
  } else {
    gain = std::max<Iteration>(group.iteration - ready_.iteration, 0);
  }
  group_bytes_ = 0;
  if (!Passive(group)) ++since_.attempts;
  round_ = {.state = Round::State::kReduce, .group = std::move(group), .at = now};
  out->push_back(StartReduce{.group = round_.group, .gain = gain});
}

// The group in the background is through. A failed one is forgotten.
void SessionCore::ReportBackground(Instant now, Outcome outcome, const std::string& detail,
                                   Actions* out) {
  const Round round = std::exchange(round_, {});
  const bool ok = outcome == Outcome::kOk;
  const bool passive = Passive(round.group);
  if (ok) {
    ++inbox_;
    last_round_ = round.group;
  }
  if (!FollowsSchedule(plan())) {
    const bool waited = ready_waiting_ && !passive;
    Push(Finished{.group = round.group.id,
                  .outcome = outcome,
                  .detail = detail,
                  .wait_ns = waited ? std::max<DurationNs>(round.at - ready_at_, 0) : 0,
                  .reduce_ns = now - round.at,
                  .bytes = group_bytes_},
         out);
  }
  Through(now, ok, passive, out);
}

// The group of the call in progress is through.
void SessionCore::OnTrained(Instant now, Outcome outcome, const std::string& detail, Actions* out) {
  const bool ok = outcome == Outcome::kOk;
  if (ok && call_ == Call::kStep) {
    ++step_.rounds;
    step_.included = true;
  }
  Report(now, outcome, detail, out);
  Through(now, ok, Passive(group_), out);
  GoOn(now, out);
}

// What a group that is through, and reported, means for the signal that stands, or the slots.
void SessionCore::Through(Instant now, bool ok, bool passive, Actions* out) {
  if (FollowsSchedule(plan())) {
    --outstanding_;
    added_ = false;
  } else if (ok && !passive) {
    ready_waiting_ = false;
    outstanding_ = 0;
    added_ = false;
  } else if (!DrawnAhead(plan())) {
    const bool may = contact_ == Contact::kMember && has_replica_ && !cancelled_ && !said_finish_;
    if (may && call_ != Call::kLeave) SignalDecoupled(now, out);
  }
}

// The signal needs no group.
void SessionCore::OnAnswer(Instant now, const QueryReply& reply, Actions* out) {
  if (!ready_waiting_ || reply.ready || reply.iteration != ready_.iteration) return;
  if (!AveragesInBackground(plan()) && work_ == Work::kNone) step_.waited += now - idle_at_;
  ready_waiting_ = false;
  outstanding_ = 0;
  added_ = false;
  GoOn(now, out);
}

}  // namespace prd
