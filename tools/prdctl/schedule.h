// The schedules of a run whose workers draw their groups themselves (FollowsSchedule): the
// history holds whom they were for, and none of the groups.
#ifndef PRD_TOOLS_PRDCTL_SCHEDULE_H_
#define PRD_TOOLS_PRDCTL_SCHEDULE_H_

#include <optional>
#include <vector>

#include "common/base/history.h"

namespace prd::ctl {

struct ScheduleRow {
  ScheduleSet set;
  Instant since;
  std::optional<Instant> until;  // another one was set, or the run ended

  // The groups of the slots of a phase, 0 to kStaticPhases - 1, each by rank.
  std::vector<std::vector<Rank>> Groups(int phase) const;
  // Ranks that are in none of them.
  std::vector<Rank> Idle(int phase) const;
};

class ScheduleTracker {
 public:
  void Add(const Record& record);
  // The one in force. Of a run that has ended, the one that was in force for longest: when workers
  // finish, some follow for those who are left. Null: there is none.
  const ScheduleRow* Shown() const;

 private:
  void End(Instant now);

  std::optional<ScheduleRow> current_, longest_;
  bool ended_ = false;
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_SCHEDULE_H_
