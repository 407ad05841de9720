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
    auto& of_rank = headers_[file.rank];
    // With `keep`, files that Average has passed are still there: they are not looked at again.
    if (!of_rank.empty() && file.number <= of_rank.rbegin()->first) continue;
    const auto header = ReadSnapshotHeader(file.path, parameters_);
    if (!header) continue;
    first_ns_ = std::min(first_ns_, header->time_ns);
    of_rank[file.number] = {std::move(file.path), *header};
  }
}

std::int64_t SnapshotAverager::FirstNs() const { return first_ns_; }

std::int64_t SnapshotAverager::LastNs() const {
  std::int64_t last = first_ns_;
  for (const auto& [rank, entries] : headers_) {
    last = std::max(last, entries.rbegin()->second.header.time_ns);
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
    auto next = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.second.header.time_ns > at_ns;
    });
    if (next == entries.begin()) continue;
    const auto newest = std::prev(next);
    for (auto old = entries.begin(); old != newest; old = entries.erase(old)) {
      if (!keep_) std::remove(old->second.path.c_str());
    }
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
