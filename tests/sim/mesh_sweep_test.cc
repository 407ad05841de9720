// Whole runs in which every worker has a real mesh: every law holds, and planted bugs are found.
//
// The mesh is the copy with bugs that mesh_run_test.cc tells of.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engines/registry.h"
#include "tests/sim/planted.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/mesh_plane.h"
#include "tools/sim/sweep.h"

namespace prd::sim {
namespace {

// Some of those that meshes alone show: of sums, ends of groups, connections, questions and seals.
const char* const kBugsInRuns[] = {
    "chunk-dropped",
    "weight-on-the-wrong-hop",
    "partial-sum-lands",
    "counter-reused",
    "death-in-the-last-hop",
    "answer-of-another-peer",
    "swallowed-frame-waited-for",
    "sum-of-a-failed-round",
#include "run_bugs.inc"
};

TEST(MeshSweepTest, AllLawsHold) {
  const SweepResult sweep =
      Sweep(FaultWorkloads(),
            {.first_seed = 1, .seeds = 600, .threads = 2, .twice = false, .plane = MakeMeshPlane});
  for (const SweepFailure& failure : sweep.failures) {
    ADD_FAILURE() << "seed " << failure.seed << ", " << failure.workload << ", " << failure.engine
                  << ": " << failure.result.violation;
  }
  EXPECT_EQ(sweep.seeds, 600u);
  EXPECT_EQ(sweep.by_engine.size(), AllEngines().size());
  EXPECT_GT(sweep.restarts, 100u);
  EXPECT_GT(sweep.expired, 100u);
  EXPECT_GT(sweep.failed_groups, 50u);
  EXPECT_GT(sweep.adoptions, 500u);
}

TEST(MeshSweepTest, ARunFollowsFromItsSeed) {
  const SweepResult sweep =
      Sweep(FaultWorkloads(), {.first_seed = 1, .seeds = 60, .plane = MakeMeshPlane});
  EXPECT_TRUE(sweep.failures.empty());
}

// A path that carries handshakes and questions, and nothing large, is a broken link: the job names
// it once, goes on without it, and names it again when large packets pass.
TEST(MeshSweepTest, APathWithoutLargePacketsIsABrokenLink) {
  Workload workload = FromText(
      "[job]\nname = \"sim\"\nengine = \"hop\"\nlease_ms = 400\nheartbeat_ms = "
      "100\n[cluster]\nworkers = 4\n"
      "workers_per_host = 1\nsteps = 800\nseconds = 120.0\n[compute]\nmean_ms = 50.0\n"
      "[faults]\nuntil_ms = 10000.0\nlarge_cuts_per_s = 0.1\nlink_cut_ms = 20000.0\n"
      "one_way = 0.5\n");
  for (const char* engine : {"all-reduce", "p-reduce", "hop", "ssp"}) {
    workload.job.engine = ParseEngine(engine).value();
    std::map<std::pair<Rank, Rank>, bool> works;
    int broken = 0;
    RunOptions options{.plane = MakeMeshPlane};
    options.on_record = [&](const Record& record) {
      const auto* link = std::get_if<LinkChanged>(&record.body);
      if (link == nullptr) return;
      works[{link->a, link->b}] = link->works;
      if (!link->works && link->reason.find("did not reach") != std::string::npos) ++broken;
    };
    const RunResult run = Simulate(workload, options);
    EXPECT_EQ(run.invariant, "") << engine << ": " << run.violation;
    EXPECT_TRUE(run.all_finished) << engine;
    EXPECT_GT(broken, 0) << engine;
    EXPECT_LE(broken, 6) << engine;
    for (const auto& [pair, whole] : works) EXPECT_TRUE(whole) << engine;
  }
}

// One of four workers is killed before one of the things that its mesh does, from its start on: in
// each window of each group, and while it copies what it missed. It comes back.
RunResult KilledAt(std::uint64_t turn, const std::string& engine, std::uint64_t seed = 1) {
  Workload workload = FromText(
      "[job]\nname = \"sim\"\nengine = \"all-reduce\"\nlease_ms = 400\nheartbeat_ms = 100\n"
      "[cluster]\nworkers = 4\nworkers_per_host = 1\nsteps = 5\nseconds = 60.0\n[compute]\n"
      "mean_ms = 3.0\n[faults]\nuntil_ms = 1000.0\nreturn_ms = 20.0\n");
  workload.job.engine = ParseEngine(engine).value();
  return Simulate(workload, {.seed = seed, .plane = MakeKillingMeshPlane(1, turn)});
}

const char* const kKilledUnder[] = {"all-reduce",
                                    "backup",
                                    "eager",
                                    "esync",
                                    "ad-psgd",
                                    "hop",
                                    "ssp",
                                    "prague",
                                    "p-reduce:group_size=2",
                                    "p-reduce:group_size=3,overlap=true"};

class DeathAtAnyTurnTest : public testing::TestWithParam<const char*> {};

TEST_P(DeathAtAnyTurnTest, NoLawIsBroken) {
  constexpr std::uint64_t kTurns = 200;
  const std::uint64_t whole = KilledAt(0, GetParam()).hash;
  std::uint64_t turn = 1;
  for (bool through = false; turn <= kTurns && !through; ++turn) {
    const RunResult run = KilledAt(turn, GetParam());
    ASSERT_EQ(run.invariant, "") << "killed at turn " << turn << ": " << run.violation;
    ASSERT_TRUE(run.all_finished) << "killed at turn " << turn;
    through = run.hash == whole;  // it has trained to the end by then
  }
  EXPECT_GT(turn, 60u);
}

std::string NameOfEngine(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < '0' || c > 'z' || (c > '9' && c < 'A'); },
      '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Mesh, DeathAtAnyTurnTest, testing::ValuesIn(kKilledUnder), NameOfEngine);

class PlantedBugInARunTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedBugInARunTest, IsFound) {
  const std::vector<Workload> workloads = FaultWorkloads();
  ExpectFound(GetParam(), 1'500, [&](std::uint64_t seed) {
    const SweepOptions options{.twice = false, .plane = MakeMeshPlane};
    return !RunSeed(workloads, options, seed).result.invariant.empty();
  });
}

INSTANTIATE_TEST_SUITE_P(Mesh, PlantedBugInARunTest, testing::ValuesIn(kBugsInRuns), NameOfBug);

}  // namespace
}  // namespace prd::sim
