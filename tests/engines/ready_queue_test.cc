#include "engines/ready_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace prd {
namespace {

class ReadyQueueTest : public testing::Test {
 protected:
  std::vector<RunWorker> rows_ = std::vector<RunWorker>(3);
  ReadyQueue queue_{SlotColumn<ReadySlot>(&rows_)};
};

TEST_F(ReadyQueueTest, DeliversASignalUntilItIsAnswered) {
  EXPECT_FALSE(queue_.Deliver(0, false));
  queue_.Add(0, {.iteration = 7, .gradients = 1});
  const auto event = queue_.Deliver(0, false);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->rank, 0);
  EXPECT_EQ(event->ready.iteration, 7);
  EXPECT_EQ(event->owed, 1u);
  EXPECT_TRUE(queue_.Deliver(0, false));
  queue_.DropUpTo(0, 6);
  EXPECT_TRUE(queue_.Deliver(0, false));
  queue_.DropUpTo(0, 7);
  EXPECT_FALSE(queue_.Deliver(0, false));
  EXPECT_EQ(rows_[0].signalled, 7);
}

TEST_F(ReadyQueueTest, WithheldSignalsAreGivenOutOnceInOrder) {
  for (const Rank rank : {2, 0}) {
    queue_.Add(rank, {.iteration = 1});
    EXPECT_FALSE(queue_.Deliver(rank, true));
    EXPECT_FALSE(queue_.Deliver(rank, true));
  }
  EXPECT_EQ(queue_.withheld(), 2);
  EXPECT_EQ(queue_.NextWithheld(0), 0);
  EXPECT_EQ(queue_.NextWithheld(1), 2);
  EXPECT_EQ(queue_.NextWithheld(0), kNoRank);
  EXPECT_EQ(queue_.withheld(), 0);
  EXPECT_TRUE(queue_.Deliver(2, false));
}

TEST_F(ReadyQueueTest, ReasonsToHoldAreASet) {
  queue_.Add(1, {.iteration = 1});
  queue_.Hold(1, ReadySlot::kForReplica);
  queue_.Hold(1, ReadySlot::kForComparison);
  EXPECT_FALSE(queue_.Deliver(1, true));
  EXPECT_EQ(queue_.withheld(), 0) << "a signal that is compared is not offered again";
  queue_.Release(1, ReadySlot::kForComparison);
  EXPECT_TRUE(rows_[1].Held(ReadySlot::kForReplica));
  EXPECT_TRUE(queue_.Deliver(1, false)) << "kForReplica is for the caller to check";
  queue_.Clear(1);
  EXPECT_TRUE(rows_[1].Held(ReadySlot::kForReplica));
  EXPECT_FALSE(rows_[1].signal);
}

TEST_F(ReadyQueueTest, CountsWithheldSignalsAgainAfterALoad) {
  rows_[2].holds = ReadySlot::kForOrders;
  queue_.Restore();
  EXPECT_EQ(queue_.withheld(), 1);
  queue_.Clear(2);
  EXPECT_EQ(queue_.withheld(), 0);
}

}  // namespace
}  // namespace prd
