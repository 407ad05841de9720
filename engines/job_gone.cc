// Job: who is out is out for the others, too: they are told, forget it and serve it no more.
//
// One who has left, or whose lease has run out, may have sent before what others still read: its
// part of a group that they are in, or its replica. To these it is out once they are through with
// that. One that was evicted is out at once, also if a group fails for it.
#include <algorithm>
#include <utility>

#include "engines/job.h"

namespace prd {

void Job::NoteGone(Rank rank, const Worker& gone, LeftReason why) {
  gone_.push_back(gone.incarnation);
  if (why == LeftReason::kEvicted) return;
  for (Worker& worker : workers_) {
    if (worker.state == State::kAbsent || worker.version < kVersionOfGone) continue;
    const auto group = groups_.find(worker.group);
    // It has reported on that group: else the group is called off.
    const bool in_group =
        group != groups_.end() && worker.group != gone.group &&
        std::any_of(group->second.members.begin(), group->second.members.end(),
                    [rank](const GroupShare& share) { return share.rank == rank; });
    if (!in_group && worker.source != rank) continue;
    if (worker.untold.empty()) ++untold_;
    worker.untold.push_back(gone.incarnation);
    worker.reads_group = worker.group;
    worker.reads_from = worker.source;
  }
}

// Once all that the Step does is done: no message of it names one that is out.
void Job::TellGone() {
  const std::vector<Incarnation> gone = std::exchange(gone_, {});
  if (gone.empty() && untold_ == 0) return;
  for (Rank rank = 0; Index(rank) < workers_.size(); ++rank) {
    Worker& worker = At(rank);
    if (worker.state == State::kAbsent || worker.version < kVersionOfGone) continue;
    std::vector<Incarnation> tell = gone;
    const bool reads = worker.group == worker.reads_group && worker.source == worker.reads_from;
    if (reads) {
      std::erase_if(tell, [&](Incarnation each) {
        return std::find(worker.untold.begin(), worker.untold.end(), each) != worker.untold.end();
      });
    } else if (!worker.untold.empty()) {
      for (const Incarnation each : worker.untold) {
        if (std::find(tell.begin(), tell.end(), each) == tell.end()) tell.push_back(each);
      }
      worker.untold.clear();
      --untold_;
    }
    if (!tell.empty()) Send(rank, Gone{.incarnations = std::move(tell)});
  }
}

}  // namespace prd
