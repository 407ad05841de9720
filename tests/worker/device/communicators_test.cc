// What members of communicators agree about, case by case.
#include <gtest/gtest.h>

#include "tests/worker/device/comm_cluster.h"

namespace prd::testing {
namespace {

using Choice = Communicators::Choice;
using Kind = CommMessage::Kind;

class CommunicatorsTest : public ::testing::Test {
 protected:
  // Workers 0 to n-1.
  void Make(int n, Communicators::Options options = {}) {
    cluster_ = std::make_unique<CommCluster>(options);
    for (Rank rank = 0; rank < n; ++rank) cluster_->Add(rank);
  }
  // The way of a group that succeeds.
  Way WayOf(const std::vector<Rank>& ranks, GroupKind kind = GroupKind::kTrain) {
    const std::optional<Choice> choice = cluster_->Reduce(ranks, kind);
    EXPECT_TRUE(choice);
    return choice ? choice->way : Way::kStaged;
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    cluster_->Settle();
    cluster_->ExpectAgreed();
  }
  Communicators& Comms(Rank rank) { return *cluster_->At(rank).comms; }

  std::unique_ptr<CommCluster> cluster_;
};

TEST_F(CommunicatorsTest, MembersOfAnInitialGroupShareOneAtOnce) {
  Make(4);
  EXPECT_EQ(WayOf({0, 1, 2, 3}, GroupKind::kInitial), Way::kStaged);
  EXPECT_EQ(WayOf({0, 1, 2, 3}), Way::kCollective);
  EXPECT_EQ(WayOf({2, 1, 3}), Way::kExchange) << "led by 2, who does not lead the cover";
  EXPECT_EQ(Comms(3).counters().made, 1u);
  EXPECT_EQ(Comms(3).Peers().size(), 3u);
}

TEST_F(CommunicatorsTest, TrainingGroupsShareOneOnceTheyRecur) {
  Make(3);
  EXPECT_EQ(WayOf({0, 2}), Way::kStaged);
  EXPECT_EQ(Comms(0).counters().here, 0u);
  EXPECT_EQ(WayOf({2, 0}), Way::kStaged);
  EXPECT_EQ(Comms(2).counters().here, 1u);
  EXPECT_EQ(WayOf({0, 2}), Way::kCollective);
  EXPECT_EQ(WayOf({0, 1}), Way::kStaged);
}

TEST_F(CommunicatorsTest, ASubsetIsNotReducedOnAnotherSetsOwn) {
  Make(3);
  for (int i = 0; i < 3; ++i) (void)WayOf({0, 1, 2});
  EXPECT_EQ(WayOf({0, 1}), Way::kStaged);
}

TEST_F(CommunicatorsTest, GroupsOfWorkersWithoutDevicesSayNothing) {
  cluster_ = std::make_unique<CommCluster>();
  for (Rank rank = 0; rank < 4; ++rank) cluster_->Add(rank, false);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(WayOf({0, 1, 2, 3}, GroupKind::kAverage), Way::kStaged);
  EXPECT_EQ(cluster_->sent(), 0u);
  EXPECT_FALSE(Comms(0).NextDeadline());
  EXPECT_TRUE(Comms(0).Peers().empty());
}

TEST_F(CommunicatorsTest, WhoeverHasNoDeviceIsAskedOnce) {
  Make(3);
  cluster_->Add(3, false);
  EXPECT_EQ(WayOf({0, 1, 2, 3}, GroupKind::kInitial), Way::kStaged);
  EXPECT_EQ(Comms(3).counters().declined, 1u);
  EXPECT_EQ(WayOf({1, 2}), Way::kExchange) << "the others have a cover all the same";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(WayOf({0, 2, 3}), Way::kStaged);
  EXPECT_EQ(Comms(3).counters().declined, 1u);
  EXPECT_EQ(WayOf({0, 1, 2}), Way::kCollective);
}

TEST_F(CommunicatorsTest, WithoutNcclNothingIsProposedOrAccepted) {
  Make(3);
  cluster_->At(1).gpu->nccl_status = Status(Code::kUnavailable, "libnccl.so.2 is not there");
  EXPECT_EQ(WayOf({0, 1, 2}, GroupKind::kInitial), Way::kStaged);
  EXPECT_EQ(Comms(1).counters().declined, 1u);
  EXPECT_EQ(WayOf({0, 2}), Way::kCollective);
  cluster_->At(0).gpu->nccl_status = Status(Code::kUnavailable, "libnccl.so.2 is not there");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(WayOf({0, 1}), Way::kStaged);
}

TEST_F(CommunicatorsTest, OneWhoseMakingFailsIsTriedAgainLater) {
  Make(3);
  cluster_->At(2).gpu->fail_next = true;
  EXPECT_EQ(WayOf({0, 1, 2}, GroupKind::kInitial), Way::kStaged);
  EXPECT_EQ(Comms(0).counters().broken, 1u);
  int staged = 0;
  while (WayOf({0, 1, 2}) == Way::kStaged && staged < 20) ++staged;
  EXPECT_GT(staged, 0);
  EXPECT_LE(staged, 4);
}

TEST_F(CommunicatorsTest, OneThatIsNeverReadyIsGivenUp) {
  Make(3, {.timeout = kSecond});
  cluster_->At(1).gpu->hang_next = true;
  EXPECT_EQ(WayOf({0, 1, 2}, GroupKind::kInitial), Way::kStaged);
  EXPECT_EQ(Comms(0).counters().here, 1u);
  cluster_->now = cluster_->now + kSecond;
  cluster_->Settle();
  EXPECT_EQ(Comms(0).counters().here, 0u);
  EXPECT_EQ(Comms(2).counters().here, 0u);
  int staged = 0;
  while (WayOf({0, 1, 2}) == Way::kStaged && staged < 20) ++staged;
  EXPECT_LE(staged, 4);
}

TEST_F(CommunicatorsTest, WithoutAUniqueIdNobodyWaits) {
  Make(2, {.timeout = kSecond});
  cluster_->At(0).gpu->no_ids = true;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(WayOf({0, 1}, GroupKind::kAverage), Way::kStaged);
  EXPECT_EQ(Comms(1).counters().here, 0u);
  cluster_->At(0).gpu->no_ids = false;
  int staged = 0;
  while (WayOf({0, 1}, GroupKind::kAverage) == Way::kStaged && staged < 70) ++staged;
  EXPECT_LE(staged, 64);
}

// The member begins the group before it is ready, its leader after all are.
TEST_F(CommunicatorsTest, AGroupThatBeganBeforeItWasReadyIsStagedForAll) {
  Make(2);
  (void)WayOf({0, 1});
  const GroupId second = cluster_->Announce({0, 1});
  cluster_->Settle();
  ASSERT_TRUE(cluster_->groups().at(second).done);  // it is made now, as of the second
  cluster_ = nullptr;

  Make(2);
  (void)WayOf({0, 1});
  CommCluster& cluster = *cluster_;
  CommCluster::Node& leader = cluster.At(0);
  CommCluster::Node& member = cluster.At(1);
  cluster.Announce({0, 1});
  while (leader.runs != 0 || !leader.announced.empty() || member.runs != 0) {
    cluster.Proceed(&leader);
    cluster.Proceed(&member);
  }
  ASSERT_EQ(leader.comms->counters().here, 1u);
  const GroupId late = cluster.Announce({0, 1});
  ASSERT_TRUE(cluster.Proceed(&member));  // begins: staged, there is nothing
  ASSERT_TRUE(member.choice);
  for (int i = 0; i < 100; ++i) {
    while (cluster.Deliver(0)) {
    }
    cluster.now = cluster.now + 20 * kMillisecond;
    cluster.Serve(&leader);
    cluster.Serve(&member);
  }
  ASSERT_EQ(leader.comms->Usable().size(), 1u);
  cluster.Settle();
  EXPECT_TRUE(cluster.groups().at(late).done);
  EXPECT_EQ(cluster.groups().at(late).chosen.at(leader.self).way, Way::kStaged);
  EXPECT_EQ(WayOf({0, 1}), Way::kCollective);
}

// The member is ready, and waits; the leader is not, and says so rather than nothing.
TEST_F(CommunicatorsTest, ALeaderThatIsNotReadySaysThatItIsStaged) {
  Make(2);
  CommCluster& cluster = *cluster_;
  cluster.At(0).gpu->polls = 1000;
  cluster.At(1).gpu->polls = 0;
  EXPECT_EQ(WayOf({0, 1}, GroupKind::kInitial), Way::kStaged);
  ASSERT_EQ(Comms(0).counters().here, 1u);
  cluster.Announce({0, 1});
  ASSERT_TRUE(cluster.Proceed(&cluster.At(1)));
  ASSERT_FALSE(cluster.At(1).choice) << "it is ready here";
  ASSERT_TRUE(cluster.Proceed(&cluster.At(0)));
  while (cluster.Deliver(0)) {
  }
  ASSERT_TRUE(cluster.Proceed(&cluster.At(1)));
  ASSERT_TRUE(cluster.At(1).choice);
  EXPECT_EQ(cluster.At(1).choice->way, Way::kStaged);
  cluster.At(0).gpu->polls = 0;
  cluster.now = cluster.now + 30 * kSecond;
}

TEST_F(CommunicatorsTest, ALostMemberBreaksWhatItWasInAndNothingElse) {
  Make(5);
  (void)WayOf({0, 1, 2, 3, 4}, GroupKind::kInitial);
  for (int i = 0; i < 3; ++i) (void)WayOf({0, 1, 2});
  for (int i = 0; i < 3; ++i) (void)WayOf({2, 3, 4});
  ASSERT_EQ(WayOf({2, 3, 4}), Way::kCollective);
  cluster_->Kill(4);
  cluster_->Settle();
  EXPECT_EQ(WayOf({0, 1, 2}), Way::kCollective);
  EXPECT_EQ(WayOf({1, 3}), Way::kExchange) << "its survivors have another cover";
  EXPECT_EQ(Comms(0).counters().broken, 1u);
}

TEST_F(CommunicatorsTest, SurvivorsOfALostLeaderFormAnother) {
  Make(4);
  (void)WayOf({0, 1, 2, 3}, GroupKind::kInitial);
  cluster_->Kill(0);
  cluster_->Settle();
  EXPECT_EQ(WayOf({2, 3}), Way::kExchange);
  cluster_->Kill(1);
  cluster_->Kill(2);
  cluster_->Settle();
  EXPECT_TRUE(Comms(3).Peers().empty());
}

TEST_F(CommunicatorsTest, ACoverGrowsByWhoeverItsGroupsBring) {
  Make(3);
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  cluster_->Add(3);
  EXPECT_EQ(WayOf({0, 3}), Way::kStaged);
  // 1 and 2 do not know the newcomer yet: they decline until it has been in a group of theirs.
  for (int i = 0; i < 6; ++i) {
    (void)WayOf({1, 3});
    (void)WayOf({2, 3});
    (void)WayOf({0, 2});
  }
  EXPECT_EQ(WayOf({1, 2, 3}), Way::kExchange);
  for (Rank rank = 0; rank < 4; ++rank) {
    int covers = 0;
    for (const auto& [id, set] : Comms(rank).Usable()) covers += set.size() > 2 ? 1 : 0;
    EXPECT_EQ(covers, 1) << "the smaller one is given up";
  }
}

TEST_F(CommunicatorsTest, AnotherIncarnationOfARankBreaksWhatTheFirstWasIn) {
  Make(3);
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  // Its process lives on, and nobody sees a connection break.
  CommCluster::Node& before = cluster_->At(2);
  before.comms->Join(before.self, kNoRun);
  before.alive = false;
  cluster_->Add(2);
  (void)WayOf({1, 2});
  cluster_->Settle();
  for (const auto& [id, set] : Comms(0).Usable()) EXPECT_EQ(set.size(), 2u);
}

TEST_F(CommunicatorsTest, TheLowestScoreMakesRoomForOneTwiceAsHigh) {
  Make(4, {.limit = 2});
  for (int i = 0; i < 3; ++i) EXPECT_NE(WayOf({0, 1}), Way::kExchange);
  for (int i = 0; i < 6; ++i) (void)WayOf({0, 2});
  ASSERT_EQ(WayOf({0, 1}), Way::kCollective);
  ASSERT_EQ(WayOf({0, 2}), Way::kCollective);
  // {0, 1} has 4 groups, {0, 2} 7: {0, 3} has the first's place from its 8th on.
  int staged = 0;
  while (WayOf({0, 3}) == Way::kStaged && staged < 40) ++staged;
  EXPECT_GE(staged, 8);
  EXPECT_LT(staged, 24);
  EXPECT_EQ(WayOf({0, 2}), Way::kCollective);
  EXPECT_EQ(WayOf({0, 1}), Way::kStaged);
  EXPECT_EQ(Comms(0).counters().given_up, 1u);
  EXPECT_EQ(Comms(1).counters().given_up, 1u);
}

TEST_F(CommunicatorsTest, AMemberAsksTheLeaderForRoom) {
  Make(4, {.limit = 1});
  for (int i = 0; i < 3; ++i) (void)WayOf({0, 3});
  ASSERT_EQ(WayOf({0, 3}), Way::kCollective);
  int staged = 0;
  while (WayOf({1, 3}) == Way::kStaged && staged < 70) ++staged;
  EXPECT_LT(staged, 70);
  EXPECT_EQ(Comms(0).counters().given_up, 1u) << "3 has no room for both";
  EXPECT_GT(Comms(3).counters().declined, 0u);
}

TEST_F(CommunicatorsTest, ScoresFadeWithGroups) {
  Make(4, {.limit = 1});
  for (int i = 0; i < 40; ++i) (void)WayOf({0, 1});
  ASSERT_EQ(WayOf({0, 1}), Way::kCollective);
  cluster_->Skip(8 * Communicators::kHalfLife);  // groups of others: 41 is worth 0.16 now
  int staged = 0;
  while (WayOf({0, 2}) == Way::kStaged && staged < 20) ++staged;
  EXPECT_LE(staged, 5);
}

TEST_F(CommunicatorsTest, AGroupThatIsCalledOffBeforeItsWayIsTold) {
  Make(3);
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  CommCluster& cluster = *cluster_;
  const GroupId id = cluster.Announce({0, 1, 2});
  ASSERT_TRUE(cluster.Proceed(&cluster.At(1)));
  EXPECT_FALSE(cluster.At(1).choice) << "it waits for the leader";
  cluster.Fail(id);
  cluster.Settle();
  EXPECT_EQ(WayOf({0, 1, 2}), Way::kCollective) << "nobody has used it";
}

TEST_F(CommunicatorsTest, AGroupThatIsCalledOffOnItsWayBreaksItsCommunicator) {
  Make(3);
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  CommCluster& cluster = *cluster_;
  const GroupId id = cluster.Announce({0, 1, 2});
  ASSERT_TRUE(cluster.Proceed(&cluster.At(0)));  // it has told the others, who may have begun
  cluster.Fail(id);
  cluster.Settle();
  EXPECT_EQ(Comms(2).counters().broken, 1u);
  int staged = 0;
  while (WayOf({0, 1, 2}) == Way::kStaged && staged < 20) ++staged;
  EXPECT_LE(staged, 4);
}

TEST_F(CommunicatorsTest, TheLeadersWordMayComeBeforeTheGroup) {
  Make(3);
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  CommCluster& cluster = *cluster_;
  cluster.Announce({1, 2});
  ASSERT_TRUE(cluster.Proceed(&cluster.At(1)));
  while (cluster.Deliver(0)) {
  }
  ASSERT_TRUE(cluster.Proceed(&cluster.At(2)));
  ASSERT_TRUE(cluster.At(2).choice);
  EXPECT_EQ(cluster.At(2).choice->way, Way::kExchange);
}

TEST_F(CommunicatorsTest, ALostWordIsAskedForAgain) {
  Make(3, {.timeout = 6 * kSecond});
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  CommCluster& cluster = *cluster_;
  const GroupId id = cluster.Announce({0, 1, 2});
  ASSERT_TRUE(cluster.Proceed(&cluster.At(0)));
  cluster.Lose(0, 2);  // without a sign
  cluster.Settle();
  EXPECT_FALSE(cluster.groups().at(id).done);
  ASSERT_TRUE(Comms(2).NextDeadline());
  EXPECT_LE(*Comms(2).NextDeadline(), cluster.now + kSecond);
  cluster.now = cluster.now + kSecond;
  cluster.Settle();
  EXPECT_TRUE(cluster.groups().at(id).done);
}

TEST_F(CommunicatorsTest, ThatItIsBrokenIsAskedForAgain) {
  Make(3, {.timeout = 6 * kSecond});
  (void)WayOf({0, 1, 2}, GroupKind::kInitial);
  CommCluster& cluster = *cluster_;
  Comms(0).Break(cluster.now, Comms(0).Usable().begin()->first, "for the test");
  cluster.Serve(&cluster.At(0));
  cluster.Lose(0, 2);
  const GroupId id = cluster.Announce({0, 2});
  cluster.Settle();
  EXPECT_FALSE(cluster.groups().at(id).done) << "2 believes that 0 will say something";
  cluster.now = cluster.now + kSecond;
  cluster.Settle();
  EXPECT_TRUE(cluster.groups().at(id).done);
}

// A held one is not aborted under who uses it, and is found no more.
TEST_F(CommunicatorsTest, WhatIsHeldIsAbortedWhenItIsReleased) {
  Make(2);
  (void)WayOf({0, 1}, GroupKind::kInitial);
  const CommId id = Comms(1).Usable().begin()->first;
  Comms(1).Hold(id);
  cluster_->Cut(0, 1);
  cluster_->See(0);
  while (cluster_->Deliver(0)) {
  }
  EXPECT_EQ(cluster_->At(1).gpu->open(), 1u);
  EXPECT_EQ(cluster_->At(0).gpu->open(), 0u);
  EXPECT_NE(Comms(1).WhyBroken(id), "");
  Comms(1).Release(id);
  EXPECT_EQ(cluster_->At(1).gpu->open(), 0u);
}

TEST_F(CommunicatorsTest, WhatIsNotKnownIsNotAnswered) {
  Make(2);
  Communicators& comms = Comms(0);
  comms.OnMessage(cluster_->now, 77,
                  {.kind = Kind::kPropose, .comm = {77, 1}, .members = {77, 1001}});
  comms.OnMessage(cluster_->now, 77, {.kind = Kind::kAsk, .comm = {77, 1}, .group = 5});
  comms.OnMessage(cluster_->now, 77, {.kind = Kind::kWay, .comm = {77, 1}, .group = 5});
  EXPECT_TRUE(comms.TakeOutgoing().empty());
  // Known, and wrong: not its leader, not a member, members out of order, twice the same.
  (void)WayOf({0, 1});
  const Incarnation zero = cluster_->At(0).self;
  const Incarnation one = cluster_->At(1).self;
  for (const CommMessage& message :
       {CommMessage{.kind = Kind::kPropose, .comm = {zero, 1}, .members = {one, zero}},
        CommMessage{.kind = Kind::kPropose, .comm = {one, 1}, .members = {one, zero}},
        CommMessage{.kind = Kind::kPropose, .comm = {one, 1}, .members = {one, one}},
        CommMessage{.kind = Kind::kPropose, .comm = {one, 1}, .members = {one}},
        CommMessage{.kind = Kind::kPropose, .comm = {one, 1}, .members = {}},
        CommMessage{.kind = Kind::kUse, .comm = {one, 1}},
        CommMessage{.kind = Kind::kRetire, .comm = {one, 1}}}) {
    comms.OnMessage(cluster_->now, one, message);
    EXPECT_TRUE(comms.TakeOutgoing().empty());
    EXPECT_EQ(comms.counters().here, 0u);
  }
}

}  // namespace
}  // namespace prd::testing
