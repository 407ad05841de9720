#include "server/job_end.h"

#include <limits>
#include <vector>

namespace prd {
namespace {

constexpr DurationNs kComeBack = 30 * kSecond;
constexpr DurationNs kLastWords = 10 * kSecond;

}  // namespace

bool JobEnd::IsOver(Instant now, const RocksHistory& history, std::size_t connections) {
  if (!had_job_) return false;
  if (!ends_at_) {
    const std::vector<RunInfo> newest = history.ListRuns(std::numeric_limits<RunId>::max(), 1);
    finished_ = !newest.empty() && newest.front().finished;
    ends_at_ = now + (finished_ ? kLastWords : kComeBack);
  }
  // To close a connection on which something has not been read may take its last words away.
  return now >= *ends_at_ || (finished_ && connections == 0);
}

}  // namespace prd
