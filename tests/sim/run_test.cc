// Whole runs: what must come out is known from theory or from the workload.
#include <gtest/gtest.h>

#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

RunResult Good(const Workload& workload, std::uint64_t seed = 1) {
  RunResult run = Simulate(workload, {.seed = seed});
  EXPECT_EQ(run.invariant, "") << run.violation;
  return run;
}

TEST(Run, AllReduceTakesTheSlowestStepAndTheRing) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nsteps = 100\nseconds = 100.0\n[compute]\nmean_ms = 20.0\n"
      "slow_workers = 1\nslow_factor = 3.0\n[network]\ndelay_us = 100.0\njitter_us = 0.0\n"
      "[reduce]\nbytes = 4e6\nlocal_latency_us = 0.0\nlocal_bandwidth_mb_per_s = 1000.0\n"
      "[job]\nname = \"sim\"\nengine = \"all-reduce\"\n");
  const RunResult run = Good(workload);
  EXPECT_TRUE(run.all_finished);
  EXPECT_EQ(run.stats.updates, 100u);
  // 60 ms for the slowest step, 2 * 3/4 * 4 MB at 1 GB/s = 6 ms, two messages of 100 us.
  EXPECT_NEAR(1e3 / run.updates_per_s, 66.2, 0.1);
  EXPECT_NEAR(run.stats.workers[3].IdleShare(), 40.2 / 66.2, 0.01);
  EXPECT_EQ(run.stats.staleness.Quantile(1), 0);
}

TEST(Run, PReduceComesNearItsBoundWithAStraggler) {
  Workload workload = Loaded("workloads/straggler.toml");
  const RunResult run = Good(workload);
  EXPECT_TRUE(run.all_finished);
  EXPECT_NEAR(run.bound_updates_per_s, 24, 0.01);  // (7 * 10 + 2) / 3
  EXPECT_GT(run.updates_per_s / run.bound_updates_per_s, 0.78);
  EXPECT_LT(run.updates_per_s / run.bound_updates_per_s, 1);
  ASSERT_TRUE(run.rho.has_value());
  EXPECT_GT(*run.rho, 0.5);
  EXPECT_LT(*run.rho, 1);
}

TEST(Run, TheSameSeedGivesTheSameRunAndAnotherSeedAnother) {
  for (const Workload& workload : FaultWorkloads()) {
    const RunResult first = Good(workload, 5);
    EXPECT_EQ(first.hash, Good(workload, 5).hash) << workload.name;
    EXPECT_NE(first.hash, Good(workload, 6).hash) << workload.name;
  }
}

// Faults that are asked for do happen, and everybody finishes nevertheless.
TEST(Run, FaultsHappen) {
  std::uint64_t restarts = 0, expired = 0, failed = 0, adoptions = 0;
  for (const Workload& workload : FaultWorkloads()) {
    const RunResult run = Good(workload, 3);
    EXPECT_TRUE(run.all_finished) << workload.name;
    restarts += run.restarts;
    expired += run.stats.expired;
    failed += run.stats.failed_groups;
    adoptions += run.stats.adoptions;
    if (workload.name == "none") {
      EXPECT_EQ(run.restarts + run.stats.expired + run.stats.failed_groups, 0u);
    }
    if (workload.name == "controller") {
      EXPECT_GE(run.restarts, 1u);
    }
    if (workload.name == "reductions") {
      EXPECT_GE(run.stats.failed_groups, 5u);
    }
    if (workload.name == "workers") {
      EXPECT_GE(run.stats.expired, 1u);
    }
  }
  EXPECT_GE(restarts, 2u);
  EXPECT_GE(expired, 3u);
  EXPECT_GE(failed, 10u);
  EXPECT_GE(adoptions, 5u);
}

TEST(Run, ATimelineHasEverySlice) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.cluster.steps = 20;
  const RunResult run = Simulate(workload, {.seed = 1, .keep_slices = true});
  std::vector<DurationNs> computed(8);
  for (const Slice& slice : run.stats.slices) {
    EXPECT_LE(slice.from, slice.to);
    if (slice.kind == Slice::Kind::kCompute) computed[slice.worker] += slice.to - slice.from;
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(computed[i], run.stats.workers[i].computed);
}

TEST(Run, AThousandWorkers) {
  Workload workload = Loaded("workloads/thousand.toml");
  workload.cluster.seconds = 5;
  const RunResult run = Good(workload);
  EXPECT_GT(run.stats.updates, 5000u);
  EXPECT_EQ(run.stats.failed_groups, 0u);
  EXPECT_EQ(run.stats.adoptions, 999u);
}

// Who waits for ever is named, with what the controller has to say about it.
TEST(Run, AStuckWorkerIsExplained) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nsteps = 50\nseconds = 20.0\n"
      "[job]\nname = \"sim\"\nengine = \"all-reduce\"\n");
  const RunResult run = Simulate(workload, {.seed = 1, .mutation = Mutation::kLostFinished});
  EXPECT_EQ(run.invariant, "live");
  EXPECT_NE(run.violation.find("the controller says: in group"), std::string::npos)
      << run.violation;
  EXPECT_FALSE(run.last_events.empty());
}

}  // namespace
}  // namespace prd::sim
