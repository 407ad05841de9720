#include "engines/start_barrier.h"

#include <gtest/gtest.h>

#include <limits>

namespace prd {
namespace {

const Plan kManyModels{.by = GroupPlan{.payload = Payload::kParameters}};
const Plan kOneModel{.by = GroupPlan{.payload = Payload::kGradients}};

GroupFormed Three() {
  GroupFormed form{.kind = GroupKind::kInitial};
  form.members = {
      {.rank = 0, .iteration = 4}, {.rank = 1, .iteration = 9}, {.rank = 2, .iteration = 6}};
  return form;
}

TEST(StartBarrierTest, AStartOfNewWorkersWaitsForAll) {
  StartBarrier start;
  start.Expect(4);
  start.Expect(2);
  EXPECT_EQ(start.Needed({1}, {}, false), 4);
  EXPECT_FALSE(start.grace_ends());
}

TEST(StartBarrierTest, AStartOfReturningWorkersGoesOnAfterAWhile) {
  const JobSpec spec{.min_workers = 2, .start_grace_ms = 1000};
  StartBarrier start;
  start.Expect(4);
  EXPECT_EQ(start.Needed({1}, spec, true), 4);
  EXPECT_EQ(start.grace_ends(), (Instant{1 + kSecond}));
  EXPECT_EQ(start.Needed({kSecond}, spec, true), 4);
  EXPECT_EQ(start.Needed({1 + kSecond}, spec, true), 2);
  // Only new workers are left.
  EXPECT_EQ(start.Needed({2 + kSecond}, spec, false), 4);
}

TEST(StartBarrierTest, ARunThatFollowsWaitsForTheWorkersOfTheFormer) {
  StartBarrier start;
  start.Expect(4);
  const JobSpec spec{.min_workers = 2};
  EXPECT_EQ(start.NeededAfterSwitch({1}, spec, true, {10}), std::numeric_limits<int>::max());
  EXPECT_EQ(start.NeededAfterSwitch({1}, spec, false, {10}), 1);
  EXPECT_EQ(start.NeededAfterSwitch({10}, spec, false, {10}), 2);
}

TEST(StartBarrierTest, ItCanBeMadeAgain) {
  StartBarrier start;
  start.Make();
  start.Undo();
  EXPECT_FALSE(start.made());
  EXPECT_TRUE(start.begun());
}

TEST(CommonStartTest, NewWorkersTakeTheLowestRanksParameters) {
  GroupFormed form = Three();
  WeighCommonStart(kManyModels, {{}, {}, {}}, kNoRun, &form);
  EXPECT_EQ(form.members[0].weight, 1);
  EXPECT_EQ(form.iteration, 4);
  EXPECT_EQ(form.reason, "common start: 3 workers take the parameters of rank 0");
}

TEST(CommonStartTest, TrainedReplicasAreAveragedWhereTheyDiffer) {
  GroupFormed form = Three();
  WeighCommonStart(kManyModels, {{.returns = true}, {}, {.returns = true}}, kNoRun, &form);
  EXPECT_EQ(form.members[0].weight, 0.5);
  EXPECT_EQ(form.members[1].weight, 0);
  EXPECT_EQ(form.iteration, 6);
}

TEST(CommonStartTest, TheNewestTrainedReplicaIsTakenWhereTheyAreEqual) {
  GroupFormed form = Three();
  WeighCommonStart(kOneModel, {{.returns = true}, {}, {.returns = true}}, kNoRun, &form);
  EXPECT_EQ(form.members[2].weight, 1);
  EXPECT_EQ(form.reason,
            "common start: 3 workers take the parameters of rank 2, the newest of those that have "
            "trained before");
}

TEST(CommonStartTest, TheFinalAverageOfTheFormerRunComesFirst) {
  GroupFormed form = Three();
  WeighCommonStart(kManyModels, {{.returns = true, .former_model = true}, {.returns = true}, {}}, 7,
                   &form);
  EXPECT_EQ(form.members[0].weight, 1);
  EXPECT_EQ(form.reason,
            "common start: 3 workers take the parameters of rank 0, which are the final average of "
            "run 7");
}

}  // namespace
}  // namespace prd
