#include "tests/engines/ssp_world.h"

#include <algorithm>
#include <limits>

#include "engines/ssp/ssp.h"
#include "engines/violation.h"

namespace prd {

namespace {

std::string OfRank(Rank rank) { return " of rank " + std::to_string(rank); }

}  // namespace

std::string SspWorld::Join(Rank rank, Iteration clock) {
  Worker& worker = workers_[rank];
  worker.clock = clock;
  return Apply(JoinedEvent{.rank = rank, .iteration = clock, .host = "h"});
}

std::string SspWorld::Leave(Rank rank, LeftReason why) {
  if (why == LeftReason::kFinished) {
    workers_.at(rank).finished = true;
  } else {
    workers_.erase(rank);
    for (std::set<Rank>& ranks : alive_with_) ranks.erase(rank);
  }
  return Apply(LeftEvent{.rank = rank, .why = why});
}

std::string SspWorld::PassDeadline() {
  now_ = std::max(now_, *engine_->NextDeadline());
  if (auto wrong = Apply(DeadlineEvent{}); !wrong.empty()) return wrong;
  return engine_->NextDeadline() ? "a deadline after a placement" : "";
}

bool SspWorld::IsMember(Rank rank) const {
  const auto found = workers_.find(rank);
  return found != workers_.end() && found->second.member;
}

bool SspWorld::MustPlace(Rank rank) const {
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

std::string SspWorld::Place(Rank rank) {
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

std::string SspWorld::PlaceAll() {
  for (std::vector<Rank> placing = WhoMustPlace(); !placing.empty(); placing = WhoMustPlace()) {
    if (auto wrong = Place(placing.front()); !wrong.empty()) return wrong;
  }
  return open_ ? "" : "not open";
}

bool SspWorld::CanSignal(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  if (!worker.reads || worker.finished || worker.waiting || !open_) return false;
  // All who have shards are there.
  return std::all_of(placement_.members.begin(), placement_.members.end(),
                     [this](Rank member) { return IsMember(member); });
}

std::string SspWorld::Signal(Rank rank) {
  for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
    const ShardPlace& place = placement_.shards[i];
    if (++workers_.at(place.owner).shards.at(i) != ++updates_[i]) return "an owner missed updates";
    for (const Rank holder : place.holders) ++workers_.at(holder).shards.at(i);
  }
  Worker& worker = workers_.at(rank);
  worker.waiting = true;
  return Apply(ReadyEvent{.rank = rank, .ready = {.iteration = worker.clock + 1}});
}

std::vector<Rank> SspWorld::WhoCanSignal() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (CanSignal(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> SspWorld::WhoMustPlace() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (MustPlace(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> SspWorld::Present() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
  return ranks;
}

// Of those who train.
Iteration SspWorld::LowestStored() const {
  Iteration lowest = std::numeric_limits<Iteration>::max();
  for (const auto& [rank, worker] : workers_) {
    if (!worker.member || worker.finished) continue;
    lowest = std::min(lowest, worker.clock + (worker.waiting ? 1 : 0));
  }
  return lowest;
}

bool SspWorld::MayGoOn(const Worker& worker) const {
  return options_.staleness < 0 || worker.clock + 1 - LowestStored() <= options_.staleness;
}

std::string SspWorld::Heed(const Answer& answer) {
  const auto found = workers_.find(answer.rank);
  if (found == workers_.end() || !found->second.waiting) return "an answer to nothing";
  Worker& worker = found->second;
  if (!MayGoOn(worker)) return "an answer too early" + OfRank(answer.rank);
  if (answer.next != worker.clock + 1 || answer.ready || answer.reason.empty()) {
    return "a bad answer" + OfRank(answer.rank);
  }
  std::uint32_t training = 0;
  for (const auto& [rank, of] : workers_) training += of.member && !of.finished ? 1 : 0;
  if (answer.workers != training) return "another number of workers";
  ++worker.clock;
  reached_ = std::max(reached_, worker.clock);
  ++worker.steps;
  worker.sees = LowestStored();
  worker.waiting = false;
  return "";
}

std::string SspWorld::Heed(const PlacementSet& set) {
  if (set.epoch != placement_.epoch + 1 || set.reason.empty()) return "a bad placement";
  if (set.members != Present() || set.at.size() != set.members.size()) return "not all members";
  const bool first = placement_.epoch == 0;
  const std::size_t wanted =
      options_.shards > 0 ? static_cast<std::size_t>(options_.shards) : 2 * set.members.size();
  if (first) updates_.resize(wanted);
  if (first) alive_with_.resize(wanted);
  if (set.shards.size() != updates_.size()) return "another number of shards";
  const Iteration lowest = LowestStored();
  const bool trains = lowest != std::numeric_limits<Iteration>::max();
  if (std::none_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.member; }))
    reached_ = 0;
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = workers_.at(set.members[i]);
    Iteration at = worker.clock;
    // Where nobody trains, at where anybody was let go on to, as long as somebody is there.
    if (!worker.member) at = std::max(at, trains ? lowest : reached_);
    if (set.at[i] != at) return "another clock" + OfRank(set.members[i]);
    worker.clock = at;
    worker.member = true;
    worker.placed = false;
  }
  late_ += open_ || first ? 0 : 1;
  ++placements_;
  for (std::size_t i = 0; i < set.shards.size(); ++i) {
    const ShardPlace& place = set.shards[i];
    if (first) continue;
    moved_ += place.owner != placement_.shards[i].owner ? 1 : 0;
    lost_ += place.source == kNoRank ? 1 : 0;
    expected_ += alive_with_[i].empty() ? 1 : 0;
    if (place.source != kNoRank && !workers_.contains(place.source)) return "a source is gone";
  }
  placement_ = set;
  open_ = false;
  return CheckBalance();
}

std::string SspWorld::CheckBalance() const {
  const std::vector<Rank>& members = placement_.members;
  const auto replicas = std::min(static_cast<std::size_t>(options_.replicas), members.size() - 1);
  std::map<Rank, std::size_t> owned;
  std::map<Rank, std::size_t> held;
  for (const Rank rank : members) owned[rank] = held[rank] = 0;
  for (const ShardPlace& place : placement_.shards) {
    if (!owned.contains(place.owner)) return "an owner that is no member";
    ++owned[place.owner];
    std::set<Rank> all = {place.owner};
    for (const Rank rank : place.holders) {
      if (!held.contains(rank) || !all.insert(rank).second) return "a bad holder";
      ++held[rank];
    }
    if (place.holders.size() != replicas) return "not so many holders";
  }
  const auto spread = [](const std::map<Rank, std::size_t>& of) {
    std::size_t least = std::numeric_limits<std::size_t>::max(), most = 0;
    for (const auto& [rank, count] : of) {
      least = std::min(least, count);
      most = std::max(most, count);
    }
    return most - least;
  };
  if (spread(owned) > 1) return "owners are not even";
  return spread(held) > 2 ? "holders are not even" : "";
}

std::string SspWorld::Heed(const PlacementOpened& opened) {
  if (open_ || opened.epoch != placement_.epoch) return "opened what is not there";
  std::vector<Rank> members;
  for (auto& [rank, worker] : workers_) {
    if (!worker.member) continue;
    if (!worker.placed) return "opened without" + OfRank(rank);
    members.push_back(rank);
  }
  if (opened.members != members) return "not all are told";
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
  for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
    const ShardPlace& place = placement_.shards[i];
    alive_with_[i] = {place.holders.begin(), place.holders.end()};
    alive_with_[i].insert(place.owner);
  }
  return "";
}

std::string SspWorld::Apply(const Event& event) {
  Applied& applied = applied_.emplace_back();
  applied.now = now_;
  applied.event = event;
  // What has got to its owner and holders is there, whether the placement is opened or not.
  if (const auto* placed = std::get_if<PlacedEvent>(&event)) {
    for (std::size_t i = 0; i < placement_.shards.size(); ++i) {
      const ShardPlace& place = placement_.shards[i];
      if (place.owner != placed->rank) continue;
      alive_with_[i].insert(place.owner);
      alive_with_[i].insert(place.holders.begin(), place.holders.end());
    }
  }
  try {
    engine_->Step(now_, event, &next_group_, &applied.effects);
  } catch (const Violation& violation) {
    return violation.what();
  }
  for (const Effect& effect : applied.effects) {
    std::string wrong = "another effect";
    if (const auto* answer = std::get_if<Answer>(&effect)) wrong = Heed(*answer);
    if (const auto* set = std::get_if<PlacementSet>(&effect)) {
      wrong = std::holds_alternative<DeadlineEvent>(event) ? Heed(*set) : "out of turn";
    }
    if (const auto* opened = std::get_if<PlacementOpened>(&effect)) wrong = Heed(*opened);
    if (!wrong.empty()) return wrong;
  }
  for (const auto& [rank, worker] : workers_) {
    if (worker.waiting && MayGoOn(worker)) return "no answer" + OfRank(rank);
    const std::string why = engine_->Explain(now_, rank);
    if (why.empty() && (worker.waiting || !open_)) return "no reason" + OfRank(rank);
    if (!why.empty() && !worker.waiting && open_ && worker.member) return "a reason" + OfRank(rank);
  }
  return "";
}

// ---- random runs ----

std::string SspWorld::Storm(Prng* random, int events, Rank max_workers) {
  for (int i = 0; i < events; ++i) {
    now_.ns += static_cast<std::int64_t>(random->Below(2 * kMillisecond));
    const auto deadline = engine_->NextDeadline();
    const std::vector<Rank> present = Present();
    const std::vector<Rank> able = WhoCanSignal();
    const std::vector<Rank> placing = WhoMustPlace();
    const std::uint64_t dice = random->Below(100);
    std::string wrong;
    if (deadline && *deadline <= now_) {
      wrong = PassDeadline();
    } else if (present.empty() || (dice < 4 && std::ssize(present) < max_workers)) {
      auto rank = static_cast<Rank>(random->Below(static_cast<std::uint64_t>(max_workers)));
      while (workers_.contains(rank)) rank = (rank + 1) % max_workers;
      const Iteration low = present.empty() ? 0 : Clock(present[random->Below(present.size())]);
      wrong = Join(rank, low);
    } else if (dice < 7) {
      const Rank rank = present[random->Below(present.size())];
      const bool may_finish = CanSignal(rank) && random->Below(2) == 0;
      wrong = Leave(rank, may_finish ? LeftReason::kFinished : LeftReason::kLost);
    } else if (!placing.empty() && (dice < 60 || able.empty())) {
      wrong = Place(placing[random->Below(placing.size())]);
    } else if (!able.empty()) {
      wrong = Signal(able[random->Below(1 + random->Below(able.size()))]);
    } else if (deadline) {
      wrong = PassDeadline();
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string SspWorld::Calm(Prng* random, int steps) {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
  const auto done = [&] {
    return std::all_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
      return entry.second.finished || entry.second.steps >= steps;
    });
  };
  const int limit = 1000 * (steps + 2) * static_cast<int>(workers_.size() + 1);
  for (int i = 0; !done(); ++i) {
    if (i == limit) return "no progress for some worker";
    const std::vector<Rank> able = WhoCanSignal();
    const std::vector<Rank> placing = WhoMustPlace();
    std::string wrong;
    if (engine_->NextDeadline() && (able.empty() || random->Below(4) == 0)) {
      wrong = PassDeadline();
    } else if (!placing.empty()) {
      wrong = Place(placing[random->Below(placing.size())]);
    } else if (!able.empty()) {
      wrong = Signal(able[random->Below(able.size())]);
    } else {
      wrong = "deadlock";
      for (const auto& [rank, worker] : workers_) {
        wrong += "; rank " + std::to_string(rank) + ": " + engine_->Explain(now_, rank);
      }
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string SspWorld::Drain(Prng* random) {
  while (!workers_.empty()) {
    if (auto wrong = Calm(random, 2); !wrong.empty()) return wrong;
    const std::vector<Rank> present = Present();
    if (auto wrong = Leave(present[random->Below(present.size())]); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace prd
