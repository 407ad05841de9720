// Numbers that the parts of SessionCore share.
#ifndef PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_
#define PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_

#include <cstddef>
#include <limits>

#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd {

// The controller acknowledges within 100 ms; what it has not by then was lost, or it is away.
inline constexpr DurationNs kResendFirst = 250 * kMillisecond;
// A step that ends tells what was trained, where nothing has for so long; not while so many
// messages are not acknowledged.
inline constexpr DurationNs kTellEvery = 100 * kMillisecond;
inline constexpr std::size_t kTellUnacked = 16;
// What a damaged message may bring without an overflow later.
inline constexpr Iteration kMaxIteration = std::numeric_limits<Iteration>::max() / 2;

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_
