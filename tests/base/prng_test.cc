#include "common/base/prng.h"

#include <gtest/gtest.h>

namespace prd {
namespace {

// The published test vector of splitmix64 for seed 1234567.
TEST(Prng, IsSplitmix64) {
  Prng prng(1234567);
  EXPECT_EQ(prng.Next(), 6457827717110365317u);
  EXPECT_EQ(prng.Next(), 3203168211198807973u);
  EXPECT_EQ(prng.Next(), 9817491932198370423u);
}

TEST(Prng, StaysBelowAndReachesAll) {
  Prng prng(5);
  int counts[7] = {};
  for (int i = 0; i < 7000; ++i) ++counts[prng.Below(7)];
  for (const int count : counts) EXPECT_GT(count, 800);
  for (int i = 0; i < 1000; ++i) {
    const double u = prng.Unit();
    EXPECT_TRUE(u >= 0 && u < 1);
  }
}

}  // namespace
}  // namespace prd
