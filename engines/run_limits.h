// What a job takes from its workers at most: far above any training run, and low enough to keep
// arithmetic on what peers say clear of overflow.
#ifndef PRD_ENGINES_RUN_LIMITS_H_
#define PRD_ENGINES_RUN_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/text.h"

namespace prd {

inline constexpr Iteration kMaxIteration = Iteration{1} << 53;
inline constexpr Iteration kMaxJump = 1'000'000;  // of a ready signal over the one before
inline constexpr std::int64_t kMaxSamples = std::int64_t{1} << 50;
inline constexpr std::int64_t kMaxTrained = std::int64_t{1} << 53;  // steps, or samples, of a job
inline bool InRange(const Trained& trained) {
  return trained.steps >= 0 && trained.steps <= kMaxTrained && trained.samples >= 0 &&
         trained.samples <= kMaxTrained;
}
inline constexpr std::uint32_t kMaxLead = 10'000;     // steps whose samples a loader has drawn
inline constexpr std::uint32_t kMaxOwed = 1'000'000;  // gradients of a worker in no round
inline constexpr int kMaxFetches = 8;                 // of a round's result by one worker
inline constexpr std::size_t kMaxBrokenLinks = 64;    // that one worker has named
inline constexpr std::size_t kMaxName = kMaxText;     // bytes
inline constexpr std::size_t kMaxRefusals = 8;        // that a job remembers
inline constexpr std::size_t kMaxEndpoints = 8;

}  // namespace prd

#endif  // PRD_ENGINES_RUN_LIMITS_H_
