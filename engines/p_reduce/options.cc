#include "engines/p_reduce/options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/p_reduce/p_reduce.h"

namespace prd {

Status PReduceOptions::Check(int workers) const {
  const std::int64_t smallest = SmallestWindow(workers, group_size);
  if (history_window == 0 || history_window >= smallest) return Status::Ok();
  return Wrong("history_window", std::to_string(history_window),
               "0 (chosen by prd) or " + std::to_string(smallest) + " to 10000000: " +
                   std::to_string(workers) + " workers in groups of " + std::to_string(group_size) +
                   " need at least " + std::to_string(smallest) + " groups to be connected");
}

// Where a window is drawn: of the least size, or twice or three times that.
void PReduceOptions::Fit(Prng*, int workers) {
  const auto smallest = static_cast<int>(SmallestWindow(workers, group_size));
  if (history_window > 0) history_window = smallest * (1 + history_window % 3);
}

std::int64_t SmallestWindow(std::int64_t workers, std::int64_t group_size) {
  return workers < 2 ? 1 : (workers - 1 + group_size - 2) / (group_size - 1);
}

std::int64_t EffectiveWindow(const PReduceOptions& options, std::int64_t workers) {
  const std::int64_t smallest = SmallestWindow(workers, options.group_size);
  if (options.history_window > smallest) return options.history_window;
  if (options.history_window > 0 || workers <= options.group_size) return smallest;
  const double factor = std::ceil(std::log(static_cast<double>(workers)));
  return smallest * std::max<std::int64_t>(4, static_cast<std::int64_t>(factor));
}

}  // namespace prd
