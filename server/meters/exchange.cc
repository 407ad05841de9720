#include "server/meters/exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/config.h"
#include "engines/registry.h"
#include "server/meters/run_view.h"

namespace prd::meters {
namespace {

// Iterations that a worker's way is remembered for.
constexpr std::size_t kTrack = 256;
constexpr Instant kLongAgo{std::numeric_limits<std::int64_t>::min()};
constexpr Instant kNotYet{std::numeric_limits<std::int64_t>::max()};

// The option of the engine that has it; else 0.
int MaxIterationGap(const RunStarted& started) {
  Result<JobSpec> spec = JobSpecFromToml(started.spec);
  int gap = 0;
  if (!spec.ok()) return gap;
  BuiltIn::Visit(spec->engine, [&gap](const auto& options) {
    if constexpr (requires { options.max_iteration_gap; }) gap = options.max_iteration_gap;
  });
  return gap;
}

}  // namespace

Iteration Quantile(const std::map<Iteration, std::uint64_t>& counts, double share) {
  std::uint64_t all = 0;
  for (const auto& [value, count] : counts) all += count;
  std::uint64_t seen = 0;
  for (const auto& [value, count] : counts) {
    seen += count;
    if (static_cast<double>(seen) >= share * static_cast<double>(all)) return value;
  }
  return counts.rbegin()->first;
}

void ExchangeMeter::Add(const Record& record) {
  if (record.index == 0) start_ = record.now;
  now_ = record.now;
  const Moved moved(record.body);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const WorkerEnvelope& envelope = from->envelope;
    if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
      OnReady(record.now, envelope.rank, *ready);
    } else if (std::holds_alternative<Adopted>(envelope.body)) {
      workers_[envelope.rank].signalled.reset();
    }
  } else if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    plan_ = PlanOf(*started);
    neighbours_ = HasNeighbours(plan_) ? *NeighboursOf(plan_) : NeighbourPlan{};
    max_iteration_gap_ = MaxIterationGap(*started);
  } else if (moved.came != nullptr) {
    OnJoined(record.now, *moved.came);
  } else if (moved.went != nullptr) {
    CloseGraph(record.now);
    if (moved.went->why == LeftReason::kFinished) {
      if (!ending_) ClosePlacement(record.now);
      ending_ = true;
    }
    graph_.erase(moved.went->rank);
    ExchangeRow& worker = workers_[moved.went->rank];
    worker.trains = false;
    worker.signalled.reset();
  } else if (const auto* answer = std::get_if<QueryAnswered>(&record.body)) {
    OnAnswer(record.now, *answer);
  } else if (const auto* set = std::get_if<NeighboursSet>(&record.body)) {
    CloseGraph(record.now);
    graph_[set->rank] = *set;
    Enter(record.now, set->rank, set->at);
  } else if (const auto* placement = std::get_if<PlacementSet>(&record.body)) {
    ClosePlacement(record.now);
    placement_ = {.set = *placement, .since = record.now, .opened = std::nullopt};
    for (std::size_t i = 0; i < placement->at.size() && i < placement->members.size(); ++i) {
      Enter(record.now, placement->members[i], placement->at[i]);
    }
  } else if (const auto* opened = std::get_if<PlacementOpened>(&record.body)) {
    if (placement_ && placement_->set.epoch == opened->epoch) placement_->opened = record.now;
  } else if (std::holds_alternative<RunEnded>(record.body)) {
    CloseGraph(record.now);
    ClosePlacement(record.now);
    ending_ = true;
  }
}

const PlacementRow* ExchangeMeter::placement() const {
  const std::optional<PlacementRow>& shown = ending_ ? fullest_placement_ : placement_;
  return shown ? &*shown : nullptr;
}

// What is set at one time is one graph.
void ExchangeMeter::CloseGraph(Instant now) {
  const Fullness fullness(graph_.size(), now - graph_since_);
  if (now > graph_since_ && fullness > fullest_graph_rank_) {
    fullest_graph_rank_ = fullness;
    fullest_graph_ = graph_;
  }
  graph_since_ = now;
}

void ExchangeMeter::ClosePlacement(Instant now) {
  if (!placement_) return;
  const Fullness fullness(placement_->set.members.size(),
                          placement_->opened ? now - *placement_->opened : 0);
  if (fullest_placement_ && fullness <= fullest_placement_rank_) return;
  fullest_placement_rank_ = fullness;
  fullest_placement_ = placement_;
}

void ExchangeMeter::OnJoined(Instant now, const WorkerJoined& joined) {
  ending_ = false;
  ExchangeRow& worker = workers_[joined.rank];
  worker.rank = joined.rank;
  worker.trains = true;
  worker.iteration = joined.iteration;
  worker.entered = now;
  worker.signalled.reset();
  worker.queued = 0;
  Track& track = tracks_[joined.rank];
  track.entered = {{joined.iteration, now}};
  track.cut = false;
}

void ExchangeMeter::Enter(Instant now, Rank rank, Iteration iteration) {
  ExchangeRow& worker = workers_[rank];
  if (worker.rank == kNoRank) worker.entered = now;
  worker.rank = rank;
  if (iteration <= worker.iteration) return;
  worker.iteration = iteration;
  worker.entered = now;
  Reach(now, rank, iteration);
}

void ExchangeMeter::Reach(Instant now, Rank rank, Iteration iteration) {
  Track& track = tracks_[rank];
  track.entered.emplace_hint(track.entered.end(), iteration, now);
  if (track.entered.size() <= kTrack) return;
  track.entered.erase(track.entered.begin());
  track.cut = true;
}

void ExchangeMeter::OnReady(Instant now, Rank rank, const Ready& ready) {
  ExchangeRow& worker = workers_[rank];
  worker.queued = ready.queued;
  worker.dropped += ready.dropped;
  worker.suppressed += ready.suppressed;
  worker.signalled = now;
  // What counts for the others is that its update is stored.
  if (HasStore(plan_)) Reach(now, rank, ready.iteration);
  Track& track = tracks_[rank];
  if (worker.rank ==
      kNoRank) {  // when the worker entered this step is in a record that was removed
    track.step_ns = ready.step_ns;
    return;
  }
  track.step_ns = Possible(ready.step_ns, now - worker.entered);
  moving_ns_ += ShareOut(&worker, worker.entered + track.step_ns, now,
                         UpdatesFor(rank, worker.iteration), neighbours_.backups);
}

void ExchangeMeter::OnAnswer(Instant now, const QueryAnswered& answer) {
  ExchangeRow& worker = workers_[answer.rank];
  if (answer.next <= 0) return;  // an engine of groups
  if (worker.signalled) {
    const Instant since = *worker.signalled;
    controller_ns_ +=
        ShareOut(&worker, since, now,
                 PermissionFor(answer.rank, std::min(answer.iteration, answer.next)), 0);
  }
  worker.signalled.reset();
  if (answer.next > answer.iteration) {
    ++worker.jumps;
    worker.skipped += static_cast<std::uint64_t>(answer.next - answer.iteration);
  }
  Enter(now, answer.rank, answer.next);
  std::optional<Iteration> slowest;
  if (const auto set = graph_.find(answer.rank); set != graph_.end()) {
    for (const Rank out : set->second.out) {
      const auto other = workers_.find(out);
      if (other == workers_.end() || !other->second.trains) continue;
      slowest = std::min(slowest.value_or(other->second.iteration), other->second.iteration);
    }
  } else {
    slowest = Slowest();
  }
  if (slowest) ++worker.ahead[std::max<Iteration>(0, worker.iteration - *slowest)];
}

std::optional<Iteration> ExchangeMeter::Slowest() const {
  std::optional<Iteration> slowest;
  for (const auto& [rank, worker] : workers_) {
    if (worker.trains) slowest = std::min(slowest.value_or(worker.iteration), worker.iteration);
  }
  return slowest;
}

std::optional<Tokens> ExchangeMeter::FewestTokens(Rank rank) const {
  const auto set = graph_.find(rank);
  if (max_iteration_gap_ == 0 || set == graph_.end()) return std::nullopt;
  std::optional<Tokens> fewest;
  for (const Rank out : set->second.out) {
    const auto other = workers_.find(out);
    if (other == workers_.end()) continue;
    const Iteration count =
        other->second.iteration - workers_.at(rank).iteration + max_iteration_gap_;
    if (!fewest || count < fewest->count) fewest = {.count = count, .of = out};
  }
  return fewest;
}

Instant ExchangeMeter::Reached(Rank rank, Iteration iteration) const {
  const auto found = tracks_.find(rank);
  if (found == tracks_.end()) return kNotYet;
  const auto at = found->second.entered.lower_bound(iteration);
  if (at == found->second.entered.end()) return kNotYet;
  const bool before = found->second.cut && at == found->second.entered.begin();
  return before ? kLongAgo : at->second;
}

// When the neighbours sent what the iteration ends with, or an update that is recent enough.
ExchangeMeter::Arrivals ExchangeMeter::UpdatesFor(Rank rank, Iteration iteration) const {
  Arrivals arrivals;
  const auto set = graph_.find(rank);
  if (set == graph_.end()) return arrivals;
  for (const InEdge& edge : set->second.in) {
    const Iteration needed = iteration - std::max(neighbours_.staleness, 0);
    if (edge.from > needed) continue;
    Instant sent = Reached(edge.rank, needed);
    // Applied first, sent then (Figure 2a).
    const auto track = tracks_.find(edge.rank);
    if (neighbours_.serial && sent != kNotYet && sent != kLongAgo)
      sent = sent + track->second.step_ns;
    arrivals.emplace_back(sent, edge.rank);
  }
  return arrivals;
}

// When those came where they must be before the worker may go on to `next`.
ExchangeMeter::Arrivals ExchangeMeter::PermissionFor(Rank rank, Iteration next) const {
  Arrivals arrivals;
  if (const auto set = graph_.find(rank); set != graph_.end()) {
    if (max_iteration_gap_ == 0) return arrivals;
    for (const Rank out : set->second.out) {
      arrivals.emplace_back(Reached(out, next - max_iteration_gap_), out);
    }
  } else if (HasStore(plan_) && StoreOf(plan_)->staleness >= 0) {
    for (const auto& [other, row] : workers_) {
      if (row.trains && other != rank) {
        arrivals.emplace_back(Reached(other, next - StoreOf(plan_)->staleness), other);
      }
    }
  }
  return arrivals;
}

// As in stragglers.h: what passes is owed to those still missing, in equal parts.
DurationNs ExchangeMeter::ShareOut(ExchangeRow* waiter, Instant from, Instant to, Arrivals arrivals,
                                   std::size_t spare) {
  std::sort(arrivals.begin(), arrivals.end());
  Instant at = from;
  DurationNs waited = 0;
  for (std::size_t k = 0; k + spare < arrivals.size() && at < to; ++k) {
    const Instant until = std::min(arrivals[k].first, to);
    if (until <= at) continue;
    const DurationNs gap = until - at;
    const auto missing = static_cast<double>(arrivals.size() - k);
    for (std::size_t j = k; j < arrivals.size(); ++j) {
      workers_[arrivals[j].second].cost_ns += static_cast<double>(gap) / missing;
    }
    waited += gap;
    at = until;
  }
  waiter->waited_ns += waited;
  waited_ns_ += waited;
  if (on_wait_ && waited > 0) on_wait_(waited);
  return std::max<DurationNs>(0, to - at);
}

std::vector<Rank> ExchangeMeter::HeldBy(Rank rank) const {
  std::vector<Rank> by;
  const auto worker = workers_.find(rank);
  if (worker == workers_.end() || !worker->second.signalled) return by;
  for (const auto& [at, other] : PermissionFor(rank, worker->second.iteration + 1)) {
    if (at == kNotYet) by.push_back(other);
  }
  return by;
}

std::vector<Rank> ExchangeMeter::UpdatesMissing(Rank rank) const {
  std::vector<Rank> missing;
  const auto worker = workers_.find(rank);
  if (worker == workers_.end() || !worker->second.trains || worker->second.signalled) {
    return missing;
  }
  for (const auto& [at, other] : UpdatesFor(rank, worker->second.iteration)) {
    if (at == kNotYet) missing.push_back(other);
  }
  if (missing.size() <= neighbours_.backups) missing.clear();
  return missing;
}

}  // namespace prd::meters
