// SessionCore where the run is to end and another one follows (EndRun).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core_script.h"

namespace prd::switch_core_test {
namespace {

using testing::kMe;
using testing::Script;

constexpr Incarnation kNext = 3003;

class SwitchCoreTest : public ::testing::Test {
 protected:
  // The step in progress ends with this group.
  void Through(GroupId group) {
    s_.Say(Script::MakeGroup(group));
    s_.Reduced(group);
  }
  // The final average, and the end of the run.
  void EndOfRun(GroupId final, Iteration at) {
    s_.Say(Script::MakeGroup(final, GroupKind::kFinal, at));
    s_.Reduced(final);
    EXPECT_FALSE(s_.Done().has_value());
    s_.core.GiveIncarnation(kNext);
    s_.Clear();
    s_.Aside(Refused{.code = Code::kAborted, .reason = "the job goes on in run 10"});
    s_.Pass(kSecond);
  }
  void NextRun(const Plan& plan, Iteration at) {
    s_.identity.high = 70;
    s_.Welcome(plan);
    Group start = Script::MakeGroup(1, GroupKind::kInitial, at);
    start.members.Mutable()[0].incarnation = kNext;
    s_.Say(start);
    s_.Reduced(1);
  }
  static Group OfNext(GroupId id, Iteration at) {
    Group group = Script::MakeGroup(id, GroupKind::kTrain, at);
    group.members.Mutable()[0].incarnation = kNext;
    return group;
  }
  Script s_;
};

TEST_F(SwitchCoreTest, AStepEndsWholeAndItsCallWithTheNextRun) {
  s_.Join();
  s_.Say(EndRun{.reason = "r"});
  EXPECT_TRUE(s_.Said<Finish>().empty()) << "it computes";
  s_.Step(1);
  s_.Acknowledge();
  s_.Clear();
  Through(2);
  EXPECT_FALSE(s_.Done().has_value()) << "the step has ended, and its call has not";
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
  EndOfRun(3, 1);
  const Hello hello = s_.Only<Hello>();
  EXPECT_EQ(hello.iteration, 1);
  EXPECT_EQ(hello.former.high, 7u);
  EXPECT_EQ(hello.own.steps, 1);
  s_.Clear();
  s_.now = s_.now + kSecond;
  NextRun(plans::kGradients, 1);
  ASSERT_TRUE(s_.Done().has_value());
  EXPECT_TRUE(s_.Done()->ok());
  const StepOutcome outcome = s_.Outcome();
  EXPECT_TRUE(outcome.adopted);
  EXPECT_TRUE(outcome.included);
  EXPECT_EQ(outcome.rounds, 1);
  EXPECT_EQ(outcome.group.id, 2u) << "the step's own, not those of the runs' end and start";
  EXPECT_EQ(outcome.own.steps, 1);
  EXPECT_GE(outcome.waited, kSecond);
  // The next step is one of the other engine.
  s_.Acknowledge();
  s_.Clear();
  s_.Step(2);
  EXPECT_EQ(s_.Signal().iteration, 2);
  s_.Say(OfNext(2, 2));
  s_.Reduced(2);
  EXPECT_EQ(s_.Count<ApplyNow>(), 1u);
  s_.Applied(2);
  EXPECT_TRUE(s_.Done()->ok());
  EXPECT_FALSE(s_.Outcome().adopted);
}

// Gradients that it owes are reduced first, and what came of them is applied.
TEST_F(SwitchCoreTest, RoundsAreSettledFirst) {
  s_.Join(plans::kRounds);
  s_.Step(1);
  s_.Say(EndRun{});
  s_.Round(2, 1, true);
  s_.Reduced(2);
  s_.Applied(1);  // the step has ended
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
  EndOfRun(3, 1);
  NextRun(plans::kModels, 1);
  EXPECT_TRUE(s_.Done()->ok());
}

TEST_F(SwitchCoreTest, StepsThatSignalNothingEndTheRunToo) {
  s_.Join(plans::Every(8, plans::kAhead));
  s_.Say(EndRun{});
  s_.Step(1);
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
  EndOfRun(2, 0);
  NextRun(plans::kModels, 1);
  EXPECT_TRUE(s_.Done()->ok());
}

// The training loop has ended, and stays in the job up to the end of the last run.
TEST_F(SwitchCoreTest, WhoHasFinishedFinishesTheNextRun) {
  s_.Join();
  s_.core.Finish(s_.now, &s_.actions);
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
  s_.Say(EndRun{});
  s_.Acknowledge();
  s_.Clear();
  EndOfRun(2, 0);
  s_.Clear();
  NextRun(plans::kModels, 0);
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
}

TEST_F(SwitchCoreTest, WhoPausesComesToTheNextRunWhenItResumes) {
  s_.Join();
  s_.Say(EndRun{});
  s_.Clear();
  s_.core.Pause(s_.now, &s_.actions);
  EXPECT_EQ(s_.Said<Pause>().size(), 1u);
  EXPECT_TRUE(s_.Said<Finish>().empty());
  EXPECT_TRUE(s_.Done()->ok());
  s_.core.GiveIncarnation(kNext);
  s_.Clear();
  s_.Aside(Refused{.code = Code::kAborted, .reason = "the job goes on in run 10"});
  s_.Pass(kSecond);
  EXPECT_TRUE(s_.Said<Hello>().empty());
  s_.core.Resume(s_.now, &s_.actions);
  EXPECT_EQ(s_.Said<Hello>().size(), 1u);
  s_.Clear();
  NextRun(plans::kModels, 0);
  EXPECT_TRUE(s_.Done()->ok());
}

// A second switch before the step has come out of the first.
TEST_F(SwitchCoreTest, AStepMayGoThroughSeveralRuns) {
  s_.Join();
  s_.Say(EndRun{});
  s_.Step(1);
  Through(2);
  EndOfRun(3, 1);
  s_.identity.high = 70;
  s_.Welcome(plans::kModels);
  s_.Say(EndRun{});
  s_.Clear();
  Group start = Script::MakeGroup(1, GroupKind::kInitial, 1);
  start.members.Mutable()[0].incarnation = kNext;
  s_.Say(start);
  s_.Reduced(1);
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
}

// Given up while it waited for the next run: what the caller has computed since belongs to none.
TEST_F(SwitchCoreTest, AStepAfterOneThatWasGivenUpGoesOnWaiting) {
  s_.Attach(5 * kSecond);
  s_.Welcome();
  s_.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s_.Reduced(1);
  s_.Say(EndRun{});
  s_.Clear();
  s_.Step(1);
  Through(2);
  s_.Clear();
  s_.Pass(6 * kSecond);
  ASSERT_TRUE(s_.Done().has_value());
  EXPECT_EQ(s_.Done()->code(), Code::kUnavailable);
  s_.Clear();
  s_.Step(2);
  EXPECT_TRUE(s_.Said<Ready>().empty());
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.core.own().steps, 1);
}

// The reduction is the device's to finish: the step does not end before it has.
TEST_F(SwitchCoreTest, NoStepReturnsEarlyBeforeTheRunEnds) {
  s_.Join();
  s_.Step(1);
  s_.Say(Script::MakeGroup(2));
  EXPECT_TRUE(s_.core.HandedOver(2).has_value());
  s_.Say(EndRun{});
  s_.Reduced(2);
  EXPECT_TRUE(s_.Done().has_value()) << "its caller has gone on already";
  s_.Clear();
  s_.Step(2);
  s_.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  EXPECT_FALSE(s_.core.HandedOver(3).has_value());
  s_.Reduced(3);
  EXPECT_FALSE(s_.Done().has_value());
  EXPECT_EQ(s_.Said<Finish>().size(), 1u);
}

}  // namespace
}  // namespace prd::switch_core_test
