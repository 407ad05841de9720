#include "worker/core/store_protocol.h"

#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

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
  joins_ = core().aim() == Aim::kStep;
  counts_ = false;
  workers_ = 0;
  final_reading_ = final_read_ = kNoGroup;
  Continue(out);
  core().BeginHeld(out);
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

// A step after one that was given up (timeout) ends what that one began: the parameters' move
// includes what is pushed already, so that its own work cannot be told from it, and is lost.
void StoreProtocol::StartStep(Actions* out) {
  SessionFlow& c = core();
  if (c.work_.holds()) return c.BeginHeld(out);
  if (c.trains() && next_ == Next::kNone) {
    next_ = Next::kPush;
    counts_ = !c.step_.discard;
    const auto members = static_cast<std::uint32_t>(store_.members());
    const std::uint32_t workers = std::max(workers_ != 0 ? workers_ : members, 1u);
    // Also of a step that was cut short: its clock counts.
    store_.Push(c.now_, c.step_.iteration + 1, c.step_.discard ? 0 : 1.0 / workers, workers, out);
  } else {
    counts_ = false;
  }
  Continue(out);
}

void StoreProtocol::Continue(Actions* out) {
  SessionFlow& c = core();
  if (!c.is_member() || c.aim() == Aim::kLeave) return;
  if (store_.TakePlaced()) c.Push(Placed{.epoch = store_.epoch()}, out);
  if (!c.standing_.has_replica || !c.work_.idle()) return;
  if (next_ == Next::kPush && store_.pushed() && c.aim() == Aim::kStep) {
    next_ = Next::kAnswer;
    c.step_.ready.iteration = c.step_.iteration + 1;
    c.step_.ready.waiting = true;
    c.SayReady(out);
  }
  const bool reads = c.aim() == Aim::kJoin || c.aim() == Aim::kStep;
  if (next_ == Next::kMayRead && reads && !awaits_placement_) {
    next_ = Next::kRead;
    store_.Read(c.now_, c.step_.iteration, out);
  }
  if (next_ == Next::kRead && store_.TakeRead()) {
    next_ = Next::kNone;
    return OnRead(out);
  }
  if (c.Ends()) c.SayEnd(out);
}

// All shards are in the parameters.
void StoreProtocol::OnRead(Actions* out) {
  SessionFlow& c = core();
  out->push_back(SetIteration{c.step_.iteration});
  if (c.aim() == Aim::kFinish) {
    final_read_ = final_reading_;
    return c.BeginHeld(out);
  }
  const bool joins = std::exchange(joins_, false);
  if (c.EndJoin(out)) return;
  c.step_.outcome.waited = c.now_ - c.call_.at();
  if (!joins) c.step_.outcome.rounds = 1;
  c.step_.outcome.included = !joins && counts_;
  c.StepDone(joins, out);
}

// The call in progress may end without having read all that it was to read.
void StoreProtocol::OnCallEnds(Actions* out) {
  if (next_ != Next::kRead) return;
  store_.StopReading(out);
  next_ = Next::kMayRead;
}

// The final average is of what the shards hold once all workers have pushed their last update.
bool StoreProtocol::DelaysFinal(Actions* out) {
  SessionFlow& c = core();
  const GroupId id = c.work_.held_group()->id;
  if (final_read_ == id) return false;
  if (final_reading_ != id || next_ != Next::kRead) {
    final_reading_ = id;
    next_ = Next::kRead;
    store_.Read(c.now_, c.step_.iteration, out);
  }
  if (!store_.TakeRead()) return true;
  next_ = Next::kNone;
  final_read_ = id;
  out->push_back(SetIteration{c.step_.iteration});
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
  SessionFlow& c = core();
  if (c.aim() == Aim::kLeave) return;
  std::string wrong = store_.Check(placement, c.welcome().rank, c.incarnation());
  if (wrong.empty() && placement.members.size() > c.options_.max_members) {
    wrong = "it has " + std::to_string(placement.members.size()) + " members";
  }
  if (!wrong.empty()) {
    return c.Over(Status(Code::kDataLoss, "the controller set placement " +
                                              std::to_string(placement.epoch) + ", but " + wrong),
                  out);
  }
  store_.SetPlacement(c.now_, *StoreOf(c.plan()), placement, c.incarnation(), out);
  awaits_placement_ = false;
  if (placement.at > c.step_.iteration) {
    c.step_.iteration = placement.at;
    if (next_ == Next::kRead) store_.Read(c.now_, c.step_.iteration, out);
    if (next_ == Next::kNone) {  // its parameters are of an older clock: what it computes is lost
      next_ = Next::kMayRead;
      joins_ = true;
    }
  }
  Continue(out);
}

void StoreProtocol::OnOpened(const Opened& opened, Actions* out) {
  SessionFlow& c = core();
  if (c.aim() == Aim::kLeave) return;
  if (!store_.Open(c.now_, opened.epoch, out)) {
    return c.Over(
        Status(Code::kDataLoss, "the controller opened placement " + std::to_string(opened.epoch) +
                                    ", which is not complete here"),
        out);
  }
  Continue(out);
}

void StoreProtocol::OnAnswer(const QueryReply& reply, Actions* out) {
  SessionFlow& c = core();
  if (!c.step_.ready_waiting || reply.ready || reply.iteration != c.step_.ready.iteration) return;
  if (reply.next < reply.iteration || reply.next > kMaxClock) {
    return c.Over(
        Status(Code::kDataLoss, "the controller answered clock " + std::to_string(reply.iteration) +
                                    " with clock " + std::to_string(reply.next)),
        out);
  }
  c.step_.ready_waiting = false;
  workers_ = reply.workers;
  c.step_.iteration = std::max(c.step_.iteration, reply.next);
  if (next_ == Next::kAnswer) next_ = Next::kMayRead;
  Continue(out);
}

void StoreProtocol::OnNote(Incarnation from, const PeerMessage& note, Actions* out) {
  store_.OnNote(core().now_, from, note, out);
}

void StoreProtocol::OnRequest(Incarnation from, Request request, const PeerItem& parcel,
                              Actions* out) {
  store_.OnRequest(from, request, parcel, out);
}

void StoreProtocol::OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure,
                             Actions* out) {
  store_.OnPulled(core().now_, ticket, status, enclosure, out);
}

void StoreProtocol::OnTime(Actions* out) { store_.OnTime(core().now_, out); }

}  // namespace prd
