// Replays tests/worker/testdata/core/*.txt; PRD_REWRITE=1 writes what the core does now.
#include "tests/worker/core_transcript.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/transcript/text.h"

namespace prd::core_transcript_test {
namespace {

const std::string kFolder = std::string(PRD_SOURCE_DIR) + "/tests/worker/testdata/core/";

class CoreTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CoreTest, Replays) {
  EXPECT_EQ(transcript::CheckGolden(kFolder + GetParam() + ".txt", testing::RunCoreTranscript), "");
}

INSTANTIATE_TEST_SUITE_P(Transcripts, CoreTest,
                         ::testing::ValuesIn(transcript::TranscriptsIn(kFolder)),
                         [](const auto& tested) { return tested.param; });

TEST(CoreLanguageTest, RefusesWhatCannotBe) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      return testing::RunCoreTranscript(text);
    } catch (const std::invalid_argument& refused) {
      return refused.what();
    }
  };
  EXPECT_EQ(error("step 1\n"), "line 1, 'step 1': the first command must be worker or join");
  EXPECT_EQ(error("join models\nfinish\nstep 1\n"), "line 3, 'step 1': a call is in progress");
  EXPECT_EQ(error("join models\nstep 1 discrad=1\n"),
            "line 2, 'step 1 discrad=1': unknown key discrad; allowed: discard, samples, taken");
  EXPECT_EQ(error("join models\nreduced 2 lost x\n")
                .find("line 2, 'reduced 2 lost x': 'lost' is "
                      "not one of: aborted, "),
            0u);
}

}  // namespace
}  // namespace prd::core_transcript_test
