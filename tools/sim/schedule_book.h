// Which groups workers draw themselves (FollowsSchedule), beside the schedules in the history.
//
//   schedule   a worker begins the group that the newest schedules known give it for a slot, with
//              equal weights; its slots ascend, and what others have begun in the slot is equal or
//              disjoint
#ifndef PRD_TOOLS_SIM_SCHEDULE_BOOK_H_
#define PRD_TOOLS_SIM_SCHEDULE_BOOK_H_

#include <cstdint>
#include <map>
#include <utility>

#include "common/base/history.h"
#include "common/base/messages.h"

namespace prd::sim {

class ScheduleBook {
 public:
  void Set(RunId run, const ScheduleSet& set) { schedules_[run][set.first] = set; }
  // The worker of this rank begins a group that no controller has announced. Throws Violation.
  void Begins(RunId run, Rank rank, const Group& group);

 private:
  struct Begun {
    GroupId first = kNoGroup;  // of the schedule
    std::uint64_t slot = 0;
    GroupId group = kNoGroup;
  };

  std::map<RunId, std::map<GroupId, ScheduleSet>> schedules_;
  std::map<std::pair<RunId, Incarnation>, Begun> begun_;  // newest
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SCHEDULE_BOOK_H_
