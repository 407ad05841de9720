#include "server/notices.h"

#include <algorithm>
#include <utility>

#include "common/io/clock.h"
#include "server/recorder.h"

namespace prd {
namespace {

constexpr DurationNs kFirstStartWait = 5 * kSecond;
constexpr DurationNs kLongestStartWait = 300 * kSecond;
constexpr std::size_t kStartLines = 20;  // at once

}  // namespace

void Notices::TellStarts(Instant now, const Controller& controller) {
  std::map<RunId, StartWait> waits;
  std::size_t said = 0;
  for (const auto& [id, run] : controller.runs()) {
    const std::string why = StartWaits(*run, now);
    if (why.empty()) continue;
    const auto known = start_waits_.find(id);
    StartWait& wait = waits[id] = known != start_waits_.end()
                                      ? known->second
                                      : StartWait{now + kFirstStartWait, kFirstStartWait};
    if (now < wait.at) continue;
    if (++said <= kStartLines) spdlog::warn("run {} of job {}: {}", id, run->spec().name, why);
    wait.pause = std::min(2 * wait.pause, kLongestStartWait);
    wait.at = now + wait.pause;
  }
  if (said > kStartLines) {
    spdlog::warn("and {} more runs wait for their common start (prdctl jobs)", said - kStartLines);
  }
  start_waits_ = std::move(waits);
}

void Notices::TellConnections(const ConnectionGuard::Counters& now) {
  const ConnectionGuard::Counters& told = told_connections_;
  std::uint64_t skipped = 0;
  if ((now.refused == told.refused && now.cut == told.cut && now.rushes == told.rushes) ||
      !connections_log_.Allow(MonotonicNs(), &skipped)) {
    return;
  }
  spdlog::warn(
      "ended {} connections that were too many, in all or from one host, or of users whom no "
      "identity names, and {} that brought too much before it was read; {} are open{}",
      now.refused - told.refused, now.cut - told.cut, now.open,
      now.rushes == told.rushes ? ""
                                : "; they come too fast, and hosts that make many have to wait");
  told_connections_ = now;
}

void Notices::TellRefused(const std::string& job, const HelloRefused& refused) {
  std::uint64_t skipped = 0;
  LogLimit& limit = refused_log_.try_emplace(refused.code, 10 * kSecond).first->second;
  if (!limit.Allow(MonotonicNs(), &skipped)) return;
  spdlog::warn("job {}: {} {}{}", job, RefusedWorker(refused), refused.reason, MoreSince(skipped));
}

void Notices::TellTrimmed(const RocksHistory::Trimmed& trimmed) {
  const std::uint64_t times = trimmed.runs + trimmed.running;
  std::uint64_t skipped = 0;
  if (times == told_trimmed_ || !trimmed_log_.Allow(MonotonicNs(), &skipped)) return;
  spdlog::info(
      "removed from the history since the start: {} ended runs, and {} times the older records of "
      "a run that goes on; the last was {}",
      trimmed.runs, trimmed.running, trimmed.last);
  told_trimmed_ = times;
}

}  // namespace prd
