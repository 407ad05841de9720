// TrainsInRounds: rounds that run beside the training loop. Gradients are deposited in
// the outbox; a round that this worker contributes to takes all of them, or, if nobody has its
// result in the end, none. So none may be added while that is open.
#include <algorithm>
#include <utility>

#include "worker/core/session_core.h"

namespace prd {

bool SessionCore::RoundRuns() const {
  return round_.state == Round::State::kReduce || round_.state == Round::State::kFetch;
}

// Whether the outbox is in that round, or is its own again, is not known yet.
bool SessionCore::GaveToRound() const {
  return round_.state != Round::State::kNone && round_.contributed;
}

// What is wrong with a group of this strategy, or empty.
std::string SessionCore::CheckRound(const Group& group) const {
  const std::string before = std::to_string(round_.group.id);
  if (RoundRuns()) return "group " + before + " still runs here";
  if (work_ == Work::kReduce || (held_ && std::holds_alternative<Group>(*held_))) {
    return "another group still runs here";
  }
  if (group.kind != GroupKind::kRound && group.kind != GroupKind::kAverage) return {};
  if (!has_replica_ || work_ == Work::kFetch || held_) return "this worker has no replica yet";
  if (group.kind == GroupKind::kAverage) {
    return group.iteration < newest_ ? "it is behind round " + std::to_string(newest_) : "";
  }
  if (GaveToRound()) return "nobody has said what became of group " + before;
  if (group.iteration <= newest_) return "its round is not after " + std::to_string(newest_);
  if (group.initial_weight != 0) return "the initial model has no part in a round";
  for (const GroupMember& member : group.members) {
    if (member.incarnation == incarnation_ && member.weight > 0 && owed_ == 0) {
      return "it counts on a gradient that this worker has not offered";
    }
  }
  return {};
}

void SessionCore::BeginRound(Instant now, const Group& group, Actions* out) {
  const auto self = std::find_if(
      group.members.begin(), group.members.end(),
      [this](const GroupMember& member) { return member.incarnation == incarnation_; });
  round_ = {
      .state = Round::State::kReduce, .group = group, .contributed = self->weight > 0, .at = now};
  group_bytes_ = 0;
  ++since_.attempts;
  if (cancelled_) return ReportRound(now, Outcome::kFailed, "cancelled by its user", out);
  out->push_back(StartReduce{group});
}

void SessionCore::ReportRound(Instant now, Outcome outcome, const std::string& detail,
                              Actions* out) {
  since_.sent_bytes += group_bytes_;
  since_.reduced += now - round_.at;
  if (AveragesInBackground(plan())) return ReportBackground(now, outcome, detail, out);
  Finished finished{.group = round_.group.id,
                    .outcome = outcome,
                    .detail = detail,
                    .wait_ns = ready_waiting_ ? round_.at - ready_at_ : 0,
                    .reduce_ns = now - round_.at,
                    .bytes = group_bytes_};
  round_.state = Round::State::kFailed;
  if (outcome == Outcome::kOk) finished.included = HaveRound();
  Push(std::move(finished), out);
}

// The round's result is in the inbox. Returns how many of this worker's gradients are in it.
std::uint32_t SessionCore::HaveRound() {
  const std::uint32_t included = round_.contributed ? std::exchange(owed_, 0) : 0;
  newest_ = round_.group.iteration;
  unapplied_ = true;
  ready_waiting_ = false;
  if (included > 0 && deposited_ && !own_round_) own_round_ = newest_;
  last_round_ = std::move(round_.group);
  round_ = {};
  return included;
}

void SessionCore::OnRoundReduced(Instant now, const Status& status, Actions* out) {
  ReportRound(now, status.ok() ? Outcome::kOk : Outcome::kFailed, status.message(), out);
  BeginHeld(now, out);
  GoOn(now, out);
}

// Others have the result of a round that failed here.
void SessionCore::OnAdoptResult(Instant now, const Adopt& adopt, Actions* out) {
  if (call_ == Call::kLeave) return;
  const auto refuse = [this, out](std::string why) {
    Push(Adopted{.ok = false, .iteration = 0, .detail = std::move(why)}, out);
  };
  if (round_.state != Round::State::kFailed || round_.group.id != adopt.result) {
    return refuse("group " + std::to_string(adopt.result) + " is not one that failed here");
  }
  if (cancelled_) return refuse("cancelled by its user");
  if (work_ == Work::kFetch) return refuse("a replica is being copied");
  round_.state = Round::State::kFetch;
  round_.at = now;
  out->push_back(StartFetch{
      .source = adopt.source, .result = adopt.result, .contributed = round_.contributed});
}

void SessionCore::OnResultFetched(Instant now, const Status& status, Actions* out) {
  since_.reduced += now - round_.at;
  Adopted adopted{.ok = status.ok(), .iteration = 0, .detail = status.message()};
  round_.state = Round::State::kFailed;
  if (status.ok()) {
    adopted.iteration = round_.group.iteration;
    adopted.included = HaveRound();
  }
  Push(std::move(adopted), out);
  BeginHeld(now, out);
  GoOn(now, out);
}

// False if it does not concern the newest round.
bool SessionCore::AbortRound(Instant now, const Abort& abort, Actions* out) {
  if (round_.state == Round::State::kNone || round_.group.id != abort.group) return false;
  if (round_.state == Round::State::kReduce) {
    out->push_back(CancelReduce{});
    ReportRound(now, Outcome::kAborted, abort.reason, out);
  }
  if (!abort.undone && !AveragesInBackground(plan())) return true;
  if (round_.state == Round::State::kFetch) {
    out->push_back(CancelFetch{});
    Push(Adopted{.ok = false, .iteration = 0, .detail = abort.reason}, out);
  }
  round_ = {};  // what was given is still in the outbox
  BeginHeld(now, out);
  GoOn(now, out);
  return true;
}

void SessionCore::CancelRound(Instant now, const std::string& why, Actions* out) {
  if (round_.state == Round::State::kReduce) {
    out->push_back(CancelReduce{});
    ReportRound(now, Outcome::kFailed, why, out);
  } else if (round_.state == Round::State::kFetch) {
    out->push_back(CancelFetch{});
    round_.state = Round::State::kFailed;
    Push(Adopted{.ok = false, .iteration = 0, .detail = why}, out);
  }
}

// The step in progress gives its gradient, and says that it is here.
void SessionCore::Arrive(Instant now, Actions* out) {
  arrival_due_ = false;
  if (!discard_) {
    deposited_ = true;
    ++owed_;
    out->push_back(Deposit{});
  }
  ready_.iteration = iteration_ + 1;
  ready_.waiting = !unapplied_;
  ready_.gradients = discard_ ? 0 : 1;
  SayReady(now, out);
}

void SessionCore::ApplyRounds(Instant now, Actions* out) {
  work_ = Work::kApply;
  group_.id = kNoGroup;  // no report follows
  step_.waited = now - call_at_;
  step_.group = last_round_;
  out->push_back(ApplyNow{newest_});
}

void SessionCore::AppliedRounds() {
  newest_ = std::max(newest_, iteration_);
  unapplied_ = newest_ > iteration_;
  step_.included = own_round_ && (TakesNewestOnly(plan()) ? *own_round_ == iteration_
                                                          : *own_round_ <= iteration_);
  if (last_round_.iteration <= iteration_) step_.group = last_round_;  // else it came too late
}

// What the call in progress does next. A step: give its gradient, wait for a round if there is none
// yet, apply. Finish: the same until this worker owes nothing. The other strategies come here when
// nothing is left to do but to say Finish.
void SessionCore::GoOn(Instant now, Actions* out) {
  if (DecouplesSteps(plan())) {
    RunSlots(now, out);
    return Proceed(now, out);
  }
  if (HasNeighbours(plan())) return ProceedNeighbours(now, out);
  if (HasStore(plan())) return ProceedStore(now, out);
  if (!TrainsInRounds(plan())) {
    if (call_ == Call::kFinish) SayFinish(out);
    return;
  }
  if (call_ != Call::kStep && call_ != Call::kFinish) return;
  if (work_ != Work::kNone || contact_ != Contact::kMember || !has_replica_) return;
  if (arrival_due_) {
    if (ready_waiting_ || GaveToRound()) return;
    Arrive(now, out);
  }
  if (unapplied_) return ApplyRounds(now, out);
  if (call_ == Call::kFinish && (owed_ == 0 || said_finish_)) return SayFinish(out);
  if (ready_waiting_) return;
  ready_.iteration = iteration_ + 1;
  ready_.waiting = true;
  ready_.gradients = 0;
  SayReady(now, out);
}

}  // namespace prd
