// The system's clocks. Pure code does not read them: it gets the time as an argument.
#ifndef PRD_COMMON_IO_CLOCK_H_
#define PRD_COMMON_IO_CLOCK_H_

#include <time.h>

#include <cstdint>

#include "common/base/time.h"

namespace prd {

inline std::int64_t ReadClockNs(clockid_t clock) {
  timespec at{};
  ::clock_gettime(clock, &at);
  return at.tv_sec * kSecond + at.tv_nsec;
}

// ns since an origin that changes at a reboot only; never runs backwards.
inline std::int64_t MonotonicNs() { return ReadClockNs(CLOCK_MONOTONIC); }

// ns of Unix time, for display; may jump.
inline std::int64_t WallNs() { return ReadClockNs(CLOCK_REALTIME); }

}  // namespace prd

#endif  // PRD_COMMON_IO_CLOCK_H_
