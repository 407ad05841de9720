#include "common/io/arrival_limit.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/time.h"
#include "common/io/syn_filter.h"

namespace prd {
namespace {

constexpr double kAtOnceS = 4;
constexpr double kFew = 1.0 / 128;  // of the bound, what one source may have made lately
constexpr double kAgain = 1.0 / 4;  // of the bound, that must be free before nothing is dropped
// The share of the bound by which arrivals may exceed it that were under way when others were
// dropped.
constexpr double kOver = 1.0 / 2;
constexpr DurationNs kLately = 10 * kSecond;
constexpr DurationNs kLookAgain = 100 * kMillisecond;

}  // namespace

ArrivalLimit::ArrivalLimit(std::size_t per_s)
    : per_s_(static_cast<double>(per_s)), most_(kAtOnceS * per_s_), left_(most_) {}

ArrivalLimit::~ArrivalLimit() {
  for (const int listener : listeners_) {
    if (dropping_) (void)DropNoSyns(listener);
    ::close(listener);
  }
}

void ArrivalLimit::Watch(int listener) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (per_s_ == 0 || ::getsockopt(listener, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      (domain != AF_INET && domain != AF_INET6)) {
    return;
  }
  const int copy = ::fcntl(listener, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) listeners_.push_back(copy);
}

void ArrivalLimit::Arrived(std::int64_t now_ns, const std::string& source) {
  if (listeners_.empty()) return;
  Pass(now_ns);
  left_ -= 1;
  lately_[source] += 1;
  Tick(now_ns);
}

void ArrivalLimit::Tick(std::int64_t now_ns) {
  if (listeners_.empty()) return;
  Pass(now_ns);
  if (dropping_ && left_ >= kAgain * most_) {
    dropping_ = all_ = false;
    for (const int listener : listeners_) (void)DropNoSyns(listener);
  } else if (left_ < 0 && (now_ns >= drop_at_ns_ || (!all_ && TooFast()))) {
    drop_at_ns_ = now_ns + kLookAgain;
    Drop();
  }
}

void ArrivalLimit::Pass(std::int64_t now_ns) {
  const std::int64_t passed = at_ns_ == 0 ? 0 : std::max<std::int64_t>(0, now_ns - at_ns_);
  at_ns_ = now_ns;
  left_ = std::min(most_, left_ + per_s_ * static_cast<double>(passed) / kSecond);
  if (now_ns < halve_at_ns_) return;
  halve_at_ns_ = now_ns + kLately;
  for (auto& [source, made] : lately_) made /= 2;
  std::erase_if(lately_, [](const auto& entry) { return entry.second < 0.5; });
}

// Although some are dropped already.
bool ArrivalLimit::TooFast() const { return left_ < -kOver * most_; }

void ArrivalLimit::Drop() {
  std::vector<std::pair<double, std::string>> most;
  for (const auto& [source, made] : lately_) {
    if (IsSynSource(source) && made > std::max(1.0, kFew * most_)) most.emplace_back(made, source);
  }
  std::sort(most.rbegin(), most.rend());
  std::vector<std::string> sources;
  for (const auto& [made, source] : most) sources.push_back(source);
  all_ = sources.empty() || TooFast();
  dropping_ = true;
  for (const int listener : listeners_) {
    (void)(all_ ? DropAllSyns(listener) : DropSynsFrom(listener, sources));
  }
}

}  // namespace prd
