#include "tools/sim/stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/spectrum/spectrum.h"

namespace prd::sim {
namespace {

std::int64_t Contributors(const GroupFormed& formed) {
  return std::count_if(formed.members.begin(), formed.members.end(),
                       [](const GroupShare& share) { return share.weight > 0 && !share.passive; });
}

}  // namespace

void Histogram::Add(std::int64_t value) {
  const auto place = static_cast<std::size_t>(std::clamp<std::int64_t>(value, 0, kValues - 1));
  if (place >= counts_.size()) counts_.resize(place + 1);
  ++counts_[place];
  ++total_;
}

double Histogram::Mean() const {
  double sum = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    sum += static_cast<double>(i) * static_cast<double>(counts_[i]);
  }
  return total_ > 0 ? sum / static_cast<double>(total_) : 0;
}

std::int64_t Histogram::Quantile(double share) const {
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (static_cast<double>(seen) >= share * static_cast<double>(total_)) {
      return static_cast<std::int64_t>(i);
    }
  }
  return 0;
}

// ---- throughput ----

void Throughput::Add(Instant now, std::uint64_t members, const Work& work) {
  ++updates_;
  if (over_) return;
  last_ = now;
  last_work_ = work;
  members_ += members;
  if (measured_++ > 0) return;
  first_ = now;
  first_work_ = work;
}

double Throughput::PerSecond() const {
  return Seconds() > 0 ? static_cast<double>(measured_ - 1) / Seconds() : 0;
}

Work Throughput::Done() const {
  return {.steps = last_work_.steps - first_work_.steps,
          .bytes = last_work_.bytes - first_work_.bytes};
}

// ---- the mean matrix ----

MeanMatrix::MeanMatrix(std::size_t workers) {
  if (workers > kWorkers) return;
  size_ = workers;
  sum_.assign(workers * workers, 0.0);
}

void MeanMatrix::Add(const GroupFormed& formed) {
  if (sum_.empty()) return;
  ++groups_;
  const double sum = 1 - formed.initial_weight;
  for (const GroupShare& row : formed.members) {
    const auto r = static_cast<std::size_t>(row.rank);
    for (const GroupShare& column : formed.members) {
      const auto c = static_cast<std::size_t>(column.rank);
      if (r >= size_ || c >= size_ || sum <= 0) return;
      sum_[r * size_ + c] += column.weight / sum - (r == c ? 1 : 0);
    }
  }
}

std::optional<double> MeanMatrix::Rho() const {
  if (groups_ == 0 || size_ < 2) return std::nullopt;
  SquareMatrix mean(size_, 1);
  for (std::size_t i = 0; i < size_; ++i) {
    for (std::size_t j = 0; j < size_; ++j) {
      mean(i, j) += sum_[i * size_ + j] / static_cast<double>(groups_);
    }
  }
  const std::vector<double> moduli = EigenvalueModuli(mean);
  if (moduli.empty()) return std::nullopt;
  return std::min(moduli[1], 1.0);  // the first is 1: rows sum to 1
}

// ---- iterations ----

void Iterations::MoveTo(Rank rank, Iteration iteration) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= iteration_.size()) iteration_.resize(index + 1, -1);
  Forget(rank);
  iteration_[index] = iteration;
  ++at_[iteration];
}

bool Iterations::Has(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < iteration_.size() && iteration_[index] >= 0;
}

void Iterations::Forget(Rank rank) {
  if (!Has(rank)) return;
  Iteration& iteration = iteration_[static_cast<std::size_t>(rank)];
  const auto it = at_.find(iteration);
  if (--it->second == 0) at_.erase(it);
  iteration = -1;
}

std::optional<Iteration> Iterations::Gap() const {
  if (at_.empty()) return std::nullopt;
  return at_.rbegin()->first - at_.begin()->first;
}

// ---- records ----

Stats::Stats(std::int64_t worker_count, bool keep_slices, std::size_t slice_limit, bool own_counts,
             bool answers)
    : workers(static_cast<std::size_t>(worker_count)),
      keep_slices_(keep_slices),
      own_counts_(own_counts),
      answers_(answers),
      slice_limit_(slice_limit),
      seen_(workers.size()),
      matrix_(workers.size()) {}

void Stats::AddSlice(std::uint32_t worker, Slice::Kind kind, Instant from, Instant to) {
  WorkerStats& of = workers[worker];
  DurationNs& sum = kind == Slice::Kind::kCompute ? of.computed
                    : kind == Slice::Kind::kWait  ? of.waited
                                                  : of.reduced;
  sum += to - from;
  work_.steps += of.steps - std::exchange(seen_[worker].steps, of.steps);
  work_.bytes += of.sent - std::exchange(seen_[worker].bytes, of.sent);
  if (keep_slices_ && slices.size() < slice_limit_) slices.push_back({worker, kind, from, to});
}

void Stats::Seen(const Record& record) {
  // A job that begins anew has workers of its own.
  if (std::holds_alternative<RunStarted>(record.body)) {
    run_ = record.run;
    running_.clear();
    iterations_ = {};
  }
  if (record.run != run_) return;
  if (const auto* formed = std::get_if<GroupFormed>(&record.body)) OnFormed(*formed);
  if (const auto* ended = std::get_if<GroupEnded>(&record.body)) OnEnded(record.now, *ended);
  if (const auto* of = std::get_if<QueryAnswered>(&record.body); of != nullptr && answers_) {
    OnAnswered(record.now, *of);
  }
  if (const auto* set = std::get_if<NeighboursSet>(&record.body))
    iterations_.MoveTo(set->rank, set->at);
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const auto* ready = std::get_if<Ready>(&from->envelope.body);
    dropped += ready != nullptr ? ready->dropped : 0;
    suppressed += ready != nullptr ? ready->suppressed : 0;
    if (const auto* of = std::get_if<Finished>(&from->envelope.body)) OnFinished(*of);
  }
  if (std::holds_alternative<LeaseExpired>(record.body)) ++expired;
  if (std::holds_alternative<AdoptOrdered>(record.body)) ++adoptions;
  if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
    iterations_.MoveTo(joined->rank, joined->iteration);
  }
  if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
    iterations_.Forget(left->rank);
    if (left->why == LeftReason::kFinished) throughput.End();
  }
}

// One update of one worker.
void Stats::OnAnswered(Instant now, const QueryAnswered& answered) {
  const auto worker = static_cast<std::size_t>(answered.rank);
  if (worker < workers.size()) workers[worker].skipped += answered.next - answered.iteration;
  iterations_.MoveTo(answered.rank, answered.next);
  AddGap();
  throughput.Add(now, 1, work_);
}

void Stats::OnFinished(const Finished& finished) {
  if (running_.contains(finished.group)) work_.bytes += finished.bytes;
}

void Stats::AddGap() {
  if (const std::optional<Iteration> between = iterations_.Gap()) gap.Add(*between);
}

void Stats::OnFormed(const GroupFormed& formed) {
  const bool round = formed.kind == GroupKind::kRound;
  if (formed.kind != GroupKind::kTrain && !round) return;
  ++groups;
  members += formed.members.size();
  if (round) contributors.Add(Contributors(formed));
  conflicts += formed.conflict ? 1 : 0;
  Iteration largest = formed.iteration;
  if (own_counts_) {
    largest = 0;
    for (const GroupShare& share : formed.members) largest = std::max(largest, share.iteration);
  }
  for (const GroupShare& share : formed.members) {
    staleness.Add(largest - share.iteration);
    iterations_.MoveTo(share.rank, share.iteration);
  }
  AddGap();
  running_[formed.id] = formed;
}

void Stats::OnEnded(Instant now, const GroupEnded& ended) {
  const auto it = running_.find(ended.id);
  if (it == running_.end()) return;
  const GroupFormed formed = std::move(it->second);
  running_.erase(it);
  if (!ended.ok) {
    ++failed_groups;
    return;
  }
  Succeeded(now, formed);
  for (const GroupShare& share : formed.members) {
    if (!own_counts_ && iterations_.Has(share.rank))
      iterations_.MoveTo(share.rank, formed.iteration);
  }
}

void Stats::Unreported(Instant now, const GroupFormed& formed) {
  OnFormed(formed);
  running_.erase(formed.id);
  Succeeded(now, formed);
}

void Stats::Succeeded(Instant now, const GroupFormed& formed) {
  throughput.Add(now, static_cast<std::uint64_t>(Contributors(formed)), work_);
  if (formed.kind != GroupKind::kRound) matrix_.Add(formed);
}

}  // namespace prd::sim
