// What frozen-group avoidance costs: updates per second of the real engine, with free
// communication, beside plain FIFO grouping of the same steps (tools/reference). Virtual time:
// nothing is measured.
#include <ostream>
#include <string>

#include "engines/p_reduce/p_reduce.h"
#include "gtest/gtest.h"
#include "tests/engines/virtual_run.h"

namespace prd::p_reduce_speed_test {
namespace {

struct Setting {
  std::string name;
  int fast;
  int slow;
  double factor;       // of a slow worker's step
  double least, most;  // plain FIFO's share of the bound
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

StepTimes Steps(const Setting& setting, double jitter, std::uint64_t seed) {
  StepTimes times{.mean_s = {}, .jitter = jitter, .seed = seed};
  times.mean_s.insert(times.mean_s.end(), static_cast<std::size_t>(setting.fast), 0.1);
  times.mean_s.insert(times.mean_s.end(), static_cast<std::size_t>(setting.slow),
                      0.1 * setting.factor);
  return times;
}

constexpr int kSize = 3;
constexpr std::int64_t kUpdates = 3000;
constexpr double kJitters[] = {0, 0.02, 0.2};

class SpeedTest : public testing::TestWithParam<Setting> {};

TEST_P(SpeedTest, PlainFifoReachesItsShareOfTheBound) {
  for (const double jitter : kJitters) {
    const StepTimes times = Steps(GetParam(), jitter, 1);
    const double share = FifoUpdatesPerSecond(times, kSize, kUpdates) / UpdateBound(times, kSize);
    EXPECT_GE(share, GetParam().least) << "jitter " << jitter;
    EXPECT_LE(share, GetParam().most) << "jitter " << jitter;
  }
}

// "frozen-group avoidance costs at most 2%", whatever T.
TEST_P(SpeedTest, TheFilterCostsAtMostTwoPercent) {
  const std::int64_t workers = GetParam().fast + GetParam().slow;
  const std::int64_t smallest = SmallestWindow(workers, kSize);
  for (const double jitter : kJitters) {
    for (std::uint64_t seed = 1; seed <= (jitter > 0 ? 3u : 1u); ++seed) {
      const StepTimes times = Steps(GetParam(), jitter, seed);
      const double plain = FifoUpdatesPerSecond(times, kSize, kUpdates);
      for (const std::int64_t window : {std::int64_t{0}, smallest, 2 * smallest, 4 * smallest}) {
        PReduce engine({.group_size = kSize, .history_window = static_cast<int>(window)});
        const VirtualRun run = RunEngine(&engine, times, kUpdates, 1000);
        EXPECT_GE(run.updates_per_s, 0.98 * plain)
            << "jitter " << jitter << ", seed " << seed << ", T " << window;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, SpeedTest,
                         testing::Values(Setting{"Eight_OneSlow", 7, 1, 5, 0.80, 0.86},
                                         Setting{"Eight_Equal", 8, 0, 1, 0.74, 0.84},
                                         Setting{"Sixteen_OneSlow", 15, 1, 5, 0.93, 0.99},
                                         Setting{"SixtyFour_EightSlow", 56, 8, 5, 0.95, 0.995},
                                         Setting{"SixtyFour_EightVerySlow", 56, 8, 20, 0.95, 1.01},
                                         Setting{"SixtyFour_Equal", 64, 0, 1, 0.95, 0.995}),
                         [](const auto& tested) { return tested.param.name; });

// The engine without a window that ever fills is plain FIFO, group for group: the two simulations
// agree with each other.
TEST(ReferenceTest, TheSimulationsAgree) {
  for (const double jitter : kJitters) {
    const StepTimes times = Steps({"", 11, 2, 3, 0, 1}, jitter, 5);
    PReduce engine({.group_size = kSize, .history_window = 10'000'000});
    EXPECT_NEAR(RunEngine(&engine, times, kUpdates, 1000).updates_per_s,
                FifoUpdatesPerSecond(times, kSize, kUpdates), 1e-4);
  }
}

}  // namespace
}  // namespace prd::p_reduce_speed_test
