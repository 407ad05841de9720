// HasStore: what a call of the session waits for, one message at a time.
#include <gtest/gtest.h>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::store_core_test {
namespace {

using testing::kMe;
using testing::kPeer;

class StoreCoreTest : public ::testing::Test, public testing::Script {
 protected:
  // Two workers: this one, of rank 3, and its peer, of rank 4, who owns shard 1.
  void SayPlacement(std::uint64_t epoch, Iteration at = 0, Rank source = kNoRank) {
    Placement placement{.epoch = epoch, .members = {}, .shards = {}, .at = at, .reason = "r"};
    placement.members.push_back({.rank = 3, .incarnation = kMe});
    placement.members.push_back({.rank = 4, .incarnation = kPeer});
    placement.shards.push_back({.owner = 3, .source = source});
    placement.shards.push_back({.owner = 4, .source = source == kNoRank ? kNoRank : 4});
    Say(placement);
  }
  void EndPulls(std::int64_t version = 0) {
    const Actions before = std::exchange(actions, {});
    for (const Action& action : before) {
      if (const auto* pull = std::get_if<StartPull>(&action)) {
        core.OnPulled(now, pull->ticket, Status::Ok(), {.version = version}, &actions);
      }
    }
  }
  void SayStored(std::int64_t clock, std::uint64_t epoch = 1) {
    const PeerItem parcel{
        .kind = PeerItem::Kind::kDelta, .shard = 1, .epoch = epoch, .stamp = clock};
    core.OnNote(now, kPeer, {.kind = PeerMessage::Kind::kStored, .parcel = parcel}, &actions);
  }
  void SayMayRead(Iteration clock) {
    Say(QueryReply{.iteration = clock, .next = clock, .workers = 2});
  }
  // In the replica, up to the end of Attach.
  void JoinStore(std::int32_t staleness = 3) {
    Attach();
    Welcome(plans::Store(staleness));
    Say(MakeGroup(1, GroupKind::kInitial, 0));
    core.OnReduced(now, 1, Status::Ok(), 0, &actions);
    EXPECT_FALSE(Done().has_value()) << "before it has read";
    SayPlacement(1);
    EXPECT_EQ(Only<Placed>().epoch, 1u);
    Say(Opened{.epoch = 1});
    EndPulls();
    ASSERT_TRUE(Done().has_value());
    EXPECT_TRUE(Done()->ok());
    Clear();
  }
};

TEST_F(StoreCoreTest, AStepPushesIsLetGoAndReads) {
  JoinStore();
  Step(0);
  EXPECT_EQ(Count<TakeDelta>(), 1u);
  EXPECT_EQ(Count<AddDelta>(), 1u);
  EXPECT_TRUE(Said<Ready>().empty()) << "before it is stored";
  now = now + 5;
  SayStored(1);
  EXPECT_EQ(Only<Ready>().iteration, 1);
  EXPECT_EQ(Only<Ready>().samples, 6);
  EXPECT_EQ(Count<StartPull>(), 0u);
  SayMayRead(1);
  EXPECT_EQ(Count<ReadShard>(), 1u);
  EndPulls();
  ASSERT_TRUE(Done().has_value());
  EXPECT_EQ(Count<SetIteration>(), 1u);
  EXPECT_EQ(Outcome().iteration, 1);
  EXPECT_TRUE(Outcome().included);
  EXPECT_FALSE(Outcome().adopted);
  EXPECT_EQ(Outcome().rounds, 1);
  EXPECT_EQ(Outcome().waited, 5);
}

TEST_F(StoreCoreTest, ADiscardedStepCountsAsAClock) {
  JoinStore();
  Step(0, /*discard=*/true);
  for (const Action& action : actions) {
    const auto* take = std::get_if<TakeDelta>(&action);
    EXPECT_TRUE(take == nullptr || take->share == 0);
  }
  SayStored(1);
  EXPECT_EQ(Only<Ready>().iteration, 1);
  SayMayRead(1);
  EndPulls();
  EXPECT_EQ(Outcome().iteration, 1);
  EXPECT_FALSE(Outcome().included);
}

TEST_F(StoreCoreTest, APlacementBetweenStoredAndReadIsReadUnder) {
  JoinStore();
  Step(0);
  SayStored(1);
  SayMayRead(1);
  SayPlacement(2, 0, 3);
  EXPECT_EQ(Count<DropPull>(), 1u);
  Clear();
  Say(Opened{.epoch = 2});
  EXPECT_TRUE(Said<Ready>().empty());
  EXPECT_EQ(Count<StartPull>(), 1u);
  EndPulls();
  EXPECT_TRUE(Done().has_value());
}

TEST_F(StoreCoreTest, AStepAfterOneGivenUpEndsThatOne) {
  Attach(kSecond);
  Welcome(plans::kStore);
  Say(MakeGroup(1, GroupKind::kInitial, 0));
  core.OnReduced(now, 1, Status::Ok(), 0, &actions);
  SayPlacement(1);
  Say(Opened{.epoch = 1});
  EndPulls();
  Clear();
  Step(0);
  SayStored(1);
  Pass(2 * kSecond);
  ASSERT_TRUE(Done().has_value());
  EXPECT_EQ(Done()->code(), Code::kUnavailable);
  Clear();
  SayMayRead(1);
  EXPECT_EQ(Count<ReadShard>(), 0u) << "the training loop computes";
  Step(0);
  EXPECT_EQ(Count<TakeDelta>(), 0u) << "what it moved is pushed already";
  EndPulls();
  ASSERT_TRUE(Done().has_value());
  EXPECT_EQ(Outcome().iteration, 1);
  EXPECT_FALSE(Outcome().included);
}

TEST_F(StoreCoreTest, TheFinalAverageIsOfWhatIsReadThen) {
  JoinStore();
  core.Finish(now, &actions);
  EXPECT_EQ(Said<prd::Finish>().size(), 1u);
  Clear();
  Say(MakeGroup(2, GroupKind::kFinal, 0));
  EXPECT_EQ(Count<StartReduce>(), 0u);
  Say(Abort{.group = 2, .reason = "gone"});
  EndPulls();
  EXPECT_EQ(Count<StartReduce>(), 0u);
  Say(MakeGroup(3, GroupKind::kFinal, 0));
  EXPECT_EQ(Count<StartReduce>(), 0u) << "read for a group before";
  EndPulls();
  EXPECT_EQ(Count<StartReduce>(), 1u);
  Reduced(3);
  Say(Released{.reason = "done"});
  ASSERT_TRUE(Done().has_value());
  EXPECT_TRUE(Done()->ok());
}

TEST_F(StoreCoreTest, ALostWorkerEndsItsStepWithTheJobsReplica) {
  JoinStore();
  Step(0);
  Clear();
  Aside(Refused{.code = Code::kAborted, .reason = "your lease ran out"});
  core.GiveIncarnation(kMe + 1);
  Pass(kSecond);
  Welcome(plans::Store(3));
  SayAdopt();
  Fetched(7);
  EXPECT_FALSE(Done().has_value());
  Placement placement{.epoch = 4, .members = {}, .shards = {}, .at = 9, .reason = "r"};
  placement.members.push_back({.rank = 3, .incarnation = kMe + 1});
  placement.members.push_back({.rank = 4, .incarnation = kPeer});
  placement.shards.push_back({.owner = 4, .source = 4});
  Say(placement);
  Say(Opened{.epoch = 4});
  EndPulls();
  ASSERT_TRUE(Done().has_value());
  EXPECT_TRUE(Outcome().adopted);
  EXPECT_EQ(Outcome().iteration, 9);
}

// Others have made updates meanwhile, and none of them is in its parameters.
TEST_F(StoreCoreTest, WhoResumesReadsFirst) {
  JoinStore();
  core.Pause(now, &actions);
  ASSERT_TRUE(Done().has_value());
  Clear();
  core.Resume(now, &actions);
  EXPECT_EQ(Count<ReadShard>(), 0u) << "before it is told that it trains again";
  Say(Resumed{});
  EXPECT_EQ(Count<ReadShard>(), 0u) << "under a placement in which it trains, and its clock";
  SayPlacement(2, 7, 3);
  Say(Opened{.epoch = 2});
  EXPECT_FALSE(Done().has_value());
  EndPulls();
  ASSERT_TRUE(Done().has_value());
  EXPECT_TRUE(Done()->ok());
  EXPECT_TRUE(Outcome().adopted);
  Clear();
  Step(0);
  EXPECT_EQ(Count<TakeDelta>(), 1u) << "its next step counts as any other";
  SayStored(8, 2);
  EXPECT_EQ(Only<Ready>().iteration, 8);
}

// A step on parameters of clock 0 is none of clock 8.
TEST_F(StoreCoreTest, AStepOnAnOlderClockThanItsPlacementsReadsInstead) {
  JoinStore();
  SayPlacement(2, 7, 3);
  Say(Opened{.epoch = 2});
  EXPECT_EQ(Count<ReadShard>(), 0u) << "the training loop computes";
  Clear();
  Step(0);
  EXPECT_EQ(Count<TakeDelta>(), 0u);
  EndPulls();
  ASSERT_TRUE(Done().has_value());
  EXPECT_EQ(Outcome().iteration, 7);
  EXPECT_TRUE(Outcome().adopted);
  EXPECT_FALSE(Outcome().included);
  Clear();
  Step(0);
  SayStored(8, 2);
  EXPECT_EQ(Only<Ready>().iteration, 8);
}

TEST_F(StoreCoreTest, AnImpossiblePlacementEndsTheSession) {
  JoinStore();
  Step(0);
  Clear();
  SayPlacement(1);  // not after the one before
  ASSERT_TRUE(Done().has_value());
  EXPECT_EQ(Done()->code(), Code::kDataLoss);
}

}  // namespace
}  // namespace prd::store_core_test
