#include "common/base/plan.h"

namespace prd {

bool TrainsInGroups(const Plan& plan) { return !HasNeighbours(plan) && !HasStore(plan); }

bool TrainsInRounds(const Plan& plan) { return plan.strategy == Strategy::kEagerGradients; }

bool AllOrNone(const Plan& plan) {
  return TrainsInGroups(plan) && plan.strategy != Strategy::kAverageModels;
}

bool DrawnAhead(const Plan& plan) { return plan.ahead || plan.scheduled; }

bool FollowsSchedule(const Plan& plan) { return plan.scheduled; }

bool HasNeighbours(const Plan& plan) { return plan.strategy == Strategy::kNeighbours; }

bool HasStore(const Plan& plan) { return plan.strategy == Strategy::kShardedStore; }

bool AveragesInBackground(const Plan& plan) {
  return plan.strategy == Strategy::kAverageModels && plan.background;
}

bool DecouplesSteps(const Plan& plan) { return DrawnAhead(plan) || AveragesInBackground(plan); }

std::uint32_t RunAhead(const Plan& plan) { return AveragesInBackground(plan) ? plan.run_ahead : 0; }

std::uint32_t StepsPerSignal(const Plan& plan) { return plan.section_length; }

bool AsksBeforeGroups(const Plan& plan) { return plan.strategy == Strategy::kLocalSteps; }

bool AcknowledgesLate(const Plan& plan) { return plan.delayed_ack; }

bool CopyVoidsStep(const Plan& plan) { return AllOrNone(plan) && !TrainsInRounds(plan); }

bool NeedsGradients(const Plan& plan) {
  return TrainsInGroups(plan) && ReducedInTraining(plan).payload == Payload::kGradients;
}

bool AppliesFirst(const Plan& plan) {
  return HasNeighbours(plan) ? plan.serial : !NeedsGradients(plan);
}

bool CountsLocalSteps(const Plan& plan) {
  return TrainsInGroups(plan) && ReducedInTraining(plan).payload == Payload::kParameters;
}

bool CountsRounds(const Plan& plan) { return TrainsInRounds(plan) || AsksBeforeGroups(plan); }

Reduced ReducedInTraining(const Plan& plan) {
  switch (plan.strategy) {
    case Strategy::kReduceGradients:
      return {Payload::kGradients, Landing::kGradients};
    case Strategy::kEagerGradients:
      return {Payload::kGradients, Landing::kInbox};
    case Strategy::kLocalSteps:
      return {Payload::kChange, Landing::kBase};
    default:
      return {Payload::kParameters, plan.background ? Landing::kInbox : Landing::kParameters};
  }
}

double OuterRate(const Plan& plan) { return plan.global_lr; }

bool TakesNewestOnly(const Plan& plan) { return plan.latest_only; }

Rows RowsOf(const Plan& plan) {
  if (!TrainsInGroups(plan)) return {.base = HasStore(plan)};
  const Reduced reduced = ReducedInTraining(plan);
  const bool inbox = reduced.landing == Landing::kInbox;
  const bool base = reduced.landing == Landing::kBase;
  return {.initial = plan.keep_initial, .outbox = inbox || base, .inbox = inbox, .base = base};
}

}  // namespace prd
