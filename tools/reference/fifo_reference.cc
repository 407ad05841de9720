#include "tools/reference/fifo_reference.h"

#include <functional>
#include <queue>
#include <tuple>

namespace prd {

StepSource::StepSource(const StepTimes& times) : times_(times) {
  for (std::size_t i = 0; i < times_.mean_s.size(); ++i) {
    draws_.emplace_back(times_.seed * 0x9e3779b97f4a7c15u + i);
  }
}

DurationNs StepSource::Next(std::size_t worker) {
  const double shift = 2 * draws_[worker].Unit() - 1;
  return static_cast<DurationNs>(times_.mean_s[worker] * (1 + times_.jitter * shift) * kSecond);
}

double UpdateBound(const StepTimes& times, int group_size) {
  double steps_per_s = 0;
  for (const double mean : times.mean_s) steps_per_s += 1 / mean;
  return steps_per_s / group_size;
}

double FifoUpdatesPerSecond(const StepTimes& times, int group_size, std::int64_t updates) {
  // (when ready, order of release, worker): the earliest on top.
  using Computing = std::tuple<Instant, std::int64_t, std::size_t>;
  std::priority_queue<Computing, std::vector<Computing>, std::greater<>> computing;
  StepSource steps(times);
  std::int64_t releases = 0;
  for (std::size_t i = 0; i < times.mean_s.size(); ++i) {
    computing.emplace(Instant{steps.Next(i)}, releases++, i);
  }
  std::vector<std::size_t> waiting;
  Instant settled_at;
  for (std::int64_t formed = 0; true;) {
    const auto [now, order, worker] = computing.top();
    computing.pop();
    waiting.push_back(worker);
    if (waiting.size() < static_cast<std::size_t>(group_size)) continue;
    for (const std::size_t member : waiting) {
      computing.emplace(now + steps.Next(member), releases++, member);
    }
    waiting.clear();
    ++formed;
    if (formed == updates) settled_at = now;
    if (formed == 2 * updates)
      return static_cast<double>(updates) * kSecond / static_cast<double>(now - settled_at);
  }
}

}  // namespace prd
