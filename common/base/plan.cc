#include "common/base/plan.h"

namespace prd {
namespace {

// With no groups: the default, none of whose flags is set.
const GroupPlan& Groups(const Plan& plan) {
  static constexpr GroupPlan kNone;
  const auto* groups = std::get_if<GroupPlan>(&plan.by);
  return groups != nullptr ? *groups : kNone;
}

bool Reduces(const Plan& plan, Payload payload) {
  return TrainsInGroups(plan) && Groups(plan).payload == payload;
}

}  // namespace

std::string Unsupported(const Plan& plan) {
  const GroupPlan& groups = Groups(plan);
  if (plan.every == 0) return "a signal every 0 steps";
  if (plan.every > 1 && (!TrainsInGroups(plan) || NeedsGradients(plan) || groups.asks)) {
    return "a signal every " + std::to_string(plan.every) +
           " steps, unless parameters are averaged, or changes reduced without asking";
  }
  if (groups.payload > Payload::kChange || groups.members > Membership::kSchedule) {
    return "a payload or membership that is not known";
  }
  const bool parameters = groups.payload == Payload::kParameters;
  const bool change = groups.payload == Payload::kChange;
  if (!parameters && groups.members != Membership::kAnnounced) {
    return "groups that are drawn ahead or by a schedule, unless they average parameters";
  }
  if (change && groups.any_time) return "changes that are reduced while the training loop computes";
  if (groups.run_ahead > 0 && !(parameters && groups.any_time)) {
    return "steps beyond a signal, unless parameters are averaged in the background";
  }
  if (groups.keep_initial && !parameters)
    return "the initial model, where no parameters are averaged";
  if (groups.newest_only && !TrainsInRounds(plan))
    return "only the newest round, where there are none";
  if (groups.asks && !change) return "signals that ask, unless changes are reduced";
  if (groups.delayed_ack && !groups.asks) return "late answers to signals that ask nothing";
  return {};
}

bool TrainsInGroups(const Plan& plan) { return std::holds_alternative<GroupPlan>(plan.by); }

bool TrainsInRounds(const Plan& plan) {
  return Reduces(plan, Payload::kGradients) && Groups(plan).any_time;
}

bool AllOrNone(const Plan& plan) {
  return TrainsInGroups(plan) && !Reduces(plan, Payload::kParameters);
}

bool ReplicasAreEqual(const Plan& plan) { return AllOrNone(plan) || TrainsInRounds(plan); }

bool DrawnAhead(const Plan& plan) { return Groups(plan).members != Membership::kAnnounced; }

bool FollowsSchedule(const Plan& plan) { return Groups(plan).members == Membership::kSchedule; }

const NeighbourPlan* NeighboursOf(const Plan& plan) { return std::get_if<NeighbourPlan>(&plan.by); }

const StorePlan* StoreOf(const Plan& plan) { return std::get_if<StorePlan>(&plan.by); }

bool AveragesInBackground(const Plan& plan) {
  return Reduces(plan, Payload::kParameters) && Groups(plan).any_time;
}

bool DecouplesSteps(const Plan& plan) { return DrawnAhead(plan) || AveragesInBackground(plan); }

std::uint32_t RunAhead(const Plan& plan) { return Groups(plan).run_ahead; }

std::uint32_t StepsPerSignal(const Plan& plan) { return plan.every; }

bool AsksBeforeGroups(const Plan& plan) { return Groups(plan).asks; }

bool AcknowledgesLate(const Plan& plan) { return Groups(plan).delayed_ack; }

bool CopyVoidsStep(const Plan& plan) { return AllOrNone(plan) && !TrainsInRounds(plan); }

bool NeedsGradients(const Plan& plan) { return Reduces(plan, Payload::kGradients); }

bool AppliesFirst(const Plan& plan) {
  const NeighbourPlan* neighbours = NeighboursOf(plan);
  return neighbours != nullptr ? neighbours->serial : !NeedsGradients(plan);
}

bool CountsLocalSteps(const Plan& plan) { return Reduces(plan, Payload::kParameters); }

bool CountsRounds(const Plan& plan) {
  return TrainsInRounds(plan) || Reduces(plan, Payload::kChange);
}

Reduced ReducedInTraining(const Plan& plan) {
  const GroupPlan& groups = Groups(plan);
  if (groups.any_time) return {groups.payload, Landing::kInbox};
  switch (groups.payload) {
    case Payload::kGradients:
      return {groups.payload, Landing::kGradients};
    case Payload::kChange:
      return {groups.payload, Landing::kBase};
    default:
      return {groups.payload, Landing::kParameters};
  }
}

bool WeighsSamples(const Plan& plan) {
  return TrainsInGroups(plan) && !Reduces(plan, Payload::kParameters);
}

double OuterRate(const Plan& plan) { return Groups(plan).outer_rate; }

bool TakesNewestOnly(const Plan& plan) { return Groups(plan).newest_only; }

Rows RowsOf(const Plan& plan) {
  if (!TrainsInGroups(plan)) return {.base = HasStore(plan)};
  const Landing landing = ReducedInTraining(plan).landing;
  const bool inbox = landing == Landing::kInbox;
  const bool base = landing == Landing::kBase;
  return {
      .initial = Groups(plan).keep_initial, .outbox = inbox || base, .inbox = inbox, .base = base};
}

}  // namespace prd
