// Real meshes on the simulated network: every law holds, and each planted bug is found.
//
// This program's mesh is a copy with bugs that are asleep (mesh_bugs.py).
#include "tools/sim/mesh_run.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/sim/planted.h"

namespace prd::sim {
namespace {

constexpr std::uint64_t kSeeds = 300;
const char* const kBugs[] = {
#include "bugs.inc"
};

std::string Text(std::uint64_t seed, const MeshRunResult& run) {
  return "seed " + std::to_string(seed) + ": " + run.what + " (" + run.setting + ")";
}

TEST(MeshRunTest, AllLawsHold) {
  MeshRunResult sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const MeshRunResult run = RunMeshes({.seed = seed, .trace = {}});
    ASSERT_EQ(run.invariant, "") << Text(seed, run);
    sum.succeeded += run.succeeded;
    sum.landed_in_part += run.landed_in_part;
    sum.held += run.held;
    sum.on_devices += run.on_devices;
    sum.failed_devices += run.failed_devices;
    sum.copied += run.copied;
    sum.pulled += run.pulled;
    sum.resumed += run.resumed;
    sum.forged += run.forged;
    sum.kills += run.kills;
    sum.cuts += run.cuts;
  }
  // Nothing of it is for lack of trying.
  EXPECT_GT(sum.succeeded, 10'000u);
  EXPECT_GT(sum.landed_in_part, 10u);
  EXPECT_GT(sum.held, 100u);
  EXPECT_GT(sum.on_devices, 1'000u);
  EXPECT_GT(sum.failed_devices, 10u);
  EXPECT_GT(sum.copied, 5'000u);
  EXPECT_GT(sum.pulled, 1'000u);
  EXPECT_GT(sum.resumed, 300u);
  EXPECT_GT(sum.forged, 200u);
  EXPECT_GT(sum.kills, 100u);
  EXPECT_GT(sum.cuts, 100u);
}

TEST(MeshRunTest, ARunFollowsFromItsSeed) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    EXPECT_EQ(RunMeshes({.seed = seed, .trace = {}}).hash,
              RunMeshes({.seed = seed, .trace = {}}).hash);
  }
}

class PlantedBugTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedBugTest, IsFound) {
  ExpectFound(GetParam(), kSeeds, [](std::uint64_t seed) {
    return !RunMeshes({.seed = seed, .trace = {}}).invariant.empty();
  });
}

INSTANTIATE_TEST_SUITE_P(Mesh, PlantedBugTest, testing::ValuesIn(kBugs), NameOfBug);

}  // namespace
}  // namespace prd::sim
