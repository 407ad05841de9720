#include "worker/examples/inject.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace example::inject_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

Injection Parsed(const std::string& text) {
  Injection injection;
  EXPECT_EQ(ParseInjection(text, &injection), "");
  return injection;
}

// The delays of all workers at one step.
std::vector<std::int64_t> DelaysMs(const Injection& injection, int workers, std::int64_t step) {
  std::vector<std::int64_t> delays;
  for (int rank = 0; rank < workers; ++rank) {
    delays.push_back(DelayNs(injection, 1, rank, workers, step, 10 * kMs) / kMs);
  }
  return delays;
}

TEST(InjectTest, NoneIsNone) { EXPECT_THAT(DelaysMs({}, 3, 5), ElementsAre(0, 0, 0)); }

TEST(InjectTest, OneDelaysOneOfAllInEveryStepAndEachAsOftenAsOthers) {
  constexpr int kWorkers = 8;
  constexpr int kSteps = 8000;
  const Injection one = Parsed("one:300");
  std::array<int, kWorkers> drawn{};
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<std::int64_t> delays = DelaysMs(one, kWorkers, step);
    ASSERT_EQ(std::count(delays.begin(), delays.end(), 0), kWorkers - 1);
    const auto place = std::find(delays.begin(), delays.end(), 300) - delays.begin();
    ASSERT_LT(place, kWorkers);
    ++drawn[static_cast<std::size_t>(place)];
  }
  // 1000 expected, with a standard deviation of 30.
  for (const int times : drawn) EXPECT_NEAR(times, 1000, 150);
}

TEST(InjectTest, OneFollowsFromTheSeedAlone) {
  const Injection one = Parsed("one:1");
  const auto sequence = [&](std::uint64_t seed) {
    std::vector<std::int64_t> delays;
    for (int step = 0; step < 100; ++step) delays.push_back(DelayNs(one, seed, 0, 2, step, 0));
    return delays;
  };
  EXPECT_EQ(sequence(1), sequence(1));
  EXPECT_NE(sequence(1), sequence(2));
}

TEST(InjectTest, ShiftedIsLinearAndMovesOnByOneWorker) {
  const Injection shifted = Parsed("shifted:50:400");
  EXPECT_THAT(DelaysMs(shifted, 8, 0), ElementsAre(50, 100, 150, 200, 250, 300, 350, 400));
  EXPECT_THAT(DelaysMs(shifted, 8, 1), ElementsAre(100, 150, 200, 250, 300, 350, 400, 50));
  EXPECT_THAT(DelaysMs(shifted, 8, 15), ElementsAre(400, 50, 100, 150, 200, 250, 300, 350));
}

TEST(InjectTest, ShiftedDelaysAllTheSameInTheLongRun) {
  const Injection shifted = Parsed("shifted:1:9");
  for (int rank = 0; rank < 5; ++rank) {
    std::int64_t sum = 0;
    for (int step = 3; step < 8; ++step) sum += DelayNs(shifted, 1, rank, 5, step, 0);
    EXPECT_EQ(sum, (1 + 3 + 5 + 7 + 9) * kMs);
  }
}

// Hop, section 7.3.1: "randomly slowing down every worker by 6 times at a probability of 1/n".
TEST(InjectTest, RandomMakesEachStepOfEachWorkerSlowWithItsProbability) {
  constexpr int kWorkers = 8;
  constexpr int kSteps = 8000;
  for (const auto& [text, expected] :
       {std::pair("random:6", 1000), std::pair("random:6:0.5", 4000)}) {
    const Injection random = Parsed(text);
    std::array<int, kWorkers> slow{};
    int alike = 0;  // steps in which the first two were
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<std::int64_t> delays = DelaysMs(random, kWorkers, step);
      for (std::size_t rank = 0; rank < kWorkers; ++rank) {
        ASSERT_TRUE(delays[rank] == 0 || delays[rank] == 50) << delays[rank];
        if (delays[rank] > 0) ++slow[rank];
      }
      if (delays[0] > 0 && delays[1] > 0) ++alike;
    }
    // A standard deviation of 30 and 45.
    for (const int times : slow) EXPECT_NEAR(times, expected, 250);
    EXPECT_NEAR(alike, static_cast<double>(expected) * expected / kSteps, 250);
  }
}

TEST(InjectTest, ALoneWorkerAndALateOneAreTakenCareOf) {
  EXPECT_THAT(DelaysMs(Parsed("shifted:2:4"), 1, 7), ElementsAre(2));
  EXPECT_THAT(DelaysMs(Parsed("one:2"), 1, 7), ElementsAre(2));
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(DelayNs(Parsed("one:2"), 1, 8, 8, step, 0), 0);
    EXPECT_EQ(DelayNs(Parsed("shifted:2:4"), 1, 11, 8, step, 0),
              DelayNs(Parsed("shifted:2:4"), 1, 3, 8, step, 0));
  }
}

TEST(InjectTest, FractionsOfMillisecondsCount) {
  EXPECT_EQ(DelayNs(Parsed("one:0.5"), 1, 0, 1, 0, 0), kMs / 2);
}

TEST(InjectTest, RefusesWhatCannotBe) {
  for (const char* text : {"",
                           "one",
                           "one:",
                           "one:x",
                           "one:-1",
                           "one:nan",
                           "one:inf",
                           "one:3600001",
                           "one:1:2",
                           "one:1x",
                           "two:1",
                           "shifted:1",
                           "shifted:2:1",
                           "shifted:1:",
                           "shifted:1:2:3",
                           "Shifted:1:2",
                           ":1",
                           "random",
                           "random:0.5",
                           "random:6:0",
                           "random:6:1.5",
                           "random:6:0.5:1",
                           "random:6:"}) {
    Injection injection{.kind = Injection::Kind::kOne, .max_ms = 7};
    EXPECT_THAT(ParseInjection(text, &injection), HasSubstr("allowed is")) << text;
    EXPECT_EQ(injection.max_ms, 7) << text;
  }
}

}  // namespace
}  // namespace example::inject_test
