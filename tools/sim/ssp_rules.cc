#include "tools/sim/ssp_rules.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Name(Rank rank) { return "rank " + std::to_string(rank); }

}  // namespace

void SspRules::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    workers_[joined->rank] = {.clock = joined->iteration};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    workers_.at(ready->rank).asks = true;
  } else if (const auto* placed = std::get_if<PlacedEvent>(&event)) {
    if (placed->epoch == epoch_) unplaced_.erase(placed->rank);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    Worker& worker = workers_.at(left->rank);
    worker.trains = worker.asks = false;
    worker.finished = true;
    if (left->why == LeftReason::kFinished) return;
    workers_.erase(left->rank);
    unplaced_.erase(left->rank);
  }
}

Iteration SspRules::Slowest() const {
  Iteration slowest = std::numeric_limits<Iteration>::max() / 2;
  for (const auto& [rank, worker] : workers_) {
    if (worker.trains) slowest = std::min(slowest, worker.clock + (worker.asks ? 1 : 0));
  }
  return slowest;
}

void SspRules::LetOn(const Answer& answer) {
  Worker& worker = workers_.at(answer.rank);
  const auto training = std::count_if(workers_.begin(), workers_.end(),
                                      [](const auto& of) { return of.second.trains; });
  if (answer.next != worker.clock + 1 || !worker.asks ||
      answer.workers != static_cast<std::uint32_t>(training)) {
    throw Violation("clocks", Name(answer.rank) + " at clock " + std::to_string(worker.clock) +
                                  " goes on to " + std::to_string(answer.next) + ", one of " +
                                  std::to_string(answer.workers) + " where " +
                                  std::to_string(training) + " train");
  }
  const Iteration slowest = Slowest();
  if (options_.staleness >= 0 && answer.next > slowest + options_.staleness) {
    throw Violation("bound", Name(answer.rank) + " goes on to clock " +
                                 std::to_string(answer.next) + ", and one has stored " +
                                 std::to_string(slowest));
  }
  worker.clock = answer.next;
  worker.asks = false;
}

void SspRules::Place(const PlacementSet& set) {
  std::string wrong;
  if (set.epoch != epoch_ + 1) wrong = "its epoch follows " + std::to_string(epoch_);
  epoch_ = set.epoch;
  open_ = false;
  unplaced_ = {set.members.begin(), set.members.end()};
  if (unplaced_.size() != workers_.size() || set.at.size() != set.members.size()) {
    wrong = "it has " + std::to_string(unplaced_.size()) + " of " +
            std::to_string(workers_.size()) + " members";
  }
  std::map<Rank, std::size_t> owned;
  for (const Rank rank : set.members) owned[rank] = 0;
  for (const ShardPlace& place : set.shards) {
    ++owned[place.owner];
    std::set<Rank> keep(place.holders.begin(), place.holders.end());
    keep.insert(place.owner);
    const std::size_t due =
        1 + std::min(static_cast<std::size_t>(options_.replicas), set.members.size() - 1);
    if (keep.size() != due || place.holders.size() + 1 != due ||
        !std::includes(unplaced_.begin(), unplaced_.end(), keep.begin(), keep.end())) {
      wrong = "a shard has " + std::to_string(keep.size()) + " copies, where " +
              std::to_string(due) + " are due";
    }
  }
  const auto [least, most] = std::minmax_element(
      owned.begin(), owned.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most->second > least->second + 1) wrong = "some own many more shards than others";
  if (!wrong.empty()) {
    throw Violation("placement", "placement " + std::to_string(set.epoch) + ": " + wrong);
  }
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    Worker& worker = workers_.at(set.members[i]);
    if (set.at[i] < worker.clock) {
      throw Violation("clocks",
                      Name(set.members[i]) + " goes back to clock " + std::to_string(set.at[i]));
    }
    worker.clock = set.at[i];
    worker.trains = !worker.finished;
  }
}

void SspRules::Open(const PlacementOpened& opened) {
  if (opened.epoch == epoch_ && !open_ && unplaced_.empty()) {
    open_ = true;
    return;
  }
  throw Violation("opened", "placement " + std::to_string(opened.epoch) + " opens, " +
                                std::to_string(epoch_) + " is the newest, and " +
                                std::to_string(unplaced_.size()) + " have not their shards");
}

void SspRules::Check(Instant, const Event& event, std::span<const Effect> effects, std::int64_t) {
  Apply(event);
  for (const Effect& effect : effects) {
    if (const auto* answer = std::get_if<Answer>(&effect)) LetOn(*answer);
    if (const auto* set = std::get_if<PlacementSet>(&effect)) Place(*set);
    if (const auto* opened = std::get_if<PlacementOpened>(&effect)) Open(*opened);
  }
  const Iteration slowest = Slowest();
  for (const auto& [rank, worker] : workers_) {
    if (!worker.asks || !worker.trains) continue;
    if (options_.staleness >= 0 && worker.clock + 1 > slowest + options_.staleness) continue;
    throw Violation("bound", Name(rank) + " waits to go on to clock " +
                                 std::to_string(worker.clock + 1) + ", and all have stored " +
                                 std::to_string(slowest));
  }
}

void SspRules::Archive(StateArchive& ar) { ar(workers_, epoch_, open_, unplaced_); }

}  // namespace prd::sim
