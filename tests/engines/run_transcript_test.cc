// Replays tests/engines/testdata/{run,controller}/*.txt; PRD_REWRITE=1 writes what they say now.
#include "tests/engines/run_transcript.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/engines/controller_transcript.h"
#include "tests/transcript/text.h"

namespace prd {
namespace {

const std::string kData = std::string(PRD_SOURCE_DIR) + "/tests/engines/testdata";
const std::string kFolder = kData + "/run";
const std::string kOfController = kData + "/controller";

class RunTranscriptTest : public testing::TestWithParam<std::string> {
 protected:
  std::string path() const { return kFolder + "/" + GetParam() + ".txt"; }
};

TEST_P(RunTranscriptTest, Replays) {
  EXPECT_EQ(transcript::CheckGolden(path(), [](const auto& text) { return ReplayRun(text); }), "");
}

// A controller may be restarted at any time.
TEST_P(RunTranscriptTest, IsTheSameWhereTheRunIsLoadedFromASnapshotAfterEveryInput) {
  std::ifstream in(path());
  std::ostringstream golden;
  golden << in.rdbuf();
  EXPECT_EQ(ReplayRun(golden.str(), true), golden.str());
}

INSTANTIATE_TEST_SUITE_P(Run, RunTranscriptTest,
                         testing::ValuesIn(transcript::TranscriptsIn(kFolder)),
                         [](const auto& tested) { return tested.param; });

class ControllerTranscriptTest : public testing::TestWithParam<std::string> {};

TEST_P(ControllerTranscriptTest, Replays) {
  EXPECT_EQ(transcript::CheckGolden(kOfController + "/" + GetParam() + ".txt", ReplayController),
            "");
}

INSTANTIATE_TEST_SUITE_P(Controller, ControllerTranscriptTest,
                         testing::ValuesIn(transcript::TranscriptsIn(kOfController)),
                         [](const auto& tested) { return tested.param; });

// What replaying `text` throws.
std::string ErrorOf(const std::string& text) {
  try {
    ReplayRun(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(RunTranscriptLanguageTest, RefusesWhatItDoesNotKnow) {
  using testing::HasSubstr;
  EXPECT_THAT(ErrorOf("start\n"), HasSubstr("the first command must be run"));
  EXPECT_THAT(ErrorOf("run p-reduce workers=2\nfrobnicate 0\n"), HasSubstr("no such command"));
  EXPECT_THAT(ErrorOf("run p-reduce workers=2\nstart\nready 0 iteratoin=1\n"),
              HasSubstr("unknown key iteratoin"));
  EXPECT_THAT(ErrorOf("run scripted\nnext ready 0\n"), HasSubstr("no such effect"));
  EXPECT_THAT(ErrorOf("run p-reduce\nnext group_formed 0\n"), HasSubstr("decides by itself"));
  EXPECT_EQ(ErrorOf("run p-reduce workers=2\nstart\nready 0 iteration=1\n"), "");
}

}  // namespace
}  // namespace prd
