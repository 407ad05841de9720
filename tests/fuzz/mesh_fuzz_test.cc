// Random scripts, and those kept in corpus/, for a mesh's door and for sealed frames.
//   PRD_FUZZ_SEED  where they start (default 1); a failure names the script's
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/base/prng.h"
#include "tests/fuzz/mesh_feed.h"

namespace prd {
namespace {

using Feed = std::string (*)(std::string_view, MeshTally*);

MeshTally FeedAll(Feed feed, int scripts, const std::string& corpus) {
  MeshTally tally;
  const char* value = std::getenv("PRD_FUZZ_SEED");
  const std::uint64_t first = value == nullptr ? 1 : std::strtoull(value, nullptr, 10);
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(scripts); ++seed) {
    Prng prng(seed);
    std::string script(prng.Below(1500), '\0');
    for (char& byte : script) byte = static_cast<char>(prng.Next());
    EXPECT_EQ(feed(script, &tally), "") << "seed " << seed;
    if (::testing::Test::HasFailure()) return tally;
  }
  for (const auto& entry :
       std::filesystem::directory_iterator(PRD_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
    std::ostringstream script;
    script << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    EXPECT_EQ(feed(script.str(), &tally), "") << entry.path();
  }
  return tally;
}

TEST(MeshFuzz, NobodyPassesTheDoorWithoutAKey) {
  const MeshTally tally = FeedAll(FeedDoor, 3000, "door");
  std::printf("%llu knocks, %llu admitted\n", static_cast<unsigned long long>(tally.knocks),
              static_cast<unsigned long long>(tally.admitted));
  EXPECT_GT(tally.knocks, 30'000u);
  EXPECT_GT(tally.admitted, 1000u);
}

TEST(MeshFuzz, NoForgedFrameCounts) {
  const MeshTally tally = FeedAll(FeedFrames, 60, "frames");
  std::printf("%llu frames, %llu counted, %llu forged\n",
              static_cast<unsigned long long>(tally.frames),
              static_cast<unsigned long long>(tally.counted),
              static_cast<unsigned long long>(tally.forged));
  EXPECT_GT(tally.counted, 100u);
  EXPECT_GT(tally.forged, 300u);
}

}  // namespace
}  // namespace prd
