#include "engines/ssp/options.h"

#include <string>

namespace prd {

std::string_view ToText(SspOptions::LearningRate rate) {
  return rate == SspOptions::LearningRate::kConstant ? "constant" : "staleness-aware";
}

Status Validate(const SspOptions& options, int) {
  const struct {
    const char* key;
    int found, low, high;
    const char* named;
  } keys[] = {
      {"staleness", options.staleness, -1, 1'000'000, "-1 (no bound) or 0"},
      {"replicas", options.replicas, 0, SspOptions::kMostReplicas, "0"},
      {"shards", options.shards, 0, SspOptions::kMostShards, "0 (two per worker) or 1"},
  };
  for (const auto& key : keys) {
    if (key.found >= key.low && key.found <= key.high) continue;
    return Status(Code::kInvalidArgument, std::string(key.key) + ": found " +
                                              std::to_string(key.found) + ", allowed is " +
                                              key.named + " to " + std::to_string(key.high));
  }
  return Status::Ok();
}

}  // namespace prd
