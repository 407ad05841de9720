#include "tests/engines/store_driver.h"

#include <algorithm>
#include <limits>

namespace prd {

std::string StoreDriver::Join(Rank rank, Iteration clock) {
  Worker& worker = workers_[rank];  // that of one that has paused is as it was
  worker.clock = clock;
  worker.stopped = false;
  return Apply(JoinedEvent{.rank = rank, .iteration = clock, .host = "h"});
}

std::string StoreDriver::Leave(Rank rank, LeftReason why) {
  if (StaysInJob(why)) {
    workers_.at(rank).stopped = true;
    workers_.at(rank).pauses = why == LeftReason::kPaused;
  } else {
    workers_.erase(rank);
  }
  return Apply(LeftEvent{.rank = rank, .why = why});
}

bool StoreDriver::IsMember(Rank rank) const {
  const auto found = workers_.find(rank);
  return found != workers_.end() && found->second.member;
}

bool StoreDriver::MustPlace(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  if (!worker.member || worker.placed || open_) return false;
  // What its shards come from is there, and so is who gets copies.
  for (const ShardPlace& place : placement_.shards) {
    if (place.owner != rank) continue;
    if (place.source != kNoRank && !IsMember(place.source)) return false;
    if (!std::all_of(place.holders.begin(), place.holders.end(),
                     [this](Rank holder) { return IsMember(holder); })) {
      return false;
    }
  }
  return true;
}

std::string StoreDriver::Place(Rank rank) {
  Worker& worker = workers_.at(rank);
  for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
    const ShardPlace& place = placement_.shards[i];
    if (place.owner != rank) continue;
    if (place.source == kNoRank) {
      worker.shards[i] = 0;
      updates_[i] = 0;
    } else {
      const std::map<std::size_t, int>& from = workers_.at(place.source).shards;
      if (!from.contains(i) || from.at(i) != updates_[i]) {
        return "rank " + std::to_string(place.source) + " has not all of shard " +
               std::to_string(i);
      }
      worker.shards[i] = from.at(i);
    }
    for (const Rank holder : place.holders) workers_.at(holder).shards[i] = worker.shards.at(i);
  }
  worker.placed = true;
  return Apply(PlacedEvent{.rank = rank, .epoch = placement_.epoch});
}

std::string StoreDriver::PlaceAll() {
  for (std::vector<Rank> placing = WhoMustPlace(); !placing.empty(); placing = WhoMustPlace()) {
    if (auto wrong = Place(placing.front()); !wrong.empty()) return wrong;
  }
  return open_ ? "" : "not open";
}

bool StoreDriver::CanSignal(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  if (!worker.reads || worker.stopped || worker.waiting || !open_) return false;
  // All who have shards are there.
  return std::all_of(placement_.members.begin(), placement_.members.end(),
                     [this](Rank member) { return IsMember(member); });
}

std::string StoreDriver::Signal(Rank rank) {
  for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
    const ShardPlace& place = placement_.shards[i];
    if (++workers_.at(place.owner).shards.at(i) != ++updates_[i]) return "an owner missed updates";
    for (const Rank holder : place.holders) ++workers_.at(holder).shards.at(i);
  }
  Worker& worker = workers_.at(rank);
  worker.waiting = true;
  return Apply(ReadyEvent{.rank = rank, .ready = {.iteration = worker.clock + 1}});
}

std::vector<Rank> StoreDriver::WhoCanSignal() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (CanSignal(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> StoreDriver::WhoMustPlace() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (MustPlace(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> StoreDriver::Present() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
  return ranks;
}

// The lowest clock that a training worker has stored.
Iteration StoreDriver::LowestStored() const {
  Iteration lowest = std::numeric_limits<Iteration>::max();
  for (const auto& [rank, worker] : workers_) {
    if (!worker.member || worker.stopped) continue;
    lowest = std::min(lowest, worker.clock + (worker.waiting ? 1 : 0));
  }
  return lowest;
}

std::string StoreDriver::Heed(const Effect& effect, const Event&) {
  if (const auto* set = std::get_if<PlacementSet>(&effect)) {
    Place(*set);
  } else if (std::holds_alternative<PlacementOpened>(effect)) {
    Open();
  } else if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
    Worker& worker = workers_.at(answer->rank);
    worker.clock = answer->next;
    ++worker.steps;
    worker.sees = LowestStored();
    worker.waiting = false;
  } else {
    return "another effect";
  }
  return "";
}

void StoreDriver::Place(const PlacementSet& set) {
  updates_.resize(set.shards.size());
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = workers_.at(set.members[i]);
    worker.clock = set.at[i];
    worker.member = true;
    worker.placed = false;
  }
  placement_ = set;
  open_ = false;
}

void StoreDriver::Open() {
  open_ = true;
  for (auto& [rank, worker] : workers_) {
    worker.reads = worker.reads || worker.member;
    std::map<std::size_t, int> kept;
    for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
      const ShardPlace& place = placement_.shards[i];
      const bool holds =
          std::find(place.holders.begin(), place.holders.end(), rank) != place.holders.end();
      if (place.owner == rank || holds) kept[i] = worker.shards.at(i);
    }
    worker.shards = std::move(kept);
  }
}

std::string StoreDriver::JoinOne() {
  const std::vector<Rank> present = Present();
  std::vector<Rank> paused;
  for (const auto& [rank, worker] : workers_) {
    if (worker.stopped && worker.pauses) paused.push_back(rank);
  }
  if (!paused.empty() && random_.Below(2) == 0) {
    const Rank rank = Pick(paused);
    return Join(rank, Clock(rank));
  }
  const Rank rank = FreeRank();
  return Join(rank, present.empty() ? 0 : Clock(Pick(present)));
}

std::string StoreDriver::LeaveOne(Rank rank) {
  const bool may_stop = CanSignal(rank) && random_.Below(2) == 0;
  if (!may_stop) return Leave(rank, LeftReason::kLost);
  return Leave(rank, random_.Below(2) == 0 ? LeftReason::kFinished : LeftReason::kPaused);
}

bool StoreDriver::Act(bool storms, std::uint64_t dice, std::string* wrong) {
  const std::vector<Rank> able = WhoCanSignal();
  const std::vector<Rank> placing = WhoMustPlace();
  if (!placing.empty() && (!storms || dice < 60 || able.empty())) {
    *wrong = Place(Pick(placing));
  } else if (!able.empty()) {
    *wrong = Signal(able[random_.Below(storms ? 1 + random_.Below(able.size()) : able.size())]);
  } else {
    return false;
  }
  return true;
}

void StoreDriver::ForgetSteps() {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
}

bool StoreDriver::AllHave(int steps) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.stopped || entry.second.steps >= steps;
  });
}

}  // namespace prd
