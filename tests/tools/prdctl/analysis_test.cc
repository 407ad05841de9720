// What prdctl computes from a history, on histories whose answers are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/sync.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;

template <typename Meter>
Meter& Feed(Meter& meter, const std::vector<Record>& records) {
  for (const Record& record : records) meter.Add(record);
  return meter;
}

double RhoOf(const std::vector<Record>& records, std::size_t window = 0) {
  SyncMeter meter(window);
  return Feed(meter, records).Gap().value().rho;
}

// ---- the spectral gap ----

// Figure 4(a) of the paper: N = 3, P = 2, every pair with probability 1/3.
TEST(SpectralGapTest, Figure4Homogeneous) {
  Story story;
  for (int i = 0; i < 5; ++i) story.Sync({0, 1}).Sync({1, 2}).Sync({0, 2});
  EXPECT_NEAR(RhoOf(story.records()), 0.5, 1e-12);
}

// Figure 4(b): one worker half as fast. The fast two meet in 1/2 of the groups, each meets the slow
// one in 1/4: E[W] = [[5/8, 1/4, 1/8], [1/4, 5/8, 1/8], [1/8, 1/8, 3/4]].
TEST(SpectralGapTest, Figure4Heterogeneous) {
  Story story;
  for (int i = 0; i < 5; ++i) story.Sync({0, 1}).Sync({0, 2}).Sync({0, 1}).Sync({1, 2});
  EXPECT_NEAR(RhoOf(story.records()), 0.625, 1e-12);
}

// "When P = N, all elements of E[W] are 1/P and rho = 0."
TEST(SpectralGapTest, GroupsOfEverybodyHaveRhoZero) {
  EXPECT_NEAR(RhoOf(Story().Sync({0, 1, 2, 3}).Sync({0, 1, 2, 3}).records()), 0, 1e-12);
}

TEST(SpectralGapTest, FrozenGroupsHaveRhoOne) {
  EXPECT_NEAR(RhoOf(Story().Sync({0, 1}).Sync({2, 3}).records()), 1, 1e-12);
}

TEST(SpectralGapTest, AWorkerThatIsThereAndNeverSynchronisesCounts) {
  Story story;
  story.Join(0).Join(1).Join(2).Sync({0, 1});
  EXPECT_NEAR(RhoOf(story.records()), 1, 1e-12);
  story.Write(WorkerLeft{.rank = 2});
  EXPECT_NEAR(RhoOf(story.records()), 0, 1e-12);
}

TEST(SpectralGapTest, AWindowSeesTheLastGroupsOnly) {
  Story story;
  for (int i = 0; i < 7; ++i) story.Sync({0, 1});
  story.Sync({0, 1}).Sync({1, 2}).Sync({0, 2});
  EXPECT_GT(RhoOf(story.records()), 0.8);
  EXPECT_NEAR(RhoOf(story.records(), 3), 0.5, 1e-12);
}

TEST(SpectralGapTest, FailedAndCollectiveGroupsDoNotCount) {
  Story story;
  story.Form({{0, 1}, {1, 0}, {2, 0}}, GroupKind::kInitial).End(1);
  story.Form({{0, .5}, {2, .5}}).End(2, false);
  SyncMeter none(0);
  EXPECT_EQ(Feed(none, story.records()).Gap().status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(none.Pairs().size(), 0u);
}

// Two workers, unequal weights: rows (a, 1-a) twice in half of the groups, else the identity by a
// group of one. E[W] has eigenvalues 1 and 1/2.
TEST(SpectralGapTest, UnequalWeightsGoByTheModulus) {
  Story story;
  story.Form({{0, 0.9}, {1, 0.1}}).End(1).Sync({0});
  SyncMeter meter(0);
  const SpectralGap gap = Feed(meter, story.records()).Gap().value();
  EXPECT_FALSE(gap.symmetric);
  EXPECT_NEAR(gap.rho, 0.5, 1e-12);
}

// Weights that leave a share to the initial model are scaled: the share is no disagreement.
TEST(SpectralGapTest, TheInitialModelsShareIsLeftOut) {
  EXPECT_NEAR(RhoOf(Story().Form({{0, 0.25}, {1, 0.25}}).End(1).records()), 0, 1e-12);
}

// ---- the graph ----

TEST(GraphTest, CountsHowOftenPairsMet) {
  Story story;
  story.Join(4).Sync({2, 0, 1}).Sync({1, 0});
  SyncMeter meter(0);
  const auto pairs = Feed(meter, story.records()).Pairs();
  EXPECT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs.at({0, 1}), 2u);
  EXPECT_EQ(pairs.at({0, 2}), 1u);
  const std::string dot = ToDot(meter, "a \"job\"");
  EXPECT_THAT(dot, HasSubstr("graph sync {\n  label=\"a \\\"job\\\"\";"));
  EXPECT_THAT(dot, HasSubstr("  4;\n"));
  EXPECT_THAT(dot, HasSubstr("  0 -- 1 [weight=2, label=\"2\", penwidth=5.00];\n"));
  EXPECT_THAT(dot, HasSubstr("  1 -- 2 [weight=1, label=\"1\", penwidth=2.75];\n"));
}

// ---- stragglers ----

TEST(StragglersTest, TheLastOneOwesTheOthersTheirWaiting) {
  Story story;
  // Rank 3 takes five times as long as the others, who wait for it.
  story.At(100).Signal(0, 1, 100).Signal(1, 1, 100);
  story.At(110).Signal(2, 1, 110);
  story.At(500).Signal(3, 1, 500);
  story.At(502).Form({{0, .25}, {1, .25}, {2, .25}, {3, .25}});
  PaceMeter meter;
  const PaceReport report = Feed(meter, story.records()).Report();
  ASSERT_EQ(report.workers.size(), 4u);
  const WorkerPace& slow = report.workers[0];
  EXPECT_EQ(slow.rank, 3);
  EXPECT_EQ(report.median_step_ns, 105 * kMillisecond);
  EXPECT_NEAR(slow.factor, 500.0 / 105, 1e-9);
  // 10 ms of two waiting for two: 10 each; 390 ms of three waiting for one.
  EXPECT_EQ(slow.cost_ns, (10 + 3 * 390) * kMillisecond);
  EXPECT_EQ(report.waited_ns, (2 * 10 + 3 * 390) * kMillisecond);
  EXPECT_EQ(report.controller_ns, 4 * 2 * kMillisecond);
  DurationNs costs = 0;
  for (const WorkerPace& worker : report.workers) costs += worker.cost_ns;
  EXPECT_EQ(costs, report.waited_ns);
}

TEST(StragglersTest, WhomNobodyWaitsForCostsNothing) {
  Story story;
  for (int i = 1; i <= 9; ++i) {
    story.At(i * 100).Signal(0, i, 100).Signal(1, i, 100).Form({{0, .5}, {1, .5}});
    story.End(static_cast<GroupId>(i));
  }
  story.At(950).Signal(0, 10, 50);
  story.At(951).Signal(2, 1, 950).Form({{0, .5}, {2, .5}});
  PaceMeter meter;
  const PaceReport report = Feed(meter, story.records()).Report();
  EXPECT_EQ(report.workers[0].rank, 2);
  EXPECT_NEAR(report.workers[0].factor, 9.5, 1e-9);
  EXPECT_EQ(report.workers[0].cost_ns, 1 * kMillisecond);
}

TEST(StragglersTest, ASignalAgainAfterAFailureIsNoStep) {
  Story story;
  story.At(10).Signal(0, 1, 10).Signal(1, 1, 10).Form({{0, .5}, {1, .5}});
  story.At(20).Report(0, 1, 0, 10, Outcome::kFailed).End(1, false).Signal(0, 1, 10);
  PaceMeter meter;
  const PaceReport report = Feed(meter, story.records()).Report();
  EXPECT_EQ(report.workers[0].steps, 1u);
  EXPECT_EQ(report.workers[0].reduced_ns, 10 * kMillisecond);
}

TEST(StragglersTest, ImpossibleMeasuresOfWorkersAreCut) {
  Story story;
  story.At(10);
  for (Rank rank = 0; rank < 3; ++rank) {
    story.Say(rank, Ready{.iteration = 1, .step_ns = INT64_MAX});
    story.Say(rank, Finished{.wait_ns = INT64_MIN, .reduce_ns = INT64_MAX});
  }
  PaceMeter meter;
  const PaceReport report = Feed(meter, story.records()).Report();
  EXPECT_EQ(report.median_step_ns, 10 * kMillisecond);
  EXPECT_EQ(report.workers[0].reduced_ns, 10 * kMillisecond);
}

TEST(StragglersTest, Medians) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({9, 1}), 5);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({9, 1, 2, 4}), 3);
}

// ---- groups ----

TEST(RunViewTest, PutsAGroupTogether) {
  Story story;
  story.At(5).Signal(0, 3, 5).At(8).Signal(1, 4, 6).Form({{0, .25}, {1, .75}});
  story.At(10).Report(0, 1, 3, 2).At(11).Report(1, 1, 0, 3).End(1);
  RunView view;
  std::optional<GroupRow> ended;
  int formed = 0;
  for (const Record& record : story.records()) {
    RunView::Change change = view.Apply(record);
    formed += change.formed != nullptr ? 1 : 0;
    if (change.ended) ended = change.ended;
  }
  EXPECT_EQ(formed, 1);
  ASSERT_TRUE(ended.has_value());
  EXPECT_STREQ(ended->State(), "ok");
  ASSERT_EQ(ended->members.size(), 2u);
  EXPECT_EQ(ended->members[0].weight, .25);
  EXPECT_EQ(ended->formed - *ended->members[0].ready, 3 * kMillisecond);
  EXPECT_EQ(ended->members[1].step_ns, 6 * kMillisecond);
  EXPECT_EQ(ended->members[1].reduce_ns, 3 * kMillisecond);
  EXPECT_TRUE(view.running().empty());
}

TEST(GroupFilterTest, Filters) {
  GroupRow group{.kind = GroupKind::kTrain, .formed = Instant{5}, .members = {{.rank = 2}}};
  EXPECT_TRUE(GroupFilter{}.Lets(group));
  EXPECT_TRUE(GroupFilter{.rank = 2}.Lets(group));
  EXPECT_FALSE(GroupFilter{.rank = 1}.Lets(group));
  EXPECT_FALSE(GroupFilter{.kind = GroupKind::kFinal}.Lets(group));
  EXPECT_FALSE(GroupFilter{.failed = true}.Lets(group));
  EXPECT_FALSE(GroupFilter{.since = Instant{6}}.Lets(group));
  group.ended = Instant{9};
  EXPECT_TRUE(GroupFilter{.failed = true}.Lets(group));
}

}  // namespace
}  // namespace prd::ctl
