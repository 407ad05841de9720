#include "worker/examples/snapshot_average.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

namespace example {

SnapshotAverager::SnapshotAverager(std::string dir, std::size_t parameters, std::int64_t live_ns,
                                   bool keep)
    : dir_(std::move(dir)), parameters_(parameters), live_ns_(live_ns), keep_(keep) {}

void SnapshotAverager::Look() {
  for (SnapshotFile& file : ListSnapshots(dir_)) {
    // What Average has passed, or an earlier training has left, may still be there.
    const auto seen = headers_.find(file.rank);
    if (file.time_ns <= earlier_ns_) continue;
    if (seen != headers_.end() && file.time_ns <= seen->second.rbegin()->first) continue;
    const auto header = ReadSnapshotHeader(file.path, parameters_);
    if (!header) continue;
    first_ns_.try_emplace(file.rank, file.time_ns);
    headers_[file.rank][file.time_ns] = {std::move(file.path), *header};
  }
  LeaveOutEarlierTraining();
}

// A training's final snapshots are later than the first ones of all its workers, which are of no
// step.
void SnapshotAverager::LeaveOutEarlierTraining() {
  std::int64_t begun_ns = kNone;
  for (const auto& [rank, entries] : headers_) {
    for (const auto& [time_ns, entry] : entries) {
      if (entry.header.steps == 0 && entry.header.final == 0)
        begun_ns = std::max(begun_ns, time_ns);
    }
  }
  for (const auto& [rank, entries] : headers_) {
    for (const auto& [time_ns, entry] : entries) {
      if (entry.header.final != 0 && time_ns < begun_ns) {
        earlier_ns_ = std::max(earlier_ns_, time_ns);
      }
    }
  }
  for (auto of_rank = headers_.begin(); of_rank != headers_.end();) {
    auto& [rank, entries] = *of_rank;
    const auto kept = entries.upper_bound(earlier_ns_);
    if (kept != entries.begin()) first_ns_.erase(rank);
    for (auto old = entries.begin(); old != kept; old = entries.erase(old)) Remove(old->second);
    if (!entries.empty()) first_ns_.try_emplace(rank, entries.begin()->first);
    of_rank = entries.empty() ? headers_.erase(of_rank) : std::next(of_rank);
  }
}

std::int64_t SnapshotAverager::BegunNs(std::size_t workers) const {
  std::vector<std::int64_t> times;
  for (const auto& [rank, time_ns] : first_ns_) times.push_back(time_ns);
  std::sort(times.begin(), times.end());
  return times[workers - 1];
}

std::int64_t SnapshotAverager::LastNs() const {
  std::int64_t last = FirstNs();
  for (const auto& [rank, entries] : headers_) {
    last = std::max(last, entries.rbegin()->first);
  }
  return last;
}

bool SnapshotAverager::Live(const SnapshotHeader& header, std::int64_t at_ns) const {
  return header.final != 0 || at_ns - header.time_ns <= live_ns_;
}

bool SnapshotAverager::Ended(std::int64_t now_ns) const {
  return std::all_of(headers_.begin(), headers_.end(), [&](const auto& of_rank) {
    const SnapshotHeader& newest = of_rank.second.rbegin()->second.header;
    return newest.final != 0 || !Live(newest, now_ns);
  });
}

AveragedModel SnapshotAverager::Average(std::int64_t at_ns) {
  std::vector<const Entry*> live;
  AveragedModel dead;
  for (auto& [rank, entries] : headers_) {
    // The newest that is not later; what lies before it is of no more use.
    const auto next = entries.upper_bound(at_ns);
    if (next == entries.begin()) continue;
    const auto newest = std::prev(next);
    for (auto old = entries.begin(); old != newest; old = entries.erase(old)) Remove(old->second);
    const SnapshotHeader& header = newest->second.header;
    if (Live(header, at_ns)) {
      live.push_back(&newest->second);
    } else {
      dead.updates += header.updates;
      dead.samples += header.samples;
      dead.steps += header.steps;
    }
  }
  AveragedModel model = Combine(live);
  model.updates += dead.updates;
  model.samples += dead.samples;
  model.steps += dead.steps;
  return model;
}

AveragedModel SnapshotAverager::AverageFinals() {
  std::vector<const Entry*> finals;
  for (const auto& [rank, entries] : headers_) {
    const Entry& newest = entries.rbegin()->second;
    if (newest.header.final != 0) finals.push_back(&newest);
  }
  return Combine(finals);
}

void SnapshotAverager::Clear() {
  for (const auto& [rank, entries] : headers_) {
    for (const auto& [time_ns, entry] : entries) Remove(entry);
  }
}

void SnapshotAverager::Remove(const Entry& entry) const {
  if (!keep_) std::remove(entry.path.c_str());
}

AveragedModel SnapshotAverager::Combine(const std::vector<const Entry*>& entries) const {
  AveragedModel model;
  std::vector<double> sum(parameters_, 0.0);
  std::vector<float> low, high;
  for (const Entry* entry : entries) {
    const auto snapshot = ReadSnapshot(entry->path, parameters_);
    if (!snapshot) continue;
    ++model.live;
    model.finals += snapshot->header.final;
    model.updates += snapshot->header.updates;
    model.samples += snapshot->header.samples;
    model.steps += snapshot->header.steps;
    if (low.empty()) low = high = snapshot->parameters;
    for (std::size_t i = 0; i < parameters_; ++i) {
      const float value = snapshot->parameters[i];
      sum[i] += static_cast<double>(value);
      low[i] = std::min(low[i], value);
      high[i] = std::max(high[i], value);
    }
  }
  if (model.live == 0) return model;
  model.parameters.resize(parameters_);
  for (std::size_t i = 0; i < parameters_; ++i) {
    model.parameters[i] = static_cast<float>(sum[i] / model.live);
    model.spread = std::max(model.spread, static_cast<double>(high[i] - low[i]));
  }
  return model;
}

}  // namespace example
