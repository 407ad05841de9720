// Payload::kChange: a worker asks whether the round's group is due, and trains on until it is.
#include "worker/core/session_core.h"

namespace prd {
namespace {

// Queries that need no answer are not said beyond this many messages that the controller has not
// acknowledged: the step waits, so that it is noticed when the controller is away.
constexpr std::size_t kMostUnacked = 1024;

}  // namespace

// Signals the step in progress; REQUIRES: it may be signalled now.
void SessionCore::Query(Instant now, Actions* out) {
  ready_.waiting = !AcknowledgesLate(plan()) || told_;
  if (!ready_.waiting && link_.unacked().size() >= kMostUnacked) return;
  ready_.iteration = iteration_ + 1;
  ready_.local_steps = local_steps_;
  SayReady(now, out);
  asked_ = ready_;
  if (!ready_.waiting && call_ == Call::kStep) StepDone(false, out);
}

// The controller has acknowledged something: a step may wait for that.
void SessionCore::QueryDue(Instant now, Actions* out) {
  if (call_ == Call::kStep && work_ == Work::kNone && !held_) SignalAgain(now, out);
}

void SessionCore::OnQueryReply(Instant now, const QueryReply& reply, Actions* out) {
  if (DrawnAhead(plan())) return OnAnswer(now, reply, out);
  // One to a signal of a round that is past means nothing.
  if (!asked_ || reply.iteration != asked_->iteration) return;
  if (AcknowledgesLate(plan())) {
    if (reply.local_steps <= asked_->local_steps) told_ = told_ || reply.ready;
    return;
  }
  if (!ready_waiting_ || reply.local_steps != asked_->local_steps || reply.ready) return;
  ready_waiting_ = false;
  if (call_ == Call::kStep && local_steps_ == asked_->local_steps) return StepDone(false, out);
  // The step that asked has ended without an answer, and this is a later one.
  if (call_ == Call::kStep) SignalAgain(now, out);
  if (call_ == Call::kFinish) SayFinish(out);
}

}  // namespace prd
