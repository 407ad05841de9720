// Groups that workers draw themselves from a Schedule (FollowsSchedule), message by message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "common/base/static_schedule.h"
#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::schedule_core_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kMe;
using testing::Script;

constexpr Plan kStatic = plans::kSchedule;

Plan StaticOverlap(std::uint32_t run_ahead) {
  return plans::Background(run_ahead, Membership::kSchedule);
}

// Ranks 0 to n-1 on these hosts; rank 3 is this worker.
Schedule Roster(GroupId first, std::vector<std::int32_t> hosts) {
  Schedule schedule{.first = first, .members = {}, .hosts = std::move(hosts), .reason = "because"};
  for (std::size_t i = 0; i < schedule.hosts.size(); ++i) {
    schedule.members.push_back({.rank = static_cast<Rank>(i), .incarnation = 998 + i});
  }
  return schedule;
}

// One host of four: L.W. 2 and 3 meet in phase 0, L.W. 0 and 3 in phase 2, and all in phases 1, 3.
const std::vector<std::int32_t> kOneHost = {0, 0, 0, 0};
// Rank 3 is L.W. 1 of its host, which does not synchronise in phase 0.
const std::vector<std::int32_t> kTwoHosts = {0, 0, 1, 1};

class ScheduleTest : public ::testing::Test {
 protected:
  std::optional<StartReduce> Started() const {
    for (const Action& action : s.actions) {
      if (const auto* start = std::get_if<StartReduce>(&action)) return *start;
    }
    return std::nullopt;
  }
  static std::vector<Rank> Ranks(const prd::Group& group) {
    std::vector<Rank> ranks;
    for (const GroupMember& member : group.members) ranks.push_back(member.rank);
    return ranks;
  }
  // The group that was started since Clear is through.
  void End(bool ok = true) {
    ASSERT_TRUE(Started().has_value());
    const GroupId id = Started()->group.id;
    s.actions.clear();
    s.Reduced(id, ok);
  }
  Script s;
};

TEST_F(ScheduleTest, EachStepTakesTheNextSlotAndTellsTheControllerNothing) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  const std::vector<std::vector<Rank>> expected = {
      {2, 3}, {0, 1, 2, 3}, {0, 3}, {0, 1, 2, 3}, {2, 3}};
  for (std::size_t slot = 0; slot < expected.size(); ++slot) {
    s.Clear();
    s.Step(static_cast<Iteration>(slot) + 1);
    ASSERT_TRUE(Started().has_value());
    const prd::Group group = Started()->group;
    EXPECT_EQ(Ranks(group), expected[slot]) << slot;
    EXPECT_EQ(group.kind, GroupKind::kTrain);
    EXPECT_EQ(group.id, 100 + slot * 4 + static_cast<GroupId>(expected[slot].front()));
    EXPECT_EQ(group.iteration, static_cast<Iteration>(slot) + 1) << "its own count";
    for (const GroupMember& member : group.members) {
      EXPECT_EQ(member.weight, 1.0 / static_cast<double>(group.members.size()));
    }
    EXPECT_THAT(group.reason, HasSubstr("slot " + std::to_string(slot)));
    EXPECT_FALSE(s.Done().has_value());
    s.Reduced(group.id);
    EXPECT_EQ(s.Outcome().rounds, 1);
    EXPECT_TRUE(s.Outcome().included);
    EXPECT_EQ(s.Outcome().group.id, group.id);
    EXPECT_TRUE(s.Sent().empty());
  }
}

TEST_F(ScheduleTest, StepWithoutAGroupEndsAtOnce) {
  s.Join(kStatic);
  s.Say(Roster(100, kTwoHosts));
  s.Step(1);
  EXPECT_FALSE(Started());
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, kNoGroup);
  s.Clear();
  s.Step(2);
  EXPECT_THAT(Ranks(Started()->group), ElementsAre(2, 3));
}

TEST_F(ScheduleTest, MembersAreInTheOrderOfHostAndRank) {
  s.Join(kStatic);
  s.Say(Roster(100, {5, 7, 5, 2}));  // four L.W. 0 and 1: hosts of ranks {0, 2}, {1}, {3}
  s.Step(1);
  EXPECT_THAT(Ranks(Started()->group), ElementsAre(3, 0, 1)) << "hosts 2, 5, 7";
}

TEST_F(ScheduleTest, SynchronisingStepWaitsForTheFirstSchedule) {
  s.Join(kStatic);
  s.Step(1);
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_TRUE(s.Sent().empty());
  s.now = s.now + 3 * kMillisecond;
  s.Say(Roster(100, kOneHost));
  EXPECT_THAT(Ranks(Started()->group), ElementsAre(2, 3));
  End();
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().waited, 3 * kMillisecond);
}

TEST_F(ScheduleTest, OtherStepsDoNotWaitAndAreNoSlots) {
  s.Join(plans::Every(3, plans::kSchedule));
  s.Step(1);
  EXPECT_TRUE(s.Done()->ok());
  s.Say(Roster(100, kOneHost));
  s.Clear();
  s.Step(2);
  EXPECT_TRUE(s.Done()->ok());
  s.Step(2, true);
  s.Clear();
  s.Step(3);
  EXPECT_EQ(Started()->group.id, 102u) << "slot 0";
}

TEST_F(ScheduleTest, SlotThatFailsIsSkipped) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  End(false);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().attempts, 1);
  EXPECT_TRUE(s.Sent().empty());
  s.Clear();
  s.Step(2);
  EXPECT_EQ(Started()->group.id, 104u) << "slot 1";
}

TEST_F(ScheduleTest, NewScheduleCallsOffWhatRunsAndAStepThatWaitsBeginsAnew) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  End();
  s.Clear();
  s.Step(2);
  s.Clear();
  s.Say(Roster(500, {0, 0, 0, 0, 0}));
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  ASSERT_TRUE(Started().has_value());
  EXPECT_EQ(Started()->group.id, 502u) << "slot 0 of the new one";
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(104);  // of a reduction that is off
  EXPECT_FALSE(s.Done().has_value());
  End();
  EXPECT_EQ(s.Outcome().attempts, 2);
  s.Clear();
  s.Step(3);
  EXPECT_EQ(Started()->group.id, 505u) << "slot 1";
}

TEST_F(ScheduleTest, NewScheduleWhileTheLoopComputesIsForTheNextStep) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Say(Roster(500, kOneHost));
  EXPECT_TRUE(s.actions.empty());
  s.Step(1);
  EXPECT_EQ(Started()->group.id, 502u);
}

TEST_F(ScheduleTest, FinishNeedsNoSchedule) {
  s.Join(kStatic);
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(ScheduleTest, FinalGroupComesAfterTheScheduleAndKeepsTheCount) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Step(7);
  End();
  s.core.Finish(s.now, &s.actions);
  s.Clear();
  s.Say(Script::MakeGroup(100 + kScheduleSpan, GroupKind::kFinal, 0));
  EXPECT_EQ(Started()->group.iteration, 7);
  End();
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk) << "this one is the controller's";
}

TEST_F(ScheduleTest, TimeoutDoesNotEndAStepThatWaitsForItsPeers) {
  s.Attach(kSecond);
  s.Welcome(kStatic);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Say(Roster(100, kOneHost));
  s.Clear();
  s.Step(1);
  s.Pass(10 * kSecond);
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(102);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(ScheduleTest, TimeoutEndsAStepThatWaitsForASchedule) {
  s.Attach(kSecond);
  s.Welcome(kStatic);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Clear();
  s.Step(1);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  s.Step(2);
  s.Say(Roster(100, kOneHost));
  EXPECT_EQ(Started()->group.id, 102u);
}

TEST_F(ScheduleTest, CancelCallsTheSlotOff) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  s.Clear();
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
  EXPECT_TRUE(s.Sent().empty());
}

TEST_F(ScheduleTest, NewIncarnationForgetsTheSchedule) {
  s.Join(kStatic);
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  s.Clear();
  s.core.GiveIncarnation(kMe);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  s.Pass(kSecond);
  s.Welcome(kStatic);
  s.SayAdopt();
  s.Fetched(9);
  EXPECT_TRUE(s.Outcome().adopted);
  s.Clear();
  s.Step(10);
  EXPECT_FALSE(Started());
  EXPECT_FALSE(s.Done().has_value());
}

TEST_F(ScheduleTest, SchedulesThatCannotBeEndTheSession) {
  Schedule none = Roster(100, {});
  Schedule hosts = Roster(100, kOneHost);
  hosts.hosts.pop_back();
  Schedule twice = Roster(100, kOneHost);
  twice.members.Mutable()[0].incarnation = 999;
  Schedule order = Roster(100, kOneHost);
  order.members.Mutable()[0].rank = 1;
  Schedule other = Roster(100, kOneHost);
  other.members.Mutable()[3].incarnation = 5;
  const Schedule low = Roster(1, kOneHost);
  const Schedule high = Roster(std::numeric_limits<GroupId>::max() - 5, kOneHost);
  const Schedule many = Roster(100, std::vector<std::int32_t>(4097, 0));
  const std::pair<Schedule, const char*> wrong[] = {
      {none, "0 members"},      {hosts, "3 hosts for 4"}, {twice, "in it twice"},
      {order, "order of rank"}, {other, "is not in it"},  {low, "not above"},
      {high, "out of range"},   {many, "4097 members"},
  };
  for (const auto& [schedule, why] : wrong) {
    SCOPED_TRACE(why);
    Script t;
    t.Join(kStatic);
    t.Step(1);
    t.Say(schedule);
    ASSERT_TRUE(t.Done().has_value());
    EXPECT_EQ(t.Done()->code(), Code::kDataLoss);
    EXPECT_THAT(t.Done()->message(), HasSubstr(why));
    EXPECT_EQ(t.Count<StartReduce>(), 0u);
  }
}

TEST_F(ScheduleTest, AnnouncedGroupsToTrainWithEndTheSession) {
  s.Join(kStatic);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
}

// As many workers as there can be use up the ids after 2^32 slots of 4096; a schedule of no more
// slots than members shows it sooner.
TEST_F(ScheduleTest, IdsThatAreUsedUpEndTheSession) {
  const std::vector<std::int32_t> hosts(4, 0);
  const StaticMembers all = {0, 1, 2, 3};
  EXPECT_EQ(StaticGroupId(1, 4, kScheduleSpan / 4, all), kNoGroup);
  EXPECT_NE(StaticGroupId(1, 4, kScheduleSpan / 4 - 1, all), kNoGroup);
}

// ---- with overlap ----

TEST_F(ScheduleTest, SlotsQueueUpAndRunInOrderOneAtATime) {
  s.Join(StaticOverlap(3));
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(Started()->group.id, 102u);
  EXPECT_EQ(Started()->gain, 0);
  s.Clear();
  s.Step(2);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_FALSE(Started()) << "one at a time";
  s.Clear();
  s.Reduced(102);
  EXPECT_EQ(Started()->group.id, 104u) << "while the loop computes";
  EXPECT_EQ(s.Count<ApplyNow>(), 0u);
  s.Clear();
  s.Reduced(104, false);
  EXPECT_FALSE(Started()) << "no slot that nobody has reached";
  EXPECT_TRUE(s.Sent().empty());
  s.Clear();
  s.Step(3, false, 1);
  EXPECT_EQ(Started()->group.id, 108u);
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_EQ(s.Outcome().group.id, 102u) << "the newest that succeeded";
  EXPECT_EQ(s.Outcome().attempts, 2) << "since the step before";
}

TEST_F(ScheduleTest, StepBeyondTheRunAheadWaitsForASlotAndAddsTheInbox) {
  s.Join(StaticOverlap(2));
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  s.Step(2);
  s.Clear();
  s.Step(3);
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(102);
  EXPECT_EQ(Started()->group.id, 104u);
  ASSERT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(3);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 1);
}

TEST_F(ScheduleTest, SlotsWithoutAGroupAreOverInTheirTurn) {
  s.Join(StaticOverlap(3));
  s.Say(Roster(100, kTwoHosts));
  s.Step(1);  // no group
  EXPECT_FALSE(Started());
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Step(2);
  EXPECT_EQ(Started()->group.id, 106u);
  s.Step(3);
  s.Step(4);
  s.Clear();
  s.Step(5);  // none again, behind those of slots 1 to 3
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(106);
  s.Applied(5);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(ScheduleTest, FinishWaitsForTheSlotsOrANewSchedule) {
  Script voided;
  for (Script* script : {&s, &voided}) {
    script->Join(StaticOverlap(4));
    script->Say(Roster(100, kOneHost));
    script->Step(1);
    script->Step(2);
    script->Clear();
    script->core.Finish(script->now, &script->actions);
    script->Reduced(102);
    EXPECT_TRUE(script->Said<prd::Finish>().empty());
  }
  EXPECT_EQ(Started()->group.id, 104u);
  s.Reduced(104);
  s.Applied(2, 2);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
  voided.Clear();
  voided.Say(Roster(500, kOneHost));
  EXPECT_EQ(voided.Count<CancelReduce>(), 1u);
  EXPECT_EQ(voided.Count<StartReduce>(), 0u);
  EXPECT_EQ(voided.Count<ApplyNow>(), 1u);
  voided.Applied(2, 1);
  EXPECT_EQ(voided.Said<prd::Finish>().size(), 1u);
}

TEST_F(ScheduleTest, NewScheduleForgetsTheQueue) {
  s.Join(StaticOverlap(2));
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  s.Step(2);
  s.Clear();
  s.Say(Roster(500, kOneHost));
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_FALSE(Started()) << "no step waits";
  s.Step(3);
  EXPECT_EQ(Started()->group.id, 502u);
  s.Step(4);
  s.Clear();
  s.Step(5);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Roster(900, kOneHost));
  EXPECT_EQ(Started()->group.id, 902u) << "the step that waits takes slot 0";
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(ScheduleTest, ScheduleThatComesWhileTheInboxIsAddedIsForTheNextStep) {
  s.Join(StaticOverlap(0));
  s.Say(Roster(100, kOneHost));
  s.Step(1);
  s.Reduced(102);
  ASSERT_EQ(s.Count<ApplyNow>(), 1u);
  s.Clear();
  s.Say(Roster(500, kOneHost));
  EXPECT_FALSE(Started());
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_FALSE(Started());
}

TEST_F(ScheduleTest, CancelAndLeaveBeginNoMoreSlots) {
  Script other;
  for (Script* script : {&s, &other}) {
    script->Join(StaticOverlap(3));
    script->Say(Roster(100, kOneHost));
    script->Step(1);
    script->Step(2);
    script->Clear();
  }
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_FALSE(Started());
  EXPECT_TRUE(s.Sent().empty());
  other.core.Leave(other.now, "why not", &other.actions);
  EXPECT_EQ(other.Count<CancelReduce>(), 1u);
  EXPECT_EQ(other.Count<StartReduce>(), 0u);
  EXPECT_TRUE(other.Said<Finished>().empty());
}

}  // namespace
}  // namespace prd::schedule_core_test
