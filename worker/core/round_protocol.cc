#include "worker/core/round_protocol.h"

#include <algorithm>
#include <utility>

namespace prd {

void RoundProtocol::OnHello() {
  unapplied_ = arrival_due_ = false;
  owed_ = 0;
}

bool RoundProtocol::OnReplica(bool copied, Actions* out) {
  newest_ = ctx().step.iteration;
  unapplied_ = copied;  // it may bring an inbox
  owed_ = 0;
  arrival_due_ = false;
  return StepProtocol::OnReplica(copied, out);
}

void RoundProtocol::OnAveraged() { newest_ = ctx().step.iteration; }

// ---- calls ----

void RoundProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  StepProtocol::OnStep(ready, taken);
  arrival_due_ = true;
  deposited_ = false;
  own_round_.reset();
}

void RoundProtocol::StartStep(Actions* out) {
  if (ctx().work.holds()) return ctx().BeginHeld(out);
  Continue(out);
}

void RoundProtocol::OnCallEnds(Actions*) { arrival_due_ = false; }

// A step gives its gradient, waits for a round if there is no result yet, and applies what there
// is. Finish does the same until this worker owes nothing.
void RoundProtocol::Continue(Actions* out) {
  const Aim aim = ctx().aim();
  if (aim != Aim::kStep && !ctx().Ends()) return;
  if (!ctx().work.idle() || !ctx().trains()) return;
  if (arrival_due_) {
    if (ctx().step.ready_waiting || GaveToRound()) return;
    OnStepArrived(out);
  }
  if (unapplied_) return ApplyRounds(out);
  if (ctx().Ends() && (owed_ == 0 || ctx().standing.said_end())) return ctx().SayEnd(out);
  if (ctx().step.ready_waiting) return;
  Ready& ready = ctx().step.ready;
  ready.iteration = ctx().step.iteration + 1;
  ready.waiting = true;
  ready.gradients = 0;
  ctx().SayReady(out);
}

// The step in progress gives its gradient, and says that it is here.
void RoundProtocol::OnStepArrived(Actions* out) {
  const bool discard = ctx().step.discard;
  arrival_due_ = false;
  if (!discard) {
    deposited_ = true;
    ++owed_;
    out->push_back(Deposit{});
  }
  Ready& ready = ctx().step.ready;
  ready.iteration = ctx().step.iteration + 1;
  ready.waiting = !unapplied_;
  ready.gradients = discard ? 0 : 1;
  ctx().SayReady(out);
}

void RoundProtocol::ApplyRounds(Actions* out) {
  ctx().step.outcome.waited = ctx().now - ctx().call.at();
  ctx().step.outcome.group = last_round_;
  ctx().work.Apply(ApplyNow::What::kInboxOfGradients, newest_, out);
}

void RoundProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  ctx().step.iteration = iteration;
  ctx().step.in_inbox = 0;
  newest_ = std::max(newest_, iteration);
  unapplied_ = newest_ > iteration;
  const bool newest_only = TakesNewestOnly(ctx().plan());
  StepOutcome& step = ctx().step.outcome;
  step.included = own_round_ && (newest_only ? *own_round_ == iteration : *own_round_ <= iteration);
  if (last_round_.iteration <= iteration) step.group = last_round_;  // else it came too late
  if (ctx().aim() == Aim::kStep && rounds > 0) {
    step.rounds = rounds;
    return ctx().StepDone(false, out);
  }
  if (ctx().EndsCall(out)) return;
  Continue(out);
  ctx().BeginHeld(out);
}

bool RoundProtocol::DelaysFinal(Actions* out) {
  if (unapplied_) ApplyRounds(out);
  return unapplied_;
}

// ---- rounds ----

// A round may still have the outbox: nobody has said yet what became of it.
bool RoundProtocol::GaveToRound() const {
  return ctx().beside.is_open() && ctx().beside.contributed();
}

std::string RoundProtocol::Check(const Group& group) const {
  const std::string before = std::to_string(ctx().beside.group().id);
  if (ctx().beside.runs()) return "group " + before + " still runs here";
  if (ctx().work.has_group()) return "another group still runs here";
  if (group.kind != GroupKind::kRound && group.kind != GroupKind::kAverage) return {};
  if (!ctx().standing.has_replica || ctx().work.fetches() || ctx().work.holds()) {
    return "this worker has no replica yet";
  }
  if (group.kind == GroupKind::kAverage) {
    return group.iteration < newest_ ? "it is behind round " + std::to_string(newest_) : "";
  }
  if (GaveToRound()) return "nobody has said what became of group " + before;
  if (group.iteration <= newest_) return "its round is not after " + std::to_string(newest_);
  if (group.initial_weight != 0) return "the initial model has no part in a round";
  for (const GroupMember& member : group.members) {
    if (member.incarnation == ctx().link.incarnation() && member.weight > 0 && owed_ == 0) {
      return "it counts on a gradient that this worker has not offered";
    }
  }
  return {};
}

bool RoundProtocol::OnGroup(const Group& group, Actions* out) {
  if (group.kind != GroupKind::kRound) return false;
  const auto self = std::find_if(
      group.members.begin(), group.members.end(),
      [this](const GroupMember& member) { return member.incarnation == ctx().link.incarnation(); });
  ctx().BeginBeside(group, 0, self->weight > 0, out);
  return true;
}

void RoundProtocol::OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) {
  BackgroundGroup& round = ctx().beside;
  Finished finished{.group = round.group().id,
                    .outcome = outcome,
                    .detail = detail,
                    .wait_ns = ctx().step.ready_waiting ? round.at() - ctx().step.ready_at : 0,
                    .reduce_ns = ctx().now - round.at(),
                    .bytes = round.bytes()};
  round.Fail();
  if (outcome == Outcome::kOk) finished.included = HaveResult();
  ctx().Push(std::move(finished), out);
}

// The round's result is in the inbox. Returns how many of this worker's gradients are in it.
std::uint32_t RoundProtocol::HaveResult() {
  BackgroundGroup& round = ctx().beside;
  const std::uint32_t included = round.contributed() ? std::exchange(owed_, 0) : 0;
  newest_ = round.group().iteration;
  unapplied_ = true;
  ctx().step.ready_waiting = false;
  if (included > 0 && deposited_ && !own_round_) own_round_ = newest_;
  last_round_ = round.group();
  round.Forget();
  return included;
}

// Others have the result of a round that failed here.
void RoundProtocol::OnAdoptResult(const Adopt& adopt, Actions* out) {
  if (ctx().aim() == Aim::kLeave) return;
  BackgroundGroup& round = ctx().beside;
  if (!round.failed() || !round.is(adopt.result)) {
    return StepProtocol::OnAdoptResult(adopt, out);
  }
  if (ctx().call.cancelled()) return ctx().RefuseCopy("cancelled by its user", out);
  if (ctx().work.fetches()) return ctx().RefuseCopy("a replica is being copied", out);
  round.BeginFetch(ctx().now);
  out->push_back(StartFetch{
      .source = adopt.source, .result = adopt.result, .contributed = round.contributed()});
}

void RoundProtocol::OnResultFetched(const Status& status, Actions* out) {
  BackgroundGroup& round = ctx().beside;
  round.End(ctx().now);
  Adopted adopted{.ok = status.ok(), .iteration = 0, .detail = status.message()};
  round.Fail();
  if (status.ok()) {
    adopted.iteration = round.group().iteration;
    adopted.included = HaveResult();
  }
  ctx().Push(std::move(adopted), out);
  ctx().BeginHeld(out);
  Continue(out);
}

}  // namespace prd
