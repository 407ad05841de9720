// Numbers that the parts of SessionCore share.
#ifndef PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_
#define PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_

#include <limits>

#include "common/base/ids.h"

namespace prd {

// What a damaged message may bring without an overflow later.
inline constexpr Iteration kMaxIteration = std::numeric_limits<Iteration>::max() / 2;

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_CORE_LIMITS_H_
