// Replays tests/worker/testdata/core/*.txt; PRD_REWRITE=1 writes what the core does now.
#include "tests/worker/core_transcript.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace prd::core_transcript_test
