#include "worker/examples/pace.h"

#include <gtest/gtest.h>

#include "worker/examples/snapshot.h"

namespace example::pace_test {
namespace {

constexpr std::int64_t kMs = 1'000'000;
const Interrupted kNever = [] { return false; };

TEST(PaceTest, AStepLastsAsLongAsItIsMeantToOrAsItTakes) {
  const TrainArgs args{.step_ms = 40, .slow = {{2, 1.5}}};
  const Pace fast(args, 0, 3);
  const Pace slow(args, 2, 3);
  EXPECT_EQ(fast.step_ns(), 40 * kMs);
  EXPECT_EQ(slow.step_ns(), 60 * kMs);
  EXPECT_EQ(fast.EndNs(0, 100 * kMs, 101 * kMs, 128), 140 * kMs);
  EXPECT_EQ(slow.EndNs(0, 100 * kMs, 101 * kMs, 128), 160 * kMs);
  EXPECT_EQ(fast.EndNs(0, 100 * kMs, 155 * kMs, 128), 155 * kMs);
}

TEST(PaceTest, AnInjectedDelayComesOnTop) {
  TrainArgs args{.step_ms = 40};
  args.injection = {.kind = Injection::Kind::kShifted, .min_ms = 10, .max_ms = 30};
  const Pace pace(args, 1, 3);
  EXPECT_EQ(pace.EndNs(0, 100 * kMs, 101 * kMs, 128), 160 * kMs);
  EXPECT_EQ(pace.EndNs(1, 100 * kMs, 101 * kMs, 128), 170 * kMs);
  EXPECT_EQ(pace.EndNs(2, 100 * kMs, 155 * kMs, 128), 165 * kMs);
  args.step_ms = 0;
  EXPECT_EQ(Pace(args, 1, 3).EndNs(0, 100 * kMs, 101 * kMs, 128), 121 * kMs);
}

TEST(PaceTest, AShareOfABatchLastsAsLongAsItsSamples) {
  const TrainArgs args{.batch = 128, .step_ms = 40, .slow = {{2, 5}}};
  EXPECT_EQ(Pace(args, 0, 3).EndNs(0, 100 * kMs, 101 * kMs, 192), 160 * kMs);
  EXPECT_EQ(Pace(args, 2, 3).EndNs(0, 100 * kMs, 101 * kMs, 32), 150 * kMs);
  EXPECT_EQ(Pace(args, 2, 3).EndNs(0, 100 * kMs, 155 * kMs, 32), 155 * kMs);
}

TEST(PaceTest, WaitsUntilTheTime) {
  const std::int64_t until_ns = MonotonicNs() + 5 * kMs;
  EXPECT_TRUE(WaitUntil(until_ns, kNever));
  EXPECT_GE(MonotonicNs(), until_ns);
}

TEST(PaceTest, AnInterruptedWaitEnds) {
  int asked = 0;
  const Interrupted third = [&] { return ++asked == 3; };
  EXPECT_FALSE(WaitUntil(MonotonicNs() + 3'600'000 * kMs, third));
  EXPECT_EQ(asked, 3);
}

TEST(PaceTest, WhatIsOverIsNotInterrupted) {
  EXPECT_TRUE(WaitUntil(MonotonicNs() - 1, [] { return true; }));
}

}  // namespace
}  // namespace example::pace_test
