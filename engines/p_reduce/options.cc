#include "engines/p_reduce/options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engines/p_reduce/p_reduce.h"

namespace prd {

namespace {

constexpr std::int64_t kLargestGroup = 100'000;
constexpr std::int64_t kLongestWindow = 10'000'000;
constexpr std::int64_t kLongestWaitMs = 86'400'000;
constexpr std::int64_t kMostOverlapSteps = 1000;

Status Wrong(const std::string& key, const std::string& found, const std::string& allowed) {
  return Status(Code::kInvalidArgument, key + ": found " + found + ", allowed is " + allowed);
}

std::string Range(std::int64_t from, std::int64_t to) {
  return std::to_string(from) + " to " + std::to_string(to);
}

}  // namespace

Status Validate(const PReduceOptions& options, int workers) {
  if (options.group_size < 2 || options.group_size > kLargestGroup) {
    return Wrong("group_size", std::to_string(options.group_size), Range(2, kLargestGroup));
  }
  if (!(options.alpha >= 0 && options.alpha < 1)) {
    return Wrong("alpha", std::to_string(options.alpha), "0 or more and less than 1");
  }
  const std::int64_t smallest = workers > 1 ? SmallestWindow(workers, options.group_size) : 1;
  if (options.history_window != 0 &&
      (options.history_window < smallest || options.history_window > kLongestWindow)) {
    std::string allowed = "0 (chosen by prd) or " + Range(smallest, kLongestWindow);
    if (smallest > 1) {
      allowed += ": " + std::to_string(workers) + " workers in groups of " +
                 std::to_string(options.group_size) + " need at least " + std::to_string(smallest) +
                 " groups to be connected";
    }
    return Wrong("history_window", std::to_string(options.history_window), allowed);
  }
  if (options.max_wait_ms < 0 || options.max_wait_ms > kLongestWaitMs) {
    return Wrong("max_wait_ms", std::to_string(options.max_wait_ms),
                 "0 (off) or " + Range(1, kLongestWaitMs));
  }
  if (options.overlap_steps < 1 || options.overlap_steps > kMostOverlapSteps) {
    return Wrong("overlap_steps", std::to_string(options.overlap_steps),
                 Range(1, kMostOverlapSteps));
  }
  return Status::Ok();
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
