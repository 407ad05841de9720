// ShardStore by itself: each rule of pushing, reading, owning and holding, and what peers may send.
#include "worker/core/shard_store.h"

#include <gtest/gtest.h>

namespace prd::shard_store_test {
namespace {

constexpr Incarnation kMe = 100;     // rank 0
constexpr Incarnation kOther = 101;  // rank 1
constexpr Incarnation kThird = 102;  // rank 2

PeerItem Delta(std::uint32_t shard, std::int64_t stamp, std::uint64_t epoch = 1) {
  return {.kind = PeerItem::Kind::kDelta, .shard = shard, .epoch = epoch, .stamp = stamp};
}
PeerItem Shard(std::uint32_t shard, std::int64_t stamp, std::uint64_t epoch = 1) {
  return {.kind = PeerItem::Kind::kShard, .shard = shard, .epoch = epoch, .stamp = stamp};
}
PeerItem State(std::uint32_t shard, std::int64_t stamp, std::uint64_t epoch = 1) {
  return {.kind = PeerItem::Kind::kState, .shard = shard, .epoch = epoch, .stamp = stamp};
}

class ShardStoreTest : public ::testing::Test {
 protected:
  void Place(std::vector<ShardPlace> shards, std::uint64_t epoch = 1, int members = 3) {
    Placement placement{.epoch = epoch, .members = {}, .shards = SharedList(shards), .reason = "r"};
    for (int i = 0; i < members; ++i) {
      placement.members.push_back({.rank = i, .incarnation = kMe + static_cast<Incarnation>(i)});
    }
    ASSERT_EQ(store.Check(placement, 0, kMe), "");
    store.SetPlacement(now, plan, placement, kMe, &actions);
  }
  void Open(std::uint64_t epoch = 1) { ASSERT_TRUE(store.Open(now, epoch, &actions)); }
  void Offer(Incarnation from, const PeerItem& parcel, std::int64_t version = 0) {
    store.OnNote(now, from, {.parcel = parcel, .version = version, .workers = 2}, &actions);
  }
  void Stored(Incarnation from, const PeerItem& parcel) {
    store.OnNote(now, from, {.kind = PeerMessage::Kind::kStored, .parcel = parcel}, &actions);
  }
  void Ask(Incarnation from, Request request, const PeerItem& parcel) {
    store.OnRequest(from, request, parcel, &actions);
  }
  void Pulled(Ticket ticket, bool ok = true, const ShardHeader& enclosure = {}) {
    store.OnPulled(now, ticket, ok ? Status::Ok() : Status(Code::kUnavailable, "gone"), enclosure,
                   &actions);
  }
  void Pass(DurationNs time) {
    now = now + time;
    store.OnTime(now, &actions);
  }
  template <typename T>
  std::vector<T> Take() {
    std::vector<T> all;
    for (const Action& action : actions) {
      if (const auto* it = std::get_if<T>(&action)) all.push_back(*it);
    }
    actions.clear();
    return all;
  }
  bool SaysStored(Incarnation to, const PeerItem& parcel) {
    bool said = false;
    for (const SendNote& send : Take<SendNote>()) {
      said = said || (send.to == to && send.note.kind == PeerMessage::Kind::kStored &&
                      send.note.parcel == parcel);
    }
    return said;
  }

  ShardStore store;
  StorePlan plan{.staleness = 3};
  Actions actions;
  Instant now{1'000'000'000};
};

TEST_F(ShardStoreTest, OneWorkerAloneHasAllAtOnce) {
  Place({{.owner = 0}, {.owner = 0}}, 1, 1);
  EXPECT_EQ(Take<KeepShard>().size(), 2u);
  EXPECT_TRUE(store.TakePlaced());
  EXPECT_FALSE(store.TakePlaced());
  Open();
  store.Push(now, 1, 1.0, 1, &actions);
  EXPECT_TRUE(store.pushed());
  EXPECT_EQ(Take<AddDelta>().size(), 2u);
  store.Read(now, 1, false, &actions);
  EXPECT_TRUE(store.TakeRead());
  EXPECT_EQ(Take<ReadShard>().size(), 2u);
}

TEST_F(ShardStoreTest, AnUpdateIsStoredOnceAllHoldersHaveIt) {
  Place({{.owner = 0, .holders = {1, 2}}});
  EXPECT_FALSE(store.TakePlaced());
  Stored(kOther, State(0, 0));
  Stored(kThird, State(0, 0));
  EXPECT_TRUE(store.TakePlaced());
  Open();
  actions.clear();
  Offer(kOther, Delta(0, 1));
  Offer(kOther, Delta(0, 1));  // said again: it is pulled once
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  Pulled(pulls[0].ticket);
  EXPECT_EQ(Take<AddDelta>().size(), 1u);
  Stored(kOther, State(0, 1));
  EXPECT_FALSE(SaysStored(kOther, Delta(0, 1)));
  Stored(kThird, State(0, 1));
  EXPECT_TRUE(SaysStored(kOther, Delta(0, 1)));
  Offer(kOther, Delta(0, 1));  // the answer was lost
  EXPECT_TRUE(SaysStored(kOther, Delta(0, 1)));
}

TEST_F(ShardStoreTest, UpdatesAreOfferedAgainAndFailedPullsTriedAgain) {
  Place({{.owner = 1}, {.owner = 0}});
  Open();
  store.Push(now, 1, 0.5, 2, &actions);
  EXPECT_EQ(Take<SendNote>().size(), 1u);
  Pass(499 * kMillisecond);
  EXPECT_EQ(Take<SendNote>().size(), 0u);
  Pass(kMillisecond);
  EXPECT_EQ(Take<SendNote>().size(), 1u);
  EXPECT_EQ(store.NextDeadline(), now + kSecond);
  Stored(kThird, Delta(0, 1));  // not its owner
  Stored(kOther, Delta(0, 2));  // not this update
  EXPECT_FALSE(store.pushed());
  Stored(kOther, Delta(0, 1));
  EXPECT_TRUE(store.pushed());
  Offer(kOther, Delta(1, 1));
  for (const DurationNs after : {100, 200, 400, 800, 1600, 2000, 2000}) {
    const auto pulls = Take<StartPull>();
    ASSERT_EQ(pulls.size(), 1u);
    Pulled(pulls[0].ticket, false);
    EXPECT_EQ(store.NextDeadline(), now + after * kMillisecond);
    Pass(after * kMillisecond);
  }
}

TEST_F(ShardStoreTest, SixteenPullsAreOnTheirWayAtOnce) {
  Place(std::vector<ShardPlace>(20, {.owner = 0}));
  Open();
  actions.clear();
  for (std::uint32_t shard = 0; shard < 20; ++shard) Offer(kOther, Delta(shard, 1));
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 16u);
  Pulled(pulls[0].ticket);
  EXPECT_EQ(Take<StartPull>().size(), 1u);
  EXPECT_EQ(store.keeper().deltas_under_way(), 16u);
}

TEST_F(ShardStoreTest, EarlyOnesWaitAndOldOnesComeToNothing) {
  Place({{.owner = 0}});
  Offer(kOther, Delta(0, 1));  // not open yet
  Ask(kOther, 1, Shard(0, 0));
  Ask(kOther, 2, State(0, 0, 2));  // of the next placement
  EXPECT_EQ(store.waiting(), 3u);
  actions.clear();
  Open();
  EXPECT_EQ(store.waiting(), 1u);
  EXPECT_EQ(Take<Serve>().size(), 1u);
  Place({{.owner = 1, .source = 0}}, 2);
  const auto serves = Take<Serve>();
  ASSERT_EQ(serves.size(), 1u);
  EXPECT_EQ(serves[0].request, 2u);
  Ask(kOther, 3, Shard(0, 0, 1));
  EXPECT_EQ(Take<Refuse>().size(), 1u);
  Offer(kOther, Delta(0, 2, 1));
  EXPECT_TRUE(actions.empty());
  Open(2);
  EXPECT_EQ(Take<ForgetShard>().size(), 1u);
}

TEST_F(ShardStoreTest, APlacementCallsOffWhatIsUnderWayAndItBeginsAnew) {
  Place({{.owner = 1}});
  Open();
  store.Read(now, 4, false, &actions);
  EXPECT_EQ(Take<StartPull>().size(), 1u);
  store.Push(now, 5, 1, 2, &actions);
  actions.clear();
  Place({{.owner = 2, .source = 1}}, 2);
  EXPECT_EQ(Take<DropPull>().size(), 1u);
  EXPECT_FALSE(store.TakeRead());
  Ask(kOther, 1, Delta(0, 5, 1));  // its owner before
  EXPECT_EQ(Take<Refuse>().size(), 1u);
  Open(2);
  const Actions opened = actions;
  const auto notes = Take<SendNote>();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].to, kThird);
  EXPECT_EQ(notes[0].note.parcel, Delta(0, 5, 2));
  actions = opened;
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  EXPECT_EQ(pulls[0].from, kThird);
  Pulled(pulls[0].ticket);
  EXPECT_TRUE(store.TakeRead());
}

TEST_F(ShardStoreTest, ANewOwnerTakesTheStateAndKnowsWhatIsInIt) {
  Place({{.owner = 0, .source = 1}});
  EXPECT_FALSE(store.TakePlaced());
  auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  EXPECT_EQ(pulls[0].parcel, State(0, 0));
  Pulled(pulls[0].ticket, true, {.version = -1});  // cannot be
  EXPECT_EQ(Take<DropPull>().size(), 1u);
  Pass(100 * kMillisecond);
  pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  const ShardHeader state{.version = 7,
                          .clocks = {{.worker = 5, .clock = 9}, {.worker = kOther, .clock = 4}}};
  Pulled(pulls[0].ticket, true, state);
  EXPECT_TRUE(store.TakePlaced());
  Open();
  actions.clear();
  Offer(kOther, Delta(0, 4));
  EXPECT_TRUE(SaysStored(kOther, Delta(0, 4)));
  Ask(kOther, 1, Shard(0, 4));
  ASSERT_EQ(Take<Serve>().size(), 1u);
}

TEST_F(ShardStoreTest, AHolderPullsOnlyWhatItHasNot) {
  Place({{.owner = 1, .holders = {0}}});
  Offer(kOther, State(0, 0));
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  Pulled(pulls[0].ticket, true, {.version = 2});
  EXPECT_TRUE(SaysStored(kOther, State(0, 2)));
  Offer(kOther, State(0, 1));
  EXPECT_TRUE(SaysStored(kOther, State(0, 2)));
  Open();
  // The same version under the next placement: there is nothing to move.
  Place({{.owner = 1, .holders = {0}, .source = 1}}, 2);
  Offer(kOther, State(0, 2, 2));
  EXPECT_TRUE(SaysStored(kOther, State(0, 2, 2)));
  // A newer one than the owner's is one that the owner never had.
  Place({{.owner = 2, .holders = {0}, .source = 2}}, 3);
  Offer(kThird, State(0, 1, 3));
  EXPECT_EQ(Take<StartPull>().size(), 1u);
}

// Two owners began it anew, each with what it had read: their versions are 0 both.
TEST_F(ShardStoreTest, AShardThatBeginsAnewIsNoneOfItsCopies) {
  Place({{.owner = 0, .holders = {1, 2}}});
  Take<KeepShard>();
  Place({{.owner = 1, .holders = {0, 2}}}, 2);
  EXPECT_EQ(Take<ForgetShard>().size(), 1u);
  Offer(kOther, State(0, 0, 2));
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  Pulled(pulls[0].ticket);
  EXPECT_TRUE(SaysStored(kOther, State(0, 0, 2)));
  Place({{.owner = 1, .holders = {0, 2}, .source = 1}}, 3);
  EXPECT_TRUE(Take<ForgetShard>().empty());
  Offer(kOther, State(0, 0, 3));
  EXPECT_TRUE(SaysStored(kOther, State(0, 0, 3))) << "it goes on, and is here";
}

TEST_F(ShardStoreTest, LockstepReadsWhatIsOfItsClockOrBefore) {
  plan.staleness = 0;
  Place({{.owner = 0}});
  Open();
  actions.clear();
  Offer(kOther, Delta(0, 1));
  const auto pulls = Take<StartPull>();
  ASSERT_EQ(pulls.size(), 1u);
  Pulled(pulls[0].ticket);
  const auto adds = Take<AddDelta>();
  ASSERT_EQ(adds.size(), 1u);
  EXPECT_TRUE(adds[0].pending);
  Ask(kOther, 1, Shard(0, 0));
  EXPECT_EQ(Take<MergePending>().size(), 0u);
  Ask(kOther, 2, Shard(0, 1));
  Ask(kThird, 3, Shard(0, 1));
  EXPECT_EQ(Take<MergePending>().size(), 1u);
}

TEST_F(ShardStoreTest, ADelayedUpdateCountsLess) {
  plan.staleness_aware = true;
  Place({{.owner = 0}});
  Open();
  actions.clear();
  std::vector<double> factors;
  for (std::int64_t clock = 1; clock <= 5; ++clock) {
    Offer(kOther, Delta(0, clock), 0);  // all computed on version 0, 2 workers
    Pulled(Take<StartPull>().at(0).ticket);
    factors.push_back(Take<AddDelta>().at(0).factor);
  }
  EXPECT_EQ(factors, (std::vector<double>{1, 1, 2.0 / 3, 0.5, 0.4}));
  Offer(kOther, Delta(0, 6), INT64_MIN);
  Pulled(Take<StartPull>().at(0).ticket);
  EXPECT_DOUBLE_EQ(Take<AddDelta>().at(0).factor, 2.0 / 6);
}

TEST_F(ShardStoreTest, NothingThatPeersSendBreaksIt) {
  Place({{.owner = 0, .holders = {1}}, {.owner = 1, .holders = {0}, .source = 2}});
  Stored(kOther, State(0, INT64_MAX));
  Open();
  actions.clear();
  const std::int64_t stamps[] = {INT64_MIN, -1, 0, kMaxClock + 1, INT64_MAX};
  Request request = 0;
  for (const std::int64_t stamp : stamps) {
    for (const std::uint32_t shard : {0u, 1u, 2u, UINT32_MAX}) {
      for (const std::uint64_t epoch : {0u, 1u}) {
        for (const Incarnation from : {kOther, kThird, Incarnation{999}}) {
          for (const auto kind : {PeerItem::Kind::kUpdate, PeerItem::Kind::kDelta,
                                  PeerItem::Kind::kShard, PeerItem::Kind::kState}) {
            const PeerItem parcel{kind, shard, epoch, stamp};
            Offer(from, parcel, stamp);
            Stored(from, parcel);
            const std::size_t before = actions.size();
            Ask(from, ++request, parcel);
            EXPECT_GT(actions.size(), before) << "a request is answered";
          }
        }
      }
    }
  }
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    Offer(999, Delta(0, 1, 2 + i));
    Ask(999, ++request, Shard(0, 1, 2 + i));
  }
  EXPECT_LE(store.waiting(), 2 * 4096u);
  Pulled(77);
  Pass(kSecond);
}

}  // namespace
}  // namespace prd::shard_store_test
