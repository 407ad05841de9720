#include "worker/core/neighbour_protocol.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "worker/core/session_core_limits.h"

namespace prd {

bool NeighbourProtocol::serial() const { return AppliesFirst(ctx().plan()); }

void NeighbourProtocol::OnHello() {
  phase_ = Phase::kReceive;
  next_.reset();
  updates_ = {};
  awaits_neighbours_ = false;
}

// The others have gone on. The controller says next where this worker goes on, and with whom.
bool NeighbourProtocol::OnResumed(Actions*) {
  awaits_neighbours_ = true;
  return true;
}

// Begins with the replica that is here now.
bool NeighbourProtocol::OnReplica(bool copied, Actions* out) {
  phase_ = Phase::kReceive;
  next_.reset();
  updates_.MoveTo(ctx().step.iteration, out);
  Publish(out);
  return StepProtocol::OnReplica(copied, out);
}

void NeighbourProtocol::StartStep(Actions* out) {
  if (ctx().work.holds()) return ctx().BeginHeld(out);
  Continue(out);
}

void NeighbourProtocol::Continue(Actions* out) {
  const Aim aim = ctx().aim();
  if (!ctx().is_member() || aim == Aim::kLeave) return;
  Publish(out);
  if (ctx().Ends()) {
    ctx().SayEnd(out);
    if (ctx().standing.said_finish) updates_.Close(out);
  }
  if (aim != Aim::kStep || !ctx().work.idle() || ctx().work.holds()) return;
  if (!ctx().standing.has_replica || !updates_.met() || awaits_neighbours_) return;
  if (phase_ == Phase::kReceive) Receive(out);
  if (phase_ == Phase::kEnter) Enter(out);
}

// Publishes the first update also while the training loop computes: both only read the parameters.
void NeighbourProtocol::Publish(Actions* out) {
  const StepContext& c = ctx();
  if (!updates_.met() || !c.standing.has_replica || c.standing.said_finish) return;
  if (c.work.holds() || !c.work.idle()) return;
  if (serial() && c.aim() != Aim::kStep) return;
  updates_.Publish(c.now, c.step.iteration, out);
}

void NeighbourProtocol::Receive(Actions* out) {
  StepContext& c = ctx();
  if (c.step.ready_waiting || !updates_.CanReceive(c.step.iteration)) return;
  c.step.outcome.waited += c.now - c.step.idle_at;
  const UpdateQueues::Counters counters = updates_.TakeCounters();
  c.step.ready.iteration = c.step.iteration + 1;
  c.step.ready.waiting = true;
  c.step.ready.gradients = c.step.ready.local_steps = 0;
  c.step.ready.queued = counters.queued;
  c.step.ready.dropped = counters.dropped;
  c.step.ready.suppressed = counters.suppressed;
  c.SayReady(out);
  Mix(c.step.iteration, out);
  updates_.MoveTo(c.step.iteration + 1, out);
  phase_ = Phase::kEnter;
  if (serial() || c.step.discard) return;
  phase_ = Phase::kApply;
  c.work.Apply(ApplyNow::What::kGradients, c.step.iteration, out);
}

void NeighbourProtocol::Mix(Iteration k, Actions* out) {
  if (!updates_.Mix(k, out)) return;
  ctx().step.outcome.rounds = 1;
  ctx().step.outcome.included = true;
}

void NeighbourProtocol::OnApplied(Iteration iteration, std::int64_t, Actions* out) {
  ctx().step.iteration = iteration;
  if (phase_ == Phase::kApply) phase_ = Phase::kEnter;
  ctx().step.idle_at = ctx().now;
  if (ctx().EndsCall(out)) return;
  Continue(out);
  ctx().BeginHeld(out);
}

// Before a jump the parameters are averaged with the updates of the iteration before the one that
// is entered (section 5).
void NeighbourProtocol::Enter(Actions* out) {
  StepContext& c = ctx();
  if (!next_) return;
  if (*next_ > c.step.iteration + 1) {
    if (!updates_.CanReceive(*next_ - 1)) return;
    Mix(*next_ - 1, out);
  }
  c.step.outcome.waited += c.now - c.step.idle_at;
  c.step.iteration = *next_;
  next_.reset();
  phase_ = Phase::kReceive;
  out->push_back(SetIteration{c.step.iteration});
  updates_.MoveTo(c.step.iteration, out);
  if (!serial()) Publish(out);
  c.StepDone(false, out);
}

// ---- messages ----

void NeighbourProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnAnswer(*reply, out);
  if (const auto* hood = std::get_if<Neighbourhood>(&body)) return OnNeighbourhood(*hood, out);
  StepProtocol::OnMessage(body, out);
}

void NeighbourProtocol::OnAnswer(const QueryReply& reply, Actions* out) {
  StepContext& c = ctx();
  if (!c.step.ready_waiting) return;
  if (reply.iteration != c.step.ready.iteration || reply.next < reply.iteration ||
      reply.next > kMaxIteration) {
    return c.Over(Status(Code::kDataLoss, "the controller lets this worker enter iteration " +
                                              std::to_string(reply.next) + ", but it is in " +
                                              std::to_string(c.step.iteration)),
                  out);
  }
  c.step.ready_waiting = false;
  next_ = reply.next;
  updates_.MoveTo(std::max(reply.next - 1, c.step.iteration + 1), out);
  Continue(out);
}

std::string NeighbourProtocol::CheckNeighbourhood(const Neighbourhood& hood) const {
  if (hood.from.size() != hood.in.size()) return "it does not say from when on updates come";
  const auto share = [](double weight) { return std::isfinite(weight) && weight >= 0; };
  if (!share(hood.own_weight)) return "a weight is not a number from 0 on";
  for (const auto* members : {&hood.in, &hood.out}) {
    std::set<Incarnation> distinct;
    for (const GroupMember& member : *members) {
      if (!share(member.weight)) return "a weight is not a number from 0 on";
      if (member.incarnation == ctx().link.incarnation()) return "this worker is in it itself";
      distinct.insert(member.incarnation);
    }
    if (distinct.size() != members->size()) return "a neighbour is in it twice";
    if (members->size() > ctx().max_members()) return "it has too many neighbours";
  }
  return {};
}

void NeighbourProtocol::OnNeighbourhood(const Neighbourhood& hood, Actions* out) {
  StepContext& c = ctx();
  if (c.standing.said_finish || c.aim() == Aim::kLeave) return;
  const std::string wrong = CheckNeighbourhood(hood);
  if (!wrong.empty()) {
    return c.Over(Status(Code::kDataLoss, "the controller named neighbours, but " + wrong), out);
  }
  // The controller counts a worker that is about to enter an iteration as being there.
  const bool still = phase_ == Phase::kReceive && !c.step.ready_waiting;
  if (still && hood.at > c.step.iteration && hood.at <= kMaxIteration) {
    c.step.iteration = hood.at;
    out->push_back(SetIteration{c.step.iteration});
  }
  awaits_neighbours_ = false;
  updates_.SetNeighbourhood(c.now, *NeighboursOf(c.plan()), hood,
                            still ? c.step.iteration : updates_.window(), out);
  Continue(out);
}

void NeighbourProtocol::OnNote(Incarnation from, const PeerMessage& note, Actions* out) {
  updates_.OnNote(from, note, out);
}

void NeighbourProtocol::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                                  Actions* out) {
  updates_.OnRequest(from, request, parcel, out);
}

void NeighbourProtocol::OnPulled(Ticket ticket, const Status& status, const ShardHeader&,
                                 Actions* out) {
  updates_.OnPulled(ctx().now, ticket, status, out);
}

void NeighbourProtocol::OnTime(Actions* out) { updates_.OnTime(ctx().now, out); }

}  // namespace prd
