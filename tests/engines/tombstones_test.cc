#include "engines/tombstones.h"

#include <gtest/gtest.h>

namespace prd {
namespace {

TEST(TombstonesTest, TheOldestEndedRunMakesRoom) {
  Tombstones tombstones;
  tombstones.RememberEnded(1, "old", 101, true);
  EXPECT_NE(tombstones.RejectReason({101, 7}), "");
  for (RunId run = 2; run <= 65'536; ++run) tombstones.RememberEnded(run, "job", 100 + run, false);
  EXPECT_NE(tombstones.RejectReason({101, 7}), "");
  tombstones.RememberEnded(65'537, "job", 100 + 65'537, false);
  EXPECT_EQ(tombstones.RejectReason({101, 7}), "");
}

TEST(TombstonesTest, AWorkerOfAnUnfinishedRunIsRejectedOnceALaterOneWasFinished) {
  Tombstones tombstones;
  tombstones.RememberEnded(1, "job", 101, false);
  EXPECT_EQ(tombstones.RejectReason({101, 0}), "");
  tombstones.RememberEnded(2, "other", 102, true);
  EXPECT_EQ(tombstones.RejectReason({101, 0}), "");
  tombstones.RememberEnded(3, "job", 103, true);
  EXPECT_NE(tombstones.RejectReason({101, 0}).find(", in run 3 "), std::string::npos);
  tombstones.RememberEnded(4, "job", 104, false);
  EXPECT_EQ(tombstones.RejectReason({104, 0}), "") << "it began after the finished one";
  EXPECT_EQ(tombstones.RejectReason({0, 0}), "") << "never trained";
}

TEST(TombstonesTest, ARemovedWorkerIsToldTheFirstReason) {
  Tombstones tombstones;
  tombstones.RememberDismissed({{.incarnation = 5, .reason = "a"}});
  tombstones.RememberDismissed(
      {{.incarnation = 5, .reason = "b"}, {.incarnation = 6, .reason = "c"}});
  ASSERT_NE(tombstones.WhyDismissed(5), nullptr);
  EXPECT_EQ(*tombstones.WhyDismissed(5), "a");
  ASSERT_NE(tombstones.WhyDismissed(6), nullptr);
  EXPECT_EQ(*tombstones.WhyDismissed(6), "c");
  EXPECT_EQ(tombstones.WhyDismissed(7), nullptr);
}

}  // namespace
}  // namespace prd
