// SSP's conditions (Ho et al., NIPS 2013, section 2), and where its shards are.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engines/engine_watch.h"
#include "engines/ssp/placement.h"
#include "engines/ssp/ssp.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engines/store_driver.h"
#include "tests/plans.h"

namespace prd::ssp_paper_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An engine and its workers, whose shards are placed.
struct Started {
  Started(const SspOptions& options, Rank workers)
      : engine(MakeEngine(options), options), world(&engine) {
    EXPECT_TRUE(Validate(options, workers).ok());
    for (Rank rank = 0; rank < workers; ++rank) EXPECT_EQ(world.Join(rank), "");
    EXPECT_EQ(world.PassDeadline(), "");
    EXPECT_EQ(world.PlaceAll(), "");
  }

  // Everybody but `slow` goes on, as far as that is possible.
  void Exhaust(Rank slow) {
    for (bool again = true; again;) {
      again = false;
      for (const Rank rank : world.WhoCanSignal()) {
        if (rank == slow) continue;
        ASSERT_EQ(world.Signal(rank), "");
        again = true;
      }
    }
  }

  EngineWatch engine;
  StoreDriver world;
};

// "The slowest and fastest workers must be <= s clocks apart - otherwise, the fastest worker is
// forced to wait for the slowest worker to catch up." And "when a worker with clock c reads, it
// will always see effects from all u with timestamp <= c - s - 1."
TEST(SspPaperTest, NobodyIsMoreThanSClocksAhead) {
  for (const int s : {0, 1, 3, 10}) {
    Started run({.staleness = s}, 5);
    Prng random(static_cast<std::uint64_t>(s) + 1);
    Iteration widest = 0;
    for (int i = 0; i < 3000; ++i) {
      const std::vector<Rank> able = run.world.WhoCanSignal();
      ASSERT_FALSE(able.empty());
      const Rank next = able[random.Below(able.size())];
      if (next == 2 && able.size() > 1 && random.Below(10) > 0) continue;  // a slow one
      ASSERT_EQ(run.world.Signal(next), "");
      for (Rank a = 0; a < 5; ++a) {
        // It sees updates with timestamps 0 to SeesUpTo - 1 of everybody.
        ASSERT_GE(run.world.SeesUpTo(a) - 1, run.world.Clock(a) - s - 1);
        for (Rank b = 0; b < 5; ++b) {
          widest = std::max(widest, run.world.Clock(a) - run.world.Clock(b));
          ASSERT_LE(run.world.Clock(a) - run.world.Clock(b), s);
        }
      }
    }
    EXPECT_EQ(widest, s);
  }
}

TEST(SspPaperTest, TheFastestWaitForTheSlowestWithSClocksBetween) {
  for (const int s : {1, 3, 10}) {
    Started run({.staleness = s}, 4);
    run.Exhaust(3);
    for (const Rank rank : {0, 1, 2}) {
      EXPECT_EQ(run.world.Clock(rank), s);
      EXPECT_TRUE(run.world.Waits(rank));
      EXPECT_EQ(run.engine.Explain({}, rank), "waiting at clock " + std::to_string(s + 1) +
                                                  ": rank 3 is at clock 0, staleness " +
                                                  std::to_string(s));
    }
    ASSERT_EQ(run.world.Signal(3), "");
    for (const Rank rank : {0, 1, 2}) EXPECT_EQ(run.world.Clock(rank), s + 1);
    EXPECT_EQ(run.world.Clock(3), 1);
  }
}

// s = 0: bulk synchronous. All are let go on at once, by the last one's signal, and all are told
// the same number of workers.
TEST(SspPaperTest, ZeroIsABarrier) {
  Started run({.staleness = 0}, 4);
  for (Iteration clock = 1; clock <= 5; ++clock) {
    for (const Rank rank : {2, 0, 3}) {
      ASSERT_EQ(run.world.Signal(rank), "");
      EXPECT_TRUE(run.world.applied().back().effects.empty());
      EXPECT_TRUE(run.world.Waits(rank));
    }
    ASSERT_EQ(run.world.Signal(1), "");
    const Effects& effects = run.world.applied().back().effects;
    ASSERT_EQ(effects.size(), 4u);
    for (const Effect& effect : effects) {
      EXPECT_EQ(std::get<QueryAnswered>(effect).next, clock);
      EXPECT_EQ(std::get<QueryAnswered>(effect).workers, 4u);
    }
  }
}

TEST(SspPaperTest, WithoutABoundNobodyWaits) {
  Started run({.staleness = -1}, 3);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(run.world.Signal(0), "");
    ASSERT_FALSE(run.world.Waits(0));
  }
  EXPECT_EQ(run.world.Clock(0), 1000);
  EXPECT_EQ(run.world.Clock(1), 0);
  // Nor for one that comes: it starts with the slowest.
  ASSERT_EQ(run.world.Join(7, 0), "");
  ASSERT_EQ(run.world.Signal(0), "");
  EXPECT_FALSE(run.world.Waits(0));
}

TEST(SspPaperTest, ThePlanSaysWhatTheWorkersNeed) {
  const Plan plan =
      Ssp({.staleness = 2, .learning_rate = SspOptions::LearningRate::kStalenessAware}).plan();
  EXPECT_EQ(plan, (Plan{.by = StorePlan{.staleness = 2, .staleness_aware = true}}));
  EXPECT_EQ(Ssp({.staleness = -1}).plan(), plans::Store(-1));
}

// ---- workers that come and go ----

TEST(SspPaperTest, WhoIsGoneOrHasFinishedIsNotWaitedFor) {
  for (const LeftReason why : {LeftReason::kFinished, LeftReason::kLost}) {
    Started run({.staleness = 1}, 3);
    run.Exhaust(2);
    ASSERT_TRUE(run.world.Waits(0));
    ASSERT_EQ(run.world.Leave(2, why), "");
    EXPECT_FALSE(run.world.Waits(0));
    // A worker that has finished goes on holding its shards; one that is gone cannot.
    EXPECT_EQ(run.engine.NextDeadline().has_value(), why != LeftReason::kFinished);
    if (why == LeftReason::kFinished) {
      ASSERT_EQ(run.world.Leave(2), "");
      EXPECT_TRUE(run.engine.NextDeadline().has_value());
    }
  }
}

// A joiner counts once it is in a placement, at the lowest clock or its own.
TEST(SspPaperTest, AJoinerStartsAtTheLowestClock) {
  Started run({.staleness = 3}, 2);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(run.world.Signal(0), "");
    ASSERT_EQ(run.world.Signal(1), "");
  }
  ASSERT_EQ(run.world.Join(4, 2), "");
  ASSERT_EQ(run.world.Join(5, 8), "");
  EXPECT_EQ(run.engine.Explain({}, 4), "waiting to be in a placement of the shards");
  run.Exhaust(1);
  EXPECT_EQ(run.world.Clock(0), 8);
  ASSERT_EQ(run.world.PassDeadline(), "");
  EXPECT_EQ(run.world.Clock(4), 5);
  EXPECT_EQ(run.world.Clock(5), 8);
  EXPECT_EQ(
      run.engine.Explain({}, 1),
      "placement 2 of the shards is not open: ranks 0, 1, 4, 5 have not all of their own yet");
  for (const Rank rank : {0, 1, 4}) ASSERT_EQ(run.world.Place(rank), "");
  EXPECT_EQ(run.engine.Explain({}, 1),
            "placement 2 of the shards is not open: rank 5 has not all of its own yet");
  EXPECT_EQ(run.engine.Explain({}, 5),
            "placement 2 of the shards is not open: it has not all of its own yet");
  ASSERT_EQ(run.world.PlaceAll(), "");
  EXPECT_EQ(run.engine.Explain({}, 5), "");
}

// It holds shards that the others have trained on, up to their clock.
TEST(SspPaperTest, WhoPausedAndIsAloneGoesOnAtTheClockOfItsShards) {
  for (const bool stays : {true, false}) {
    Started run({.staleness = 0}, 2);
    ASSERT_EQ(run.world.Leave(0, LeftReason::kPaused), "");
    for (int i = 0; i < 6; ++i) ASSERT_EQ(run.world.Signal(1), "");
    ASSERT_EQ(run.world.Leave(1), "");
    if (!stays) {
      ASSERT_EQ(run.world.Leave(0), "");  // and the shards with it
    }
    ASSERT_EQ(run.world.Join(0, 2), "");
    ASSERT_EQ(run.world.PassDeadline(), "");
    EXPECT_EQ(run.world.Clock(0), stays ? 6 : 2);
  }
}

// A worker dies before the placement is open: another follows, from whoever has the state.
TEST(SspPaperTest, ADeathWhileShardsMove) {
  Started run({.replicas = 1, .shards = 6}, 3);
  ASSERT_EQ(run.world.Signal(0), "");
  ASSERT_EQ(run.world.Join(3, 0), "");
  ASSERT_EQ(run.world.PassDeadline(), "");
  ASSERT_EQ(run.world.Place(0), "");
  ASSERT_EQ(run.world.Leave(1), "");
  EXPECT_FALSE(run.world.open());
  EXPECT_THAT(run.engine.Explain({}, 0), HasSubstr("placement 2 of the shards is not open"));
  ASSERT_EQ(run.world.PassDeadline(), "");
  ASSERT_EQ(run.world.PlaceAll(), "");
  EXPECT_EQ(run.engine.rules().Counter("lost"), 0);
  EXPECT_THAT(run.world.placement().members, ElementsAre(0, 2, 3));
  EXPECT_EQ(run.world.placement().epoch, 3u);
}

// With fewer deaths than copies nothing is lost; with more, the reason says so.
TEST(SspPaperTest, AsManyDeathsAsReplicas) {
  for (const int replicas : {0, 1, 2, 3}) {
    for (Rank deaths = 1; deaths <= 4; ++deaths) {
      Started run({.replicas = replicas, .shards = 60}, 6);
      ASSERT_EQ(run.world.Signal(0), "");
      for (Rank rank = 0; rank < deaths; ++rank) ASSERT_EQ(run.world.Leave(rank), "");
      ASSERT_EQ(run.world.PassDeadline(), "");
      EXPECT_EQ(run.engine.rules().Counter("lost") == 0, deaths <= replicas)
          << replicas << " " << deaths;
      const bool says = run.world.placement().reason.find("updates were lost") != std::string::npos;
      EXPECT_EQ(says, run.engine.rules().Counter("lost") > 0);
      ASSERT_EQ(run.world.PlaceAll(), "");
    }
  }
}

// ---- PlaceShards ----

std::vector<ShardState> After(const std::vector<ShardPlace>& places, Rank gone = kNoRank) {
  std::vector<ShardState> shards;
  for (const ShardPlace& place : places) {
    ShardState& shard = shards.emplace_back();
    shard.owner = place.owner == gone ? kNoRank : place.owner;
    shard.holders = place.holders;
    shard.complete = place.holders;
    shard.complete.insert(shard.complete.begin(), place.owner);
    std::erase(shard.holders, gone);
    std::erase(shard.complete, gone);
  }
  return shards;
}

int Moved(const std::vector<ShardPlace>& before, const std::vector<ShardPlace>& after) {
  int moved = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    moved += before[i].owner != after[i].owner ? 1 : 0;
  }
  return moved;
}

// Copies that must be made: of a shard on a worker that did not have it.
int Copied(const std::vector<ShardState>& before, const std::vector<ShardPlace>& after) {
  int copied = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::set<Rank> have(before[i].complete.begin(), before[i].complete.end());
    copied += have.contains(after[i].owner) ? 0 : 1;
    for (const Rank rank : after[i].holders) copied += have.contains(rank) ? 0 : 1;
  }
  return copied;
}

TEST(SspPlacementTest, FewShardsMove) {
  std::vector<Rank> members;
  for (Rank rank = 0; rank < 8; ++rank) members.push_back(rank);
  const auto first = PlaceShards(std::vector<ShardState>(16), members, 1);
  EXPECT_EQ(first[0].source, kNoRank);
  // The same again: nothing moves.
  EXPECT_EQ(Moved(first, PlaceShards(After(first), members, 1)), 0);
  EXPECT_EQ(Copied(After(first), PlaceShards(After(first), members, 1)), 0);
  // A ninth gets its share, 16 / 9, and no other moves.
  std::vector<Rank> more = members;
  more.push_back(8);
  const auto joined = PlaceShards(After(first), more, 1);
  EXPECT_EQ(Moved(first, joined), 1);
  EXPECT_LE(Copied(After(first), joined), 4);
  // One is gone: its two shards go to who has them, and get new copies, as do those it held.
  std::vector<Rank> fewer = members;
  std::erase(fewer, 3);
  const auto left = PlaceShards(After(first, 3), fewer, 1);
  EXPECT_EQ(Moved(first, left), 2);
  EXPECT_LE(Copied(After(first, 3), left), 5);
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_NE(left[i].source, kNoRank);
}

TEST(SspPlacementTest, AsManyHoldersAsThereAreOthers) {
  const auto alone = PlaceShards(std::vector<ShardState>(3), {5}, 2);
  for (const ShardPlace& place : alone) {
    EXPECT_EQ(place.owner, 5);
    EXPECT_TRUE(place.holders.empty());
  }
  const auto two = PlaceShards(After(alone), {5, 9}, 2);
  for (const ShardPlace& place : two) {
    EXPECT_EQ(place.source, 5);
    EXPECT_EQ(place.holders.size(), 1u);
    EXPECT_NE(place.holders[0], place.owner);
  }
}

// More workers than shards: some own none, nobody two.
TEST(SspPlacementTest, FewerShardsThanWorkers) {
  const auto places = PlaceShards(std::vector<ShardState>(3), {0, 1, 2, 3, 4}, 1);
  std::set<Rank> owners, holders;
  for (const ShardPlace& place : places) {
    owners.insert(place.owner);
    holders.insert(place.holders.at(0));
  }
  EXPECT_EQ(owners.size(), 3u);
  EXPECT_EQ(holders.size(), 3u);
}

}  // namespace
}  // namespace prd::ssp_paper_test
