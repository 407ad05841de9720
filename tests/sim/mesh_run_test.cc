// Real meshes on the simulated network: every law holds, and each planted bug is found.
//
// This program's mesh is a copy with bugs that are asleep (mesh_bugs.py).
#include "tools/sim/mesh_run.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace prd::sim {

const char* planted_mesh_bug = nullptr;

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

// Which seed finds the bug first, from `first` on; 0: none of kSeeds. A check that fails, or a
// crash, finds it, too.
std::uint64_t FoundBy(const char* bug, std::uint64_t first) {
  for (std::uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
      planted_mesh_bug = bug;
      alarm(20);
      _exit(RunMeshes({.seed = seed, .trace = {}}).invariant.empty() ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      return seed;
    }
  }
  return 0;
}

class PlantedBugTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedBugTest, IsFound) {
  std::string at;
  for (const std::uint64_t first : {1u, 100'001u, 200'001u}) {
    const std::uint64_t seed = FoundBy(GetParam(), first);
    at += " " + (seed == 0 ? "-" : std::to_string(seed - first + 1));
    EXPECT_NE(seed, 0u) << GetParam() << " is not found from seed " << first << " on";
  }
  RecordProperty("seeds", at);
  std::printf("%s is found by seed%s of three bases\n", GetParam(), at.c_str());
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Mesh, PlantedBugTest, testing::ValuesIn(kBugs), NameOf);

}  // namespace
}  // namespace prd::sim
