#include "worker/core/store_protocol.h"

#include <algorithm>
#include <utility>

namespace prd {

void StoreProtocol::OnHello() {
  next_ = Next::kNone;
  joins_ = counts_ = awaits_placement_ = false;
  workers_ = 0;
  final_reading_ = final_read_ = kNoGroup;
  store_ = {};
}

// The replica is the job's, except for what the store has: the call in progress ends once that is
// read.
bool StoreProtocol::OnReplica(bool copied, Actions* out) {
  StepProtocol::OnReplica(copied, out);
  next_ = Next::kMayRead;
  joins_ = ctx().aim() == Aim::kStep;
  counts_ = false;
  workers_ = 0;
  final_reading_ = final_read_ = kNoGroup;
  Continue(out);
  ctx().BeginHeld(out);
  return false;
}

// Others have made updates meanwhile: the call in progress ends once all shards are read, under the
// placement that has this worker train again, and its clock.
bool StoreProtocol::OnResumed(Actions* out) {
  if (next_ == Next::kRead) store_.StopReading(out);
  next_ = Next::kMayRead;
  joins_ = awaits_placement_ = true;
  return false;
}

// A step after one that was given up (timeout) ends what that one began. Its own work is lost: it
// cannot be told from what is pushed already, for both are in the parameters' move.
void StoreProtocol::StartStep(Actions* out) {
  StepContext& c = ctx();
  if (c.work.holds()) return c.BeginHeld(out);
  if (c.trains() && next_ == Next::kNone) {
    next_ = Next::kPush;
    counts_ = !c.step.discard;
    const auto members = static_cast<std::uint32_t>(store_.members());
    const std::uint32_t workers = std::max(workers_ != 0 ? workers_ : members, 1u);
    // A step that was cut short pushes too: its clock counts.
    store_.Push(c.now, c.step.iteration + 1, c.step.discard ? 0 : 1.0 / workers, workers, out);
  } else {
    counts_ = false;
  }
  Continue(out);
}

void StoreProtocol::Continue(Actions* out) {
  StepContext& c = ctx();
  const Aim aim = c.aim();
  if (!c.is_member() || aim == Aim::kLeave) return;
  if (store_.TakePlaced()) c.Push(Placed{.epoch = store_.epoch()}, out);
  if (!c.standing.has_replica || !c.work.idle()) return;
  if (next_ == Next::kPush && store_.pushed() && aim == Aim::kStep) {
    next_ = Next::kAnswer;
    c.step.ready.iteration = c.step.iteration + 1;
    c.step.ready.waiting = true;
    c.SayReady(out);
  }
  const bool reads = aim == Aim::kJoin || aim == Aim::kStep;
  if (next_ == Next::kMayRead && reads && !awaits_placement_) {
    next_ = Next::kRead;
    keeps_move_ = false;
    store_.Read(c.now, c.step.iteration, keeps_move_, out);
  }
  if (next_ == Next::kRead && store_.TakeRead()) {
    next_ = Next::kNone;
    return OnRead(out);
  }
  if (c.Ends()) c.SayEnd(out);
}

// All shards are in the parameters.
void StoreProtocol::OnRead(Actions* out) {
  StepContext& c = ctx();
  out->push_back(SetIteration{c.step.iteration});
  if (c.aim() == Aim::kFinish) {
    final_read_ = final_reading_;
    return c.BeginHeld(out);
  }
  const bool joins = std::exchange(joins_, false);
  if (c.EndJoin(out)) return;
  c.step.outcome.waited = c.now - c.call.at();
  if (!joins) c.step.outcome.rounds = 1;
  c.step.outcome.included = !joins && counts_;
  c.StepDone(joins, out);
}

// The call in progress may end without having read all that it was to read.
void StoreProtocol::OnCallEnds(Actions* out) {
  if (next_ != Next::kRead) return;
  store_.StopReading(out);
  next_ = Next::kMayRead;
}

// The final average takes what the shards hold once all workers have pushed their last update.
bool StoreProtocol::DelaysFinal(Actions* out) {
  StepContext& c = ctx();
  const GroupId id = c.work.held_group()->id;
  if (final_read_ == id) return false;
  if (final_reading_ != id || next_ != Next::kRead) {
    // What the loop wrote after its last step counts. Of a step that was given up nothing does.
    if (next_ != Next::kRead) keeps_move_ = next_ == Next::kNone;
    final_reading_ = id;
    next_ = Next::kRead;
    store_.Read(c.now, c.step.iteration, keeps_move_, out);
  }
  if (!store_.TakeRead()) return true;
  next_ = Next::kNone;
  final_read_ = id;
  out->push_back(SetIteration{c.step.iteration});
  return false;
}

// ---- messages ----

void StoreProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (const auto* reply = std::get_if<QueryReply>(&body)) return OnAnswer(*reply, out);
  if (const auto* placement = std::get_if<Placement>(&body)) return OnPlacement(*placement, out);
  if (const auto* opened = std::get_if<Opened>(&body)) return OnOpened(*opened, out);
  StepProtocol::OnMessage(body, out);
}

void StoreProtocol::OnPlacement(const Placement& placement, Actions* out) {
  StepContext& c = ctx();
  if (c.aim() == Aim::kLeave) return;
  std::string wrong = store_.Check(placement, c.link.welcome().rank, c.link.incarnation());
  if (wrong.empty() && placement.members.size() > c.max_members()) {
    wrong = "it has " + std::to_string(placement.members.size()) + " members";
  }
  if (!wrong.empty()) {
    return c.Over(Status(Code::kDataLoss, "the controller set placement " +
                                              std::to_string(placement.epoch) + ", but " + wrong),
                  out);
  }
  store_.SetPlacement(c.now, *StoreOf(c.plan()), placement, c.link.incarnation(), out);
  awaits_placement_ = false;
  if (placement.at > c.step.iteration) {
    c.step.iteration = placement.at;
    if (next_ == Next::kRead) store_.Read(c.now, c.step.iteration, keeps_move_, out);
    if (next_ == Next::kNone) {  // its parameters are of an older clock: what it computes is lost
      next_ = Next::kMayRead;
      joins_ = true;
    }
  }
  Continue(out);
}

void StoreProtocol::OnOpened(const Opened& opened, Actions* out) {
  StepContext& c = ctx();
  if (c.aim() == Aim::kLeave) return;
  if (!store_.Open(c.now, opened.epoch, out)) {
    return c.Over(
        Status(Code::kDataLoss, "the controller opened placement " + std::to_string(opened.epoch) +
                                    ", which is not complete here"),
        out);
  }
  Continue(out);
}

void StoreProtocol::OnAnswer(const QueryReply& reply, Actions* out) {
  StepContext& c = ctx();
  if (!c.step.ready_waiting || reply.ready || reply.iteration != c.step.ready.iteration) return;
  if (reply.next < reply.iteration || reply.next > kMaxClock) {
    return c.Over(
        Status(Code::kDataLoss, "the controller answered clock " + std::to_string(reply.iteration) +
                                    " with clock " + std::to_string(reply.next)),
        out);
  }
  c.step.ready_waiting = false;
  workers_ = reply.workers;
  c.step.iteration = std::max(c.step.iteration, reply.next);
  if (next_ == Next::kAnswer) next_ = Next::kMayRead;
  Continue(out);
}

void StoreProtocol::OnNote(Incarnation from, const PeerMessage& note, Actions* out) {
  store_.OnNote(ctx().now, from, note, out);
}

void StoreProtocol::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                              Actions* out) {
  store_.OnRequest(from, request, parcel, out);
}

void StoreProtocol::OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure,
                             Actions* out) {
  store_.OnPulled(ctx().now, ticket, status, enclosure, out);
}

void StoreProtocol::OnTime(Actions* out) { store_.OnTime(ctx().now, out); }

}  // namespace prd
