#include "engines/run_state.h"

namespace prd {

RunState::RunState(RunId run, JobSpec spec, RunActions* actions)
    : spec_(std::move(spec)),
      engine_(spec_.make_engine(spec_.engine)),
      plan_(engine_->plan()),
      log_(run),
      roster_(&log_),
      context_{spec_, plan_, engine_->joining(), log_, roster_, *actions},
      clock_(spec_.goal),
      divergence_(plan_, spec_.check_replicas_ms),
      ready_(roster_.Of<ReadySlot>()),
      copies_(context_, &ready_, &divergence_, &links_),
      shares_(context_, engine_->batches(), &ready_, &copies_),
      groups_(context_, &ready_, &copies_, &divergence_, &clock_),
      held_(context_, &groups_, &links_, &start_),
      numbers_(context_, &orders_, &switch_),
      gone_(&roster_) {}

// Members of a group that all stop after it learn that the job is done from the group. Workers that
// copy its result must not hear it before the result exists: with an older one they would stop too
// early.
JobProgress RunState::progress() const {
  const bool by_groups = AllOrNone(plan_) && !TrainsInRounds(plan_);
  return {.trained = clock_.trained(),
          .workers = roster_.live(),
          .done = clock_.done() && (clock_.last_result() || !by_groups)};
}

}  // namespace prd
