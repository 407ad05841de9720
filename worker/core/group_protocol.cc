#include "worker/core/group_protocol.h"

#include "worker/core/session_flow.h"

namespace prd {
namespace {

// Queries that need no answer are not said beyond this many messages that the controller has not
// acknowledged: the step waits, so that it is noticed when the controller is away.
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

// What was counted and said since the last group is past.
void GroupProtocol::BeginRound() {
  local_steps_ = 0;
  stop_requested_ = false;
  asked_.reset();
}

void GroupProtocol::OnStep(const Ready& ready, std::int64_t taken) {
  StepProtocol::OnStep(ready, taken);
  const bool changes = ReducedInTraining(core().plan()).payload == Payload::kChange;
  if (changes && !core().step_.discard) ++local_steps_;
  core().step_.ready.local_steps = local_steps_;
}

void GroupProtocol::StartStep(Actions* out) {
  if (core().work_.holds()) return core().BeginHeld(out);
  if (!Synchronises()) return core().StepDone(false, out);
  SignalAgain(out);
}

void GroupProtocol::OnStepEnds() {
  StepProtocol::OnStepEnds();
  core().step_.outcome.local_steps = local_steps_;
}

void GroupProtocol::Continue(Actions* out) {
  if (core().Ends()) core().SayEnd(out);
}

// Signals the step in progress, unless it is signalled already or cannot be yet.
void GroupProtocol::SignalAgain(Actions* out) {
  const Aim aim = core().aim();
  // Nothing to offer. But a worker that was told to wait for a group has the steps before.
  if (aim == Aim::kStep && core().step_.discard && !stop_requested_)
    return core().StepDone(false, out);
  const bool stepping = aim == Aim::kStep || (core().Ends() && !core().standing_.said_end());
  if (!stepping || !core().trains() || core().step_.ready_waiting) return;
  if (AsksBeforeGroups(core().plan())) return Ask(out);
  core().SayReady(out);
}

bool GroupProtocol::EndsWithReduction() const {
  return ReducedInTraining(core().plan()).landing == Landing::kParameters;
}

void GroupProtocol::OnTrained(Outcome outcome, const std::string& detail, Actions* out) {
  if (outcome != Outcome::kOk) {
    core().Report(outcome, detail, out);
    return SignalAgain(out);
  }
  if (ReducedInTraining(core().plan()).landing == Landing::kGradients) {
    return core().work_.ApplyResult(out);
  }
  core().step_.iteration = core().work_.group().iteration;
  core().Report(Outcome::kOk, {}, out);
  BeginRound();
  if (core().aim() != Aim::kStep) return Continue(out);
  core().step_.outcome.rounds = 1;
  core().step_.outcome.included = true;
  core().StepDone(false, out);
}

void GroupProtocol::OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) {
  core().step_.iteration = iteration;
  if (core().work_.group().id != kNoGroup) core().Report(Outcome::kOk, {}, out);
  if (core().aim() == Aim::kStep && rounds > 0) {
    core().step_.outcome.rounds = rounds;
    core().step_.outcome.included = true;
    return core().StepDone(false, out);
  }
  if (core().EndsCall(out)) return;
  Continue(out);
  core().BeginHeld(out);
}

// ---- queries ----

// REQUIRES: the step in progress may be signalled now.
void GroupProtocol::Ask(Actions* out) {
  Ready& ready = core().step_.ready;
  ready.waiting = !AcknowledgesLate(core().plan()) || stop_requested_;
  if (!ready.waiting && core().link_.unacked() >= kMaxUnacked) return;
  ready.iteration = core().step_.iteration + 1;
  ready.local_steps = local_steps_;
  core().SayReady(out);
  asked_ = ready;
  if (!ready.waiting && core().aim() == Aim::kStep) core().StepDone(false, out);
}

// A step may wait for the controller to acknowledge something (kMaxUnacked).
void GroupProtocol::OnAcked(Actions* out) {
  const bool idle = core().aim() == Aim::kStep && core().work_.idle() && !core().work_.holds();
  if (idle && AsksBeforeGroups(core().plan())) SignalAgain(out);
}

void GroupProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnReply(*reply, out);
  StepProtocol::OnMessage(body, out);
}

void GroupProtocol::OnReply(const QueryReply& reply, Actions* out) {
  // A reply to a signal of a round that is past means nothing.
  if (!asked_ || reply.iteration != asked_->iteration) return;
  if (AcknowledgesLate(core().plan())) {
    if (reply.local_steps <= asked_->local_steps) stop_requested_ = stop_requested_ || reply.ready;
    return;
  }
  if (!core().step_.ready_waiting || reply.local_steps != asked_->local_steps || reply.ready)
    return;
  core().step_.ready_waiting = false;
  if (core().aim() == Aim::kStep && local_steps_ == asked_->local_steps) {
    return core().StepDone(false, out);
  }
  // The step that asked has ended without an answer, and this is a later one.
  if (core().aim() == Aim::kStep) SignalAgain(out);
  if (core().Ends()) core().SayEnd(out);
}

}  // namespace prd
