// Whole runs in which every worker has a real mesh: every law holds, and planted bugs are found.
//
// The mesh is the copy with bugs that mesh_run_test.cc tells of.
#include <gtest/gtest.h>

#include "engines/registry.h"
#include "tests/sim/planted.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/mesh_plane.h"
#include "tools/sim/sweep.h"

namespace prd::sim {
namespace {

// Some of those that meshes alone show: of sums, ends of groups, connections, questions and seals.
const char* const kBugsInRuns[] = {
    "chunk-dropped",           "weight-on-the-wrong-hop", "partial-sum-lands",
    "counter-reused",          "death-in-the-last-hop",   "answer-of-another-peer",
    "repeated-frame-accepted", "sum-of-a-failed-round",
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

class PlantedBugInARunTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedBugInARunTest, IsFound) {
  const std::vector<Workload> workloads = FaultWorkloads();
  ExpectFound(GetParam(), 600, [&](std::uint64_t seed) {
    const SweepOptions options{.twice = false, .plane = MakeMeshPlane};
    return !RunSeed(workloads, options, seed).result.invariant.empty();
  });
}

INSTANTIATE_TEST_SUITE_P(Mesh, PlantedBugInARunTest, testing::ValuesIn(kBugsInRuns), NameOfBug);

}  // namespace
}  // namespace prd::sim
