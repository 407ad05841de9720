#include "common/base/newest.h"

#include <gtest/gtest.h>

#include <string>

namespace prd {
namespace {

TEST(NewestTest, TheOldestMakesRoom) {
  Newest<int, std::string> newest(2);
  EXPECT_EQ(newest.Add(1, "one"), std::nullopt);
  EXPECT_EQ(newest.Add(2, "two"), std::nullopt);
  EXPECT_EQ(newest.Add(3, "three"), "one");
  EXPECT_FALSE(newest.contains(1));
  EXPECT_EQ(newest.Find(1), nullptr);
  EXPECT_EQ(*newest.Find(3), "three");
  EXPECT_EQ(newest.size(), 2u);
}

TEST(NewestTest, AKeyThatIsHereKeepsItsValueAndItsAge) {
  Newest<int, std::string> newest(2);
  newest.Add(1, "one");
  newest.Add(2, "two");
  EXPECT_EQ(newest.Add(1, "again"), std::nullopt);
  EXPECT_EQ(*newest.Find(1), "one");
  EXPECT_EQ(newest.Add(3, "three"), "one") << "it is still the oldest";
}

TEST(NewestTest, WithoutValuesItIsASet) {
  Newest<int> newest(1);
  EXPECT_FALSE(newest.Add(1).has_value());
  EXPECT_TRUE(newest.contains(1));
  EXPECT_TRUE(newest.Add(2).has_value());
  EXPECT_FALSE(newest.contains(1));
}

}  // namespace
}  // namespace prd
