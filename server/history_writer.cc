#include "server/history_writer.h"

#include <algorithm>
#include <vector>

#include "common/io/clock.h"
#include "common/io/log.h"

namespace prd {
namespace {

constexpr DurationNs kFirstPause = 50 * kMillisecond;
constexpr DurationNs kLongestPause = kSecond;

const std::vector<double>& Bounds() {
  static const std::vector<double> bounds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3,
                                             1e-2, 3e-2, 0.1,  0.3,  1};
  return bounds;
}

}  // namespace

HistoryWriter::HistoryWriter(Controller* controller, const RocksHistory* history, Metrics* metrics)
    : controller_(controller), history_(history), metrics_(metrics), seconds_(Bounds()) {}

bool HistoryWriter::Flush(Instant now) {
  const std::int64_t begin = MonotonicNs();
  const Status status = controller_->Flush();
  if (status.ok()) {
    seconds_.Observe(static_cast<double>(MonotonicNs() - begin) / static_cast<double>(kSecond));
    if (!stalled_since_) return true;
    if (metrics_ != nullptr) metrics_->SetUnready("");
    spdlog::warn("recording again after {} ms; nothing was lost",
                 (now - *stalled_since_) / kMillisecond);
    stalled_since_.reset();
    why_stalled_.clear();
    return true;
  }
  ++errors_;
  if (history_->broken()) {
    spdlog::critical(
        "{}. prd ends here; when it is started again (systemd does so) it goes on from what is "
        "recorded, and workers send the rest again",
        status.message());
    failed_ = true;
    return false;
  }
  if (!stalled_since_) {
    if (metrics_ != nullptr) metrics_->SetUnready(status.message());
    spdlog::error(
        "{}. Until that works again nothing is decided or announced; workers wait, and nothing is "
        "lost",
        status.message());
    stalled_since_ = now;
    why_stalled_ = status.message();
    pause_ = kFirstPause;
  }
  retry_at_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return false;
}

}  // namespace prd
