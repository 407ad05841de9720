// Hop's and SSP's bounds are reached, and not passed: each by a run with a worker that is far
// slower than the others. And workers under both find cut links.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

// One of the workers 50 times slower.
Workload OneSlow(std::int64_t workers, const std::string& engine) {
  Workload workload = FromText("[job]\nname = \"sim\"\nengine = \"hop\"\n");
  workload.cluster.workers = workers;
  workload.cluster.steps = 0;
  workload.cluster.seconds = 20;
  workload.compute.mean_ms = 20;
  workload.compute.slow_workers = 1;
  workload.compute.slow_factor = 50;
  workload.job.engine = ParseEngine(engine).value();
  return workload;
}

using Gaps = std::map<std::pair<Rank, Rank>, Iteration>;

// The largest Iter(i) - Iter(j) there ever was, by (i, j).
Gaps LargestGaps(const Workload& workload) {
  std::map<Rank, Iteration> at;
  Gaps gaps;
  RunOptions options;
  options.on_record = [&](const Record& record) {
    const auto* joined = std::get_if<WorkerJoined>(&record.body);
    if (joined != nullptr) at[joined->rank] = joined->iteration;
    const auto* answered = std::get_if<QueryAnswered>(&record.body);
    if (answered == nullptr) return;
    at[answered->rank] = answered->next;
    for (const auto& [rank, iteration] : at) {
      Iteration& gap = gaps[{answered->rank, rank}];
      gap = std::max(gap, answered->next - iteration);
    }
  };
  const RunResult run = Simulate(workload, options);
  EXPECT_EQ(run.invariant, "") << run.violation;
  return gaps;
}

constexpr const char* kDirectedRing =
    "hop:graph=[[0,1],[1,2],[2,3],[3,4],[4,5],[5,0]],directed=true,";

// Table 1 with b0 and max_ig on the directed ring of six, for pairs with the slow worker 0.
void RingReaches(const std::string& options, Iteration b0, Iteration max_ig) {
  const Gaps gaps = LargestGaps(OneSlow(6, kDirectedRing + options));
  for (Rank rank = 1; rank < 6; ++rank) {
    const Iteration forward = b0 * rank;
    const Iteration back = max_ig * (6 - rank);
    const Iteration bound = max_ig > 0 ? std::min(forward, back) : forward;
    EXPECT_EQ(gaps.at({rank, 0}), bound) << options << ", rank " << rank;
  }
}

TEST(HopBounds, Theorem1IsReachedOnADirectedRing) { RingReaches("max_iteration_gap=0", 1, 0); }

TEST(HopBounds, Theorem2IsReachedOnADirectedRing) { RingReaches("max_iteration_gap=3", 1, 3); }

TEST(HopBounds, NotifyAckIsAGapOfTwo) { RingReaches("max_iteration_gap=2", 1, 2); }

TEST(HopBounds, StalenessIsReachedWithAndWithoutTokens) {
  RingReaches("staleness=2,max_iteration_gap=0", 3, 0);
  RingReaches("staleness=2,max_iteration_gap=4", 3, 4);
}

TEST(HopBounds, BackupsAndTheHybridHaveTheTokensBound) {
  for (const char* options : {"backups=1", "backups=1,staleness=1"}) {
    const Gaps gaps =
        LargestGaps(OneSlow(4, std::string("hop:graph=complete,max_iteration_gap=4,") + options));
    for (Rank rank = 1; rank < 4; ++rank) EXPECT_EQ(gaps.at({rank, 0}), 4) << options;
  }
}

TEST(HopBounds, AWorkerThatSkipsKeepsNobodyBack) {
  const std::string engine = "hop:graph=complete,backups=1,max_iteration_gap=5";
  const RunResult slow = Simulate(OneSlow(4, engine), {});
  const RunResult skips = Simulate(OneSlow(4, engine + ",max_jump=10"), {});
  EXPECT_EQ(skips.invariant, "") << skips.violation;
  EXPECT_GT(skips.stats.workers[0].skipped, 0);
  EXPECT_GT(skips.stats.workers[1].steps, 2 * slow.stats.workers[1].steps);
}

TEST(SspBounds, FastWorkersAreSClocksAheadAndNoFurther) {
  for (const Iteration staleness : {0, 1, 3}) {
    const Workload workload = OneSlow(4, "ssp:staleness=" + std::to_string(staleness));
    const Gaps gaps = LargestGaps(workload);
    // An answered worker has stored one more than it is let on after: the slow one has stored its
    // own.
    for (Rank rank = 1; rank < 4; ++rank) EXPECT_LE(gaps.at({rank, 0}), staleness + 1);
    const RunResult run = Simulate(workload, {});
    EXPECT_EQ(run.stats.staleness.counts().size(), static_cast<std::size_t>(staleness) + 1);
    EXPECT_EQ(run.stats.workers[1].steps - run.stats.workers[0].steps, staleness);
  }
}

TEST(SspBounds, LockstepTrainsAllReducesModel) {
  const auto loss = [](const char* engine) {
    Workload workload = FromText("[job]\nname = \"sim\"\nengine = \"hop\"\n");
    workload.cluster.workers = 4;
    workload.cluster.steps = 20;
    workload.training = {.objective = TrainingPart::Objective::kQuadratic, .evaluate_ms = 0.05};
    workload.job.engine = ParseEngine(engine).value();
    const RunResult run = Simulate(workload, {});
    EXPECT_EQ(run.invariant, "") << run.violation;
    EXPECT_TRUE(run.all_finished);
    return run.curve.back().loss;
  };
  const double expected = loss("all-reduce");
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(loss("ssp:staleness=0"), expected, 1e-9);
  EXPECT_NEAR(loss("ssp:staleness=0,shards=3,replicas=2"), expected, 1e-9);
}

// ---- links ----

// Workers that pull from each other find that a link is cut, and their job names it until the probe
// of the two gets through.
class CutExchange : public testing::TestWithParam<const char*> {};

TEST_P(CutExchange, NamesCutLinksUntilTheyAreWhole) {
  Workload workload = FromText(
      "[job]\nname = \"sim\"\nengine = \"hop\"\nlease_ms = 400\nheartbeat_ms = 100\n"
      "[compute]\nmean_ms = 50.0\n[cluster]\nworkers = 4\nworkers_per_host = 1\nsteps = 80\n"
      "seconds = 60.0\n"
      "[faults]\nuntil_ms = 3000.0\nlink_cuts_per_s = 0.5\nlink_cut_ms = 3000.0\n");
  workload.job.engine = ParseEngine(GetParam()).value();
  int broken = 0, whole = 0;
  RunOptions options;
  options.on_record = [&](const Record& record) {
    const auto* link = std::get_if<LinkChanged>(&record.body);
    if (link != nullptr) ++(link->works ? whole : broken);
    EXPECT_FALSE(std::holds_alternative<LeaseExpired>(record.body));
  };
  const RunResult run = Simulate(workload, options);
  EXPECT_EQ(run.invariant, "") << run.violation;
  EXPECT_TRUE(run.all_finished);
  EXPECT_GT(broken, 0);
  EXPECT_EQ(whole, broken);
}

INSTANTIATE_TEST_SUITE_P(All, CutExchange, testing::Values("hop", "ssp"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace prd::sim
