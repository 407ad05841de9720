#include "engines/training_clock.h"

#include <gtest/gtest.h>

#include "engines/final_average.h"

namespace prd {
namespace {

TEST(TrainingClockTest, ASuccessorUnderARankContinuesItsCount) {
  TrainingClock clock({.steps = 100});
  clock.Grow(2);
  EXPECT_EQ(clock.CountHello(0, {.steps = 5}).steps, 5);
  EXPECT_EQ(clock.CountReport({1}, 0, {.steps = 12}, 0), "");
  // What it brought was trained before this run.
  EXPECT_EQ(clock.trained().steps, 7);
  EXPECT_EQ(clock.CountHello(0, {.steps = 3}).steps, 12);
  // A worker counts what it did while the controller did not hear it.
  EXPECT_EQ(clock.CountHello(0, {.steps = 20}).steps, 20);
  EXPECT_EQ(clock.trained().steps, 15);
}

TEST(TrainingClockTest, ReportsThatGoBackAreRefusedAndCountNothing) {
  TrainingClock clock({});
  clock.Grow(1);
  clock.CountHello(0, {});
  EXPECT_EQ(clock.CountReport({1}, 0, {.steps = 2, .samples = 8}, 1), "");
  EXPECT_EQ(
      clock.CountReport({2}, 0, {.steps = 1, .samples = 9}, 0),
      "a report that it has trained 1 steps and 9 samples so far, after 2 steps and 8 samples");
  EXPECT_EQ(clock.trained(), (Trained{.steps = 2, .samples = 8}));
  EXPECT_EQ(clock.NonfiniteWords({1'000'000'001}, 0),
            "; 1 of its steps was not finite, the last told 1.0 s ago");
}

TEST(TrainingClockTest, TheGoalIsReachedOnce) {
  TrainingClock clock({.steps = 0, .samples = 10});
  clock.Grow(1);
  clock.CountHello(0, {});
  clock.Bring({.steps = 4, .samples = 6});
  EXPECT_FALSE(clock.ReachGoal());
  clock.CountReport({1}, 0, {.steps = 1, .samples = 4}, 0);
  EXPECT_TRUE(clock.ReachGoal());
  EXPECT_FALSE(clock.ReachGoal());
  EXPECT_TRUE(clock.done());
  EXPECT_EQ(clock.TrainedWords(), "; the job has trained 5 steps, 10 samples");
}

TEST(TrainingClockTest, TheFirstWorkerThatStopsTheJobCounts) {
  TrainingClock clock({});
  clock.Stop(1, "converged");
  clock.Stop(0, "late");
  EXPECT_TRUE(clock.ReachGoal());
  EXPECT_EQ(clock.stopped_by(), "stopped by rank 1: converged");
}

TEST(TrainingClockTest, TheNextRunGoesOnFromTheFormer) {
  TrainingClock clock({});
  FormerRun former{.run = 1, .trained = {.steps = 9}, .goal = {.steps = 10}};
  former.ranks.push_back({.rank = 2, .own = {.steps = 3}});
  clock.TakeOver(former);
  ASSERT_EQ(clock.tallies().size(), 3u);
  EXPECT_FALSE(clock.tallies()[0].known);
  clock.CountReport({1}, 2, {.steps = 4}, 0);
  EXPECT_TRUE(clock.ReachGoal());
}

TEST(FinalAverageTest, MembersThatStoppedLongBeforeTheOthersTakeIt) {
  GroupFormed form{.kind = GroupKind::kFinal};
  form.members = {
      {.rank = 0, .iteration = 41}, {.rank = 1, .iteration = 10}, {.rank = 2, .iteration = 41}};
  const Plan local{.by = GroupPlan{.payload = Payload::kParameters}};
  GroupFormed all = form;
  WeighFinalAverage(local, 100'000, {100'000, 99'000, 99'500}, &all);
  EXPECT_EQ(all.reason, "final average of all 3 workers");
  EXPECT_EQ(all.iteration, 41);
  EXPECT_DOUBLE_EQ(all.members[1].weight, 1.0 / 3);
  WeighFinalAverage(local, 100'000, {100'000, 94'000, 99'500}, &form);
  EXPECT_EQ(form.reason, "final average of ranks 0, 2; rank 1 is 6000 steps behind and takes it");
  EXPECT_EQ(form.members[1].weight, 0);
  EXPECT_DOUBLE_EQ(form.members[0].weight, 0.5);
}

// A worker stalls, is in no group meanwhile, and wakes when the others have finished.
TEST(FinalAverageTest, MembersThatWereInNoGroupForLongTakeIt) {
  const auto weigh = [](const Plan& plan, Iteration of_rank_1,
                        const std::vector<std::int64_t>& stopped_at) {
    GroupFormed form{.kind = GroupKind::kFinal};
    form.members = {{.rank = 0, .iteration = 1000},
                    {.rank = 1, .iteration = of_rank_1},
                    {.rank = 2, .iteration = 999}};
    WeighFinalAverage(plan, 3000, stopped_at, &form);
    return form;
  };
  Plan local{.by = GroupPlan{.payload = Payload::kParameters}};
  const std::vector<std::int64_t> at_once = {2999, 3000, 2998};
  EXPECT_EQ(weigh(local, 925, at_once).reason, "final average of all 3 workers")
      << "two others have made 150 steps, a twentieth";
  const GroupFormed late = weigh(local, 924, at_once);
  EXPECT_EQ(late.reason, "final average of ranks 0, 2; rank 1 is 151 steps behind and takes it");
  EXPECT_EQ(late.members[1].weight, 0);
  // It trained alone after that: the model of many steps by all counts, and not that of some by it.
  const GroupFormed alone = weigh(local, 900, {2900, 3000, 2900});
  EXPECT_EQ(alone.reason, "final average of all 3 workers");
  const GroupFormed long_alone = weigh(local, 10, {2000, 3000, 2000});
  EXPECT_EQ(long_alone.reason,
            "final average of ranks 0, 2; rank 1 is 980 steps behind and takes it");
  local.every = 10;
  EXPECT_EQ(weigh(local, 976, at_once).reason, "final average of all 3 workers") << "a few";
  EXPECT_EQ(weigh(local, 975, at_once).reason,
            "final average of ranks 0, 2; rank 1 is 499 steps behind and takes it");
  // Iterations are the workers' own where nobody announces groups.
  const Plan hop{.by = NeighbourPlan{}};
  EXPECT_EQ(weigh(hop, 10, at_once).reason, "final average of all 3 workers");
}

}  // namespace
}  // namespace prd
