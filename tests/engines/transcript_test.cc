// Replays tests/engines/testdata/*.txt; PRD_REWRITE=1 writes what the engines decide now.
#include "tests/engines/transcript.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace prd::transcript_test {
namespace {

std::string Path(const std::string& name) {
  return std::string(PRD_SOURCE_DIR) + "/tests/engines/testdata/" + name + ".txt";
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, Replays) {
  std::ifstream in(Path(GetParam()));
  ASSERT_TRUE(in) << Path(GetParam());
  std::ostringstream golden;
  golden << in.rdbuf();
  const bool decides = golden.str().find("> group") != std::string::npos ||
                       golden.str().find("> schedule") != std::string::npos ||
                       golden.str().find("> answer") != std::string::npos;
  ASSERT_TRUE(decides) << "shows no decision";
  const std::string now = RunTranscript(golden.str());
  if (std::getenv("PRD_REWRITE") != nullptr) {
    std::ofstream(Path(GetParam())) << now;
  } else {
    EXPECT_EQ(now, golden.str());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, GoldenTest,
    testing::Values("ad_psgd", "all_reduce", "backup", "backup_faults", "eager_majority",
                    "eager_quorum", "eager_solo", "eager_stale", "eager_sync", "esync",
                    "esync_delayed_ack", "esync_stall", "hop", "hop_changes", "p_reduce_fifo",
                    "p_reduce_weights", "p_reduce_frozen", "p_reduce_left_over",
                    "p_reduce_default_size", "p_reduce_few_workers", "p_reduce_max_wait",
                    "prague_random", "prague_smart", "prague_static", "ssp", "ssp_changes"),
    [](const auto& tested) { return std::string(tested.param); });

// What p-reduce decides does not depend on whether its workers compute meanwhile.
TEST(TranscriptTest, OverlapChangesNoDecision) {
  for (const char* name : {"p_reduce_fifo", "p_reduce_weights", "p_reduce_frozen",
                           "p_reduce_few_workers", "p_reduce_max_wait"}) {
    std::ifstream in(Path(name));
    std::ostringstream blocking;
    blocking << in.rdbuf();
    const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
      for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
        text.replace(at, from.size(), to);
        at += to.size();
      }
      return text;
    };
    const std::string plain = "engine p-reduce ";
    const std::string overlap = "engine p-reduce overlap=1 ";
    const std::string expected = replaced(blocking.str(), plain, overlap);
    ASSERT_NE(expected, blocking.str());
    EXPECT_EQ(RunTranscript(expected), expected);
  }
}

TEST(TranscriptLanguageTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(RunTranscript("join 0\n"), std::invalid_argument);
  EXPECT_THROW(RunTranscript("engine p-reduce\nfrobnicate\n"), std::invalid_argument);
  EXPECT_THROW(RunTranscript("engine p-reduce group_size=1\n"), std::invalid_argument);
  EXPECT_THROW(RunTranscript("engine p-reduce\njoin 0 hots=a\n"), std::invalid_argument);
}

}  // namespace
}  // namespace prd::transcript_test
