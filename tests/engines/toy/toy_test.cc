// An engine that the tree does not know, through all of it: its options, its decisions, a whole
// job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config/config.h"
#include "config/engine_text.h"
#include "config/engines_json.h"
#include "config/manual.h"
#include "engines/draw.h"
#include "engines/engine_watch.h"
#include "tests/engines/toy/options.h"
#include "tests/engines/transcript.h"
#include "tools/sim/cluster.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

// Before any test.
const bool registered = [] {
  RegisterEngine(ToyOptions{});
  RegisterRules([](const EngineOptions& options) {
    const auto* toy = options.As<ToyOptions>();
    return toy == nullptr ? nullptr : toy->Rules();
  });
  return true;
}();

TEST(ToyTest, ItsTableIsReadAndWritten) {
  const auto read = [](const std::string& table) {
    return ParseConfig("[[job]]\nname = \"*\"\nengine = \"toy\"\n[job.toy]\n" + table, "f.toml");
  };
  const Result<Config> config = read("shift = 1\n");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->jobs[0].spec.engine, EngineOptions(ToyOptions{.shift = 1}));
  EXPECT_EQ(read("shift = 2\n").status().message(),
            "f.toml:5: job.toy.shift: found 2, allowed is a whole number from 0 to 1 (ranks)");
  const Result<JobSpec> spec = FindJob(*config, "x");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(JobSpecFromToml(spec->text)->engine, spec->engine);
  EXPECT_EQ(EngineText(*ParseEngine("toy:shift=1")), "toy:shift=1");
}

TEST(ToyTest, ItIsExplained) {
  EXPECT_THAT(ConfigManual(), HasSubstr("\n[job.toy]\n"));
  EXPECT_THAT(ConfigSample(ToyOptions{}), HasSubstr("\n[job.toy]\nshift = 0\n"));
  EXPECT_THAT(ConfigReference(), HasSubstr("job.toy.shift = 0"));
  EXPECT_THAT(EnginesJson(), HasSubstr("\"name\": \"toy\""));
}

TEST(ToyTest, Transcript) {
  const std::string golden = R"(engine toy
join 0 1 2
ready 0 2
> group 1: 2@1*1.0000 -> 1 (its partner is not there)
explain 0
> rank 0: waiting for rank 1
ready 1 iteration=4
> group 2: 0@1*0.5000 1@4*0.5000 -> 4 (both are ready)
finish 2
ready 0
leave 1
> group 3: 0@5*1.0000 -> 5 (its partner is not there)
)";
  EXPECT_EQ(RunTranscript(golden), golden);
}

// Under faults of every kind, with all invariants checked; then everybody comes to the end.
TEST(ToyTest, AWholeJob) {
  sim::Workload base;
  ASSERT_TRUE(sim::LoadWorkload(PRD_SOURCE_DIR "/tests/sim/faults/everything.toml", &base).ok());
  std::uint64_t groups = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    sim::Workload workload = base;
    workload.cluster.workers = 1 + static_cast<std::int64_t>(seed % 7);
    workload.cluster.steps = 15;
    workload.job.engine = Draw<ToyOptions>(&prng, 7);
    ASSERT_TRUE(sim::CheckWorkload(workload).ok());
    const sim::RunResult run = sim::Simulate(workload, {.seed = seed});
    EXPECT_EQ(run.violation, "") << "seed " << seed;
    EXPECT_TRUE(run.all_finished) << "seed " << seed;
    groups += run.stats.groups;
  }
  EXPECT_GT(groups, 500u);
}

}  // namespace
}  // namespace prd
