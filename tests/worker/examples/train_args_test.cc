#include "worker/examples/train_args.h"

#include <gmock/gmock.h>

#include <vector>

namespace example {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Exit code of ParseTrainArgs, or -1 if it let the program go on.
int Parse(std::vector<std::string> arguments, TrainArgs* args) {
  arguments.insert(arguments.begin(), "prd-train");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int exit_code = -1;
  const bool parsed = ParseTrainArgs(static_cast<int>(argv.size()), argv.data(), args, &exit_code);
  EXPECT_EQ(parsed, exit_code == -1);
  return exit_code;
}

TEST(TrainArgsTest, ReadsStragglersAndShards) {
  TrainArgs args;
  ASSERT_EQ(
      Parse({"--step-ms", "40", "--slow", "7:5", "--slow", "2:1.5", "--shards", "labels"}, &args),
      -1);
  EXPECT_THAT(args.slow, ElementsAre(Pair(2, 1.5), Pair(7, 5.0)));
  EXPECT_EQ(args.sharding, Sharding::kLabels);
  EXPECT_EQ(args.step_ms, 40);
}

TEST(TrainArgsTest, RefusesWhatCannotBe) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--step-ms", "40", "--slow", "7"},
      {"--step-ms", "40", "--slow", "7:0.5"},
      {"--step-ms", "40", "--slow", "-1:5"},
      {"--step-ms", "40", "--slow", "1:nan"},
      {"--step-ms", "40", "--slow", "1:5x"},
      {"--slow", "7:5"},
      {"--step-ms", "-1"},
      {"--batch", "0"},
      {"--model", "transformer"},
      {"--shards", "odd"},
      {"--lr", "much"},
      {"--unknown"},
  };
  for (const auto& arguments : wrong) {
    TrainArgs args;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse(arguments, &args), 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        HasSubstr(arguments[0] == "--step-ms" && arguments.size() > 2 ? "--slow" : arguments[0]));
  }
}

TEST(TrainArgsTest, HelpIsNoError) {
  TrainArgs args;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--help"}, &args), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("--snapshot-dir"));
}

}  // namespace
}  // namespace example
