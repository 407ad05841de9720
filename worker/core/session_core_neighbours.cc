// NeighbourPlan: what a step waits for under Hop (Luo et al., ASPLOS 2019).
//
// In the parallel order (Figure 2b, 4, 7) the parameters are published when an iteration is
// entered, and the step receives, averages, applies and enters the next one. In the serial order
// (Figure 2a) the gradient is in the parameters when the step begins: it publishes, receives,
// averages and enters. The controller is asked for the next iteration as soon as enough updates are
// here, so that its answer comes while the average is computed and applied.
#include <cmath>
#include <set>

#include "worker/core/session_core.h"
#include "worker/core/session_core_limits.h"

namespace prd {

void SessionCore::ArriveNeighbours(Instant now, Actions* out) { ProceedNeighbours(now, out); }

void SessionCore::ProceedNeighbours(Instant now, Actions* out) {
  if (contact_ != Contact::kMember || call_ == Call::kLeave) return;
  PublishDue(now, out);
  if (call_ == Call::kFinish) {
    SayFinish(out);
    if (said_finish_) updates_.Close(out);
  }
  if (call_ != Call::kStep || work_ != Work::kNone || held_ || !has_replica_) return;
  if (!updates_.met()) return;
  if (phase_ == Phase::kReceive) ReceiveUpdates(now, out);
  if (phase_ == Phase::kEnter) Enter(now, out);
}

// The first update also while the training loop computes, which reads the parameters too.
void SessionCore::PublishDue(Instant now, Actions* out) {
  if (!updates_.met() || !has_replica_ || said_finish_ || held_ || work_ != Work::kNone) return;
  if (AppliesFirst(plan()) && call_ != Call::kStep) return;
  updates_.Publish(now, iteration_, out);
}

void SessionCore::ReceiveUpdates(Instant now, Actions* out) {
  if (ready_waiting_ || !updates_.CanReceive(iteration_)) return;
  step_.waited += now - idle_at_;
  const UpdateQueues::Counters counters = updates_.TakeCounters();
  ready_.iteration = iteration_ + 1;
  ready_.waiting = true;
  ready_.gradients = ready_.local_steps = 0;
  ready_.queued = counters.queued;
  ready_.dropped = counters.dropped;
  ready_.suppressed = counters.suppressed;
  SayReady(now, out);
  Mix(iteration_, out);
  updates_.MoveTo(iteration_ + 1, out);
  phase_ = Phase::kEnter;
  if (AppliesFirst(plan()) || discard_) return;
  phase_ = Phase::kApply;
  work_ = Work::kApply;
  group_.id = kNoGroup;  // no report follows
  out->push_back(ApplyNow{iteration_});
}

void SessionCore::Mix(Iteration k, Actions* out) {
  if (!updates_.Mix(k, out)) return;
  step_.rounds = 1;
  step_.included = true;
}

void SessionCore::AppliedUpdate(Instant now, Actions* out) {
  if (phase_ == Phase::kApply) phase_ = Phase::kEnter;
  idle_at_ = now;
  if (contact_ == Contact::kOver) return Done(over_, out);
  if (cancelled_) return Done(Status(Code::kCancelled, "the session was cancelled"), out);
  GoOn(now, out);
  BeginHeld(now, out);
}

// Before a jump the parameters are averaged with the updates of the iteration before the one that
// is entered (section 5).
void SessionCore::Enter(Instant now, Actions* out) {
  if (!next_) return;
  if (*next_ > iteration_ + 1) {
    if (!updates_.CanReceive(*next_ - 1)) return;
    Mix(*next_ - 1, out);
  }
  step_.waited += now - idle_at_;
  iteration_ = *next_;
  next_.reset();
  phase_ = Phase::kReceive;
  out->push_back(SetIteration{iteration_});
  updates_.MoveTo(iteration_, out);
  if (!AppliesFirst(plan())) PublishDue(now, out);
  StepDone(false, out);
}

void SessionCore::OnEntered(Instant now, const QueryReply& reply, Actions* out) {
  if (!ready_waiting_) return;
  if (reply.iteration != ready_.iteration || reply.next < reply.iteration ||
      reply.next > kMaxIteration) {
    return Over(Status(Code::kDataLoss, "the controller lets this worker enter iteration " +
                                            std::to_string(reply.next) + ", but it is in " +
                                            std::to_string(iteration_)),
                out);
  }
  ready_waiting_ = false;
  next_ = reply.next;
  updates_.MoveTo(std::max(reply.next - 1, iteration_ + 1), out);
  GoOn(now, out);
}

std::string SessionCore::CheckNeighbourhood(const Neighbourhood& hood) const {
  if (hood.from.size() != hood.in.size()) return "it does not say from when on updates come";
  const auto share = [](double weight) { return std::isfinite(weight) && weight >= 0; };
  if (!share(hood.own_weight)) return "a weight is not a number from 0 on";
  for (const auto* members : {&hood.in, &hood.out}) {
    std::set<Incarnation> distinct;
    for (const GroupMember& member : *members) {
      if (!share(member.weight)) return "a weight is not a number from 0 on";
      if (member.incarnation == incarnation_) return "this worker is in it itself";
      distinct.insert(member.incarnation);
    }
    if (distinct.size() != members->size()) return "a neighbour is in it twice";
    if (members->size() > options_.max_members) return "it has too many neighbours";
  }
  return {};
}

void SessionCore::OnNeighbourhood(Instant now, const Neighbourhood& hood, Actions* out) {
  if (said_finish_ || call_ == Call::kLeave) return;
  const std::string wrong = CheckNeighbourhood(hood);
  if (!wrong.empty()) {
    return Over(Status(Code::kDataLoss, "the controller named neighbours, but " + wrong), out);
  }
  // A worker that is about to enter an iteration is there already as the controller counts.
  const bool still = phase_ == Phase::kReceive && !ready_waiting_;
  if (still && hood.at > iteration_ && hood.at <= kMaxIteration) {
    iteration_ = hood.at;
    out->push_back(SetIteration{iteration_});
  }
  if (still) updates_.MoveTo(iteration_, out);
  updates_.SetNeighbourhood(now, *NeighboursOf(plan()), hood, out);
  GoOn(now, out);
}

// With the replica that is here now.
void SessionCore::BeginUpdates(Instant now, Actions* out) {
  phase_ = Phase::kReceive;
  next_.reset();
  updates_.MoveTo(iteration_, out);
  PublishDue(now, out);
}

}  // namespace prd
