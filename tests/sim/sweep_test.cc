// A small sweep of every run of the tests; planted bugs are found, the same seeds are clean
// without.
#include "tools/sim/sweep.h"

#include <gtest/gtest.h>

#include "engines/registry.h"
#include "tests/sim/sim_testing.h"

namespace prd::sim {
namespace {

constexpr std::uint64_t kFirstSeed = 20211;

std::string Told(const SweepResult& sweep) {
  std::string text;
  for (const SweepFailure& failure : sweep.failures) {
    text += "seed " + std::to_string(failure.seed) + ", " + failure.workload + ", " +
            failure.engine + ": " + failure.result.violation + "\n";
    for (const std::string& line : failure.result.last_events) text += "  " + line + "\n";
    text += "again: prdsim sweep tests/sim/faults/*.toml --seed " + std::to_string(failure.seed) +
            " --seeds 1 --trace\n";
  }
  return text;
}

TEST(Sweep, SeedsOfAllFaultsOnAllEnginesAreClean) {
  const SweepResult sweep =
      Sweep(FaultWorkloads(), {.first_seed = kFirstSeed, .seeds = 1200, .threads = 2});
  EXPECT_EQ(sweep.seeds, 1200u);
  EXPECT_TRUE(sweep.failures.empty()) << Told(sweep);
  EXPECT_EQ(sweep.by_engine.size(), AllEngines().size());
  EXPECT_GT(sweep.restarts, 100u);
  EXPECT_GT(sweep.expired, 100u);
  EXPECT_GT(sweep.failed_groups, 300u);
  EXPECT_GT(sweep.adoptions, 500u);
}

TEST(Sweep, EndsWhereItIsTold) {
  int asked = 0;
  const SweepResult sweep =
      Sweep(FaultWorkloads(), {.first_seed = 1, .seeds = 100, .ends = [&] { return ++asked > 5; }});
  EXPECT_EQ(sweep.seeds, 5u);
}

// Each of them once broke a law: workers that were removed and took a round all the same, shards
// after a loss of history, a Hello that told of rounds in an inbox.
TEST(Sweep, SeedsThatShowedMistakesAreClean) {
  const auto check = [](const std::vector<Workload>& workloads, std::uint64_t seed,
                        const std::optional<OneEngine>& only) {
    const RunResult run = RunSeed(workloads, {.only = only, .twice = false}, seed).result;
    EXPECT_EQ(run.invariant, "") << "seed " << seed << ": " << run.violation;
    EXPECT_TRUE(run.all_finished) << "seed " << seed;
  };
  check({Loaded("faults/everything.toml")}, 2053382, std::nullopt);
  check({Loaded("faults/freezes.toml")}, 3305837, std::nullopt);
  const std::vector<Workload> forgetting = {Loaded("faults/forgetting_and_deaths.toml")};
  check(forgetting, 10053916, std::nullopt);
  check(forgetting, 5740, OneEngine{.engine = SspOptions{}});
  check(forgetting, 1636, OneEngine{.engine = EagerOptions{}});
  // A worker that said Hello again over a connection whose end had been reported.
  check({Loaded("faults/connections.toml")}, 910445, std::nullopt);
  // Shards of a worker that resumes; a copy that failed as a worker resumed; a repair of one that
  // was late; a copy of what differed.
  check({Loaded("faults/pauses.toml")}, 2,
        OneEngine{.engine = SspOptions{.staleness = 2}, .as_given = true});
  check({Loaded("faults/state.toml")}, 136, OneEngine{.engine = AllReduceOptions{}});
  check({Loaded("faults/replicas.toml")}, 91, OneEngine{.engine = EsyncOptions{}});
  check({Loaded("faults/replicas.toml")}, 29, OneEngine{.engine = BackupOptions{}});
  // Batches: small limits above the batch in sum; a joiner without a share of a step that was
  // decided; a step that its newest replica's end brings again; a step that was counted twice.
  for (const std::uint64_t seed : {2070u, 2522u, 4185u, 7437u}) {
    check(FaultWorkloads(), seed, std::nullopt);
  }
  // Two workers that had copied the final average of the run before, averaged at the next start.
  check(FaultWorkloads(), 600097558, std::nullopt);
}

// A bug of one engine that is rarely seen.
std::optional<OneEngine> OnlyFor(Mutation mutation) {
  if (mutation == Mutation::kWindowOffByOne) return OneEngine{.engine = PReduceOptions{}};
  if (mutation == Mutation::kBrokenPairGrouped) return OneEngine{.engine = PReduceOptions{}};
  if (mutation == Mutation::kStaleByOne) return OneEngine{.engine = EagerOptions{}};
  if (mutation >= Mutation::kShareShort) return OneEngine{.engine = AllReduceOptions{}};
  if (mutation >= Mutation::kStateNotCopied && mutation <= Mutation::kResumesStale)
    return OneEngine{.engine = AllReduceOptions{}};
  if (mutation >= Mutation::kTokenMore && mutation <= Mutation::kDropIgnored) {
    return OneEngine{.engine = HopOptions{}};
  }
  if (mutation >= Mutation::kClockTooFar && mutation <= Mutation::kOpenedEarly)
    return OneEngine{.engine = SspOptions{}};
  return std::nullopt;
}

class Planted : public testing::TestWithParam<Mutation> {};

TEST_P(Planted, IsFoundWithinTwoThousandSeeds) {
  const SweepOptions options{.first_seed = kFirstSeed,
                             .seeds = 2000,
                             .threads = 1,
                             .mutation = GetParam(),
                             .only = OnlyFor(GetParam()),
                             .twice = false};
  const SweepResult sweep = Sweep(FaultWorkloads(), options);
  ASSERT_EQ(sweep.failures.size(), 1u);
  const SweepFailure& found = sweep.failures[0];
  EXPECT_FALSE(found.result.last_events.empty());

  std::string expected;
  switch (GetParam()) {
    case Mutation::kAnnouncedBeforeRecorded:
      expected = "recorded-first";
      break;
    case Mutation::kLostFinished:
      expected = "no-hang";
      break;
    case Mutation::kWindowOffByOne:  // whichever of p-reduce's rules sees it first
      expected = found.result.invariant == "fifo" || found.result.invariant == "bridge"
                     ? found.result.invariant
                     : "no-idle-queue";
      break;
    case Mutation::kWeightNotNormalised:
      expected = "weights";
      break;
    case Mutation::kDeadInQueue:
      expected = found.result.invariant == "members" ? "members" : "explained";
      // Or the rules of an engine that counts those who wait, or that has a deadline for them.
      if (found.result.invariant == "quorum" || found.result.invariant == "round" ||
          found.result.invariant == "stall" || found.result.invariant == "tokens") {
        expected = found.result.invariant;
      }
      break;
    case Mutation::kGradientTwice:
    case Mutation::kGradientLost:  // or who owes none is asked for one
      expected = found.result.invariant == "outbox" ? "outbox" : "gradients-once";
      break;
    case Mutation::kStaleByOne:
      expected = found.result.invariant == "contributors" ? "contributors" : "max-stale";
      break;
    case Mutation::kReadyTooEarly:
      expected = "ready";
      break;
    case Mutation::kStragglerAwaited:
      expected = "quorum";
      break;
    case Mutation::kInboxOverwritten:
      expected = "mass";
      break;
    case Mutation::kRunsTooFar:
      expected = "run-ahead";
      break;
    case Mutation::kLockIgnored:
      expected = "one-group";
      break;
    case Mutation::kScheduleTwisted:  // whichever it is first: drawn otherwise, or met
      expected = found.result.invariant == "same-group" ? "same-group" : "schedule";
      break;
    case Mutation::kSlowDivided:
      expected = "slow-worker";
      break;
    case Mutation::kDrawnAtRandom:
      expected = found.result.invariant == "slow-worker" ? "slow-worker" : "division";
      break;
    case Mutation::kStrangerPaired:
      expected = "neighbours";
      break;
    case Mutation::kTokenMore:
      expected = "tokens";
      break;
    case Mutation::kJumpTooFar:
      expected = "jump";
      break;
    case Mutation::kWeightSkewed:
      expected = "graph";
      break;
    case Mutation::kSlotMore:
      expected = "slots";
      break;
    case Mutation::kStaleUpdate:  // whichever it is first: used, or gone on without
      expected = found.result.invariant == "update-age" ? "update-age" : "update-count";
      break;
    case Mutation::kNeighbourForgotten:
      expected = "update-count";
      break;
    case Mutation::kUpdateTwice:
      expected = "update-weights";
      break;
    case Mutation::kDropIgnored:
      expected = "queue";
      break;
    case Mutation::kClockTooFar:
      expected = "bound";
      break;
    case Mutation::kLockstepBroken:
      expected = "lockstep";
      break;
    case Mutation::kHolderForgotten:
      expected = "update-stored";
      break;
    case Mutation::kSourceForgotten:
      expected = "source";
      break;
    case Mutation::kClockForgotten:
      expected = "update-once";
      break;
    case Mutation::kCopyDamaged:  // whichever is looked at first: what is kept, or what is read
      expected = found.result.invariant == "lockstep" ? "lockstep" : "copies-agree";
      break;
    case Mutation::kDeltaLost:  // whichever is looked at first: what is stored, or what is read
      expected = found.result.invariant == "update-stored" ? "update-stored" : "version";
      break;
    case Mutation::kDelayIgnored:
      expected = "delayed";
      break;
    case Mutation::kOpenedEarly:
      expected = "opened";
      break;
    case Mutation::kForgottenAckIgnored:
      expected = "no-hang";
      break;
    case Mutation::kBrokenPairGrouped:  // or workers wait that a group around the link is due to
      expected = found.result.invariant == "around" ? "around" : "broken-link";
      break;
    case Mutation::kLowestRankWins:  // in any start, or in one after a switch
      expected = found.result.invariant == "switched-model" ? "switched-model" : "returning-start";
      break;
    case Mutation::kStaleCounts:
      expected = "final-model";
      break;
    case Mutation::kFinishedForgotten:
      expected = "run-identity";
      break;
    case Mutation::kLaunchIgnored:
      expected = "launches";
      break;
    case Mutation::kTokenIgnored:
      expected = "forged";
      break;
    case Mutation::kStateNotCopied:
    case Mutation::kResumesStale:
      expected = "replicas-agree";
      break;
    case Mutation::kDigestSame:
      expected = "difference-told";
      break;
    case Mutation::kDifferenceKept:
      expected = "difference-repaired";
      break;
    case Mutation::kPauseUntold:  // all-reduce waits for it; its rules see it first
      expected = "whole-round";
      break;
    case Mutation::kSamplesLost:
      expected = "samples";
      break;
    case Mutation::kMemberTwice:
      expected = "average";
      break;
    case Mutation::kGoalUntold:
      expected = "goal";
      break;
    case Mutation::kUnannounced:
      expected = "introduced";
      break;
    case Mutation::kKeyMistaken:
      expected = "keys";
      break;
    case Mutation::kNameSuffices:
      expected = "let-in";
      break;
    case Mutation::kSwitchUntold:
      expected = "switch-told";
      break;
    case Mutation::kOutServed:
    case Mutation::kGoneUntold:
      expected = "out";
      break;
    case Mutation::kCopyUnordered:
      expected = "ordered";
      break;
    case Mutation::kOldEndCounts:
    case Mutation::kHintIsProof:
      expected = "ended-alive";
      break;
    case Mutation::kEndForgotten:
      expected = "death-known";
      break;
    case Mutation::kShareShort:
    case Mutation::kShareUntold:
      expected = "batch-whole";
      break;
    case Mutation::kLostKept:
      expected = "no-hang";
      break;
    case Mutation::kWaitingComputes:
      expected = "share-time";
      break;
    case Mutation::kVoidCounts:  // whichever comes first
      expected = found.result.invariant == "batch-whole" ? "batch-whole" : "one-signal";
      break;
    case Mutation::kNone:
      break;
  }
  EXPECT_EQ(found.result.invariant, expected) << Told(sweep);

  SweepOptions clean = options;
  clean.mutation = Mutation::kNone;
  clean.seeds = found.seed - kFirstSeed + 1;
  const SweepResult without = Sweep(FaultWorkloads(), clean);
  EXPECT_TRUE(without.failures.empty()) << Told(without);
}

INSTANTIATE_TEST_SUITE_P(All, Planted, testing::ValuesIn(AllMutations()), [](const auto& param) {
  std::string name;
  for (const char c : MutationName(param.param)) name += c == '-' ? '_' : c;
  return name;
});

TEST(Sweep, TheSmallestFailingSeedIsTheSameWithMoreThreads) {
  SweepOptions options{
      .first_seed = kFirstSeed, .seeds = 200, .mutation = Mutation::kDeadInQueue, .twice = false};
  const SweepResult one = Sweep(FaultWorkloads(), options);
  ASSERT_FALSE(one.failures.empty());
  options.threads = 3;
  const SweepResult three = Sweep(FaultWorkloads(), options);
  ASSERT_FALSE(three.failures.empty());
  EXPECT_EQ(one.failures[0].seed, three.failures[0].seed);
  EXPECT_EQ(one.failures[0].result.violation, three.failures[0].result.violation);
}

}  // namespace
}  // namespace prd::sim
