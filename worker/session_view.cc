#include "worker/session_view.h"

namespace prd {

SessionView::Progress SessionView::progress() const {
  const std::lock_guard lock(mutex_);
  return {.job = job_, .own = own_, .goal = welcome_.goal};
}

StepShares SessionView::shares() const {
  const std::lock_guard lock(mutex_);
  return shares_;
}

Welcome SessionView::welcome() const {
  const std::lock_guard lock(mutex_);
  return welcome_;
}

void SessionView::SetWelcome(const Welcome& welcome) {
  const std::lock_guard lock(mutex_);
  welcome_ = welcome;
}

void SessionView::Publish(const SessionCore& core) {
  const bool same = core.progress() == job_ && core.own() == own_;
  const bool same_share = core.shares().version() == shares_.version();
  if (same && same_share) return;  // only the session's thread writes them
  const std::lock_guard lock(mutex_);
  if (!same_share) shares_ = core.shares();
  job_ = core.progress();
  own_ = core.own();
}

void SessionView::Publish(const Mesh& mesh) {
  exchanged_bytes_.store(mesh.exchanged().sent_bytes, std::memory_order_relaxed);
  for (std::size_t way = 0; way < groups_.size(); ++way) {
    groups_[way].store(mesh.counters().groups[way], std::memory_order_relaxed);
  }
}

}  // namespace prd
