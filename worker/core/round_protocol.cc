#include "worker/core/round_protocol.h"

#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {

void RoundProtocol::OnHello() {
  unapplied_ = arrival_due_ = false;
  owed_ = 0;
}

bool RoundProtocol::OnReplica(bool copied, Actions* out) {
  newest_ = core().step_.iteration;
  unapplied_ = copied;  // it may bring an inbox
  owed_ = 0;
  arrival_due_ = false;
  return StepProtocol::OnReplica(copied, out);
}

void RoundProtocol::OnAveraged() { newest_ = core().step_.iteration; }

// ---- calls ----

void RoundProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  StepProtocol::OnStep(ready, taken);
  arrival_due_ = true;
  deposited_ = false;
  own_round_.reset();
}

void RoundProtocol::StartStep(Actions* out) {
  if (core().work_.holds()) return core().BeginHeld(out);
  Continue(out);
}

void RoundProtocol::OnCallEnds(Actions*) { arrival_due_ = false; }

// A step gives its gradient, waits for a round if there is no result yet, and applies what there
// is. Finish does the same until this worker owes nothing.
void RoundProtocol::Continue(Actions* out) {
  const Aim aim = core().aim();
  if (aim != Aim::kStep && !core().Ends()) return;
  if (!core().work_.idle() || !core().trains()) return;
  if (arrival_due_) {
    if (core().step_.ready_waiting || GaveToRound()) return;
    OnStepArrived(out);
  }
  if (unapplied_) return ApplyRounds(out);
  if (core().Ends() && (owed_ == 0 || core().standing_.said_end())) return core().SayEnd(out);
  if (core().step_.ready_waiting) return;
  Ready& ready = core().step_.ready;
  ready.iteration = core().step_.iteration + 1;
  ready.waiting = true;
  ready.gradients = 0;
  core().SayReady(out);
}

// The step in progress gives its gradient, and says that it is here.
void RoundProtocol::OnStepArrived(Actions* out) {
  const bool discard = core().step_.discard;
  arrival_due_ = false;
  if (!discard) {
    deposited_ = true;
    ++owed_;
    out->push_back(Deposit{});
  }
  Ready& ready = core().step_.ready;
  ready.iteration = core().step_.iteration + 1;
  ready.waiting = !unapplied_;
  ready.gradients = discard ? 0 : 1;
  core().SayReady(out);
}

void RoundProtocol::ApplyRounds(Actions* out) {
  core().step_.outcome.waited = core().now_ - core().call_.at();
  core().step_.outcome.group = last_round_;
  core().work_.Apply(ApplyNow::What::kInboxOfGradients, newest_, out);
}

void RoundProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  core().step_.iteration = iteration;
  core().step_.in_inbox = 0;
  newest_ = std::max(newest_, iteration);
  unapplied_ = newest_ > iteration;
  const bool newest_only = TakesNewestOnly(core().plan());
  StepOutcome& step = core().step_.outcome;
  step.included = own_round_ && (newest_only ? *own_round_ == iteration : *own_round_ <= iteration);
  if (last_round_.iteration <= iteration) step.group = last_round_;  // else it came too late
  if (core().aim() == Aim::kStep && rounds > 0) {
    step.rounds = rounds;
    return core().StepDone(false, out);
  }
  if (core().EndsCall(out)) return;
  Continue(out);
  core().BeginHeld(out);
}

bool RoundProtocol::DelaysFinal(Actions* out) {
  if (unapplied_) ApplyRounds(out);
  return unapplied_;
}

// ---- rounds ----

// Whether the outbox is in that round, or is its own again, is not known yet.
bool RoundProtocol::GaveToRound() const {
  return core().beside_.is_open() && core().beside_.contributed();
}

std::string RoundProtocol::Check(const Group& group) const {
  const std::string before = std::to_string(core().beside_.group().id);
  if (core().beside_.runs()) return "group " + before + " still runs here";
  if (core().work_.has_group()) return "another group still runs here";
  if (group.kind != GroupKind::kRound && group.kind != GroupKind::kAverage) return {};
  if (!core().standing_.has_replica || core().work_.fetches() || core().work_.holds()) {
    return "this worker has no replica yet";
  }
  if (group.kind == GroupKind::kAverage) {
    return group.iteration < newest_ ? "it is behind round " + std::to_string(newest_) : "";
  }
  if (GaveToRound()) return "nobody has said what became of group " + before;
  if (group.iteration <= newest_) return "its round is not after " + std::to_string(newest_);
  if (group.initial_weight != 0) return "the initial model has no part in a round";
  for (const GroupMember& member : group.members) {
    if (member.incarnation == core().incarnation() && member.weight > 0 && owed_ == 0) {
      return "it counts on a gradient that this worker has not offered";
    }
  }
  return {};
}

bool RoundProtocol::OnGroup(const Group& group, Actions* out) {
  if (group.kind != GroupKind::kRound) return false;
  const auto self = std::find_if(
      group.members.begin(), group.members.end(),
      [this](const GroupMember& member) { return member.incarnation == core().incarnation(); });
  core().BeginBeside(group, 0, self->weight > 0, out);
  return true;
}

void RoundProtocol::OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) {
  BackgroundGroup& round = core().beside_;
  Finished finished{.group = round.group().id,
                    .outcome = outcome,
                    .detail = detail,
                    .wait_ns = core().step_.ready_waiting ? round.at() - core().step_.ready_at : 0,
                    .reduce_ns = core().now_ - round.at(),
                    .bytes = round.bytes()};
  round.Fail();
  if (outcome == Outcome::kOk) finished.included = HaveResult();
  core().Push(std::move(finished), out);
}

// The round's result is in the inbox. Returns how many of this worker's gradients are in it.
std::uint32_t RoundProtocol::HaveResult() {
  BackgroundGroup& round = core().beside_;
  const std::uint32_t included = round.contributed() ? std::exchange(owed_, 0) : 0;
  newest_ = round.group().iteration;
  unapplied_ = true;
  core().step_.ready_waiting = false;
  if (included > 0 && deposited_ && !own_round_) own_round_ = newest_;
  last_round_ = round.group();
  round.Forget();
  return included;
}

// Others have the result of a round that failed here.
void RoundProtocol::OnAdoptResult(const Adopt& adopt, Actions* out) {
  if (core().aim() == Aim::kLeave) return;
  BackgroundGroup& round = core().beside_;
  if (!round.failed() || !round.is(adopt.result)) {
    return StepProtocol::OnAdoptResult(adopt, out);
  }
  if (core().call_.cancelled()) return core().RefuseCopy("cancelled by its user", out);
  if (core().work_.fetches()) return core().RefuseCopy("a replica is being copied", out);
  round.BeginFetch(core().now_);
  out->push_back(StartFetch{
      .source = adopt.source, .result = adopt.result, .contributed = round.contributed()});
}

void RoundProtocol::OnResultFetched(const Status& status, Actions* out) {
  BackgroundGroup& round = core().beside_;
  round.End(core().now_);
  Adopted adopted{.ok = status.ok(), .iteration = 0, .detail = status.message()};
  round.Fail();
  if (status.ok()) {
    adopted.iteration = round.group().iteration;
    adopted.included = HaveResult();
  }
  core().Push(std::move(adopted), out);
  core().BeginHeld(out);
  Continue(out);
}

}  // namespace prd
