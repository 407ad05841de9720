#include "engines/ready_queue.h"

namespace prd {

void ReadyQueue::Add(Rank rank, const Ready& ready) {
  ReadySlot& slot = slots_[rank];
  slot.signal = ready;
  slot.signalled = ready.iteration;
  slot.owed += ready.gradients;
}

void ReadyQueue::DropUpTo(Rank rank, Iteration iteration) {
  const std::optional<Ready>& signal = slots_[rank].signal;
  if (signal && signal->iteration <= iteration) Drop(rank);
}

void ReadyQueue::Clear(Rank rank) {
  Drop(rank);
  Release(rank, ReadySlot::kForOrders);
  Release(rank, ReadySlot::kForBatch);
}

void ReadyQueue::Hold(Rank rank, ReadySlot::Hold why) {
  ReadySlot& slot = slots_[rank];
  if (why == ReadySlot::kForOrders && !slot.Held(why)) ++withheld_;
  slot.holds = static_cast<std::uint8_t>(slot.holds | why);
}

void ReadyQueue::Release(Rank rank, ReadySlot::Hold why) {
  ReadySlot& slot = slots_[rank];
  if (why == ReadySlot::kForOrders && slot.Held(why)) --withheld_;
  slot.holds = static_cast<std::uint8_t>(slot.holds & ~why);
}

std::optional<ReadyEvent> ReadyQueue::Deliver(Rank rank, bool withhold) {
  const ReadySlot& slot = slots_[rank];
  if (!slot.signal || slot.Held(ReadySlot::kForComparison)) return std::nullopt;
  if (withhold) {
    Hold(rank, ReadySlot::kForOrders);
    return std::nullopt;
  }
  return ReadyEvent{.rank = rank, .ready = *slot.signal, .owed = slot.owed};
}

Rank ReadyQueue::NextWithheld(Rank from) {
  for (Rank rank = from; rank < slots_.size() && withheld_ > 0; ++rank) {
    if (!slots_[rank].Held(ReadySlot::kForOrders)) continue;
    Release(rank, ReadySlot::kForOrders);
    return rank;
  }
  return kNoRank;
}

void ReadyQueue::Restore() {
  withheld_ = 0;
  for (Rank rank = 0; rank < slots_.size(); ++rank) {
    withheld_ += int{slots_[rank].Held(ReadySlot::kForOrders)};
  }
}

}  // namespace prd
