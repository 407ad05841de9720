// Under every engine: what an operator does costs the others nothing.
#include <gtest/gtest.h>

#include <string>

#include "engines/event.h"
#include "engines/registry.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

struct Seen {
  int acts = 0;
  int failed_groups = 0;
  int lost = 0;
  int drained = 0;
  int evicted = 0;
};

// Eight workers on two hosts; nothing goes wrong but what the operator does.
class Operator : public testing::TestWithParam<EngineOptions> {
 protected:
  static Seen Run(const std::string& faults) {
    Workload workload = FromText(
        "[cluster]\nworkers = 8\nworkers_per_host = 4\nsteps = 150\nseconds = 120.0\n"
        "[compute]\nmean_ms = 10.0\n"
        "[job]\nname = \"sim\"\nengine = \"p-reduce\"\nlease_ms = 400\nheartbeat_ms = 100\n"
        "[faults]\nuntil_ms = 2000.0\nreturn_ms = 300.0\n" +
        faults);
    workload.job.engine = GetParam();
    Seen seen;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const RunResult run = Simulate(
          workload,
          {.seed = seed, .on_record = [&](const Record& record) { Count(record, &seen); }});
      EXPECT_EQ(run.invariant, "") << "seed " << seed << ": " << run.violation;
      EXPECT_TRUE(run.all_finished) << "seed " << seed;
    }
    return seen;
  }

 private:
  static void Count(const Record& record, Seen* seen) {
    seen->acts += std::holds_alternative<OperatorActed>(record.body) ? 1 : 0;
    const auto* ended = std::get_if<GroupEnded>(&record.body);
    seen->failed_groups += ended != nullptr && !ended->ok ? 1 : 0;
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    if (left == nullptr || StaysInJob(left->why)) return;
    seen->lost += left->why == LeftReason::kLost ? 1 : 0;
    seen->drained += left->reason.starts_with("drained by user 0") ? 1 : 0;
    seen->evicted += left->reason.starts_with("evicted by user 0") ? 1 : 0;
  }
};

TEST_P(Operator, AHostIsDrainedAndNoGroupFails) {
  const Seen seen = Run("drains_per_s = 1.0\n");
  EXPECT_GE(seen.drained, 8);
  EXPECT_EQ(seen.failed_groups, 0);
  EXPECT_EQ(seen.lost, 0);
}

TEST_P(Operator, WhoIsEvictedComesBackAsAnotherProcessOnly) {
  const Seen seen = Run("evictions_per_s = 2.0\nloss = 0.1\n");
  EXPECT_GE(seen.evicted, 4);
}

TEST_P(Operator, NobodyIsLostInAPause) {
  const Seen seen = Run("operator_pauses_per_s = 1.0\noperator_pause_ms = 1500.0\n");
  if (!FollowsSchedule(MakeEngine(GetParam())->plan())) {
    EXPECT_GE(seen.acts, 4);
  }
  EXPECT_EQ(seen.failed_groups, 0);
  EXPECT_EQ(seen.lost, 0);
}

TEST_P(Operator, AJobEndsBeforeItsSteps) { EXPECT_GE(Run("operator_ends_per_s = 2.0\n").acts, 3); }

INSTANTIATE_TEST_SUITE_P(OfEachEngine, Operator, testing::ValuesIn(AllEngines()),
                         [](const auto& of) {
                           std::string name(EngineName(of.param));
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace prd::sim
