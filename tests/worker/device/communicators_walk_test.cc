// Members of communicators under random orders of everything, and under faults. What must hold
// after every step is in comm_cluster.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/device/comm_cluster.h"

namespace prd::testing {
namespace {

struct Walk {
  int workers = 4;
  std::size_t limit = 64;
  int steps = 4000;
  bool faults = false;
  int hosts = 0;       // of the workers, without a device
  int sets = 0;        // groups are of so many sets; 0: of any
  bool covers = true;  // it begins with a group of all
};

class CommunicatorsWalkTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void Begin(const Walk& walk) {
    walk_ = walk;
    cluster_ = std::make_unique<CommCluster>(
        Communicators::Options{.limit = walk.limit, .timeout = 2 * kSecond}, GetParam());
    for (Rank rank = 0; rank < walk.workers; ++rank) {
      CommCluster::Node& node = cluster_->Add(rank, rank < walk.workers - walk.hosts);
      if (node.gpu) node.gpu->polls = static_cast<int>(cluster_->random.Below(6));
    }
    for (int i = 0; i < walk.sets; ++i) sets_.push_back(Some());
    if (walk.covers) cluster_->Announce(All(), GroupKind::kInitial);
  }

  std::vector<Rank> All() {
    std::vector<Rank> ranks;
    for (CommCluster::Node* node : cluster_->Alive()) ranks.push_back(node->rank);
    return ranks;
  }
  // At least two, in any order.
  std::vector<Rank> Some() {
    std::vector<Rank> ranks = All();
    for (std::size_t i = ranks.size(); i > 1; --i) {
      std::swap(ranks[i - 1], ranks[cluster_->random.Below(i)]);
    }
    ranks.resize(std::min(ranks.size(), 2 + cluster_->random.Below(3)));
    return ranks;
  }

  void AnnounceOne() {
    Prng& random = cluster_->random;
    if (cluster_->Alive().size() < 2) return;
    std::vector<Rank> ranks = Some();
    if (!sets_.empty()) ranks = sets_[random.Below(sets_.size())];
    GroupKind kind = GroupKind::kTrain;
    if (random.Below(20) == 0) {
      ranks = All();
      kind = random.Below(2) == 0 ? GroupKind::kAverage : GroupKind::kRound;
    }
    std::size_t waiting = 0;
    for (const Rank rank : ranks) {
      if (!cluster_->At(rank).alive) return;
      waiting = std::max(waiting, cluster_->At(rank).announced.size());
    }
    if (waiting < 4) cluster_->Announce(ranks, kind);
  }

  void Disturb() {
    Prng& random = cluster_->random;
    const std::vector<CommCluster::Node*> alive = cluster_->Alive();
    CommCluster::Node* node = alive[random.Below(alive.size())];
    CommCluster::Node* other = alive[random.Below(alive.size())];
    switch (random.Below(7)) {
      case 0:
        if (alive.size() > 2) cluster_->Kill(node->rank);
        return;
      case 1:  // a newcomer, or one that comes back
        for (Rank rank = 0; rank < walk_.workers; ++rank) {
          if (!cluster_->At(rank).alive) {
            cluster_->Add(rank, random.Below(5) != 0);
            return;
          }
        }
        return;
      case 2:
      case 3:
        if (node != other) cluster_->Cut(node->rank, other->rank);
        return;
      case 4:
        if (node->gpu) (random.Below(2) == 0 ? node->gpu->fail_next : node->gpu->hang_next) = true;
        return;
      case 5:
        if (node->gpu) node->gpu->no_ids = random.Below(3) == 0;
        return;
      default:
        if (node->runs != kNoGroup && !cluster_->groups().at(node->runs).done) {
          cluster_->Fail(node->runs);
        }
    }
  }

  void Go() {
    for (int i = 0; i < walk_.steps && !HasFailure(); ++i) {
      if (cluster_->random.Below(25) == 0) AnnounceOne();
      if (walk_.faults && cluster_->random.Below(150) == 0) Disturb();
      cluster_->RandomStep();
    }
    cluster_->Settle();
  }

  // The faults are over: nobody hangs, all agree, and whoever recurs gets a communicator.
  void Quieten() {
    for (CommCluster::Node* node : cluster_->Alive()) {
      if (!node->gpu) continue;
      node->gpu->no_ids = node->gpu->fail_next = node->gpu->hang_next = false;
    }
    for (int i = 0; i < 12; ++i) {
      cluster_->now = cluster_->now + kSecond;
      cluster_->Settle();
    }
    for (auto& [id, group] : cluster_->groups()) {
      EXPECT_TRUE(group.done || group.failed) << "group " << id << " hangs";
    }
    for (CommCluster::Node* node : cluster_->Alive()) EXPECT_EQ(node->runs, kNoGroup);
    cluster_->ExpectAgreed();
  }
  void ExpectFaultless() {
    EXPECT_EQ(cluster_->disagreed, 0);
    for (const auto& [id, group] : cluster_->groups()) EXPECT_FALSE(group.failed) << id;
    for (CommCluster::Node* node : cluster_->Alive()) {
      EXPECT_EQ(node->comms->counters().broken, 0u) << node->rank;
    }
  }
  void ExpectLively() {
    std::vector<Rank> ranks;
    for (CommCluster::Node* node : cluster_->Alive()) {
      if (node->gpu) ranks.push_back(node->rank);
    }
    if (ranks.size() < 2) return;
    ranks.resize(std::min<std::size_t>(ranks.size(), 3));
    int tries = 0;
    for (Way way = Way::kStaged; way != Way::kCollective && tries < 300; ++tries) {
      const auto choice = cluster_->Reduce(ranks);
      ASSERT_TRUE(choice);
      way = choice->way;
    }
    EXPECT_LT(tries, 300);
    cluster_->ExpectAgreed();
  }

  Walk walk_;
  std::unique_ptr<CommCluster> cluster_;
  std::vector<std::vector<Rank>> sets_;
};

TEST_P(CommunicatorsWalkTest, WithoutFaultsNoGroupFails) {
  Begin({.workers = 5});
  Go();
  Quieten();
  ExpectFaultless();
  EXPECT_GT(cluster_->ended[Way::kCollective] + cluster_->ended[Way::kExchange], 20);
  ExpectLively();
}

// They come and go all the time, and still no group meets one that is gone.
TEST_P(CommunicatorsWalkTest, WithoutRoomNoGroupFailsEither) {
  Begin({.workers = 5, .limit = 2, .sets = 4, .covers = GetParam() % 2 == 0});
  Go();
  Quieten();
  ExpectFaultless();
  ExpectLively();
}

TEST_P(CommunicatorsWalkTest, SomeHaveNoDevice) {
  Begin({.workers = 6, .limit = 4, .hosts = 2});
  Go();
  Quieten();
  ExpectFaultless();
  ExpectLively();
}

TEST_P(CommunicatorsWalkTest, UnderFaultsMembersDisagreeOnlyWhereSomethingBroke) {
  Begin({.workers = 6, .faults = true});
  Go();
  Quieten();
  ExpectLively();
}

TEST_P(CommunicatorsWalkTest, UnderFaultsAndWithoutRoom) {
  Begin({.workers = 5, .limit = 2, .faults = true, .hosts = 1, .sets = 4});
  Go();
  Quieten();
  ExpectLively();
}

INSTANTIATE_TEST_SUITE_P(Seeds, CommunicatorsWalkTest, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace prd::testing
