// Who is slow, by how much, and what the others lost to it.
//
// A worker's own pace is the median of its step times (its own measure of computing, waiting
// excluded); its factor is that over the median worker's.
//
// The waiting is shared out: from the moment a member of a later group is ready until the last one
// is, its waiting is owed to the members still missing, in equal parts. So the parts sum to all the
// waiting for members there was, a worker that everybody waits for alone owes all of that, and one
// whom nobody waits for, however slow, owes nothing. What passes between the last member's signal
// and the group's announcement is the controller's.
#ifndef PRD_TOOLS_PRDCTL_STRAGGLERS_H_
#define PRD_TOOLS_PRDCTL_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "tools/prdctl/groups.h"

namespace prd::ctl {

struct WorkerPace {
  Rank rank = kNoRank;
  std::uint64_t steps = 0;
  DurationNs median_step_ns = 0;
  DurationNs slowest_step_ns = 0;
  double factor = 1;           // of the median worker's pace; 1 when nothing is known
  DurationNs computed_ns = 0;  // in all
  DurationNs waited_ns = 0;    // for groups, as the controller saw it
  DurationNs reduced_ns = 0;   // its own measure
  DurationNs cost_ns = 0;      // waiting of others that is owed to it
};

struct PaceReport {
  DurationNs median_step_ns = 0;    // of the workers' paces
  DurationNs waited_ns = 0;         // by all, for members
  DurationNs controller_ns = 0;     // by all, from the last member's signal to the announcement
  std::vector<WorkerPace> workers;  // the slowest first
};

// Takes the records of a run in order. Memory is 8 bytes per step.
class PaceMeter {
 public:
  void Add(const Record& record);
  PaceReport Report() const;

 private:
  struct Tally {
    std::vector<DurationNs> steps;
    Iteration last = -1;  // of the last step: a signal for it again, after a failure, is no step
    DurationNs waited_ns = 0;
    DurationNs reduced_ns = 0;
    double cost_ns = 0;  // parts of ns add up
  };
  void ShareOut(const GroupRow& group);

  Instant start_;
  GroupTracker tracker_;
  std::map<Rank, Tally> tallies_;
  DurationNs waited_ns_ = 0;
  DurationNs controller_ns_ = 0;
};

// The middle one, or the mean of the two in the middle; 0 of nothing.
DurationNs Median(std::vector<DurationNs> values);

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_STRAGGLERS_H_
