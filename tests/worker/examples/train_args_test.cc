#include "worker/examples/train_args.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

namespace example::train_args_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Exit code of the parser, or -1 if it let the program go on.
template <typename Args>
int Parse(bool (*parser)(int, char**, Args*, int*), std::vector<std::string> arguments,
          Args* args) {
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int exit_code = -1;
  const bool parsed = parser(static_cast<int>(argv.size()), argv.data(), args, &exit_code);
  EXPECT_EQ(parsed, exit_code == -1);
  return exit_code;
}

int Parse(std::vector<std::string> arguments, FashionMnistArgs* args) {
  return Parse(ParseFashionMnistArgs, std::move(arguments), args);
}

TEST(TrainArgsTest, ReadsStragglersAndShards) {
  FashionMnistArgs args;
  ASSERT_EQ(
      Parse({"--step-ms", "40", "--slow", "7:5", "--slow", "2:1.5", "--shards", "labels"}, &args),
      -1);
  EXPECT_THAT(args.train.slow, ElementsAre(Pair(2, 1.5), Pair(7, 5.0)));
  EXPECT_EQ(args.sharding, Sharding::kLabels);
  EXPECT_EQ(args.train.step_ms, 40);
}

TEST(TrainArgsTest, HyperplaneHasTheCommonOptionsAndItsOwnDefaults) {
  TrainArgs args{.batch = 256};
  ASSERT_EQ(Parse(ParseHyperplaneArgs, {"--inject", "shifted:50:400", "--seconds", "2.5"}, &args),
            -1);
  EXPECT_EQ(args.batch, 256U);
  EXPECT_EQ(args.seconds, 2.5);
  EXPECT_EQ(args.injection.kind, Injection::Kind::kShifted);
  EXPECT_EQ(args.injection.max_ms, 400);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse(ParseHyperplaneArgs, {"--model", "mlp"}, &args), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--model"));
}

TEST(TrainArgsTest, CudaNamesADeviceAndHasOneModel) {
  const std::map<std::string, int> devices = {
      {"cuda", 0}, {"cuda:0", 0}, {"cuda:12", 12}, {"cpu", -1}};
  for (const auto& [name, number] : devices) {
    FashionMnistCudaArgs args{.device = 77};
    ASSERT_EQ(Parse(ParseFashionMnistCudaArgs, {"--device", name, "--evaluate"}, &args), -1);
    EXPECT_EQ(args.device, number) << name;
    EXPECT_TRUE(args.common.evaluate);
  }
  FashionMnistCudaArgs args;
  ASSERT_EQ(Parse(ParseFashionMnistCudaArgs, {"--batch", "64"}, &args), -1);
  EXPECT_EQ(args.device, 0);
  EXPECT_EQ(args.common.train.batch, 64U);
  for (const char* wrong : {"cuda:", "cuda:-1", "cuda:1x", "cuda0", "gpu", "", "cuda:9999999999"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse(ParseFashionMnistCudaArgs, {"--device", wrong}, &args), 2) << wrong;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--device"));
  }
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Parse(ParseFashionMnistCudaArgs, {"--model", "cnn"}, &args), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--model"));
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
      {"--inject", "two:5"},
      {"--inject", "one:5:6"},
      {"--inject", "random:6"},
      {"--unknown"},
  };
  for (const auto& arguments : wrong) {
    FashionMnistArgs args;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse(arguments, &args), 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        HasSubstr(arguments[0] == "--step-ms" && arguments.size() > 2 ? "--slow" : arguments[0]));
  }
}

TEST(TrainArgsTest, HelpIsNoError) {
  FashionMnistArgs args;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--help"}, &args), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("--snapshot-dir"));
}

}  // namespace
}  // namespace example::train_args_test
