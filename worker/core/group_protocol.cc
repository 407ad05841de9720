#include "worker/core/group_protocol.h"

namespace prd {
namespace {

// A query that needs no answer is not sent while this many messages are unacknowledged. The step
// waits instead, so that a controller that is away is noticed.
constexpr std::size_t kMaxUnacked = 1024;

}  // namespace

void GroupProtocol::OnHello() {
  stop_requested_ = false;
  asked_.reset();
}

bool GroupProtocol::OnReplica(bool copied, Actions* out) {
  BeginRound();
  return StepProtocol::OnReplica(copied, out);
}

// Forgets what was counted and said since the last group.
void GroupProtocol::BeginRound() {
  local_steps_ = 0;
  stop_requested_ = false;
  asked_.reset();
}

void GroupProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  StepProtocol::OnStep(ready, taken);
  const bool changes = ReducedInTraining(ctx().plan()).payload == Payload::kChange;
  if (changes && !ctx().step.discard) ++local_steps_;
  ctx().step.ready.local_steps = local_steps_;
}

void GroupProtocol::StartStep(Actions* out) {
  if (ctx().work.holds()) return ctx().BeginHeld(out);
  if (!Synchronises()) return ctx().StepDone(false, out);
  SignalAgain(out);
}

void GroupProtocol::OnStepEnds() {
  StepProtocol::OnStepEnds();
  ctx().step.outcome.local_steps = local_steps_;
}

void GroupProtocol::Continue(Actions* out) {
  if (!ctx().Ends()) return;
  // The local steps since the last round are to be in one.
  const bool free = ctx().work.idle() && !ctx().work.holds();
  if (local_steps_ > 0 && free && !ctx().standing.said_end()) return SignalAgain(out);
  ctx().SayEnd(out);
}

// Signals the step in progress, unless it is signalled already or cannot be yet.
void GroupProtocol::SignalAgain(Actions* out) {
  const Aim aim = ctx().aim();
  // A discarded step has nothing to offer. But a worker that was told to wait for a group has the
  // steps before.
  if (aim == Aim::kStep && ctx().step.discard && !stop_requested_) {
    return ctx().StepDone(false, out);
  }
  const bool stepping = aim == Aim::kStep || (ctx().Ends() && !ctx().standing.said_end());
  if (!stepping || !ctx().trains() || ctx().step.ready_waiting) return;
  if (aim == Aim::kStep && ctx().EndsPartial(out)) return;
  if (AsksBeforeGroups(ctx().plan())) return Ask(out);
  ctx().SayReady(out);
}

bool GroupProtocol::EndsWithReduction() const {
  return ReducedInTraining(ctx().plan()).landing == Landing::kParameters;
}

void GroupProtocol::OnTrained(Outcome outcome, const std::string& detail, Actions* out) {
  if (outcome != Outcome::kOk) {
    ctx().Report(outcome, detail, out);
    return SignalAgain(out);
  }
  if (ReducedInTraining(ctx().plan()).landing == Landing::kGradients) {
    return ctx().work.ApplyResult(out);
  }
  ctx().step.iteration = ctx().work.group().iteration;
  ctx().Report(Outcome::kOk, {}, out);
  BeginRound();
  if (ctx().aim() != Aim::kStep) return Continue(out);
  ctx().step.outcome.rounds = 1;
  ctx().step.outcome.included = true;
  ctx().StepDone(false, out);
}

void GroupProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  ctx().step.iteration = iteration;
  if (ctx().work.group().id != kNoGroup) ctx().Report(Outcome::kOk, {}, out);
  if (ctx().aim() == Aim::kStep && rounds > 0) {
    ctx().step.outcome.rounds = rounds;
    ctx().step.outcome.included = true;
    return ctx().StepDone(false, out);
  }
  if (ctx().EndsCall(out)) return;
  Continue(out);
  ctx().BeginHeld(out);
}

// ---- queries ----

// REQUIRES: the step in progress may be signalled now.
void GroupProtocol::Ask(Actions* out) {
  Ready& ready = ctx().step.ready;
  ready.last = ctx().Ends();
  ready.waiting = !AcknowledgesLate(ctx().plan()) || stop_requested_ || ready.last;
  if (!ready.waiting && ctx().link.unacked() >= kMaxUnacked) return;
  ready.iteration = ctx().step.iteration + 1;
  ready.local_steps = local_steps_;
  ctx().SayReady(out);
  asked_ = ready;
  if (!ready.waiting && ctx().aim() == Aim::kStep) ctx().StepDone(false, out);
}

// A step may wait for the controller to acknowledge something (kMaxUnacked).
void GroupProtocol::OnAcked(Actions* out) {
  const bool idle = ctx().aim() == Aim::kStep && ctx().work.idle() && !ctx().work.holds();
  if (idle && AsksBeforeGroups(ctx().plan())) SignalAgain(out);
}

void GroupProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnReply(*reply, out);
  StepProtocol::OnMessage(body, out);
}

void GroupProtocol::OnReply(const QueryReply& reply, Actions* out) {
  // A reply to a signal of an earlier round means nothing.
  if (!asked_ || reply.iteration != asked_->iteration) return;
  if (AcknowledgesLate(ctx().plan())) {
    if (reply.local_steps <= asked_->local_steps) stop_requested_ = stop_requested_ || reply.ready;
    return;
  }
  if (!ctx().step.ready_waiting || reply.local_steps != asked_->local_steps || reply.ready) return;
  ctx().step.ready_waiting = false;
  if (ctx().aim() == Aim::kStep && local_steps_ == asked_->local_steps) {
    return ctx().StepDone(false, out);
  }
  // The step that asked has ended without an answer, and this is a later one.
  if (ctx().aim() == Aim::kStep) SignalAgain(out);
  if (ctx().Ends()) ctx().SayEnd(out);  // its steps will be in no round
}

}  // namespace prd
