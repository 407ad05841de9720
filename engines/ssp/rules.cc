// The invariants of engine ssp (Ho et al., NIPS 2013), beside clocks that are counted in the
// paper's words, and who may have which shard.
//
// bound: nobody is let on to a clock that is more than s beyond what each worker that trains has
// stored. Who may be let on is let on at once; so the slowest is, and there is no deadlock.
//
// clocks: who is let on goes on to the clock that it asked for, among all who train. A worker that
// comes, and has not asked, begins at the clock that all have stored; where nobody trains, at the
// highest that anybody was let on to, if a member of the placement before is still there.
//
// placement: epochs ascend by one. Members are all who have joined, or pause or have finished and
// are there.
// The number of shards stays. Each shard has an owner and `replicas` holders among the members, or
// all others. Owners have equal numbers of shards, or one fewer; holders, or two fewer.
//
// source: a shard comes from a worker that may have all of it, and is there. It begins anew only if
// there is none.
//
// opened: what is opened is the newest placement, once all its members that are left have said
// Placed; and they are told.
//
// explained: a worker has a reason to wait while it waits, or a placement is not open (in jobs of
// up to kMaxWatched workers).
#include "engines/rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engines/ssp/options.h"

namespace prd {
namespace {

constexpr Iteration kNobodyTrains = std::numeric_limits<Iteration>::max() / 2;

class SspRules final : public EngineRules {
 public:
  explicit SspRules(const SspOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override {
    ar(workers_, epoch_, open_, reached_, unplaced_, shards_);
  }

 private:
  struct Worker {
    Iteration clock = 0;
    bool asks = false;     // to go on to clock + 1, whose update is stored
    bool trains = false;   // has been in a placement since it joined
    bool stopped = false;  // pauses or has finished, and holds shards
    bool member = false;   // of a placement
    bool Fresh() const { return !trains && !stopped; }
    void Archive(StateArchive& ar) { ar(clock, asks, trains, stopped, member); }
  };
  struct Shard {
    Rank owner = kNoRank;
    std::vector<Rank> holders;
    std::set<Rank> had_by;  // that may have all of it, and are there
    void Archive(StateArchive& ar) { ar(owner, holders, had_by); }
  };

  void Follow(const Event& event);
  void OnLeft(const LeftEvent& event);
  Iteration Slowest() const;  // that those who train have stored
  bool MayGoOn(const Worker& worker) const {
    return options_.staleness < 0 || worker.clock + 1 <= Slowest() + options_.staleness;
  }
  void LetOn(const QueryAnswered& answer);
  void Place(const PlacementSet& set);
  // What is wrong, or empty.
  std::string CheckPlaces(const PlacementSet& set) const;
  void CheckSources(const PlacementSet& set);
  void CheckClocks(const PlacementSet& set);
  void Open(const PlacementOpened& opened);
  void CheckWaiting(const Decision& of) const;

  const SspOptions options_;
  std::map<Rank, Worker> workers_;
  std::uint64_t epoch_ = 0;
  bool open_ = false;
  Iteration reached_ = 0;    // the highest clock that anybody was let on to
  std::set<Rank> unplaced_;  // members of the newest placement that have not said Placed
  std::vector<Shard> shards_;
};

void SspRules::OnLeft(const LeftEvent& event) {
  const auto found = workers_.find(event.rank);
  if (found == workers_.end()) return;
  found->second.trains = found->second.asks = false;
  found->second.stopped = true;
  if (StaysInJob(event.why)) return;
  workers_.erase(found);
  unplaced_.erase(event.rank);
  for (Shard& shard : shards_) shard.had_by.erase(event.rank);
}

void SspRules::Follow(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    Worker& worker = workers_[joined->rank];
    worker = {.clock = joined->iteration, .member = worker.member};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    workers_.at(ready->rank).asks = true;
  } else if (const auto* placed = std::get_if<PlacedEvent>(&event)) {
    if (placed->epoch != epoch_) return;
    unplaced_.erase(placed->rank);
    for (Shard& shard : shards_) {  // what has got to its owner and holders is there
      if (shard.owner != placed->rank) continue;
      shard.had_by.insert(shard.owner);
      for (const Rank rank : shard.holders) {
        if (workers_.contains(rank)) shard.had_by.insert(rank);
      }
    }
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(*left);
  }
}

Iteration SspRules::Slowest() const {
  Iteration slowest = kNobodyTrains;
  for (const auto& [rank, worker] : workers_) {
    if (worker.trains) slowest = std::min(slowest, worker.clock + (worker.asks ? 1 : 0));
  }
  return slowest;
}

void SspRules::LetOn(const QueryAnswered& answer) {
  Worker& worker = workers_.at(answer.rank);
  const auto training = std::count_if(workers_.begin(), workers_.end(),
                                      [](const auto& of) { return of.second.trains; });
  if (answer.next != worker.clock + 1 || !worker.asks || answer.ready || answer.reason.empty() ||
      answer.workers != static_cast<std::uint32_t>(training)) {
    throw Violation("clocks", RankName(answer.rank) + " at clock " + std::to_string(worker.clock) +
                                  " goes on to " + std::to_string(answer.next) + ", one of " +
                                  std::to_string(answer.workers) + " where " +
                                  std::to_string(training) + " train");
  }
  if (!MayGoOn(worker)) {
    throw Violation("bound", RankName(answer.rank) + " goes on to clock " +
                                 std::to_string(answer.next) + ", and one has stored " +
                                 std::to_string(Slowest()));
  }
  worker.clock = answer.next;
  worker.asks = false;
  reached_ = std::max(reached_, worker.clock);
}

std::string SspRules::CheckPlaces(const PlacementSet& set) const {
  const std::set<Rank> members(set.members.begin(), set.members.end());
  if (set.epoch != epoch_ + 1) return "its epoch follows " + std::to_string(epoch_);
  if (members.size() != workers_.size() || set.at.size() != set.members.size() ||
      set.reason.empty() || !std::all_of(members.begin(), members.end(), [this](Rank rank) {
        return workers_.contains(rank);
      })) {
    return "it has " + std::to_string(members.size()) + " of " + std::to_string(workers_.size()) +
           " members, or no reason";
  }
  const std::size_t shards = options_.shards > 0 ? static_cast<std::size_t>(options_.shards)
                             : epoch_ > 0        ? shards_.size()
                                                 : 2 * set.members.size();
  if (set.shards.size() != shards && set.members.size() <= kMaxWatched) {
    return "it has " + std::to_string(set.shards.size()) + " shards";
  }
  std::map<Rank, std::size_t> owned, held;
  for (const Rank rank : members) owned[rank] = held[rank] = 0;
  const std::size_t due = std::min(static_cast<std::size_t>(options_.replicas), members.size() - 1);
  for (const ShardPlace& place : set.shards) {
    ++owned[place.owner];
    std::set<Rank> keep = {place.owner};
    for (const Rank rank : place.holders) {
      ++held[rank];
      keep.insert(rank);
    }
    if (keep.size() != due + 1 || place.holders.size() != due ||
        !std::includes(members.begin(), members.end(), keep.begin(), keep.end())) {
      return "a shard has " + std::to_string(keep.size()) + " copies, where " +
             std::to_string(due + 1) + " are due";
    }
  }
  const auto spread = [](const std::map<Rank, std::size_t>& of) {
    const auto [least, most] = std::minmax_element(
        of.begin(), of.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return most->second - least->second;
  };
  if (spread(owned) > 1) return "some own many more shards than others";
  return spread(held) > 2 ? "some hold many more copies than others" : "";
}

void SspRules::CheckSources(const PlacementSet& set) {
  for (std::size_t i = 0; i < set.shards.size() && epoch_ > 0; ++i) {
    const ShardPlace& place = set.shards[i];
    Count("moved", place.owner != shards_[i].owner ? 1 : 0);
    const bool anew = place.source == kNoRank;
    Count("lost", anew ? 1 : 0);
    if (anew ? shards_[i].had_by.empty() : shards_[i].had_by.contains(place.source)) continue;
    throw Violation("source", "shard " + std::to_string(i) +
                                  (anew ? " begins anew, and is there: "
                                        : " comes from one that has not all of it: ") +
                                  set.reason);
  }
}

void SspRules::CheckClocks(const PlacementSet& set) {
  const Iteration lowest = Slowest();
  const bool anew = std::none_of(workers_.begin(), workers_.end(),
                                 [](const auto& of) { return of.second.member; });
  if (anew) reached_ = 0;
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = workers_.at(set.members[i]);
    Iteration at = worker.clock;
    if (worker.Fresh() && !worker.asks) {
      at = std::max(at, lowest != kNobodyTrains ? lowest : reached_);
    }
    if (set.at[i] != at) {
      throw Violation("clocks", RankName(set.members[i]) + " goes to clock " +
                                    std::to_string(set.at[i]) + ", due is " + std::to_string(at));
    }
    worker.clock = at;
    worker.member = true;
  }
  for (const Rank rank : set.members) workers_.at(rank).trains = !workers_.at(rank).stopped;
}

void SspRules::Place(const PlacementSet& set) {
  const std::string wrong = CheckPlaces(set);
  if (!wrong.empty()) {
    throw Violation("placement", "placement " + std::to_string(set.epoch) + ": " + wrong);
  }
  CheckSources(set);
  CheckClocks(set);
  Count("late", open_ || epoch_ == 0 ? 0 : 1);
  Count("placements");
  epoch_ = set.epoch;
  open_ = false;
  unplaced_ = {set.members.begin(), set.members.end()};
  shards_.resize(set.shards.size());
  for (std::size_t i = 0; i < set.shards.size(); ++i) {
    shards_[i].owner = set.shards[i].owner;
    shards_[i].holders.assign(set.shards[i].holders.begin(), set.shards[i].holders.end());
  }
}

void SspRules::Open(const PlacementOpened& opened) {
  std::vector<Rank> members;
  for (const auto& [rank, worker] : workers_) {
    if (worker.member) members.push_back(rank);
  }
  if (opened.epoch != epoch_ || open_ || !unplaced_.empty() || opened.members != members) {
    throw Violation("opened", "placement " + std::to_string(opened.epoch) + " opens, " +
                                  std::to_string(epoch_) + " is the newest, and " +
                                  std::to_string(unplaced_.size()) + " have not their shards");
  }
  open_ = true;
  for (Shard& shard : shards_) {
    shard.had_by = {shard.owner};
    shard.had_by.insert(shard.holders.begin(), shard.holders.end());
    std::erase_if(shard.had_by, [this](Rank rank) { return !workers_.contains(rank); });
  }
}

void SspRules::CheckWaiting(const Decision& of) const {
  for (const auto& [rank, worker] : workers_) {
    if (worker.asks && worker.trains && MayGoOn(worker)) {
      throw Violation("bound", RankName(rank) + " waits to go on to clock " +
                                   std::to_string(worker.clock + 1) + ", and all have stored " +
                                   std::to_string(Slowest()));
    }
  }
  if (of.joined > kMaxWatched) return;
  for (const auto& [rank, worker] : workers_) {
    const bool explained = !of.engine.Explain(of.now, rank).empty();
    const bool must = worker.asks || !open_;
    if (explained == must || (explained && worker.Fresh())) continue;
    throw Violation("explained", RankName(rank) + " waits without a reason, or has one");
  }
}

void SspRules::Check(const Decision& of) {
  Follow(of.event);
  for (const Effect& effect : of.effects) {
    if (const auto* answer = std::get_if<QueryAnswered>(&effect)) LetOn(*answer);
    if (const auto* set = std::get_if<PlacementSet>(&effect)) {
      if (!std::holds_alternative<DeadlineEvent>(of.event)) {
        throw Violation("placement", "placement " + std::to_string(set->epoch) + " out of turn");
      }
      Place(*set);
    }
    if (const auto* opened = std::get_if<PlacementOpened>(&effect)) Open(*opened);
  }
  CheckWaiting(of);
}

}  // namespace

// Counts placements, late (superseded before they were open), moved (shards whose owner has
// changed), lost (shards that nobody had any more).
std::unique_ptr<EngineRules> SspOptions::Rules() const { return std::make_unique<SspRules>(*this); }

}  // namespace prd
