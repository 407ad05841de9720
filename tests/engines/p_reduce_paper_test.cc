// Sentences of the paper (Miao et al., Heterogeneity-Aware Distributed Machine Learning Training
// via Partial Reduce, SIGMOD 2021), one test each.
#include <set>

#include "engines/p_reduce/p_reduce.h"
#include "engines/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engines/virtual_run.h"

namespace prd::p_reduce_paper_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// An engine and the little that is needed to talk to it.
class PaperTest : public testing::Test {
 protected:
  void Start(const PReduceOptions& options, Rank workers) {
    engine_ = std::make_unique<PReduce>(options);
    for (Rank rank = 0; rank < workers; ++rank) Step(JoinedEvent{.rank = rank, .host = "h"});
  }

  std::vector<GroupFormed> Step(const Event& event) {
    Effects effects;
    engine_->Step(now_, event, &next_group_, &effects);
    return GroupsOf(effects);
  }

  std::vector<GroupFormed> BeReady(Rank rank, Iteration iteration, std::int64_t samples = 0) {
    return Step(ReadyEvent{.rank = rank, .ready = {.iteration = iteration, .samples = samples}});
  }

  void Finish(const GroupFormed& group) {
    for (const GroupShare& member : group.members) {
      Step(FinishedEvent{.rank = member.rank, .group = group.id, .ok = true});
    }
  }

  static std::vector<Rank> Ranks(const GroupFormed& group) {
    std::vector<Rank> ranks;
    for (const GroupShare& member : group.members) ranks.push_back(member.rank);
    return ranks;
  }

  std::unique_ptr<PReduce> engine_;
  Instant now_;
  GroupId next_group_ = 1;
};

// Algorithm 2, controller, lines 1-7: "if Q.size() >= P then S <- pop P elements from Q; send the
// partial reduce group to the workers".
TEST_F(PaperTest, Algorithm2PopsPSignalsInTheOrderOfArrival) {
  Start({.group_size = 3, .weights = PReduceOptions::Weights::kConstant}, 6);
  EXPECT_THAT(BeReady(5, 1), IsEmpty());
  EXPECT_THAT(BeReady(2, 1), IsEmpty());
  const std::vector<GroupFormed> formed = BeReady(4, 1);
  ASSERT_EQ(formed.size(), 1u);
  EXPECT_THAT(Ranks(formed[0]), ElementsAre(2, 4, 5));
  EXPECT_EQ(formed[0].reason, "fifo: 3 of 3 ready");
  EXPECT_EQ(engine_->Explain(now_, 5), "") << "its signal has been answered";
}

// Algorithm 2, worker, line 7, and Eq. 4: x <- 1/P sum x_j.
TEST_F(PaperTest, ConstantWeightsAreOneOverP) {
  Start({.group_size = 3, .weights = PReduceOptions::Weights::kConstant}, 6);
  BeReady(0, 9);
  BeReady(1, 1);
  const std::vector<GroupFormed> formed = BeReady(2, 4);
  ASSERT_EQ(formed.size(), 1u);
  for (const GroupShare& member : formed[0].members) EXPECT_DOUBLE_EQ(member.weight, 1.0 / 3);
  EXPECT_EQ(formed[0].initial_weight, 0);
}

// Not of the paper: models by the samples of their last steps, if asked for; whatever their
// iterations are.
TEST_F(PaperTest, WeightsBySamples) {
  for (const std::int64_t third : {128, 0}) {
    Start({.group_size = 3, .weights = PReduceOptions::Weights::kSamples}, 6);
    BeReady(5, 1, 64);
    BeReady(1, 9, 64);
    const GroupFormed formed = BeReady(2, 4, third).at(0);
    ASSERT_EQ(Ranks(formed), (std::vector<Rank>{1, 2, 5}));
    EXPECT_EQ(formed.members[1].weight, third > 0 ? 0.5 : 1.0 / 3) << "equal if one is not told";
    EXPECT_EQ(formed.members[0].weight, third > 0 ? 0.25 : 1.0 / 3);
    EXPECT_EQ(formed.members[2].weight, third > 0 ? 0.25 : 1.0 / 3);
    EXPECT_EQ(formed.initial_weight, 0);
  }
}

// Section 3.1.1: "multiple worker groups could execute partial reduce in parallel".
TEST_F(PaperTest, SeveralDisjointGroupsAreInFlight) {
  Start({.group_size = 2}, 6);
  std::set<Rank> busy;
  for (Rank rank = 0; rank < 6; ++rank) {
    for (const GroupFormed& group : BeReady(rank, 1)) {
      for (const Rank member : Ranks(group)) EXPECT_TRUE(busy.insert(member).second);
    }
  }
  EXPECT_EQ(busy.size(), 6u) << "three groups, none of which has finished";
}

// Section 3.1.1: "Each worker can step into the next iteration without waiting for the other
// workers to finish updating": who comes out of a group may be in the next while others are not.
TEST_F(PaperTest, AWorkerGoesOnWithoutTheOthers) {
  Start({.group_size = 2}, 4);
  BeReady(0, 1);
  const std::vector<GroupFormed> first = BeReady(1, 1);
  Step(FinishedEvent{.rank = 0, .group = first.at(0).id, .ok = true});  // rank 1 still reduces
  BeReady(0, 2);
  const std::vector<GroupFormed> second = BeReady(2, 1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(Ranks(second[0]), ElementsAre(0, 2));
}

// Section 3.3.3: "after the partial reduce, the workers in the group should update their current
// iteration k with max k_j, because all of their models are the latest".
TEST_F(PaperTest, MembersContinueAtTheLargestIteration) {
  for (const auto weights :
       {PReduceOptions::Weights::kConstant, PReduceOptions::Weights::kDynamic}) {
    Start({.group_size = 3, .weights = weights}, 5);
    BeReady(0, 3);
    BeReady(1, 17);
    const std::vector<GroupFormed> formed = BeReady(2, 8);
    ASSERT_EQ(formed.size(), 1u);
    EXPECT_EQ(formed[0].iteration, 17);
  }
}

// Figure 6: the weight generator obtains the group; the strategy is to average models, and only the
// approximation by "the initial model x_1" needs that model kept.
TEST_F(PaperTest, OnlyTheInitialApproximationNeedsTheInitialModel) {
  using Weights = PReduceOptions::Weights;
  using Missing = PReduceOptions::Missing;
  for (const auto weights : {Weights::kConstant, Weights::kDynamic, Weights::kSamples}) {
    for (const auto missing : {Missing::kInitial, Missing::kNearest, Missing::kRenormalize}) {
      const PReduce engine({.weights = weights, .missing = missing});
      EXPECT_EQ(RowsOf(engine.plan()).initial,
                weights == Weights::kDynamic && missing == Missing::kInitial);
      EXPECT_TRUE(CountsLocalSteps(engine.plan()));
    }
  }
}

// Section 4: "we require T >= ceil((N-1)/(P-1))".
TEST_F(PaperTest, TheSmallestWindowCanConnectAllWorkers) {
  EXPECT_EQ(SmallestWindow(8, 3), 4);
  EXPECT_EQ(SmallestWindow(9, 3), 4);
  EXPECT_EQ(SmallestWindow(10, 3), 5);
  EXPECT_EQ(SmallestWindow(4, 2), 3);
  EXPECT_EQ(SmallestWindow(100'000, 2), 99'999);
  EXPECT_TRUE(Validate(PReduceOptions{.group_size = 3, .history_window = 4}, 8).ok());
  const Status status = Validate(PReduceOptions{.group_size = 3, .history_window = 3}, 8);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "history_window: found 3, allowed is 0 (chosen by prd) or 4 to 10000000: 8 workers in "
            "groups of 3 need at least 4 groups to be connected");
  // As workers join, a T that was large enough is no longer: the smallest is used.
  EXPECT_EQ(EffectiveWindow({.group_size = 3, .history_window = 4}, 20), 10);
  EXPECT_EQ(EffectiveWindow({.group_size = 3, .history_window = 40}, 20), 40);
  // P that follows the workers: 2 for 7 of them, 3 for 8.
  EXPECT_FALSE(Validate(PReduceOptions{.history_window = 5}, 7).ok());
  EXPECT_TRUE(Validate(PReduceOptions{.history_window = 6}, 7).ok());
  EXPECT_TRUE(Validate(PReduceOptions{.history_window = 4}, 8).ok());
}

// Section 4: "Suppose there are four workers and P = 2, worker 1 always averages only with worker
// 2, and worker 3 always averages only with worker 4 ... the group filter will interact with the
// signal queue and add few edges between connected components".
class FrozenPairsTest : public testing::TestWithParam<double> {};

TEST_P(FrozenPairsTest, AreBridged) {
  constexpr std::int64_t kGroups = 2000;
  constexpr std::int64_t kWindow = 200;
  const StepTimes times{.mean_s = {0.1, 0.1, 0.1 * GetParam(), 0.1 * GetParam()}};
  PReduceOptions options{.group_size = 2, .weights = PReduceOptions::Weights::kConstant};

  options.history_window = 10'000'000;  // no window is ever full: plain FIFO
  PReduce plain(options);
  const VirtualRun frozen = RunEngine(&plain, times, kGroups, kWindow);
  EXPECT_EQ(frozen.split_windows, frozen.windows) << "the pairs must be frozen without the filter";

  for (const int window : {0, 3, 6, 12}) {
    options.history_window = window;
    PReduce engine(options);
    const VirtualRun run = RunEngine(&engine, times, kGroups, kWindow);
    EXPECT_EQ(run.split_windows, 0) << "T " << window;
    EXPECT_EQ(run.windows, kGroups / kWindow);
    EXPECT_GE(run.updates_per_s, 0.98 * frozen.updates_per_s) << "T " << window;
  }
}

INSTANTIATE_TEST_SUITE_P(SlowerBy, FrozenPairsTest, testing::Values(1.0, 1.5, 5.0),
                         [](const auto& tested) {
                           return "x" + std::to_string(static_cast<int>(tested.param * 10));
                         });

}  // namespace
}  // namespace prd::p_reduce_paper_test
