#include "engines/divergence_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const Plan kEqual{.by = GroupPlan{.payload = Payload::kGradients}};

TEST(DivergenceCheckTest, ComparesGroupsThatMakeReplicasEqualNowAndThen) {
  DivergenceCheck check(kEqual, 1000);
  EXPECT_FALSE(check.Begin({1}, GroupKind::kTrain, 1));
  EXPECT_FALSE(check.Begin({1}, GroupKind::kAverage, 4));
  EXPECT_TRUE(check.Begin({1}, GroupKind::kTrain, 4));
  EXPECT_FALSE(check.Begin({kSecond}, GroupKind::kTrain, 4));
  EXPECT_TRUE(check.Begin({1 + kSecond}, GroupKind::kTrain, 4));
  DivergenceCheck never(kEqual, 0);
  EXPECT_FALSE(never.Begin({1}, GroupKind::kTrain, 4));
  DivergenceCheck differ({.by = GroupPlan{.payload = Payload::kParameters}}, 1000);
  EXPECT_FALSE(differ.Begin({1}, GroupKind::kTrain, 4));
}

TEST(DivergenceCheckTest, TheMinorityDiffersUntilItIsEqualOrGone) {
  DivergenceCheck check(kEqual, 1000);
  const auto found = check.Compare({1}, 3, 30, {{0, 7}, {1, 8}, {2, 7}});
  EXPECT_THAT(found.differ, ElementsAre(1));
  ASSERT_TRUE(found.change);
  EXPECT_THAT(
      found.change->reason,
      HasSubstr("rank 1 has other parameters than ranks 0, 2, since group 3 (iteration 30)"));
  // Nothing has changed: nothing is to be recorded.
  EXPECT_FALSE(check.Compare({2}, 4, 40, {{0, 7}, {1, 8}, {2, 7}}).change);
  // A rank that is not compared goes on differing, since the same group.
  const auto more = check.Compare({3}, 5, 50, {{2, 9}, {0, 7}});
  EXPECT_THAT(more.differ, ElementsAre(2));
  EXPECT_THAT(more.change->ranks, ElementsAre(1, 2));
  EXPECT_EQ(check.divergence().group, 3u);
  EXPECT_THAT(check.Forget(2)->ranks, ElementsAre(1));
  EXPECT_FALSE(check.Forget(2));
  const auto equal = check.Compare({4}, 6, 60, {{0, 7}, {1, 7}});
  EXPECT_THAT(equal.differ, IsEmpty());
  EXPECT_THAT(equal.change->reason, HasSubstr("all that were compared are equal"));
  EXPECT_EQ(check.Words({5}, 1), "");
}

TEST(DivergenceCheckTest, OneDigestIsNoComparison) {
  DivergenceCheck check(kEqual, 1000);
  EXPECT_FALSE(check.Compare({1}, 3, 30, {{0, 7}}).change);
}

}  // namespace
}  // namespace prd
