#include "worker/core/neighbour_protocol.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "worker/core/session_core_limits.h"
#include "worker/core/session_flow.h"

namespace prd {

using Call = SessionFlow::Call;

bool NeighbourProtocol::serial() const { return AppliesFirst(core().plan()); }

void NeighbourProtocol::OnHello() {
  phase_ = Phase::kReceive;
  next_.reset();
  updates_ = {};
  awaits_neighbours_ = false;
}

// The others have gone on: where it goes on, and with whom, it is told next.
bool NeighbourProtocol::OnResumed(Actions*) {
  awaits_neighbours_ = true;
  return true;
}

// Begins with the replica that is here now.
bool NeighbourProtocol::OnReplica(bool copied, Actions* out) {
  phase_ = Phase::kReceive;
  next_.reset();
  updates_.MoveTo(core().iteration_, out);
  Publish(out);
  return StepProtocol::OnReplica(copied, out);
}

void NeighbourProtocol::StartStep(Actions* out) {
  if (core().work_.holds()) return core().BeginHeld(out);
  Continue(out);
}

void NeighbourProtocol::Continue(Actions* out) {
  const Call call = core().call_;
  if (!core().is_member() || call == Call::kLeave) return;
  Publish(out);
  if (core().Ends()) {
    core().SayEnd(out);
    if (core().said_finish_) updates_.Close(out);
  }
  if (call != Call::kStep || !core().work_.idle() || core().work_.holds()) return;
  if (!core().has_replica_ || !updates_.met() || awaits_neighbours_) return;
  if (phase_ == Phase::kReceive) Receive(out);
  if (phase_ == Phase::kEnter) Enter(out);
}

// The first update also while the training loop computes, which reads the parameters too.
void NeighbourProtocol::Publish(Actions* out) {
  const SessionFlow& c = core();
  if (!updates_.met() || !c.has_replica_ || c.said_finish_) return;
  if (c.work_.holds() || !c.work_.idle()) return;
  if (serial() && c.call_ != Call::kStep) return;
  updates_.Publish(c.now_, c.iteration_, out);
}

void NeighbourProtocol::Receive(Actions* out) {
  SessionFlow& c = core();
  if (c.ready_waiting_ || !updates_.CanReceive(c.iteration_)) return;
  c.step_.waited += c.now_ - c.idle_at_;
  const UpdateQueues::Counters counters = updates_.TakeCounters();
  c.ready_.iteration = c.iteration_ + 1;
  c.ready_.waiting = true;
  c.ready_.gradients = c.ready_.local_steps = 0;
  c.ready_.queued = counters.queued;
  c.ready_.dropped = counters.dropped;
  c.ready_.suppressed = counters.suppressed;
  c.SayReady(out);
  Mix(c.iteration_, out);
  updates_.MoveTo(c.iteration_ + 1, out);
  phase_ = Phase::kEnter;
  if (serial() || c.discard_) return;
  phase_ = Phase::kApply;
  c.work_.Apply(ApplyNow::What::kGradients, c.iteration_, out);
}

void NeighbourProtocol::Mix(Iteration k, Actions* out) {
  if (!updates_.Mix(k, out)) return;
  core().step_.rounds = 1;
  core().step_.included = true;
}

void NeighbourProtocol::OnApplied(Iteration iteration, std::int64_t, Actions* out) {
  core().iteration_ = iteration;
  if (phase_ == Phase::kApply) phase_ = Phase::kEnter;
  core().idle_at_ = core().now_;
  if (core().EndsCall(out)) return;
  Continue(out);
  core().BeginHeld(out);
}

// Before a jump the parameters are averaged with the updates of the iteration before the one that
// is entered (section 5).
void NeighbourProtocol::Enter(Actions* out) {
  SessionFlow& c = core();
  if (!next_) return;
  if (*next_ > c.iteration_ + 1) {
    if (!updates_.CanReceive(*next_ - 1)) return;
    Mix(*next_ - 1, out);
  }
  c.step_.waited += c.now_ - c.idle_at_;
  c.iteration_ = *next_;
  next_.reset();
  phase_ = Phase::kReceive;
  out->push_back(SetIteration{c.iteration_});
  updates_.MoveTo(c.iteration_, out);
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
  SessionFlow& c = core();
  if (!c.ready_waiting_) return;
  if (reply.iteration != c.ready_.iteration || reply.next < reply.iteration ||
      reply.next > kMaxIteration) {
    return c.Over(Status(Code::kDataLoss, "the controller lets this worker enter iteration " +
                                              std::to_string(reply.next) + ", but it is in " +
                                              std::to_string(c.iteration_)),
                  out);
  }
  c.ready_waiting_ = false;
  next_ = reply.next;
  updates_.MoveTo(std::max(reply.next - 1, c.iteration_ + 1), out);
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
      if (member.incarnation == core().incarnation_) return "this worker is in it itself";
      distinct.insert(member.incarnation);
    }
    if (distinct.size() != members->size()) return "a neighbour is in it twice";
    if (members->size() > core().options_.max_members) return "it has too many neighbours";
  }
  return {};
}

void NeighbourProtocol::OnNeighbourhood(const Neighbourhood& hood, Actions* out) {
  SessionFlow& c = core();
  if (c.said_finish_ || c.call_ == Call::kLeave) return;
  const std::string wrong = CheckNeighbourhood(hood);
  if (!wrong.empty()) {
    return c.Over(Status(Code::kDataLoss, "the controller named neighbours, but " + wrong), out);
  }
  // A worker that is about to enter an iteration is there already as the controller counts.
  const bool still = phase_ == Phase::kReceive && !c.ready_waiting_;
  if (still && hood.at > c.iteration_ && hood.at <= kMaxIteration) {
    c.iteration_ = hood.at;
    out->push_back(SetIteration{c.iteration_});
  }
  awaits_neighbours_ = false;
  updates_.SetNeighbourhood(c.now_, *NeighboursOf(c.plan()), hood,
                            still ? c.iteration_ : updates_.window(), out);
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
  updates_.OnPulled(core().now_, ticket, status, out);
}

void NeighbourProtocol::OnTime(Actions* out) { updates_.OnTime(core().now_, out); }

}  // namespace prd
