// Plans by what they reduce, for tests.
#ifndef PRD_TESTS_PLANS_H_
#define PRD_TESTS_PLANS_H_

#include "common/base/messages.h"
#include "common/base/plan.h"

namespace prd::plans {

inline constexpr Plan kModels{};
inline constexpr Plan kGradients{.by = GroupPlan{.payload = Payload::kGradients}};
inline constexpr Plan kRounds{.by = GroupPlan{.payload = Payload::kGradients, .any_time = true}};
inline constexpr Plan kNewestRound{
    .by = GroupPlan{.payload = Payload::kGradients, .any_time = true, .newest_only = true}};
// Changes of the parameters, when the controller says so.
inline constexpr Plan kAsked{.by = GroupPlan{.payload = Payload::kChange, .asks = true}};
inline constexpr Plan kAskedLate{
    .by = GroupPlan{.payload = Payload::kChange, .asks = true, .delayed_ack = true}};
inline constexpr Plan kChangeEvery8{.every = 8, .by = GroupPlan{.payload = Payload::kChange}};
inline constexpr Plan kAhead{.by = GroupPlan{.members = Membership::kAhead}};
inline constexpr Plan kSchedule{.by = GroupPlan{.members = Membership::kSchedule}};
inline constexpr Plan kNeighbours{.by = NeighbourPlan{}};
inline constexpr Plan kStore{.by = StorePlan{}};

// Models averaged in the background.
constexpr Plan Background(std::uint32_t run_ahead, Membership members = Membership::kAnnounced) {
  return {.by = GroupPlan{.members = members, .any_time = true, .run_ahead = run_ahead}};
}
constexpr Plan Every(std::uint32_t steps, Plan plan) {
  plan.every = steps;
  return plan;
}
constexpr Plan Store(std::int32_t staleness) { return {.by = StorePlan{.staleness = staleness}}; }

// As SessionCore says it to the data plane.
inline Reduced WhatReduces(const Plan& plan, GroupKind kind) {
  const bool trains = kind == GroupKind::kTrain || kind == GroupKind::kRound;
  return trains ? ReducedInTraining(plan) : Reduced();
}

}  // namespace prd::plans

#endif  // PRD_TESTS_PLANS_H_
