#include "engines/gone_notices.h"

#include <algorithm>
#include <utility>

namespace prd {

void GoneNotices::Note(Rank rank, const RunWorker& gone, LeftReason why,
                       const std::map<GroupId, RunningGroup>& groups) {
  gone_.push_back(gone.incarnation);
  if (why == LeftReason::kEvicted) return;
  for (Rank reader = 0; reader < roster_.size(); ++reader) {
    const RunWorker& worker = roster_[reader];
    if (worker.state == WorkerState::kAbsent || worker.version < kVersionOfGone) continue;
    const auto group = groups.find(worker.group);
    // It has reported on that group: else the group is called off.
    const bool in_group =
        group != groups.end() && worker.group != gone.group &&
        std::any_of(group->second.members.begin(), group->second.members.end(),
                    [rank](const GroupShare& share) { return share.rank == rank; });
    if (!in_group && worker.source != rank) continue;
    put_off_ = true;
    slots_[reader].untold.push_back(gone.incarnation);
    slots_[reader].reads_group = worker.group;
    slots_[reader].reads_from = worker.source;
  }
}

void GoneNotices::Send() {
  const std::vector<Incarnation> gone = std::exchange(gone_, {});
  if (gone.empty() && !put_off_) return;
  put_off_ = false;
  for (Rank rank = 0; rank < roster_.size(); ++rank) {
    const RunWorker& worker = roster_[rank];
    if (worker.state == WorkerState::kAbsent || worker.version < kVersionOfGone) continue;
    std::vector<Incarnation>& untold = slots_[rank].untold;
    std::vector<Incarnation> tell = gone;
    const bool reads = worker.group == worker.reads_group && worker.source == worker.reads_from;
    if (reads) {
      std::erase_if(tell, [&](Incarnation each) {
        return std::find(untold.begin(), untold.end(), each) != untold.end();
      });
      put_off_ = put_off_ || !untold.empty();
    } else {
      for (const Incarnation each : untold) {
        if (std::find(tell.begin(), tell.end(), each) == tell.end()) tell.push_back(each);
      }
      untold.clear();
    }
    if (!tell.empty()) roster_.Send(rank, Gone{.incarnations = std::move(tell)});
  }
}

void GoneNotices::Clear() {
  gone_.clear();
  put_off_ = false;
}

void GoneNotices::Restore() {
  Clear();
  for (const RunWorker& worker : roster_.rows()) put_off_ = put_off_ || !worker.untold.empty();
}

}  // namespace prd
