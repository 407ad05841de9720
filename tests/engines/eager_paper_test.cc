// Sentences of the paper (Li et al., Taming Unbalanced Training Workloads in Deep Learning with
// Partial Collective Operations, PPoPP 2020), one test each, and the rules that eager.h adds to it.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "common/base/prng.h"
#include "engines/eager/eager.h"
#include "engines/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plans.h"

namespace prd::eager_paper_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An engine and workers that compute, arrive and take results as the paper's processes do.
class EagerTest : public testing::Test {
 protected:
  struct Process {
    Iteration step = 0;             // t: the newest result in its weights
    Iteration received = 0;         // the newest result in its receive buffer
    std::uint32_t send_buffer = 0;  // gradients; 0 is G_null
    std::uint32_t given = 0;
    bool waiting = false;
  };

  void Start(const EagerOptions& options, Rank workers) {
    engine_ = std::make_unique<Eager>(options);
    processes_.clear();
    round_.reset();
    last_ = 0;
    for (Rank rank = 0; rank < workers; ++rank) Join(rank);
  }

  void Join(Rank rank) {
    processes_[rank] = {.step = last_, .received = last_};
    Step(JoinedEvent{.rank = rank, .iteration = last_, .host = "h"});
  }

  void Leave(Rank rank, LeftReason why = LeftReason::kLost) {
    processes_.erase(rank);
    Step(LeftEvent{.rank = rank, .why = why});
  }

  // Finishes the computation of a gradient. True when that starts a round (or an average).
  bool Compute(Rank rank, std::int64_t samples = 0) {
    Process& process = processes_.at(rank);
    EXPECT_FALSE(process.waiting);
    const Iteration at = process.step + 1;
    process.waiting = process.received == process.step;
    process.step = process.received;
    ++process.send_buffer;
    const bool running = round_.has_value();
    Step(ReadyEvent{
        .rank = rank,
        .ready = {.iteration = at, .samples = samples, .waiting = process.waiting, .gradients = 1},
        .owed = process.send_buffer});
    return !running && round_.has_value();
  }

  // Everybody computes until it waits.
  void AllArrive() {
    for (const Rank rank : Everybody()) {
      while (processes_.contains(rank) && !processes_.at(rank).waiting) Compute(rank);
    }
  }

  // The running round or average ends. True when another one starts.
  bool End(bool ok = true) {
    const GroupFormed group = *round_;
    round_.reset();
    for (const GroupShare& member : group.members) {
      if (!processes_.contains(member.rank)) continue;
      Process& process = processes_.at(member.rank);
      const std::uint32_t given = std::exchange(process.given, 0);
      if (group.kind == GroupKind::kRound) Take(&process, group, given, ok);
      Step(FinishedEvent{
          .rank = member.rank, .group = group.id, .ok = ok, .owed = process.send_buffer});
    }
    if (ok && group.kind == GroupKind::kRound) last_ = group.iteration;
    Step(EndedEvent{.group = group.id, .ok = ok});
    return round_.has_value();
  }

  void Take(Process* process, const GroupFormed& group, std::uint32_t given, bool ok) {
    if (!ok) {
      process->send_buffer += given;
      return;
    }
    process->received = group.iteration;
    if (!process->waiting || process->step >= group.iteration) return;
    process->waiting = false;
    process->step = group.iteration;
  }

  void Step(const Event& event) {
    Effects effects;
    engine_->Step({}, event, &next_group_, &effects);
    for (const GroupFormed& group : GroupsOf(effects)) {
      ASSERT_FALSE(round_) << "two at once";
      round_ = group;
      contributions_.clear();
      for (const GroupShare& member : group.members) {
        Process& process = processes_.at(member.rank);
        if (group.kind != GroupKind::kRound || member.weight == 0) continue;
        process.given = std::exchange(process.send_buffer, 0);
        contributions_[member.rank] = process.given;
      }
    }
  }

  double Weight(Rank rank) const {
    for (const GroupShare& member : round_->members) {
      if (member.rank == rank) return member.weight;
    }
    ADD_FAILURE() << "rank " << rank << " is no member";
    return 0;
  }

  std::vector<Rank> Everybody() const {
    std::vector<Rank> ranks;
    for (const auto& [rank, process] : processes_) ranks.push_back(rank);
    return ranks;
  }

  std::vector<Rank> Shuffled(Prng* random) const {
    std::vector<Rank> ranks = Everybody();
    for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random->Below(i)]);
    return ranks;
  }

  // Whom the waiting worker waits for.
  Rank Drawn(Rank waiting) const {
    const std::string why = engine_->Explain({}, waiting);
    const std::string words = "waits for rank ";
    EXPECT_THAT(why, testing::StartsWith(words));
    return why.starts_with(words) ? std::stoi(why.substr(words.size())) : kNoRank;
  }

  std::vector<Rank> Contributors() const {
    std::vector<Rank> ranks;
    for (const auto& [rank, gradients] : contributions_) ranks.push_back(rank);
    return ranks;
  }

  std::unique_ptr<Eager> engine_;
  GroupId next_group_ = 1;
  std::map<Rank, Process> processes_;
  std::optional<GroupFormed> round_;  // that runs
  std::map<Rank, std::uint32_t>
      contributions_;  // gradients of each contributor to the newest round
  Iteration last_ = 0;
};

constexpr EagerOptions kSolo{.quorum = EagerOptions::kSolo, .max_stale_rounds = 0, .sync_every = 0};
constexpr EagerOptions kMajority{.max_stale_rounds = 0, .sync_every = 0};

// Section 4.1: "forces the slow processes to execute the collective as soon as there is one process
// executing it".
TEST_F(EagerTest, TheFirstToArriveStartsASoloRoundOfAll) {
  Start(kSolo, 4);
  EXPECT_TRUE(Compute(2));
  EXPECT_EQ(round_->kind, GroupKind::kRound);
  EXPECT_EQ(round_->members.size(), 4u);
  EXPECT_THAT(Contributors(), ElementsAre(2));
  EXPECT_EQ(round_->reason, "solo: rank 2 arrived; 1 of 4 contribute");
}

// Section 4.1.1, multiple initiators: "we need to ensure that the collective is executed only
// once".
TEST_F(EagerTest, TwoInitiatorsStartOneRound) {
  Start(kSolo, 3);
  EXPECT_TRUE(Compute(0));
  EXPECT_FALSE(Compute(1));  // its internal activation comes when the round runs
  EXPECT_FALSE(End());
  EXPECT_FALSE(processes_.at(1).waiting) << "round 1 is over for it, too";
}

// Figure 7, step t: P1 is faster. P0 "only passively contributes null gradients"; "after P0
// finishes the computation, it finds out that the partial allreduce at step t is already finished".
// Step t+1, when P0 does not catch up: it "will passively participate in the partial allreduce
// again and contribute" its stale gradient.
TEST_F(EagerTest, Figure7AStaleGradientGoesIntoTheNextRound) {
  Start(kSolo, 2);
  EXPECT_TRUE(Compute(1));
  EXPECT_THAT(Contributors(), ElementsAre(1));
  End();
  EXPECT_FALSE(Compute(0)) << "late: it starts nothing";
  EXPECT_FALSE(processes_.at(0).waiting);
  EXPECT_TRUE(Compute(1));
  EXPECT_EQ(round_->iteration, 2);
  EXPECT_THAT(Contributors(), ElementsAre(0, 1));
}

// Figure 7, when P0 catches up: it "will add [the two gradients] together, and contribute the
// accumulated gradients"; "P0 resets the send buffer after finishing allreduce".
TEST_F(EagerTest, Figure7AccumulatedGradientsGoTogether) {
  Start(kSolo, 2);
  Compute(1);
  End();
  Compute(0);
  EXPECT_TRUE(Compute(0)) << "at step t+1 it has caught up, and is the first";
  EXPECT_EQ(contributions_.at(0), 2u);
  End();
  EXPECT_FALSE(Compute(1)) << "now P1 is late";
  EXPECT_TRUE(Compute(1));
  EXPECT_THAT(Contributors(), ElementsAre(1)) << "nothing twice";
}

// Algorithm 5, line 7: the sum is divided by P, whoever contributed.
TEST_F(EagerTest, WeightsAreOneOverAllWorkers) {
  Start(kSolo, 8);
  Compute(5);
  for (const GroupShare& member : round_->members) {
    EXPECT_EQ(member.weight, member.rank == 5 ? 1.0 / 8 : 0.0);
  }
}

// Unequal batches: each gradient counts for its samples, over those of all workers, so that the sum
// is the mean over a joint batch where all contribute.
TEST_F(EagerTest, GradientsCountByTheSamplesInTheirBatches) {
  Start(kSolo, 3);
  ASSERT_TRUE(Compute(0, 16));
  EXPECT_EQ(Weight(0), 1.0 / 3) << "the others have not told theirs yet";
  Compute(1, 64);
  Compute(2, 80);
  End();
  ASSERT_TRUE(Compute(0, 16));
  EXPECT_THAT(Contributors(), ElementsAre(0, 1, 2));
  EXPECT_EQ(Weight(0), 0.1);
  EXPECT_EQ(Weight(1), 0.4);
  EXPECT_EQ(Weight(2), 0.5);
  End();
  EXPECT_FALSE(Compute(1, 64)) << "late";
  ASSERT_TRUE(Compute(1, 64));
  EXPECT_THAT(Contributors(), ElementsAre(1));
  EXPECT_EQ(Weight(1), 0.4) << "those who contribute nothing have a share all the same";
  End();
  Compute(0, 0);
  ASSERT_TRUE(Compute(0, 0));
  EXPECT_EQ(Weight(0), 1.0 / 3) << "one is not told";

  EagerOptions uniform = kSolo;
  uniform.weights = EagerOptions::Weights::kUniform;
  Start(uniform, 2);
  Compute(0, 16);
  Compute(1, 64);
  End();
  Compute(0, 16);
  EXPECT_EQ(Weight(1), 0.5);
}

// The last workers of a job take no larger steps than all did together: who has finished has a
// share for as many rounds as a worker may be passed over in.
TEST_F(EagerTest, WhoHasFinishedKeepsAShareForAWhile) {
  for (const std::int64_t tau : {0, 1, 4}) {
    EagerOptions options = kSolo;
    options.max_stale_rounds = tau;
    Start(options, 4);
    AllArrive();
    while (round_) End();
    for (const Rank rank : {0, 1, 2}) Leave(rank, LeftReason::kFinished);
    for (std::int64_t round = 0; round < 20; ++round) {
      ASSERT_TRUE(Compute(3));
      EXPECT_EQ(Weight(3), tau == 0 || round < tau ? 0.25 : 1) << "round " << round;
      if (round == 2) {
        ASSERT_TRUE(End(false)) << "it starts anew, as if it had not been";
        EXPECT_EQ(Weight(3), tau == 1 ? 1 : 0.25);
      }
      ASSERT_FALSE(End());
    }
    Leave(3);
    Join(0);
    ASSERT_TRUE(Compute(0));
    EXPECT_EQ(Weight(0), 1) << "another start";
    End();
  }
}

// Whoever is lost has none.
TEST_F(EagerTest, WhoIsLostHasNoShare) {
  Start(kSolo, 4);
  Leave(2);
  Leave(0);
  ASSERT_TRUE(Compute(1));
  EXPECT_EQ(Weight(1), 0.5);
}

// Lemma 5.1 (3): "The subset of proposed updates included in the output is of size Q >= 1". Here
// the quorum is any number from solo to synchronous.
TEST_F(EagerTest, ARoundStartsWithTheQthArrival) {
  for (Rank n = 1; n <= 6; ++n) {
    for (std::int64_t quorum = 1; quorum <= n + 2; ++quorum) {
      Start({.quorum = quorum, .max_stale_rounds = 0, .sync_every = 0}, n);
      Prng random(static_cast<std::uint64_t>(10 * n + quorum));
      for (int round = 0; round < 5; ++round) {
        std::int64_t arrived = 0;
        for (const Rank rank : Shuffled(&random)) {
          ++arrived;
          ASSERT_EQ(Compute(rank), arrived == std::min<std::int64_t>(quorum, n));
        }
        EXPECT_GE(std::ssize(contributions_), std::min<std::int64_t>(quorum, n));
        ASSERT_FALSE(End());
      }
    }
  }
}

// Section 4.2: "it checks whether it is the designated initiator: only in that case it keeps
// running".
TEST_F(EagerTest, OnlyTheDrawnWorkerStartsAMajorityRound) {
  Start(kMajority, 8);
  Prng random(1);
  for (int round = 1; round <= 50; ++round) {
    Rank initiator = kNoRank;
    for (const Rank rank : Shuffled(&random)) {
      const std::string name = "rank " + std::to_string(rank);
      if (initiator == kNoRank && Compute(rank)) {
        initiator = rank;
        EXPECT_THAT(round_->reason, testing::StartsWith("majority: " + name + ", drawn for round " +
                                                        std::to_string(round) + ", arrived"));
      } else if (initiator == kNoRank) {
        EXPECT_THAT(engine_->Explain({}, rank), testing::StartsWith("waits for rank "));
        EXPECT_THAT(engine_->Explain({}, rank), testing::Not(HasSubstr(name + ",")));
      } else {
        EXPECT_FALSE(Compute(rank));
      }
    }
    ASSERT_NE(initiator, kNoRank);
    ASSERT_FALSE(End());
  }
}

// Section 4.2: "randomly selecting a rank (consensus is achieved by using the same seed)", each
// with probability 1/P, and "on average half of the processes reach the collective operation
// earlier than the initiator".
TEST_F(EagerTest, TheDrawIsUniformAndAboutHalfHaveArrived) {
  constexpr Rank kWorkers = 8;
  constexpr int kRounds = 4000;
  std::vector<std::vector<Rank>> drawn;  // by run
  for (const std::int64_t seed : {1, 1, 2}) {
    EagerOptions options = kMajority;
    options.seed = seed;
    Start(options, kWorkers);
    Prng random(drawn.size() + 77);  // who arrives when has no part in the draw
    std::vector<int> times(kWorkers);
    int earlier = 0;
    drawn.emplace_back();
    for (int round = 0; round < kRounds; ++round) {
      int before = 0;
      for (const Rank rank : Shuffled(&random)) {
        if (Compute(rank)) {
          drawn.back().push_back(rank);
          ++times[static_cast<std::size_t>(rank)];
          earlier += before;
        }
        ++before;
      }
      ASSERT_FALSE(End());
    }
    // 500 expected of each, standard deviation 21; 3.5 earlier, standard deviation of the mean
    // 0.036.
    for (const int count : times) EXPECT_NEAR(count, kRounds / kWorkers, 100);
    EXPECT_NEAR(static_cast<double>(earlier) / kRounds, (kWorkers - 1) / 2.0, 0.2);
  }
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_NE(drawn[0], drawn[2]);
}

// The designated process may die, which the paper leaves open: another one is drawn.
TEST_F(EagerTest, AnInitiatorThatLeavesIsReplaced) {
  int replaced = 0;
  for (std::int64_t seed = 1; seed <= 30; ++seed) {
    EagerOptions options = kMajority;
    options.seed = seed;
    Start(options, 5);
    if (Compute(0)) continue;  // it was drawn
    for (Rank drawn = Drawn(0); !round_; drawn = Drawn(0)) {
      Leave(drawn);
      ++replaced;
      if (round_) break;
      ASSERT_TRUE(processes_.contains(Drawn(0))) << "seed " << seed;
      ASSERT_NE(Drawn(0), 0) << "it has arrived";
    }
    EXPECT_THAT(round_->reason, testing::StartsWith("majority: rank 0, drawn for round 1"));
  }
  EXPECT_GT(replaced, 30);
}

// Lemma 5.1 (4): "any update by a process can be rejected [...] for at most tau consecutive
// rounds": the bound is reached, and not exceeded.
TEST_F(EagerTest, TheStalenessBoundIsTight) {
  for (const std::int64_t tau : {1, 2, 16}) {
    EagerOptions options = kSolo;
    options.max_stale_rounds = tau;
    Start(options, 3);
    for (int turn = 0; turn < 4; ++turn) {
      for (std::int64_t passed = 0; passed < tau; ++passed) {
        ASSERT_TRUE(Compute(0));
        ASSERT_THAT(Contributors(), ElementsAre(0));
        ASSERT_FALSE(End());
      }
      EXPECT_FALSE(Compute(0));
      const std::string rounds = std::to_string(tau) + " rounds (max_stale_rounds)";
      EXPECT_EQ(engine_->Explain({}, 0), "waits for ranks 1, 2: passed over in " + rounds);
      EXPECT_FALSE(Compute(2)) << "it owes a gradient now";
      EXPECT_EQ(engine_->Explain({}, 0), "waits for rank 1: passed over in " + rounds);
      if (turn == 2) {
        Leave(1);
        EXPECT_THAT(Contributors(), ElementsAre(0, 2)) << "who has left holds nobody up";
        break;
      }
      EXPECT_TRUE(Compute(1));
      EXPECT_THAT(Contributors(), ElementsAre(0, 1, 2));
      EXPECT_FALSE(End());
    }
  }
}

// A round that nobody has is not one that passed anybody over.
TEST_F(EagerTest, FailedRoundsDoNotCountAsPassedOver) {
  EagerOptions options = kSolo;
  options.max_stale_rounds = 1;
  Start(options, 2);
  EXPECT_TRUE(Compute(0));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(End(false)) << "its number is formed again";
  EXPECT_EQ(round_->iteration, 1);
  EXPECT_THAT(Contributors(), ElementsAre(0)) << "who gets its own gradient back";
  EXPECT_EQ(contributions_.at(0), 1u);
  EXPECT_FALSE(End());
  EXPECT_FALSE(Compute(0)) << "rank 1 has been passed over once";
  EXPECT_TRUE(Compute(1));
}

// Workers that had arrived at a round that failed have arrived again, and so have latecomers.
TEST_F(EagerTest, ArrivalsOutliveAFailedRound) {
  Start({.quorum = 2, .max_stale_rounds = 0, .sync_every = 0}, 4);
  Compute(0);
  EXPECT_TRUE(Compute(1));
  Compute(2);
  Leave(1);
  EXPECT_TRUE(End(false));
  EXPECT_EQ(round_->iteration, 1);
  EXPECT_THAT(round_->reason, HasSubstr("ranks 0, 2 arrived; 2 of 3 contribute"));
  Leave(0);
  EXPECT_FALSE(End(false)) << "rank 2 is alone";
  EXPECT_TRUE(Compute(3));
  EXPECT_EQ(round_->iteration, 1);
}

// Section 5: "we periodically synchronize the models across all processes". Nothing is reduced
// until all wait; none of it ends their step.
TEST_F(EagerTest, ModelsAreAveragedPeriodically) {
  EagerOptions options = kSolo;
  options.sync_every = 3;
  Start(options, 4);
  for (Rank turn = 0; turn < 4; ++turn) {
    for (int round = turn == 0 ? 0 : 1; round < 3; ++round) {
      ASSERT_TRUE(Compute(turn));
      EXPECT_EQ(round_->kind, GroupKind::kRound);
      ASSERT_FALSE(End());
    }
    for (const Rank rank : {0, 1, 2}) {
      while (!processes_.at(rank).waiting) ASSERT_FALSE(Compute(rank));
    }
    EXPECT_THAT(engine_->Explain({}, 0), HasSubstr("still to come: rank 3"));
    AllArrive();
    for (const bool ok : {false, true}) {
      ASSERT_TRUE(round_);
      EXPECT_EQ(round_->kind, GroupKind::kAverage);
      EXPECT_EQ(round_->iteration, last_);
      for (const GroupShare& member : round_->members) EXPECT_EQ(member.weight, 0.25);
      EXPECT_TRUE(End(ok));
    }
    EXPECT_EQ(round_->kind, GroupKind::kRound) << "all have still arrived: the first of the next 3";
    EXPECT_EQ(Contributors().size(), 4u);
    ASSERT_FALSE(End());
  }
}

// A worker that dies is waited for neither by the average nor, when it is the last but one, is
// there one.
TEST_F(EagerTest, AnAverageNeedsTheLivingAlone) {
  EagerOptions options = kSolo;
  options.sync_every = 1;
  Start(options, 3);
  Compute(0);
  End();
  while (!processes_.at(0).waiting) Compute(0);
  while (!processes_.at(1).waiting) Compute(1);
  EXPECT_FALSE(round_);
  Leave(2);
  ASSERT_TRUE(round_);
  EXPECT_EQ(round_->kind, GroupKind::kAverage);
  Leave(1);
  EXPECT_TRUE(End(false));
  EXPECT_EQ(round_->kind, GroupKind::kRound) << "one has nobody to be averaged with";
}

// One worker: every step is a round of its own, whatever the options.
TEST_F(EagerTest, OneWorkerGoesOnAlone) {
  for (const std::int64_t quorum :
       {EagerOptions::kMajority, EagerOptions::kSolo, std::int64_t{3}}) {
    Start({.quorum = quorum, .max_stale_rounds = 1, .sync_every = 1}, 1);
    for (Iteration round = 1; round <= 10; ++round) {
      ASSERT_TRUE(Compute(0));
      EXPECT_EQ(round_->kind, GroupKind::kRound);
      EXPECT_EQ(round_->iteration, round);
      EXPECT_EQ(round_->members[0].weight, 1);
      ASSERT_FALSE(End());
    }
  }
}

// A worker that joins goes on from the newest round, and owes no more than the others.
TEST_F(EagerTest, RoundNumbersContinueForThoseWhoJoin) {
  EagerOptions options = kSolo;
  options.max_stale_rounds = 2;
  Start(options, 1);
  for (int round = 0; round < 5; ++round) {
    Compute(0);
    End();
  }
  Join(4);
  EXPECT_TRUE(Compute(4));
  EXPECT_EQ(round_->iteration, 6);
  EXPECT_EQ(round_->members.size(), 2u);
}

TEST_F(EagerTest, ThePlanSaysWhatBecomesOfMissedResults) {
  EXPECT_EQ(Eager(kSolo).plan(), plans::kRounds);
  EagerOptions options = kSolo;
  options.missed = EagerOptions::Missed::kLatest;
  EXPECT_EQ(Eager(options).plan(), plans::kNewestRound);
}

}  // namespace
}  // namespace prd::eager_paper_test
