// The mean of numbers that workers give, and rounds of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "engines/all_reduce/options.h"
#include "engines/number_rounds.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- a round by itself ----

TEST(NumberRoundsTest, EachElementHasItsMeanInTheOrderOfTheRanks) {
  NumberRounds rounds;
  EXPECT_FALSE(rounds.open());
  EXPECT_EQ(rounds.Give(2, {.call = 22, .values = {1, -3}}), NumberRounds::Given::kOpen);
  EXPECT_EQ(rounds.Give(0, {.call = 20, .values = {2, 5}}), NumberRounds::Given::kOpen);
  EXPECT_TRUE(rounds.Has(0) && rounds.Has(2) && !rounds.Has(1));
  const NumbersAveraged& mean = rounds.End();
  EXPECT_EQ(mean.round, 1u);
  EXPECT_THAT(mean.ranks, ElementsAre(0, 2));
  EXPECT_THAT(mean.calls, ElementsAre(20u, 22u));
  EXPECT_THAT(mean.values, ElementsAre(1.5, 1));
  EXPECT_FALSE(rounds.open());
}

TEST(NumberRoundsTest, WhoGivesAgainReplacesItsOwnAndIsTheOnlyOneWhoMayGiveAnotherCount) {
  NumberRounds rounds;
  EXPECT_EQ(rounds.Give(0, {.call = 1, .values = {1, 2}}), NumberRounds::Given::kOpen);
  EXPECT_EQ(rounds.Give(0, {.call = 2, .values = {7}}), NumberRounds::Given::kOpen);
  EXPECT_EQ(rounds.needed(), 1u);
  EXPECT_EQ(rounds.Give(1, {.call = 3, .values = {1, 2}}), NumberRounds::Given::kOther);
  EXPECT_FALSE(rounds.Has(1));
  EXPECT_EQ(rounds.Give(1, {.call = 4, .values = {9}}), NumberRounds::Given::kOpen);
  EXPECT_EQ(rounds.Give(0, {.call = 5, .values = {1, 2}}), NumberRounds::Given::kOther);
  EXPECT_THAT(rounds.End().values, ElementsAre(8));
}

TEST(NumberRoundsTest, ACallOfTheRoundThatEndedLastIsKnownAndNaNIsPassedOn) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  NumberRounds rounds;
  rounds.Give(0, {.call = 1, .values = {nan, inf}});
  rounds.Give(1, {.call = 2, .values = {1, 1}});
  rounds.Forget(1);
  rounds.End();
  EXPECT_TRUE(std::isnan(rounds.last().values[0]));
  EXPECT_EQ(rounds.last().values[1], inf);
  EXPECT_EQ(rounds.last(), NumbersAveraged(rounds.last())) << "bit by bit";
  EXPECT_EQ(rounds.Give(0, {.call = 1, .values = {5, 5}}), NumberRounds::Given::kEnded);
  EXPECT_EQ(rounds.Give(1, {.call = 2, .values = {5, 5}}), NumberRounds::Given::kOpen);
}

// ---- in a job ----

class JobNumbersTest : public JobTest {
 protected:
  void Start(int workers) {
    script_ = {.plan = plans::kModels, .joining = Engine::Joining::kAnytime};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Running(AllReduceOptions{}, workers, spec_);
  }
  void Give(Rank rank, std::uint64_t call, std::vector<double> values) {
    Say(rank, Pause{});
    Say(rank, GiveNumbers{.call = call, .values = std::move(values)});
  }
  void ExpectReplaysAsTold() {
    JobSpec spec = job_->spec();
    Script again{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    ExpectReplays(spec);
  }
  void Lose(Rank rank) { Step(LeaseExpired{.rank = rank, .incarnation = incarnation_[rank]}); }
  std::vector<double> MeanOf(Rank rank) {
    return Sent<NumbersMean>(rank) == nullptr ? std::vector<double>{}
                                              : Sent<NumbersMean>(rank)->values;
  }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobNumbersTest, ARoundEndsOnceAllHaveGiven) {
  Start(3);
  Give(1, 11, {1, 10});
  Give(0, 10, {2, 20});
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr);
  EXPECT_THAT(job_->WaitsFor({now_}, 1), HasSubstr("rank 2 has not given any"));
  EXPECT_THAT(job_->Explain({now_}, 1), HasSubstr("waits for the mean of numbers"));
  EXPECT_EQ(job_->WaitsFor({now_}, 2), "");
  Give(2, 12, {6, 0});
  ASSERT_NE(Recorded<NumbersAveraged>(), nullptr);
  EXPECT_THAT(Recorded<NumbersAveraged>()->ranks, ElementsAre(0, 1, 2));
  for (Rank r = 0; r < 3; ++r) {
    EXPECT_THAT(MeanOf(r), ElementsAre(3, 10));
    EXPECT_EQ(Sent<NumbersMean>(r)->call, 10u + static_cast<std::uint64_t>(r));
  }
  for (Rank r = 0; r < 3; ++r) Say(r, Resume{});
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(State(r), Job::State::kActive);
  ExpectReplaysAsTold();
}

TEST_F(JobNumbersTest, WhoFinishesLeavesOrIsLostIsNotWaitedFor) {
  Start(4);
  Give(0, 10, {4});
  Give(1, 11, {8});
  Say(2, Finish{});
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr);
  Lose(1);
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr) << "rank 3 trains";
  ExpectReplaysAsTold();
  Say(3, Leave{.reason = "over"});
  EXPECT_THAT(MeanOf(0), ElementsAre(4)) << "the numbers of rank 1 are gone with it";
  ExpectReplaysAsTold();
}

TEST_F(JobNumbersTest, WhoPausesForItselfIsWaitedFor) {
  Start(2);
  Say(1, Pause{});
  Give(0, 10, {4});
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr);
  Say(1, GiveNumbers{.call = 11, .values = {6}});
  EXPECT_THAT(MeanOf(0), ElementsAre(5));
}

TEST_F(JobNumbersTest, WhoDrainsIsNotWaitedFor) {
  Start(2);
  Say(1, Pause{});
  Say(1, Leave{.reason = "a notice"});
  Give(0, 10, {4});
  EXPECT_THAT(MeanOf(0), ElementsAre(4));
}

TEST_F(JobNumbersTest, WhoJoinsTakesPartInTheRoundThatIsOpen) {
  Start(2);
  Give(0, 10, {4});
  Join(2);
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  Say(2, Adopted{.ok = true, .iteration = 0});
  EXPECT_EQ(State(2), Job::State::kActive);
  Give(1, 11, {6});
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr) << "it trains";
  Give(2, 12, {8});
  EXPECT_THAT(MeanOf(2), ElementsAre(6));
  ExpectReplaysAsTold();
}

TEST_F(JobNumbersTest, AnotherCountIsRefusedAndTheRoundGoesOn) {
  Start(2);
  Give(0, 10, {4, 5});
  Give(1, 11, {6});
  ASSERT_NE(Sent<NumbersMean>(1), nullptr);
  EXPECT_EQ(Sent<NumbersMean>(1)->wrong, "found 1 numbers, needed are 2, as rank 0 has given");
  EXPECT_EQ(Sent<NumbersMean>(0), nullptr);
  Say(1, GiveNumbers{.call = 12, .values = {6, 7}});
  EXPECT_THAT(MeanOf(0), ElementsAre(5, 6));
}

TEST_F(JobNumbersTest, WhatNoWorkerSaysIsRefused) {
  Start(2);
  Say(0, GiveNumbers{.call = 1, .values = {}});
  ASSERT_NE(Sent<Refused>(0), nullptr);
  EXPECT_THAT(Sent<Refused>(0)->reason, HasSubstr("found 0, allowed are 1 to 64"));
  Say(1, GiveNumbers{.call = 1, .values = std::vector<double>(65)});
  EXPECT_THAT(Sent<Refused>(1)->reason, HasSubstr("found 65, allowed are 1 to 64"));
}

// An incarnation that follows says again what the one before has given.
TEST_F(JobNumbersTest, WhoHasMissedTheAnswerGetsItAgain) {
  Start(2);
  Give(0, 10, {4});
  Give(1, 11, {6});
  Lose(1);
  Join(1);
  Say(1, GiveNumbers{.call = 11, .values = {6}});
  EXPECT_THAT(MeanOf(1), ElementsAre(5));
  ExpectReplaysAsTold();
}

TEST_F(JobNumbersTest, ARoundGoesOnInTheRunThatFollows) {
  Start(2);
  Give(0, 10, {4});
  Step(OperatorActed{.verb = OperatorVerb::kSwitch, .by = "user 0", .spec = "other", .next = 7});
  Say(1, Finish{});
  Done(1);
  ASSERT_NE(job_->next(), nullptr);
  ExpectReplaysAsTold();
  former_ = *job_->next();
  ASSERT_EQ(former_.given.size(), 1u);
  script_ = {.plan = plans::kModels, .joining = Engine::Joining::kAnytime};
  Make(AllReduceOptions{}, 0, spec_);
  EXPECT_TRUE(job_->numbers().Has(0));
  Join(1);
  EXPECT_EQ(Recorded<NumbersAveraged>(), nullptr) << "the run has not begun";
  Done(1);
  EXPECT_EQ(State(1), Job::State::kActive);
  Give(1, 11, {6});
  ASSERT_NE(Recorded<NumbersAveraged>(), nullptr);
  EXPECT_THAT(MeanOf(1), ElementsAre(5));
  Join(0);
  Say(0, GiveNumbers{.call = 10, .values = {4}});
  EXPECT_THAT(MeanOf(0), ElementsAre(5)) << "it was away when the round ended";
}

}  // namespace
}  // namespace prd
