// What does not pile up, however long it goes on: loops that are too long for a transcript.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/static_schedule.h"
#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::core_bounds_test {
namespace {

using testing::Script;

// Steps that do not signal tell what was trained, 16 times at most without an acknowledgement.
TEST(CoreBoundsTest, ReportsThatAreNotAcknowledged) {
  Script s;
  s.Join(plans::Every(1000, plans::kModels));
  for (int step = 1; step <= 100; ++step) {
    s.now = s.now + 150 * kMillisecond;
    s.Step(step);
  }
  EXPECT_EQ(s.Said<Progressed>().size(), 16u);
  s.Acknowledge();
  s.Clear();
  s.now = s.now + 150 * kMillisecond;
  s.Step(101);
  EXPECT_EQ(s.Only<Progressed>().own.steps, 101);
}

// A delayed step waits for nothing but room: 1024 signals are not acknowledged, at most.
TEST(CoreBoundsTest, SignalsThatAreNotAcknowledged) {
  Script s;
  s.Attach(kSecond);
  s.Welcome(plans::kAskedLate);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  const auto step_until_it_waits = [&s] {
    for (int steps = 0; steps < 5000; ++steps) {
      s.Clear();
      s.Step(0);
      if (!s.Done()) return steps;
    }
    return 5000;
  };
  EXPECT_EQ(step_until_it_waits(), 1024);
  EXPECT_TRUE(s.Sent().empty());
  s.Acknowledge();
  s.heard = 10;
  s.Aside(HeartbeatAck{});
  EXPECT_EQ(s.Only<Ready>().local_steps, 1025u);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_LT(step_until_it_waits(), 1024);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable) << "the absent controller is noticed";
}

// Steps of 7 s each, for 210 s.
TEST(CoreBoundsTest, StepsThatAllWaitLongAreSaidOnceAMinute) {
  Script s;
  s.Join(plans::kGradients);
  std::size_t lines = 0;
  for (int step = 1; step <= 30; ++step) {
    s.Step(step);
    for (int second = 0; second < 7; ++second) {
      s.Aside(HeartbeatAck{});
      s.Pass(kSecond);
    }
    const auto group = static_cast<GroupId>(step + 1);
    s.Say(Script::MakeGroup(group, GroupKind::kTrain, step));
    s.Reduced(group);
    s.Applied(step);
    s.Acknowledge();
    lines += s.Count<LogLine>();
    s.Clear();
  }
  EXPECT_GE(lines, 3u);
  EXPECT_LE(lines, 4u);
}

TEST(CoreBoundsTest, AScheduleOfMoreMembersThanThereMayBeEndsTheSession) {
  Script s;
  s.Join(plans::kSchedule);
  s.Step(1);
  Schedule schedule{.first = 100, .members = {}, .hosts = std::vector<std::int32_t>(4097, 0)};
  for (Rank rank = 0; rank < 4097; ++rank) {
    schedule.members.push_back({.rank = rank, .incarnation = 998 + static_cast<Incarnation>(rank)});
  }
  s.Say(schedule);
  ASSERT_TRUE(s.Done().has_value());
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
  EXPECT_NE(s.Done()->message().find("4097 members"), std::string::npos);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
}

// As many workers as there can be use up the ids after 2^32 slots of 4096; a schedule of no more
// slots than members shows it sooner.
TEST(CoreBoundsTest, IdsOfAScheduleAreUsedUp) {
  const StaticMembers all = {0, 1, 2, 3};
  EXPECT_EQ(StaticGroupId(1, 4, kScheduleSpan / 4, all), kNoGroup);
  EXPECT_NE(StaticGroupId(1, 4, kScheduleSpan / 4 - 1, all), kNoGroup);
}

}  // namespace
}  // namespace prd::core_bounds_test
