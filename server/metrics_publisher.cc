#include "server/metrics_publisher.h"

#include "common/io/clock.h"

namespace prd {
namespace {

constexpr DurationNs kRefresh = 10 * kSecond;

}  // namespace

void MetricsPublisher::Publish(Instant now, const DaemonCounts& counts, const JobMeters::Jobs& jobs,
                               std::size_t waiting) {
  if (refresh_at_ <= now) {
    refresh_at_ = now + kRefresh;
    disk_ = DiskUseOf(state_dir_);
  }
  MetricsPage page;
  counts.Write(&page);
  page.Add("jobs_waiting_for_start", {}, static_cast<double>(waiting));
  page.Add("history_bytes", {}, static_cast<double>(disk_.bytes));
  page.Add("history_free_bytes", {}, static_cast<double>(disk_.free));
  meters_.Write(now, WallNs(), jobs, &page);
  metrics_->Publish(std::move(page));
}

void MetricsPublisher::TellFull(const std::string& why) {
  MetricsPage page;
  page.Add("history_stalled", {}, 1);
  page.Add("history_free_bytes", {}, static_cast<double>(DiskUseOf(state_dir_).free));
  metrics_->Publish(std::move(page));
  TellUnready(why);
}

void MetricsPublisher::TellUnready(const std::string& why) {
  metrics_->SetUnready(why);
  metrics_->Alive();
}

}  // namespace prd
