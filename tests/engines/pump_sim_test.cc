// The controller under faults, in virtual time: see cluster_sim.h for what is checked throughout.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "tests/engines/cluster_sim.h"
#include "tests/sim/mutant_hunt.h"

namespace prd::sim {
namespace {

std::vector<EngineOptions> Engines() {
  std::vector<EngineOptions> engines = AllEngines();
  // Rounds in the background, local steps, groups that form ahead and exchanges without groups are
  // for workers that are less simple: tools/sim.
  std::erase_if(engines, [](const EngineOptions& engine) {
    const Plan plan = MakeEngine(engine)->plan();
    return CountsRounds(plan) || !TrainsInGroups(plan) || DrawnAhead(plan);
  });
  engines.push_back(PReduceOptions{.group_size = 2, .weights = PReduceOptions::Weights::kConstant});
  engines.push_back(PReduceOptions{.group_size = 4,
                                   .weights = PReduceOptions::Weights::kDynamic,
                                   .missing = PReduceOptions::Missing::kInitial,
                                   .max_wait_ms = 30});
  return engines;
}

void Expect(const Verdict& verdict, const Scenario& scenario) {
  for (const std::string& violation : verdict.violations) {
    ADD_FAILURE() << EngineName(scenario.engine) << " seed " << scenario.seed << ": " << violation;
  }
  EXPECT_TRUE(verdict.all_finished)
      << EngineName(scenario.engine) << " seed " << scenario.seed << " is stuck:\n"
      << verdict.stuck;
  EXPECT_EQ(std::set(verdict.final_models.begin(), verdict.final_models.end()).size(), 1u)
      << EngineName(scenario.engine) << " seed " << scenario.seed
      << ": replicas differ after the final average";
}

TEST(PumpSim, WithoutFaultsEverybodyFinishesAndNothingFails) {
  for (const EngineOptions& engine : Engines()) {
    Scenario scenario{.seed = 3, .engine = engine, .slow_factor = 5};
    const Verdict verdict = RunCluster(scenario);
    Expect(verdict, scenario);
    EXPECT_EQ(verdict.failed_groups, 0u);
    EXPECT_EQ(verdict.expired, 0u);
    EXPECT_GE(verdict.groups, 20u);
  }
}

TEST(PumpSim, ASmallJobDownToOneWorker) {
  for (const EngineOptions& engine : Engines()) {
    for (int workers = 1; workers <= 3; ++workers) {
      Scenario scenario{.seed = 4, .workers = workers, .engine = engine, .slow_factor = 3};
      Expect(RunCluster(scenario), scenario);
    }
  }
}

// More seeds than a test run has time for: PRD_SEEDS=2000.
std::uint64_t Seeds() {
  const char* text = std::getenv("PRD_SEEDS");
  return text == nullptr ? 40 : std::strtoull(text, nullptr, 10);
}

struct Storm {
  const char* name;
  Faults faults;
};

class PumpStorm : public testing::TestWithParam<Storm> {};

TEST_P(PumpStorm, SafeThroughoutAndLiveAfterwards) {
  std::uint64_t restarts = 0;
  std::uint64_t failed = 0;
  std::uint64_t adoptions = 0;
  for (const EngineOptions& engine : Engines()) {
    for (std::uint64_t seed = 1; seed <= Seeds(); ++seed) {
      Scenario scenario{
          .seed = seed, .engine = engine, .faults = GetParam().faults, .slow_factor = 3};
      const Verdict verdict = RunCluster(scenario);
      Expect(verdict, scenario);
      restarts += verdict.restarts;
      failed += verdict.failed_groups;
      adoptions += verdict.adoptions;
      if (HasFailure()) return;
    }
  }
  // The faults asked for did happen.
  const Faults& faults = GetParam().faults;
  if (faults.controller_dies > 0) {
    EXPECT_GT(restarts, 20u);
  }
  if (faults.reduce_fails > 0) {
    EXPECT_GT(failed, 100u);
  }
  if (faults.worker_dies > 0) {
    EXPECT_GT(adoptions, 20u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PumpStorm,
    testing::Values(
        Storm{"network", {.loss = 0.1, .duplicate = 0.1, .late = 0.1}},
        Storm{"reductions", {.reduce_fails = 0.15, .fetch_fails = 0.3}},
        Storm{"workers",
              {.reduce_fails = 0.05, .fetch_fails = 0.2, .worker_dies = 0.05, .late = 0.2}},
        Storm{"controller", {.controller_dies = 0.1}}, Storm{"disk", {.append_fails = 0.3}},
        Storm{"everything",
              {.loss = 0.05,
               .duplicate = 0.05,
               .reduce_fails = 0.05,
               .fetch_fails = 0.1,
               .worker_dies = 0.02,
               .late = 0.1,
               .append_fails = 0.05,
               .controller_dies = 0.05}}),
    [](const auto& storm) { return std::string(storm.param.name); });

// Lines of tests/sim/mutants.md.
TEST(PumpSim, DISABLED_MutantTable) {
  const Faults storms[] = {
      {.loss = 0.1, .duplicate = 0.1, .late = 0.1},
      {.reduce_fails = 0.15, .fetch_fails = 0.3},
      {.reduce_fails = 0.05, .fetch_fails = 0.2, .worker_dies = 0.05, .late = 0.2},
      {.controller_dies = 0.1},
      {.append_fails = 0.3},
      {.loss = 0.05,
       .duplicate = 0.05,
       .reduce_fails = 0.05,
       .fetch_fails = 0.1,
       .worker_dies = 0.02,
       .late = 0.1,
       .append_fails = 0.05,
       .controller_dies = 0.05}};
  const auto engines_of = [](const Mutant& mutant) {
    std::vector<EngineOptions> engines = Engines();
    if (mutant.engine) {
      std::erase_if(engines, [&](const EngineOptions& engine) {
        return EngineName(engine) != EngineName(*mutant.engine);
      });
    }
    return engines;
  };
  std::vector<Mutant> mutants = AllMutants();
  std::erase_if(mutants, [&](const Mutant& of) {
    return engines_of(of).empty() || (of.engine && !ChangesDecisions(of.mutation));
  });
  Hunt("pump_sim", mutants, 100, [&](const Mutant& mutant, std::uint64_t seed) {
    const std::vector<EngineOptions> engines = engines_of(mutant);
    const Scenario scenario{.seed = seed,
                            .engine = engines[seed % engines.size()],
                            .faults = storms[seed % std::size(storms)],
                            .slow_factor = 3,
                            .mutation = mutant.mutation};
    Expect(RunCluster(scenario), scenario);
    return HasFailure();
  });
}

TEST(PumpSim, EqualSeedsGiveEqualHistories) {
  for (const EngineOptions& engine : Engines()) {
    Scenario scenario{
        .seed = 11,
        .engine = engine,
        .faults = {
            .loss = 0.05, .reduce_fails = 0.05, .worker_dies = 0.02, .controller_dies = 0.05}};
    const Verdict first = RunCluster(scenario);
    const Verdict second = RunCluster(scenario);
    EXPECT_EQ(first.hash, second.hash);
    scenario.seed = 12;
    EXPECT_NE(first.hash, RunCluster(scenario).hash);
  }
}

}  // namespace
}  // namespace prd::sim
