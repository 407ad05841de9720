// StorePlan: what a step waits for under SSP. It pushes what the parameters have
// moved; says Ready once that is stored; once it is answered, reads all shards, and ends.
#include <algorithm>
#include <utility>

#include "worker/core/session_core.h"

namespace prd {

// A step after one that was given up (patience) ends what that one began: the parameters' move
// includes what is pushed already, so that its own work cannot be told from it, and is lost.
void SessionCore::ArriveStore(Instant now, Actions* out) {
  if (contact_ == Contact::kMember && has_replica_ && sharing_.next == Sharing::Next::kNone) {
    sharing_.next = Sharing::Next::kPush;
    sharing_.counts = !discard_;
    const auto members = static_cast<std::uint32_t>(store_.members());
    const std::uint32_t workers = std::max(sharing_.workers != 0 ? sharing_.workers : members, 1u);
    // Also of a step that was cut short: its clock counts.
    store_.Push(now, iteration_ + 1, discard_ ? 0 : 1.0 / workers, workers, out);
  } else {
    sharing_.counts = false;
  }
  ProceedStore(now, out);
}

// What the store and the call in progress do next.
void SessionCore::ProceedStore(Instant now, Actions* out) {
  using Next = Sharing::Next;
  if (contact_ != Contact::kMember || call_ == Call::kLeave) return;
  if (store_.TakePlaced()) Push(Placed{.epoch = store_.epoch()}, out);
  if (!has_replica_ || work_ != Work::kNone) return;
  if (sharing_.next == Next::kPush && store_.pushed() && call_ == Call::kStep) {
    sharing_.next = Next::kAnswer;
    ready_.iteration = iteration_ + 1;
    ready_.waiting = true;
    SayReady(now, out);
  }
  if (sharing_.next == Next::kMayRead && (call_ == Call::kAttach || call_ == Call::kStep)) {
    sharing_.next = Next::kRead;
    store_.Read(now, iteration_, out);
  }
  if (sharing_.next == Next::kRead && store_.TakeRead()) {
    sharing_.next = Next::kNone;
    return HasRead(now, out);
  }
  if (call_ == Call::kFinish) SayFinish(out);
}

// All shards are in the parameters.
void SessionCore::HasRead(Instant now, Actions* out) {
  out->push_back(SetIteration{iteration_});
  if (call_ == Call::kFinish) {
    sharing_.final_read = sharing_.final_reading;
    return BeginHeld(now, out);
  }
  if (call_ == Call::kAttach) return Done(Status::Ok(), out);
  step_.waited = now - call_at_;
  if (!sharing_.joins) step_.rounds = 1;
  step_.included = !sharing_.joins && sharing_.counts;
  StepDone(std::exchange(sharing_.joins, false), out);
}

// The replica is the job's, but for what the store has.
void SessionCore::JoinStore(Instant now, Actions* out) {
  sharing_ = {};
  sharing_.next = Sharing::Next::kMayRead;
  sharing_.joins = call_ == Call::kStep;
  ProceedStore(now, out);
  BeginHeld(now, out);
}

// The call in progress ends without having read all that it was to read.
void SessionCore::GiveUpRead(Actions* out) {
  if (sharing_.next != Sharing::Next::kRead) return;
  store_.StopReading(out);
  sharing_.next = Sharing::Next::kMayRead;
}

void SessionCore::OnPlacement(Instant now, const Placement& placement, Actions* out) {
  if (call_ == Call::kLeave) return;
  std::string wrong = store_.Check(placement, welcome_.rank, incarnation_);
  if (wrong.empty() && placement.members.size() > options_.max_members) {
    wrong = "it has " + std::to_string(placement.members.size()) + " members";
  }
  if (!wrong.empty()) {
    return Over(Status(Code::kDataLoss, "the controller set placement " +
                                            std::to_string(placement.epoch) + ", but " + wrong),
                out);
  }
  store_.SetPlacement(now, *StoreOf(plan()), placement, incarnation_, out);
  if (placement.at > iteration_) {
    iteration_ = placement.at;
    if (sharing_.next == Sharing::Next::kRead) store_.Read(now, iteration_, out);
  }
  ProceedStore(now, out);
}

void SessionCore::OnOpened(Instant now, const Opened& opened, Actions* out) {
  if (call_ == Call::kLeave) return;
  if (!store_.Open(now, opened.epoch, out)) {
    return Over(
        Status(Code::kDataLoss, "the controller opened placement " + std::to_string(opened.epoch) +
                                    ", which is not complete here"),
        out);
  }
  ProceedStore(now, out);
}

void SessionCore::OnMayRead(Instant now, const QueryReply& reply, Actions* out) {
  if (!ready_waiting_ || reply.ready || reply.iteration != ready_.iteration) return;
  if (reply.next < reply.iteration || reply.next > kMaxClock) {
    return Over(
        Status(Code::kDataLoss, "the controller answered clock " + std::to_string(reply.iteration) +
                                    " with clock " + std::to_string(reply.next)),
        out);
  }
  ready_waiting_ = false;
  sharing_.workers = reply.workers;
  iteration_ = std::max(iteration_, reply.next);
  if (sharing_.next == Sharing::Next::kAnswer) sharing_.next = Sharing::Next::kMayRead;
  ProceedStore(now, out);
}

// The final average is of what the shards hold once all have pushed their last update. False: the
// replica is that.
bool SessionCore::FinalReadDue(Instant now, Actions* out) {
  const GroupId id = std::get<Group>(*held_).id;
  if (sharing_.final_read == id) return false;
  if (sharing_.final_reading != id || sharing_.next != Sharing::Next::kRead) {
    sharing_.final_reading = id;
    sharing_.next = Sharing::Next::kRead;
    store_.Read(now, iteration_, out);
  }
  if (!store_.TakeRead()) return true;
  sharing_.next = Sharing::Next::kNone;
  sharing_.final_read = id;
  out->push_back(SetIteration{iteration_});
  return false;
}

}  // namespace prd
