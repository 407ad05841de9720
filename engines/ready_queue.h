// The ready signals of a run's workers that are not answered yet, and why the engine does not get
// some of them.
//
// A signal is held back for a set of reasons (ReadySlot::Hold). Two of them, kForReplica and
// kForComparison, are about the worker, and stand also while it has no signal. kForOrders is about
// the run: a signal that comes while all signals are to wait is withheld, and delivered later.
// Pure; not thread safe.
#ifndef PRD_ENGINES_READY_QUEUE_H_
#define PRD_ENGINES_READY_QUEUE_H_

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/event.h"
#include "engines/run_worker.h"

namespace prd {

class ReadyQueue {
 public:
  explicit ReadyQueue(SlotColumn<ReadySlot> slots) : slots_(slots) {}

  void Add(Rank rank, const Ready& ready);
  // The signal is answered, or void.
  void Drop(Rank rank) { slots_[rank].signal.reset(); }
  // The same, if the signal is for an iteration up to this one.
  void DropUpTo(Rank rank, Iteration iteration);
  // The worker stops, or copies a replica: the signal is void, and withheld no more.
  void Clear(Rank rank);

  void Hold(Rank rank, ReadySlot::Hold why);
  void Release(Rank rank, ReadySlot::Hold why);
  // The event for the engine, if the worker has a signal and it is not being compared. `withhold`:
  // the signal is withheld instead (kForOrders). kForReplica is for the caller to check.
  std::optional<ReadyEvent> Deliver(Rank rank, bool withhold);
  // A worker whose signal is withheld, the lowest from this rank on; withheld no more. kNoRank:
  // there is none.
  Rank NextWithheld(Rank from);
  int withheld() const { return withheld_; }  // signals

  // This many of the worker's gradients are in a round now, or of no use.
  void Count(Rank rank, std::uint32_t gradients) { slots_[rank].owed -= gradients; }

  void Restore();  // after a load

 private:
  SlotColumn<ReadySlot> slots_;
  int withheld_ = 0;  // derived from the slots
};

}  // namespace prd

#endif  // PRD_ENGINES_READY_QUEUE_H_
