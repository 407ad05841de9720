#include "tools/sim/store_book.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engines/event.h"
#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

std::string Text(Incarnation worker, Iteration clock) {
  return WorkerName(WorkerOf(worker)) + "'s update of clock " + std::to_string(clock);
}
std::string ShardName(std::size_t shard) { return "shard " + std::to_string(shard); }

// Both with what is pending.
bool Equal(const ShardCopy& a, const ShardCopy& b) {
  const auto at = [](const ShardCopy& copy, std::size_t j) {
    return copy.values[j] + (j < copy.pending.size() ? copy.pending[j] : 0);
  };
  if (a.values.size() != b.values.size()) return false;
  for (std::size_t j = 0; j < a.values.size(); ++j) {
    if (std::abs(at(a, j) - at(b, j)) > 1e-9 * (1 + std::abs(at(a, j)))) return false;
  }
  return true;
}

}  // namespace

// ---- sets ----

bool UpdateSet::Add(Incarnation worker, Iteration clock) {
  if (Has(worker, clock)) return false;
  std::vector<Range>& ranges = ranges_[worker];
  auto after = std::find_if(ranges.begin(), ranges.end(),
                            [&](const Range& range) { return range.first > clock; });
  const bool joins_after = after != ranges.end() && after->first == clock + 1;
  const bool joins_before = after != ranges.begin() && std::prev(after)->second == clock - 1;
  if (joins_before && joins_after) {
    std::prev(after)->second = after->second;
    ranges.erase(after);
  } else if (joins_before) {
    std::prev(after)->second = clock;
  } else if (joins_after) {
    after->first = clock;
  } else {
    ranges.insert(after, {clock, clock});
  }
  ++size_;
  tag_ ^= Prng(worker ^ (static_cast<std::uint64_t>(clock) << 44)).Next();
  return true;
}

void UpdateSet::Add(const UpdateSet& others) {
  for (const auto& [worker, ranges] : others.ranges_) {
    for (const auto& [from, to] : ranges) {
      for (Iteration clock = from; clock <= to; ++clock) Add(worker, clock);
    }
  }
}

bool UpdateSet::Has(Incarnation worker, Iteration clock) const {
  const auto ranges = ranges_.find(worker);
  if (ranges == ranges_.end()) return false;
  return std::any_of(ranges->second.begin(), ranges->second.end(), [&](const Range& range) {
    return range.first <= clock && clock <= range.second;
  });
}

std::string UpdateSet::Lacks(const UpdateSet& others, Iteration up_to) const {
  for (const auto& [worker, ranges] : others.ranges_) {
    const auto own = ranges_.find(worker);
    for (const auto& [from, last] : ranges) {
      const Iteration to = std::min(last, up_to);
      if (from > to) continue;
      const bool whole = own != ranges_.end() &&
                         std::any_of(own->second.begin(), own->second.end(), [&](const Range& of) {
                           return of.first <= from && to <= of.second;
                         });
      if (whole) continue;
      for (Iteration clock = from; clock <= to; ++clock) {
        if (!Has(worker, clock)) return Text(worker, clock);
      }
    }
  }
  return {};
}

std::optional<Iteration> UpdateSet::Newest(Incarnation worker) const {
  const auto ranges = ranges_.find(worker);
  if (ranges == ranges_.end()) return std::nullopt;
  return ranges->second.back().second;
}

Iteration UpdateSet::Newest() const {
  Iteration newest = 0;
  for (const auto& [worker, ranges] : ranges_) newest = std::max(newest, ranges.back().second);
  return newest;
}

// ---- the history ----

void StoreBook::Seen(RunId run_id, const Record& record) {
  Run& run = runs_[run_id];
  if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    run.there[joined->rank] = joined->incarnation;
    run.finished.erase(joined->incarnation);
  } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    run.clocks.erase(left->rank);
    if (StaysInJob(left->why)) {
      run.finished.insert(left->incarnation);
      return;
    }
    const auto had = run.had.find(left->rank);
    if (had != run.had.end() && had->second == left->incarnation) {
      run.had.erase(had);
      ++run.gone;
    }
    run.there.erase(left->rank);
  } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const auto* ready = std::get_if<Ready>(&from->envelope.body);
    if (ready == nullptr) return;
    run.clocks[from->envelope.rank] = ready->iteration;
    for (Shard& shard : run.shards) {
      if (!shard.excused) shard.recorded.Add(from->envelope.incarnation, ready->iteration);
    }
  } else if (const auto* set = std::get_if<PlacementSet>(&record.body)) {
    OnPlaced(&run, *set);
  } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    run.opened = opened->epoch;
    run.behind = false;
    run.had = run.members;
    const bool torn = run.Torn();
    run.gone = 0;
    run.copies = std::numeric_limits<std::size_t>::max();
    for (Shard& shard : run.shards) {
      if (torn) shard.reads.clear();
      shard.excused = false;
      run.copies = std::min(run.copies, shard.place.holders.size());
    }
  }
}

void StoreBook::Forgot(RunId run_id, std::span<const Record> left) {
  Run& run = runs_[run_id];
  const Run before = std::exchange(run, {});
  for (const Record& record : left) Seen(run_id, record);
  run.behind = before.behind || run.epoch != before.epoch || run.opened != before.opened;
}

void StoreBook::CheckAnew(const Run& run, const PlacementSet& set, std::size_t shard) {
  if (run.shards[shard].recorded.size() == 0 ||
      (run.gone > run.copies && set.reason.find("lost") != std::string::npos)) {
    return;
  }
  throw Violation("update-kept", ShardName(shard) + " begins anew, and " +
                                     std::to_string(run.gone) + " members have gone since " +
                                     std::to_string(run.copies) +
                                     " besides each owner had copies; the reason: " + set.reason);
}

void StoreBook::OnPlaced(Run* run, const PlacementSet& set) {
  run->epoch = set.epoch;
  run->members.clear();
  for (const Rank rank : set.members) {
    const auto there = run->there.find(rank);
    if (there != run->there.end()) run->members[rank] = there->second;
  }
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    const auto clock = run->clocks.find(set.members[i]);
    if (clock != run->clocks.end()) clock->second = std::max(clock->second, set.at[i]);
  }
  run->shards.resize(set.shards.size());
  for (std::size_t i = 0; i < set.shards.size(); ++i) {
    Shard& shard = run->shards[i];
    shard.place = set.shards[i];
    if (shard.place.source != kNoRank) continue;
    CheckAnew(*run, set, i);
    shard.excused = run->opened > 0;
    shard.recorded = {};
    shard.reads.clear();
  }
}

// ---- updates ----

void StoreBook::Adds(const ShardCopy& copy, std::uint32_t shard, Incarnation from, Iteration clock,
                     double factor, bool pending, const std::optional<PeerMessage>& offer,
                     const StorePlan& plan) const {
  const std::string what = Text(from, clock);
  if (copy.in_values.Has(from, clock) || copy.in_pending.Has(from, clock)) {
    throw Violation("update-once", what + " is added to " + ShardName(shard) + ", which has it");
  }
  if (pending != (plan.staleness == 0)) {
    throw Violation("lockstep", what + " is added to " + (pending ? "what is pending" : "values") +
                                    " with s = " + std::to_string(plan.staleness));
  }
  bool right = factor == 1;
  if (plan.staleness_aware) {
    right = factor > 0 && factor <= 1;
    if (offer) {
      const auto workers = static_cast<double>(std::max<std::uint32_t>(offer->workers, 1));
      const auto since = static_cast<double>(copy.size()) - static_cast<double>(offer->version) + 1;
      right = std::abs(factor - workers / std::max(workers, since)) < 1e-9;
    }
  }
  if (right) return;
  throw Violation("delayed", what + " counts " + std::to_string(factor) + " in " +
                                 ShardName(shard) + " of version " + std::to_string(copy.size()) +
                                 (offer ? ", computed on " + std::to_string(offer->version) +
                                              " by one of " + std::to_string(offer->workers)
                                        : std::string()));
}

bool StoreBook::There(const Run& run, Incarnation worker) {
  return std::any_of(run.there.begin(), run.there.end(),
                     [&](const auto& of) { return of.second == worker; });
}

void StoreBook::Serves(RunId run_id, const ShardCopy& copy, Incarnation keeper, Incarnation reader,
                       const PeerItem& parcel, const ShardHeader& enclosure) {
  const std::string what = ShardName(parcel.shard);
  bool right = enclosure.version == static_cast<std::int64_t>(copy.size());
  for (const ShardHeader::Clock& clock : enclosure.clocks) {
    const Iteration newest = std::max(copy.in_values.Newest(clock.worker).value_or(0),
                                      copy.in_pending.Newest(clock.worker).value_or(0));
    right = right && (newest == 0 || newest == clock.clock);
  }
  if (!right) {
    throw Violation("version", what + " has " + std::to_string(copy.size()) +
                                   " updates, and is said to be of version " +
                                   std::to_string(enclosure.version) + ", or its clocks are wrong");
  }
  if (parcel.kind != PeerItem::Kind::kShard) return;
  // All members have heard of a placement that was opened, and let go what they asked for before.
  // A lost worker that does not know it may still answer, also before the next placement.
  const Run& of = runs_[run_id];
  if (parcel.epoch < of.opened || !There(of, keeper)) return;
  Reads(run_id, copy, reader, parcel.shard, parcel.stamp);
}

void StoreBook::Reads(RunId run_id, const ShardCopy& copy, Incarnation reader, std::uint32_t shard,
                      Iteration clock) {
  Run& run = runs_[run_id];
  if (shard >= run.shards.size() || run.behind) return;
  const bool member =
      There(run, reader) && std::any_of(run.members.begin(), run.members.end(),
                                        [&](const auto& of) { return of.second == reader; });
  if (!member) return;  // it is gone, and has not heard of it
  if (run.finished.contains(reader)) {
    UpdateSet all = copy.in_values;  // what is pending is of a clock that nobody has reached
    all.Add(copy.in_pending);
    const std::string lacks =
        all.Lacks(run.shards[shard].recorded, std::numeric_limits<Iteration>::max());
    if (lacks.empty() || run.shards[shard].excused) return;
    throw Violation("update-kept", ShardName(shard) + " read at the end lacks " + lacks);
  }
  CheckRead(&run.shards[shard], copy, shard, clock, PlanOf(run_id).staleness == 0, run.Torn());
  if (shard != 0) return;
  Iteration oldest = clock;
  for (const auto& [rank, recorded] : run.clocks) oldest = std::min(oldest, recorded);
  stats_->staleness.Add(clock - oldest);
}

void StoreBook::CheckRead(Shard* shard, const ShardCopy& copy, std::uint32_t number,
                          Iteration clock, bool lockstep, bool torn) {
  if (shard->excused) return;  // who has not heard of it reads what there was
  const std::string what = ShardName(number) + " read at clock " + std::to_string(clock);
  const std::string lacks = copy.in_values.Lacks(
      shard->recorded, lockstep ? clock : std::numeric_limits<Iteration>::max());
  if (!lacks.empty()) throw Violation("update-kept", what + " lacks " + lacks);
  if (!lockstep) return;
  if (copy.in_values.Newest() > clock) {
    throw Violation("lockstep",
                    what + " has an update of clock " + std::to_string(copy.in_values.Newest()));
  }
  if (torn) return;
  const auto [read, first] = shard->reads.try_emplace(clock);
  if (first) {
    read->second = {.updates = copy.in_values, .values = copy.values};
    while (shard->reads.size() > 4) shard->reads.erase(shard->reads.begin());
    return;
  }
  const ShardCopy before{.values = read->second.values,
                         .pending = {},
                         .in_values = read->second.updates,
                         .in_pending = {}};
  const ShardCopy now{
      .values = copy.values, .pending = {}, .in_values = copy.in_values, .in_pending = {}};
  if (before.in_values == now.in_values && Equal(before, now)) return;
  throw Violation("lockstep", what + " has " + std::to_string(now.size()) +
                                  " updates, where another reader found " +
                                  std::to_string(before.size()) + ", or other values");
}

void StoreBook::SaysReady(RunId run_id, Incarnation worker, Iteration clock,
                          const FindCopy& find) const {
  const auto run = runs_.find(run_id);
  if (run == runs_.end() || run->second.behind) return;
  if (run->second.epoch != run->second.opened) return;
  const auto& members = run->second.members;
  if (std::none_of(members.begin(), members.end(),
                   [&](const auto& member) { return member.second == worker; })) {
    return;
  }
  for (std::size_t i = 0; i < run->second.shards.size(); ++i) {
    const ShardPlace& place = run->second.shards[i].place;
    std::vector<Rank> ranks = place.holders;
    ranks.insert(ranks.begin(), place.owner);
    const ShardCopy* owner = nullptr;
    for (const Rank rank : ranks) {
      const auto member = members.find(rank);
      if (member == members.end() || !world_->Lives(member->second)) continue;
      const std::string who = ShardName(i) + " on rank " + std::to_string(rank);
      const ShardCopy* copy = find(member->second, static_cast<std::uint32_t>(i));
      if (copy == nullptr ||
          !(copy->in_values.Has(worker, clock) || copy->in_pending.Has(worker, clock))) {
        throw Violation("update-stored", Text(worker, clock) + " is said to be stored, and " + who +
                                             (copy == nullptr ? " is not there" : " lacks it"));
      }
      if (rank == place.owner) owner = copy;
      if (owner == nullptr || owner == copy) continue;
      if (copy->size() > owner->size() ||
          (copy->in_values == owner->in_values && copy->in_pending == owner->in_pending &&
           !Equal(*owner, *copy))) {
        throw Violation("copies-agree", who + " differs from its owner's");
      }
    }
  }
}

}  // namespace prd::sim
