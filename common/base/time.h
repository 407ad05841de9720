// Time as a value. Pure code is told what time it is; only the shells read a clock.
#ifndef PRD_COMMON_BASE_TIME_H_
#define PRD_COMMON_BASE_TIME_H_

#include <compare>
#include <cstdint>

namespace prd {

using DurationNs = std::int64_t;

inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;

// A point on the controller's own clock, ns since an origin of that clock's choosing. It never runs
// backwards within a run, also across restarts. Never compared with a clock of another host.
struct Instant {
  std::int64_t ns = 0;

  friend auto operator<=>(Instant, Instant) = default;
  friend Instant operator+(Instant at, DurationNs by) { return {at.ns + by}; }
  friend Instant operator-(Instant at, DurationNs by) { return {at.ns - by}; }
  friend DurationNs operator-(Instant a, Instant b) { return a.ns - b.ns; }
};

// Whether a stored instant is so far from overflow that any two can be added or subtracted.
constexpr bool Plausible(Instant instant) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;  // 73 years
  return instant.ns > -kFar && instant.ns < kFar;
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_TIME_H_
