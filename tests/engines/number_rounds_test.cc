// Rounds of numbers by themselves. In a run: testdata/run/numbers.txt.
#include "engines/number_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace prd {
namespace {

using testing::ElementsAre;

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

}  // namespace
}  // namespace prd
