// The runs of a job, numbered from 1 as they begin: as a RunId is while no controller forgets,
// after which it may come again. All that ever were are in it, also those that the controller has
// forgotten.
#ifndef PRD_TOOLS_SIM_RUN_TABLE_H_
#define PRD_TOOLS_SIM_RUN_TABLE_H_

#include <cstdint>
#include <map>
#include <set>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"

namespace prd::sim {

class RunTable {
 public:
  struct Former {  // of a run that continues another one
    RunId run = kNoRun;
    std::set<Rank> with_model;  // who took that run's final average, as the history says
  };

  // The plan of the workload's engine.
  void SetFirstPlan(const Plan& plan) { first_plan_ = plan; }
  const Plan& first_plan() const { return first_plan_; }

  // A run that the controller calls `id` has begun. Gives its number.
  RunId Begins(RunId id, const RunStarted& started, const Plan& plan);
  // The newest one that the controller calls so has been ended by its workers.
  void Finish(RunId id);

  RunId NumberOf(const RunIdentity& run) const;
  // The newest that the controller calls so.
  RunId NumberOf(RunId id) const;
  // As the run's engine has it, whatever workers are told; `run` by number.
  const Plan& PlanOf(RunId run) const;
  // nullptr: the run continues none.
  const Former* FormerOf(RunId run) const;
  // Its workers have ended it, or one after it: it is over.
  bool Finished(RunId run) const { return run != kNoRun && run <= finished_; }

 private:
  std::map<std::uint64_t, RunId> by_identity_;
  std::map<RunId, RunId> by_id_;
  Plan first_plan_;
  std::map<RunId, Plan> plans_;  // of the runs that have another one
  std::map<RunId, Former> former_;
  RunId finished_ = kNoRun;  // the newest
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_RUN_TABLE_H_
