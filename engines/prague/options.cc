#include "engines/prague/options.h"

#include <limits>
#include <string>

namespace prd {

namespace {

Status Within(const std::string& key, std::int64_t found, std::int64_t low, std::int64_t high) {
  if (found >= low && found <= high) return Status::Ok();
  const std::string allowed = high == std::numeric_limits<std::int64_t>::max()
                                  ? std::to_string(low) + " or more"
                                  : std::to_string(low) + " to " + std::to_string(high);
  return Status(Code::kInvalidArgument,
                key + ": found " + std::to_string(found) + ", allowed is " + allowed);
}

}  // namespace

Status Validate(const PragueOptions& options, int) {
  constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();
  const struct {
    const char* key;
    std::int64_t found, low, high;
  } keys[] = {
      {"group_size", options.group_size, 2, 100'000},
      {"section_length", options.section_length, 1, 100'000},
      {"slowdown_threshold", options.slowdown_threshold, 1, 1'000'000'000},
      {"workers_per_host", options.workers_per_host, 0, 1'000'000},
      {"overlap_steps", options.overlap_steps, 1, 1000},
      {"seed", options.seed, 0, kNoBound},
  };
  for (const auto& key : keys) {
    if (Status status = Within(key.key, key.found, key.low, key.high); !status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace prd
