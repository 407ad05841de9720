#include "tools/prdctl/stragglers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace prd::ctl {

DurationNs Median(std::vector<DurationNs> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return *at;
  const DurationNs below = *std::max_element(values.begin(), at);
  return below + (*at - below) / 2;
}

void PaceMeter::Add(const Record& record) {
  if (record.index == 0) start_ = record.now;
  const DurationNs age = record.now - start_;
  if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    const WorkerEnvelope& envelope = from->envelope;
    if (const auto* ready = std::get_if<Ready>(&envelope.body)) {
      Tally& tally = tallies_[envelope.rank];
      if (ready->iteration != tally.last) tally.steps.push_back(Possible(ready->step_ns, age));
      tally.last = ready->iteration;
    } else if (const auto* finished = std::get_if<Finished>(&envelope.body)) {
      tallies_[envelope.rank].reduced_ns += Possible(finished->reduce_ns, age);
    }
  }
  const GroupTracker::Change change = tracker_.Add(record);
  if (change.formed != nullptr) ShareOut(*change.formed);
}

void PaceMeter::ShareOut(const GroupRow& group) {
  std::vector<std::pair<Instant, Rank>> arrivals;
  for (const MemberRow& member : group.members) {
    if (!member.ready) continue;
    arrivals.emplace_back(*member.ready, member.rank);
    tallies_[member.rank].waited_ns += group.formed - *member.ready;
  }
  if (arrivals.empty()) return;
  std::sort(arrivals.begin(), arrivals.end());
  const std::size_t members = arrivals.size();
  double owed = 0;  // by each of those who are still missing, so far
  for (std::size_t k = 1; k < members; ++k) {
    const DurationNs gap = arrivals[k].first - arrivals[k - 1].first;
    owed += static_cast<double>(gap) * static_cast<double>(k) / static_cast<double>(members - k);
    tallies_[arrivals[k].second].cost_ns += owed;
    waited_ns_ += gap * static_cast<DurationNs>(k);
  }
  controller_ns_ +=
      (group.formed - arrivals.back().first) * static_cast<DurationNs>(arrivals.size());
}

PaceReport PaceMeter::Report() const {
  PaceReport report{.waited_ns = waited_ns_, .controller_ns = controller_ns_};
  std::vector<DurationNs> paces;
  for (const auto& [rank, tally] : tallies_) {
    WorkerPace worker{.rank = rank,
                      .steps = tally.steps.size(),
                      .median_step_ns = Median(tally.steps),
                      .waited_ns = tally.waited_ns,
                      .reduced_ns = tally.reduced_ns,
                      .cost_ns = std::llround(tally.cost_ns)};
    for (const DurationNs step : tally.steps) {
      worker.slowest_step_ns = std::max(worker.slowest_step_ns, step);
    }
    worker.computed_ns = std::accumulate(tally.steps.begin(), tally.steps.end(), DurationNs{0});
    if (worker.steps > 0) paces.push_back(worker.median_step_ns);
    report.workers.push_back(worker);
  }
  report.median_step_ns = Median(paces);
  for (WorkerPace& worker : report.workers) {
    if (report.median_step_ns > 0 && worker.steps > 0) {
      worker.factor =
          static_cast<double>(worker.median_step_ns) / static_cast<double>(report.median_step_ns);
    }
  }
  std::stable_sort(report.workers.begin(), report.workers.end(),
                   [](const WorkerPace& a, const WorkerPace& b) { return a.factor > b.factor; });
  return report;
}

}  // namespace prd::ctl
