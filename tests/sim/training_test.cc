// Training in the simulator: real losses of a real objective.
#include <gtest/gtest.h>

#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/compare.h"

namespace prd::sim {
namespace {

TEST(Training, EveryEngineReachesTheTargetAndTheTableIsSorted) {
  Workload workload = Loaded("workloads/training.toml");
  workload.training.target_loss = 0.02;
  const std::vector<Compared> rows = Compare(
      workload, {AllReduceOptions{}, PReduceOptions{}, PReduceOptions{.group_size = 5}}, 1, 2);
  ASSERT_EQ(rows.size(), 3u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].reached, 2u) << EngineText(rows[i].engine);
    EXPECT_GT(rows[i].updates_to_target, 10);
    if (i > 0) {
      EXPECT_LE(rows[i - 1].time_to_target_s, rows[i].time_to_target_s);
    }
  }
  // One worker five times slower: waiting for it costs all-reduce more than what P-Reduce's smaller
  // groups lose per update.
  EXPECT_EQ(EngineName(rows.back().engine), "all-reduce");
  EXPECT_LT(rows.back().updates_to_target, rows.front().updates_to_target);
  EXPECT_NE(TextTable(rows).find("p-reduce:group_size=5"), std::string::npos);
  EXPECT_EQ(JsonTable(rows).size(), 3u);
}

// A worker that trains on while its group reduces loses no time to a straggler, and gets there
// sooner.
TEST(Training, OverlapReachesTheBound) {
  const Workload workload = Loaded("workloads/training.toml");
  PReduceOptions overlap;
  overlap.overlap = true;
  const std::vector<Compared> rows = Compare(workload, {PReduceOptions{}, overlap}, 1, 5);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].engine, EngineOptions(overlap));
  EXPECT_EQ(rows[0].reached, 5u);
  EXPECT_GT(rows[0].bound_share, 0.97);
  EXPECT_LT(rows[1].bound_share, 0.9);
  EXPECT_GT(rows[1].time_to_target_s / rows[0].time_to_target_s, 1.15);
}

// All-reduce on equal workers is plain SGD with a larger batch: the noise that is left behind falls
// with the number of workers.
TEST(Training, MoreWorkersLeaveLessNoise) {
  const auto loss = [](const char* workers) {
    const Workload workload =
        FromText("[cluster]\nsteps = 0\nseconds = 40.0\nworkers = " + std::string(workers) +
                 "\n[training]\nobjective = \"quadratic\"\ndimensions = 30\nlearning_rate = 0.3\n"
                 "noise = 1.0\n[job]\nname = \"sim\"\nengine = \"all-reduce\"\n");
    const RunResult run = Simulate(workload, {.seed = 2});
    EXPECT_EQ(run.invariant, "") << run.violation;
    double sum = 0;
    for (std::size_t i = run.curve.size() / 2; i < run.curve.size(); ++i) sum += run.curve[i].loss;
    return sum / static_cast<double>(run.curve.size() - run.curve.size() / 2);
  };
  const double two = loss("2");
  const double eight = loss("8");
  EXPECT_GT(two / eight, 3);  // 4 in the limit
  EXPECT_LT(two / eight, 5.5);
}

TEST(Training, SurvivesFaults) {
  Workload workload = Loaded("faults/everything.toml");
  workload.training.objective = TrainingPart::Objective::kQuadratic;
  for (const EngineOptions& engine : AllEngines()) {
    workload.job.engine = engine;
    const RunResult run = Simulate(workload, {.seed = 4});
    EXPECT_EQ(run.invariant, "") << run.violation;
    ASSERT_GT(run.curve.size(), 4u);
    EXPECT_LT(run.curve.back().loss, run.curve[1].loss) << EngineText(engine);
  }
}

}  // namespace
}  // namespace prd::sim
