#include "common/base/plan.h"

#include <gtest/gtest.h>

#include "tests/plans.h"

namespace prd {
namespace {

// What every plan that an engine may ask for means: each of the facts, once.
struct Row {
  const char* name;
  Plan plan;
  bool groups, all_or_none, needs_gradients, applies_first, counts_steps, counts_rounds;
  Reduced reduced;
  Rows rows;
};

const Row kRows[] = {
    {"gradients",
     plans::kGradients,
     true,
     true,
     true,
     false,
     false,
     false,
     {Payload::kGradients, Landing::kGradients},
     {}},
    {"rounds",
     plans::kRounds,
     true,
     true,
     true,
     false,
     false,
     true,
     {Payload::kGradients, Landing::kInbox},
     {.outbox = true, .inbox = true}},
    {"models", plans::kModels, true, false, false, true, true, false, {}, {}},
    {"models, ahead", plans::kAhead, true, false, false, true, true, false, {}, {}},
    {"models, background",
     plans::Background(2),
     true,
     false,
     false,
     true,
     true,
     false,
     {Payload::kParameters, Landing::kInbox},
     {.outbox = true, .inbox = true}},
    {"changes, asked",
     plans::kAsked,
     true,
     true,
     false,
     true,
     false,
     true,
     {Payload::kChange, Landing::kBase},
     {.outbox = true, .base = true}},
    {"changes, every 8 steps",
     plans::kChangeEvery8,
     true,
     true,
     false,
     true,
     false,
     true,
     {Payload::kChange, Landing::kBase},
     {.outbox = true, .base = true}},
    {"neighbours", plans::kNeighbours, false, false, false, false, false, false, {}, {}},
    {"store", plans::kStore, false, false, false, true, false, false, {}, {.base = true}},
};

TEST(PlanTest, FactsOfEachPlan) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(Unsupported(row.plan), "");
    EXPECT_EQ(TrainsInGroups(row.plan), row.groups);
    EXPECT_EQ(AllOrNone(row.plan), row.all_or_none);
    EXPECT_EQ(NeedsGradients(row.plan), row.needs_gradients);
    EXPECT_EQ(AppliesFirst(row.plan), row.applies_first);
    EXPECT_EQ(CountsLocalSteps(row.plan), row.counts_steps);
    EXPECT_EQ(CountsRounds(row.plan), row.counts_rounds);
    if (row.groups) {
      EXPECT_EQ(ReducedInTraining(row.plan), row.reduced);
    }
    EXPECT_EQ(RowsOf(row.plan), row.rows);
  }
}

TEST(PlanTest, InTheSerialOrderNeighboursApplyFirst) {
  EXPECT_TRUE(AppliesFirst({.by = NeighbourPlan{.serial = true}}));
}

TEST(PlanTest, SamplesWeighGradientsAndChanges) {
  for (const Plan& plan : {plans::kGradients, plans::kRounds, plans::kNewestRound, plans::kAsked,
                           plans::kAskedLate, plans::kChangeEvery8}) {
    EXPECT_TRUE(WeighsSamples(plan));
  }
  for (const Plan& plan : {plans::kModels, plans::kAhead, plans::kSchedule, plans::Background(2),
                           plans::kNeighbours, plans::kStore}) {
    EXPECT_FALSE(WeighsSamples(plan));
  }
}

TEST(PlanTest, StepsAndGroupsAreOneToOneUnlessDrawnAheadOrInTheBackground) {
  EXPECT_FALSE(DecouplesSteps(plans::kModels));
  EXPECT_FALSE(DecouplesSteps(plans::kRounds));
  for (const Plan& plan : {plans::kAhead, plans::kSchedule, plans::Background(0)}) {
    EXPECT_TRUE(DecouplesSteps(plan));
  }
  EXPECT_TRUE(FollowsSchedule(plans::kSchedule));
  EXPECT_TRUE(DrawnAhead(plans::kSchedule));
  EXPECT_FALSE(FollowsSchedule(plans::kAhead));
}

TEST(PlanTest, CombinationsThatNoWorkerCanCarryOut) {
  const Plan wrong[] = {
      {.every = 0},
      {.every = 2, .by = GroupPlan{.payload = Payload::kGradients}},
      {.every = 2, .by = GroupPlan{.payload = Payload::kChange, .asks = true}},
      {.every = 2, .by = NeighbourPlan{}},
      {.every = 2, .by = StorePlan{}},
      {.by = GroupPlan{.payload = static_cast<Payload>(3)}},
      {.by = GroupPlan{.members = static_cast<Membership>(3)}},
      {.by = GroupPlan{.payload = Payload::kGradients, .members = Membership::kAhead}},
      {.by = GroupPlan{.payload = Payload::kChange, .members = Membership::kSchedule}},
      {.by = GroupPlan{.payload = Payload::kChange, .any_time = true}},
      {.by = GroupPlan{.run_ahead = 1}},
      {.by = GroupPlan{.payload = Payload::kGradients, .any_time = true, .run_ahead = 1}},
      {.by = GroupPlan{.payload = Payload::kGradients, .keep_initial = true}},
      {.by = GroupPlan{.newest_only = true}},
      {.by = GroupPlan{.asks = true}},
      {.by = GroupPlan{.payload = Payload::kChange, .delayed_ack = true}},
  };
  for (const Plan& plan : wrong) EXPECT_NE(Unsupported(plan), "") << &plan - wrong;
}

}  // namespace
}  // namespace prd
