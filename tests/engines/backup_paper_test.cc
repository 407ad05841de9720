// Backup workers: what the papers say of them. Chen et al., Revisiting Distributed Synchronous SGD,
// 2016; described in Luo et al., Hop, ASPLOS 2019, section 3.4, and measured in Miao et al.,
// SIGMOD 2021, Table 1 (BK).
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/backup/backup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prd::backup_paper_test {
namespace {

// What became of a run in virtual time.
struct Outcome {
  std::vector<GroupFormed> rounds;
  std::vector<Instant> at;        // of each round
  std::map<Rank, int> dropped;    // gradients
  std::map<Rank, int> in_rounds;  // the same, used
};

// Workers that compute for as long as they are given, up to `vary` of that more or less, with free
// reductions. Who is dropped copies a replica first.
Outcome Train(int backups, const std::vector<DurationNs>& step, int rounds,
              const std::set<Rank>& crash_after_three = {}, DurationNs copy = 0, double vary = 0) {
  Backup engine({.backups = backups});
  Outcome outcome;
  GroupId next_group = 1;
  Iteration newest = 0;
  Instant now;
  std::set<Rank> gone;
  std::map<Rank, Iteration> replica;
  std::map<Rank, std::int64_t> computing;  // the order of what each computes: not what is cut short
  using Coming = std::tuple<std::int64_t, std::int64_t, Rank>;
  std::priority_queue<Coming, std::vector<Coming>, std::greater<>> coming;
  std::int64_t order = 0;
  Prng random(1);
  const auto compute = [&](Rank rank, DurationNs before = 0) {
    computing[rank] = order;
    replica[rank] = newest;
    const double times = 1 + vary * (2 * random.Unit() - 1);
    const auto own = static_cast<double>(step[static_cast<std::size_t>(rank)]) * times;
    coming.emplace(now.ns + before + static_cast<DurationNs>(own), order++, rank);
  };
  std::function<void(const Event&)> tell = [&](const Event& event) {
    Effects effects;
    engine.Step(now, event, &next_group, &effects);
    for (const Effect& effect : effects) {
      if (const auto* late = std::get_if<UpdateDropped>(&effect)) {
        ++outcome.dropped[late->rank];
        compute(late->rank, copy);
        continue;
      }
      const auto& group = std::get<GroupFormed>(effect);
      outcome.rounds.push_back(group);
      outcome.at.push_back(now);
      newest = group.iteration;
      for (const GroupShare& member : group.members) {
        ++outcome.in_rounds[member.rank];
        tell(FinishedEvent{.rank = member.rank, .group = group.id, .ok = true});
        compute(member.rank);
      }
      tell(EndedEvent{.group = group.id, .ok = true});
    }
  };
  for (Rank rank = 0; rank < std::ssize(step); ++rank) {
    tell(JoinedEvent{.rank = rank, .host = "h"});
    compute(rank);
  }
  while (std::ssize(outcome.rounds) < rounds) {
    const auto [at, mine, rank] = coming.top();
    if (const auto deadline = engine.NextDeadline(); deadline && deadline->ns < at) {
      now = *deadline;
      tell(DeadlineEvent{});
      continue;
    }
    coming.pop();
    now.ns = at;
    if (newest == 3 && gone.empty()) {
      for (const Rank crashed : crash_after_three) {
        gone.insert(crashed);
        tell(LeftEvent{.rank = crashed, .why = LeftReason::kLost});
      }
    }
    if (gone.contains(rank) || computing[rank] != mine) continue;
    tell(ReadyEvent{.rank = rank, .ready = {.iteration = replica[rank] + 1}});
  }
  return outcome;
}

constexpr DurationNs kFast = 10 * kMillisecond;

// Hop, 3.4: "the effective number of workers is m, since it needs m updates in each iteration, and
// the remaining n - m workers are backups".
TEST(BackupPaperTest, ARoundNeedsAllButTheBackups) {
  const std::vector<DurationNs> step = {1, 2, 3, 4, 5};
  for (const int backups : {0, 1, 2, 4}) {
    const Outcome outcome = Train(backups, step, 1);
    EXPECT_EQ(outcome.rounds[0].members.size(), 5u - static_cast<std::size_t>(backups));
    for (const GroupShare& member : outcome.rounds[0].members) {
      EXPECT_DOUBLE_EQ(member.weight, 1.0 / (5 - backups)) << "the mean of those that came";
      EXPECT_LT(member.rank, 5 - backups) << "the first";
      EXPECT_EQ(member.iteration, 1);
    }
  }
}

// "In this way, we can tolerate at most n - m slow workers ... without influencing the training
// speed": the pace is that of the m-th fastest, however slow the others are.
TEST(BackupPaperTest, SlowWorkersWithinTheBackupsDoNotSlowItDown) {
  for (const std::int64_t factor : {2, 5, 100, 1'000'000}) {
    const std::vector<DurationNs> step = {kFast, kFast,          kFast,
                                          kFast, kFast * factor, kFast * factor};
    EXPECT_EQ(Train(2, step, 100).at.back(), Instant{100 * kFast}) << factor;
    if (factor < 1000) {
      EXPECT_EQ(Train(1, step, 100).at.back(), Instant{100 * kFast * factor})
          << "one more slow worker than backups";
    }
  }
}

// "... or even accidental node crashes".
TEST(BackupPaperTest, CrashesWithinTheBackupsDoNotSlowItDown) {
  const std::vector<DurationNs> step(6, kFast);
  const Outcome outcome = Train(2, step, 50, {0, 3});
  EXPECT_EQ(outcome.at.back(), Instant{50 * kFast});
  EXPECT_EQ(outcome.rounds.back().members.size(), 2u) << "b of those who are there are backups";
}

// Miao et al., on BK with 3 backup workers of 8: "the stragglers are not contributing in BK".
TEST(BackupPaperTest, StragglersDoNotContribute) {
  std::vector<DurationNs> step(8, kFast);
  for (const std::size_t slow : {1u, 4u, 6u}) step[slow] = 5 * kFast;
  Outcome outcome = Train(3, step, 200);
  for (const Rank rank : {1, 4, 6}) {
    EXPECT_EQ(outcome.in_rounds[rank], 0);
    EXPECT_EQ(outcome.dropped[rank], 40) << "each gradient: one in 50 ms of 2 s";
  }
  for (const Rank rank : {0, 2, 3, 5, 7}) {
    EXPECT_EQ(outcome.in_rounds[rank], 200);
    EXPECT_EQ(outcome.dropped[rank], 0);
  }
}

// The paper's workers all read the new parameters after a round. Here who was dropped copies them
// first, and is not to be late again for that: among equal workers each is in most rounds, and none
// is dropped many times in a row, whatever part of an eighth of a step copying takes.
TEST(BackupPaperTest, WhoHadToCopyIsNotDroppedForThat) {
  constexpr int kRounds = 400;
  for (const DurationNs copy : {kFast / 100, kFast / 20, kFast / 10}) {
    const Outcome outcome = Train(1, {kFast, kFast, kFast}, kRounds, {}, copy, 0.01);
    std::map<Rank, int> absent;
    int longest = 0;
    for (const GroupFormed& round : outcome.rounds) {
      for (const Rank rank : {0, 1, 2}) {
        const bool in = std::any_of(round.members.begin(), round.members.end(),
                                    [rank](const GroupShare& of) { return of.rank == rank; });
        absent[rank] = in ? 0 : absent[rank] + 1;
        longest = std::max(longest, absent[rank]);
      }
    }
    EXPECT_LE(longest, 4) << copy;
    for (const Rank rank : {0, 1, 2}) EXPECT_GT(outcome.in_rounds.at(rank), kRounds * 7 / 10);
    EXPECT_LT(outcome.at.back().ns, kRounds * (kFast + copy)) << "no round waits longer than that";
  }
}

// A round waits for nobody who would not come in time: copying that takes long is as slow a worker.
TEST(BackupPaperTest, WhoCopiesForLongIsNotAwaited) {
  const std::vector<DurationNs> step(3, kFast);
  Outcome outcome = Train(1, step, 100, {}, kFast / 2);
  EXPECT_EQ(outcome.at.back(), Instant{100 * kFast});
  EXPECT_EQ(outcome.in_rounds[2], 0);
}

// Nor for a slow worker that had to copy, however slow.
TEST(BackupPaperTest, ASlowWorkerThatHadToCopyIsNotAwaited) {
  for (const double factor : {1.2, 2.0, 5.0}) {
    const auto slow = static_cast<DurationNs>(static_cast<double>(kFast) * factor);
    const Outcome outcome = Train(1, {kFast, kFast, slow}, 100, {}, kFast / 20);
    EXPECT_EQ(outcome.at.back(), Instant{100 * kFast}) << factor;
  }
}

// Three workers, one of which is a backup. Rounds 1 and 2, at 100 and 200 ms, were those of ranks 0
// and 1, and rank 2 had to copy at 100 ms.
class BackupRounds : public testing::Test {
 protected:
  void SetUp() override {
    for (const Rank rank : {0, 1, 2}) Tell(0, JoinedEvent{.rank = rank, .host = "h"});
    Ready(100, 0, 1);
    Ready(100, 1, 1);
    End(100, 1);
    Ready(200, 0, 2);
    Ready(200, 1, 2);
    ASSERT_EQ(GroupsOf(said_).size(), 1u) << "nobody knows yet when rank 2 comes";
  }

  void Tell(std::int64_t ms, const Event& event) {
    said_.clear();
    engine_.Step({ms * kMillisecond}, event, &next_, &said_);
  }
  void Ready(std::int64_t ms, Rank rank, Iteration iteration) {
    Tell(ms, ReadyEvent{.rank = rank, .ready = {.iteration = iteration}});
  }
  // Ends a group of ranks 0 and 1.
  void End(std::int64_t ms, GroupId group, bool well_for_1 = true) {
    Tell(ms, FinishedEvent{0, group, true, 0});
    Tell(ms, FinishedEvent{1, group, well_for_1, 0});
    Tell(ms, EndedEvent{.group = group, .ok = true});
  }
  // The last event let this worker copy the model.
  bool Drops(Rank rank) const {
    return std::any_of(said_.begin(), said_.end(), [rank](const Effect& effect) {
      const auto* late = std::get_if<UpdateDropped>(&effect);
      return late != nullptr && late->rank == rank;
    });
  }
  std::string Explain(std::int64_t ms, Rank rank) const {
    return engine_.Explain({ms * kMillisecond}, rank);
  }

  Backup engine_{{.backups = 1}};
  GroupId next_ = 1;
  Effects said_;
};

// Whoever made the newest replica may go when others have it, and before these signal: a worker
// that joins with an older one does not make that iteration again.
TEST_F(BackupRounds, WhatOthersHaveCopiedIsNotMadeAgain) {
  End(200, 2);
  StateArchive before = StateArchive::Saver();
  engine_.Archive(before);
  for (const Iteration newest : {2, 1}) {
    SCOPED_TRACE(newest);
    StateArchive again = StateArchive::Loader(before.bytes());
    engine_.Archive(again);
    ASSERT_TRUE(again.ok());
    for (const Rank rank : {0, 1}) Tell(205, LeftEvent{.rank = rank, .why = LeftReason::kLost});
    Tell(210, JoinedEvent{.rank = 3, .iteration = 1, .host = "h", .newest = newest});
    Ready(220, 3, 2);
    EXPECT_EQ(Drops(3), newest == 2);
    EXPECT_EQ(GroupsOf(said_).size(), newest == 2 ? 0u : 1u);
  }
}

// A round that waits says for whom, and goes on without the awaited when that worker does not come
// in time, or leaves.
TEST_F(BackupRounds, WaitForWhoHadToCopyUntilTheirDeadline) {
  End(200, 2);
  Ready(204, 2, 2);  // late again: it took 104 ms
  EXPECT_TRUE(Drops(2)) << "at once: it can be in the next round";
  StateArchive before = StateArchive::Saver();
  engine_.Archive(before);
  for (const std::string end : {"comes", "deadline", "leaves"}) {
    SCOPED_TRACE(end);
    StateArchive again = StateArchive::Loader(before.bytes());
    engine_.Archive(again);
    ASSERT_TRUE(again.ok());
    Ready(300, 0, 3);
    Ready(300, 1, 3);
    EXPECT_TRUE(said_.empty());
    EXPECT_EQ(engine_.NextDeadline(), Instant{313 * kMillisecond}) << "300 and 104 / 8";
    EXPECT_THAT(Explain(303, 0),
                testing::HasSubstr("at most for rank 2, late for having had to copy"));
    if (end == "comes") Ready(308, 2, 3);
    if (end == "deadline") Tell(313, DeadlineEvent{});
    if (end == "leaves") Tell(308, LeftEvent{.rank = 2, .why = LeftReason::kLost});
    ASSERT_EQ(GroupsOf(said_).size(), 1u);
    EXPECT_EQ(GroupsOf(said_)[0].members.size(), end == "comes" ? 3u : 2u);
    EXPECT_THAT(GroupsOf(said_)[0].reason, testing::HasSubstr("; waited "));
    EXPECT_EQ(engine_.NextDeadline(), std::nullopt);
  }
}

// Rank 2 is so late that it would be late for the third round, too. It begins with the others after
// that, rather than late once more.
TEST_F(BackupRounds, WhoWouldBeLateTwiceBeginsWithTheOthers) {
  End(200, 2);
  Ready(210, 2, 2);
  EXPECT_TRUE(said_.empty());
  EXPECT_THAT(Explain(210, 2), testing::HasSubstr("copies the model when the next round has "
                                                  "ended, or in 102.5 ms"));
  Ready(300, 0, 3);
  Ready(300, 1, 3);
  ASSERT_EQ(GroupsOf(said_).size(), 1u) << "nobody waits for rank 2";
  End(302, 3);
  EXPECT_TRUE(Drops(2));
  Ready(402, 0, 4);
  Ready(402, 1, 4);
  Ready(406, 2, 4);
  ASSERT_EQ(GroupsOf(said_).size(), 1u);
  EXPECT_EQ(GroupsOf(said_)[0].members.size(), 3u);
}

// But it does not wait for a slow worker: rank 1 does not come, and ranks 0 and 2 make the round.
TEST_F(BackupRounds, NobodyWaitsForASlowWorkerToBeginWithTheOthers) {
  End(200, 2);
  Ready(210, 2, 2);
  EXPECT_TRUE(said_.empty());
  Ready(300, 0, 3);
  EXPECT_TRUE(said_.empty());
  constexpr Instant kEighthLater{312'500'000};
  EXPECT_EQ(engine_.NextDeadline(), kEighthLater);
  said_.clear();
  engine_.Step(kEighthLater, DeadlineEvent{}, &next_, &said_);
  EXPECT_TRUE(Drops(2));
  EXPECT_EQ(engine_.NextDeadline(), std::nullopt);
  Ready(420, 2, 3);
  ASSERT_EQ(GroupsOf(said_).size(), 1u);
  EXPECT_EQ(GroupsOf(said_)[0].members.size(), 2u);
}

// Nor does it wait where the others are too few for a round, or where it is slow itself.
TEST_F(BackupRounds, WhoIsNeededCopiesAtOnce) {
  End(200, 2, false);  // rank 1 copies, too
  Ready(210, 2, 2);
  EXPECT_TRUE(Drops(2));
}

TEST_F(BackupRounds, WhoIsSlowCopiesAtOnce) {
  End(200, 2);
  Ready(230, 2, 2);
  EXPECT_TRUE(Drops(2));
}

// A worker that is slow once is dropped once, and can be in the next round.
TEST(BackupPaperTest, WhoIsSlowNowAndThenIsBackAtOnce) {
  Backup engine({.backups = 1});
  GroupId next = 1;
  Effects said;
  const auto tell = [&](std::int64_t ms, const Event& event) {
    said.clear();
    engine.Step({ms * kMillisecond}, event, &next, &said);
  };
  const auto ready = [&](std::int64_t ms, Rank rank, Iteration iteration) {
    tell(ms, ReadyEvent{.rank = rank, .ready = {.iteration = iteration}});
  };
  for (const Rank rank : {0, 1, 2}) tell(0, JoinedEvent{.rank = rank, .host = "h"});
  ready(10, 0, 1);
  ready(10, 1, 1);
  ASSERT_EQ(GroupsOf(said).size(), 1u);
  for (const Rank rank : {0, 1}) tell(10, FinishedEvent{.rank = rank, .group = 1, .ok = true});
  tell(10, EndedEvent{.group = 1, .ok = true});
  ASSERT_EQ(std::get<UpdateDropped>(said.at(0)).rank, 2);
  EXPECT_EQ(std::get<UpdateDropped>(said.at(0)).iteration, 0);
  ready(18, 2, 2);
  ready(20, 0, 2);
  ASSERT_EQ(GroupsOf(said).size(), 1u);
  EXPECT_EQ(GroupsOf(said)[0].members.size(), 2u);
  EXPECT_EQ(GroupsOf(said)[0].members[1].rank, 2);
}

// Unequal batches: the mean over all samples of a round. Who was dropped has no part in it.
TEST(BackupPaperTest, GradientsCountByTheSamplesInTheirBatches) {
  using Weights = BackupOptions::Weights;
  const auto weights = [](Weights by, std::int64_t first, std::int64_t second) {
    Backup engine({.backups = 1, .weights = by});
    GroupId next = 1;
    Effects said;
    for (const Rank rank : {0, 1, 2}) {
      engine.Step({}, JoinedEvent{.rank = rank, .host = "h"}, &next, &said);
    }
    const auto ready = [&](Rank rank, std::int64_t samples) {
      engine.Step({}, ReadyEvent{.rank = rank, .ready = {.iteration = 1, .samples = samples}},
                  &next, &said);
    };
    ready(2, first);
    ready(0, second);
    const GroupFormed round = GroupsOf(said).at(0);
    EXPECT_EQ(round.members.at(0).rank, 0);
    return std::pair(round.members.at(0).weight, round.members.at(1).weight);
  };
  EXPECT_EQ(weights(Weights::kSamples, 64, 16), std::pair(0.2, 0.8));
  EXPECT_EQ(weights(Weights::kSamples, 64, 64), std::pair(0.5, 0.5));
  EXPECT_EQ(weights(Weights::kSamples, 64, 0), std::pair(0.5, 0.5)) << "one is not told";
  EXPECT_EQ(weights(Weights::kUniform, 64, 16), std::pair(0.5, 0.5));
}

TEST(BackupOptionsTest, FewerThanTheWorkers) {
  EXPECT_TRUE(BackupOptions{.backups = 7}.Check(8).ok());
  EXPECT_EQ(BackupOptions{.backups = 8}.Check(8).message(),
            "backups: found 8, allowed is 0 to 7: a round of 8 workers waits for one at least");
  EXPECT_TRUE(BackupOptions{.backups = 8}.Check(0).ok()) << "not known how many";
}

}  // namespace
}  // namespace prd::backup_paper_test
