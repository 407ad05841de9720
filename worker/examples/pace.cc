#include "worker/examples/pace.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "worker/examples/snapshot.h"

namespace example {
namespace {

constexpr std::int64_t kSliceNs = 2'000'000;

}  // namespace

Pace::Pace(const TrainArgs& args, int rank, int workers)
    : injection_(args.injection),
      seed_(args.seed),
      rank_(rank),
      workers_(workers),
      batch_(static_cast<std::int64_t>(args.batch)) {
  const auto slow = args.slow.find(rank);
  const double factor = slow == args.slow.end() ? 1 : slow->second;
  step_ns_ = static_cast<std::int64_t>(args.step_ms * factor * 1e6);
}

std::int64_t Pace::EndNs(std::int64_t step, std::int64_t begin_ns, std::int64_t computed_ns,
                         std::int64_t samples) const {
  const std::int64_t step_ns = step_ns_ / batch_ * samples + step_ns_ % batch_ * samples / batch_;
  return std::max(computed_ns, begin_ns + step_ns) +
         DelayNs(injection_, seed_, rank_, workers_, step, step_ns);
}

bool WaitUntil(std::int64_t monotonic_ns, const Interrupted& interrupted) {
  for (std::int64_t now_ns = MonotonicNs(); now_ns < monotonic_ns; now_ns = MonotonicNs()) {
    if (interrupted()) return false;
    const std::int64_t slice_end_ns = std::min(monotonic_ns, now_ns + kSliceNs);
    std::this_thread::sleep_until(
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(slice_end_ns)));
  }
  return true;
}

}  // namespace example
