// Replays tests/engines/testdata/*.txt; PRD_REWRITE=1 writes what the engines decide now.
#include "tests/engines/transcript.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/transcript/text.h"

namespace prd::transcript_test {
namespace {

std::string Path(const std::string& name) {
  return std::string(PRD_SOURCE_DIR) + "/tests/engines/testdata/" + name + ".txt";
}

class GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTest, Replays) {
  EXPECT_EQ(transcript::CheckGolden(Path(GetParam()), RunTranscript), "");
}

INSTANTIATE_TEST_SUITE_P(Engines, GoldenTest,
                         testing::ValuesIn(transcript::TranscriptsIn(std::string(PRD_SOURCE_DIR) +
                                                                     "/tests/engines/testdata")),
                         [](const auto& tested) { return tested.param; });

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

// What running `text` throws.
std::string ErrorOf(const std::string& text) {
  try {
    RunTranscript(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(TranscriptLanguageTest, ErrorsNameTheLineAndWhatIsAllowed) {
  EXPECT_EQ(ErrorOf("# none\njoin 0\n"), "line 2, 'join 0': the first command must be engine");
  EXPECT_EQ(ErrorOf("engine p-reduce\nfrobnicate\n"),
            "line 2, 'frobnicate': 'frobnicate' is not one of: at, copy, deadline, drawn, explain, "
            "finish, join, leave, placed, ready");
  EXPECT_NE(ErrorOf("engine p-reduce group_size=1\n"), "");
  EXPECT_EQ(ErrorOf("engine p-reduce\njoin 0 hots=a\n"),
            "line 2, 'join 0 hots=a': unknown key hots; allowed: host, iteration");
  EXPECT_EQ(ErrorOf("engine p-reduce\njoin x\n"), "line 2, 'join x': 'x' is not a whole number");
  EXPECT_EQ(ErrorOf("engine p-reduce\nat 3min\n"),
            "line 2, 'at 3min': 'min' is not one of: ms, ns, s, us");
}

// A file whose output is not what the commands lead to is found, and not rewritten unasked.
TEST(TranscriptLanguageTest, DifferencesAreFound) {
  const std::string path = testing::TempDir() + "/transcript_differs.txt";
  std::ofstream(path) << "engine p-reduce\njoin 0\nexplain 0\n> rank 0: what?\n";
  if (std::getenv("PRD_REWRITE") != nullptr) GTEST_SKIP();
  EXPECT_EQ(transcript::CheckGolden(path, RunTranscript),
            path +
                ": line 4\n  golden: > rank 0: what?\n  now:    > rank 0: (not waiting)\n"
                "PRD_REWRITE=1 rewrites it.");
  std::ofstream(path) << "engine p-reduce\njoin 0\n";
  EXPECT_EQ(transcript::CheckGolden(path, RunTranscript), path + ": no command has any output");
}

}  // namespace
}  // namespace prd::transcript_test
