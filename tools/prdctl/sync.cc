#include "tools/prdctl/sync.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <functional>

#include "common/base/static_schedule.h"
#include "tools/spectrum/spectrum.h"

namespace prd::ctl {

namespace {

// Why the number would mean nothing; empty where it means something. `left_out`: rounds were
// without workers that were there.
std::string WhyNoGap(const Plan& plan, bool left_out) {
  if (TrainsInRounds(plan)) {
    return "rounds give all workers the same sum of gradients and mix no models, so there is no "
           "averaging whose gap could be told; `prdctl stragglers` tells whose gradients come late";
  }
  if (AllOrNone(plan) && (left_out || AsksBeforeGroups(plan))) {
    return "all workers go on from the result of every round, who was late by copying it, so "
           "updates always reach everybody at once; `prdctl stragglers` tells what was dropped";
  }
  if (HasStore(plan)) {
    return "the workers share one set of parameters, in shards, so updates reach everybody who "
           "reads; `prdctl stragglers` tells how far ahead of the slowest each reads";
  }
  return "";
}

// Whether it changes replicas as the sync-graph has it.
bool Counts(const GroupRow& group) {
  switch (group.kind) {
    case GroupKind::kInitial:
    case GroupKind::kFinal:
      return false;
    case GroupKind::kTrain:
    case GroupKind::kAverage:
      return group.ok;
    case GroupKind::kRound:
      return group.AnyResult();
  }
  return false;
}

}  // namespace

void SyncMeter::Add(const Record& record) {
  schedules_.Add(record);
  const RunView::Change change = view_.Apply(record);
  if (change.formed != nullptr && change.formed->kind == GroupKind::kTrain) {
    left_out_ = left_out_ || change.formed->members.size() < view_.training().size();
  }
  if (!change.ended || !Counts(*change.ended)) return;
  const bool round = change.ended->kind == GroupKind::kRound;
  Shares shares;
  double sum = 0;
  for (const MemberRow& member : change.ended->members) {
    if (round && member.weight == 0) continue;
    shares.emplace_back(member.rank, member.weight);
    sum += member.weight;
  }
  if (!(sum > 0)) return;
  rounds_ = rounds_ || round;
  for (auto& [rank, share] : shares) share /= sum;
  std::sort(shares.begin(), shares.end());
  ++counts_[shares];
  ++groups_;
  if (window_ == 0) return;
  recent_.push_back(std::move(shares));
  if (recent_.size() <= window_) return;
  const auto oldest = counts_.find(recent_.front());
  if (--oldest->second == 0) counts_.erase(oldest);
  recent_.pop_front();
  --groups_;
}

SyncMeter::GroupCounts SyncMeter::Counted() const {
  const ScheduleRow* schedule = this->schedule();
  if (schedule == nullptr) return counts_;
  GroupCounts counts;
  for (int phase = 0; phase < kStaticPhases; ++phase) {
    for (const std::vector<Rank>& group : schedule->Groups(phase)) {
      Shares shares;
      for (const Rank rank : group) {
        shares.emplace_back(rank, 1 / static_cast<double>(group.size()));
      }
      ++counts[std::move(shares)];
    }
  }
  return counts;
}

std::set<Rank> SyncMeter::Workers() const {
  if (const ScheduleRow* schedule = this->schedule()) {
    return {schedule->set.members.begin(), schedule->set.members.end()};
  }
  std::set<Rank> workers;
  for (const auto& [rank, since] : view_.training()) workers.insert(rank);
  for (const auto& [shares, count] : counts_) {
    for (const auto& [rank, share] : shares) workers.insert(rank);
  }
  return workers;
}

std::map<std::pair<Rank, Rank>, std::uint64_t> SyncMeter::Pairs() const {
  std::map<std::pair<Rank, Rank>, std::uint64_t> pairs;
  for (const auto& [shares, count] : Counted()) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      for (std::size_t j = i + 1; j < shares.size(); ++j) {
        pairs[{shares[i].first, shares[j].first}] += count;
      }
    }
  }
  return pairs;
}

Result<SpectralGap> SyncMeter::Gap() const {
  if (const std::string why = WhyNoGap(view_.plan(), left_out_); !why.empty()) {
    return Status(Code::kFailedPrecondition, "no spectral gap: " + why);
  }
  if (groups_ == 0 && schedule() == nullptr) {
    return Status(Code::kFailedPrecondition, "no training group has succeeded yet");
  }
  const std::set<Rank> workers = Workers();
  if (workers.size() > kMaxWorkers) {
    return Status(Code::kResourceExhausted, "found " + std::to_string(workers.size()) +
                                                " workers, allowed is up to " +
                                                std::to_string(kMaxWorkers));
  }
  std::map<Rank, std::size_t> place;
  for (const Rank rank : workers) place.emplace(rank, place.size());
  SquareMatrix mean(workers.size(), 1);
  std::uint64_t groups = 0;
  for (const auto& [shares, count] : Counted()) {
    groups += count;
    const double part = static_cast<double>(count) /
                        static_cast<double>(schedule() != nullptr ? kStaticPhases : groups_);
    for (const auto& [row, own] : shares) {
      mean(place[row], place[row]) -= part;
      for (const auto& [column, share] : shares) mean(place[row], place[column]) += part * share;
    }
  }
  SpectralGap gap{.groups = groups, .workers = workers.size()};
  if (workers.size() < 2) return gap;
  gap.symmetric = mean.IsSymmetric();
  const std::vector<double> moduli = EigenvalueModuli(mean);
  if (moduli.empty()) {
    return Status(Code::kInternal,
                  "the eigenvalues of the mean synchronisation matrix did not "
                  "converge");
  }
  gap.rho = std::min(moduli[1], 1.0);  // rounding may put it a hair above
  return gap;
}

std::string ToDot(const SyncMeter& meter, const std::string& title) {
  std::string quoted;
  for (const char c : title) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  std::string dot =
      "graph sync {\n  label=\"" + quoted + "\";\n  layout=circo;\n" + "  node [shape=circle];\n";
  for (const Rank rank : meter.Workers()) dot += "  " + std::to_string(rank) + ";\n";
  const auto pairs = meter.Pairs();
  std::uint64_t most = 1;
  for (const auto& [pair, count] : pairs) most = std::max(most, count);
  for (const auto& [pair, count] : pairs) {
    char width[32];
    std::snprintf(width, sizeof width, "%.2f",
                  0.5 + 4.5 * static_cast<double>(count) / static_cast<double>(most));
    dot += "  " + std::to_string(pair.first) + " -- " + std::to_string(pair.second) +
           " [weight=" + std::to_string(count) + ", label=\"" + std::to_string(count) +
           "\", penwidth=" + width + "];\n";
  }
  return dot + "}\n";
}

Result<GraphGap> GapOf(const ExchangeMeter::Graph& graph) {
  if (graph.empty()) return Status(Code::kFailedPrecondition, "no graph is in force yet");
  if (graph.size() > SyncMeter::kMaxWorkers) {
    return Status(Code::kResourceExhausted, "found " + std::to_string(graph.size()) +
                                                " workers, allowed is up to " +
                                                std::to_string(SyncMeter::kMaxWorkers));
  }
  std::map<Rank, std::size_t> place;
  for (const auto& [rank, set] : graph) place.emplace(rank, place.size());
  SquareMatrix weights(graph.size());
  SquareMatrix walk(graph.size());
  for (const auto& [rank, set] : graph) {
    const std::size_t row = place[rank];
    weights(row, row) = set.own_weight;
    for (const InEdge& edge : set.in) {
      const auto column = place.find(edge.rank);
      if (column == place.end()) continue;  // gone; its receiver is about to be told
      weights(row, column->second) += edge.weight;
      walk(row, column->second) += 1 / static_cast<double>(set.in.size());
    }
  }
  GraphGap gap{.of_weights = 1, .of_walk = 1, .workers = graph.size()};
  if (graph.size() < 2) return gap;
  gap.symmetric = weights.IsSymmetric();
  const std::vector<double> moduli = EigenvalueModuli(weights);
  const auto of_walk = Eigenvalues(walk);
  if (moduli.empty() || !of_walk) {
    return Status(Code::kInternal, "the eigenvalues of the graph did not converge");
  }
  std::vector<double> reals;
  for (const std::complex<double>& value : *of_walk) reals.push_back(value.real());
  std::sort(reals.begin(), reals.end(), std::greater<>());
  gap.of_weights = std::max(0.0, 1 - moduli[1]);  // rounding may put it a hair below
  gap.of_walk = std::max(0.0, 1 - reals[1]);
  return gap;
}

}  // namespace prd::ctl
