// Options of the engine `ssp`: Stale Synchronous Parallel (Ho et al., More Effective Distributed ML
// via a Stale Synchronous Parallel Parameter Server, NIPS 2013), with the parameters in shards that
// live in the workers.
#ifndef PRD_ENGINES_SSP_OPTIONS_H_
#define PRD_ENGINES_SSP_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "prd/status.h"

namespace prd {

struct SspOptions {
  // s: how many clocks a worker may be ahead of the slowest; at clock c it reads all updates up to
  // c - s - 1. 0: bulk synchronous. -1: without a bound, asynchronous.
  int staleness = 3;
  // An update counts one over the workers that train (the constant learning rate of Jiang et al.,
  // Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017); staleness-aware: or, where
  // more updates than that have come since what it was computed on was read, one over those.
  enum class LearningRate : std::uint8_t { kConstant, kStalenessAware };
  LearningRate learning_rate = LearningRate::kConstant;
  // Of the two below: what places all shards goes to every worker in one message, which has to stay
  // below its bound of 4 MiB.
  static constexpr int kMostReplicas = 16;
  static constexpr int kMostShards = 10'000;
  // Workers that have a copy of a shard besides its owner: so many may die at once, and nothing
  // that was acknowledged is lost. As far as there are workers.
  int replicas = 1;
  // Into how many the parameters are cut. More even out better when workers come and go, and cost
  // more messages. 0: two per worker of the start.
  int shards = 0;

  friend bool operator==(const SspOptions&, const SspOptions&) = default;
};

std::string_view ToText(SspOptions::LearningRate rate);  // "constant", "staleness-aware"

// Ok, or "KEY: found X, allowed is Y". `workers` that the job starts with, 0 = not known.
Status Validate(const SspOptions& options, int workers);

}  // namespace prd

#endif  // PRD_ENGINES_SSP_OPTIONS_H_
