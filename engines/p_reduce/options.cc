#include "engines/p_reduce/options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/p_reduce/p_reduce.h"

namespace prd {

namespace {

// Where P is not given: below so many workers, groups of three have a slow one among them too often
// (README.md has the figures).
constexpr std::int64_t kWorkersForThree = 8;

}  // namespace

std::int64_t FullGroup(const PReduceOptions& options, std::int64_t workers) {
  if (options.group_size > 0) return options.group_size;
  return workers < kWorkersForThree ? 2 : 3;
}

Status PReduceOptions::Check(int workers) const {
  if (group_size == 1) return Wrong("group_size", "1", "0 (chosen by prd) or 2 to 100000");
  const std::int64_t p = FullGroup(*this, workers);
  const std::int64_t smallest = SmallestWindow(workers, p);
  if (history_window == 0 || history_window >= smallest) return Status::Ok();
  return Wrong("history_window", std::to_string(history_window),
               "0 (chosen by prd) or " + std::to_string(smallest) + " to 10000000: " +
                   std::to_string(workers) + " workers in groups of " + std::to_string(p) +
                   " need at least " + std::to_string(smallest) + " groups to be connected");
}

std::string PReduceOptions::Paces(int workers) const {
  const std::int64_t p = FullGroup(*this, workers);
  if (p < workers || max_wait_ms > 0) return {};
  const std::string of = "group_size " + std::to_string(p) + " of " + std::to_string(workers) +
                         " workers: every group waits for the slowest worker";
  return workers == 2 ? of : of + "; fewer than " + std::to_string(workers) + ", or 0, does not";
}

// Where a window is drawn: of the least size, or twice or three times that.
void PReduceOptions::Fit(Prng*, int workers) {
  if (group_size == 1) group_size = 0;
  const auto smallest = static_cast<int>(SmallestWindow(workers, FullGroup(*this, workers)));
  if (history_window > 0) history_window = smallest * (1 + history_window % 3);
}

std::int64_t SmallestWindow(std::int64_t workers, std::int64_t group_size) {
  return workers < 2 ? 1 : (workers - 1 + group_size - 2) / (group_size - 1);
}

std::int64_t EffectiveWindow(const PReduceOptions& options, std::int64_t workers) {
  const std::int64_t p = FullGroup(options, workers);
  const std::int64_t smallest = SmallestWindow(workers, p);
  if (options.history_window > smallest) return options.history_window;
  if (options.history_window > 0 || workers <= p) return smallest;
  const double factor = std::ceil(std::log(static_cast<double>(workers)));
  return smallest * std::max<std::int64_t>(4, static_cast<std::int64_t>(factor));
}

}  // namespace prd
