// Groups beside the training loop that answer signals (AveragesInBackground, not ahead), message by
// message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::background_core_test {
namespace {

using ::testing::HasSubstr;
using testing::kMe;
using testing::Script;

Plan Overlap(std::uint32_t run_ahead) { return plans::Background(run_ahead); }

class BackgroundTest : public ::testing::Test {
 protected:
  void Join(std::uint32_t run_ahead = 2) { s.Join(Overlap(run_ahead)); }
  // A step that signals and goes on.
  void SignalAt(Iteration iteration) {
    s.Step(iteration);
    EXPECT_EQ(s.Only<Ready>().iteration, iteration);
    EXPECT_TRUE(s.Done()->ok());
    s.Clear();
  }
  StartReduce Started() const {
    for (const Action& action : s.actions) {
      if (const auto* start = std::get_if<StartReduce>(&action)) return *start;
    }
    ADD_FAILURE() << "nothing was started";
    return {};
  }
  Script s;
};

TEST_F(BackgroundTest, StepSignalsAndEndsAtOnce) {
  Join();
  s.Step(1);
  EXPECT_EQ(s.Signal(), (Ready{.iteration = 1, .step_ns = 5, .samples = 6}));
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.iteration, 1);
  EXPECT_EQ(step.rounds, 0);
  EXPECT_FALSE(step.included);
  EXPECT_EQ(step.group.id, kNoGroup);
}

TEST_F(BackgroundTest, GroupStartsWhileTheLoopComputesAndItsAverageIsToldByTheNextStep) {
  Join();
  SignalAt(1);
  s.now = s.now + 3 * kMillisecond;
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 5));
  EXPECT_EQ(Started().group.id, 2u);
  EXPECT_EQ(Started().gain, 4) << "the group's iteration less the one that was offered";
  s.now = s.now + 4 * kMillisecond;
  s.Reduced(2);
  const Finished finished = s.Only<Finished>();
  EXPECT_EQ(finished.outcome, Outcome::kOk);
  EXPECT_EQ(finished.wait_ns, 3 * kMillisecond);
  EXPECT_EQ(finished.reduce_ns, 4 * kMillisecond);
  EXPECT_EQ(finished.bytes, 10u);
  EXPECT_EQ(s.Count<ApplyNow>(), 0u) << "nobody is in a step";
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Clear();
  s.Step(6, false, 1);  // 1 + its own step + the gain of 4
  EXPECT_EQ(s.Only<Ready>().iteration, 6);
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.iteration, 6);
  EXPECT_EQ(step.rounds, 1);
  EXPECT_TRUE(step.included);
  EXPECT_EQ(step.group.id, 2u);
  EXPECT_EQ(step.attempts, 1);
  EXPECT_EQ(step.sent_bytes, 10u);
  EXPECT_EQ(step.reduced, 4 * kMillisecond);
}

TEST_F(BackgroundTest, GainIsNeverNegative) {
  Join();
  SignalAt(7);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 3));
  EXPECT_EQ(Started().gain, 0);
}

TEST_F(BackgroundTest, NothingIsSignalledWhileTheSignalStandsOrItsGroupRuns) {
  Join(3);
  SignalAt(1);
  s.Step(2);
  EXPECT_TRUE(s.Done()->ok());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.actions.clear();
  s.Step(3);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Said<Ready>().empty());
}

TEST_F(BackgroundTest, StepBeyondTheRunAheadWaitsAddsTheInboxAndSignals) {
  Join(2);
  SignalAt(1);
  s.Step(2);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Step(3);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 4));
  s.now = s.now + 6 * kMillisecond;
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(2);
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_TRUE(s.Said<Ready>().empty()) << "the inbox is to be added first";
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(6, 1);
  EXPECT_EQ(s.Only<Ready>().iteration, 6) << "with what the group has gained";
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.iteration, 6);
  EXPECT_EQ(step.rounds, 1);
  EXPECT_TRUE(step.included);
  EXPECT_EQ(step.group.id, 2u);
  EXPECT_EQ(step.waited, 6 * kMillisecond);
  s.Clear();
  s.Step(7);
  EXPECT_TRUE(s.Done()->ok()) << "it counts from the new signal";
}

TEST_F(BackgroundTest, WithoutRunAheadEachStepWaitsForItsGroup) {
  Join(0);
  s.Step(1);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u) << "its own, that was answered";
  EXPECT_EQ(s.Outcome().rounds, 1);
}

TEST_F(BackgroundTest, AverageThatComesBetweenTakingAndStepIsAddedBeforeTheSignal) {
  Join();
  SignalAt(1);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 9));
  s.Reduced(2);
  s.Clear();
  s.Step(2, false, 0);  // the caller's thread had looked before
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Applied(10);
  EXPECT_EQ(s.Only<Ready>().iteration, 10);
  EXPECT_EQ(s.Outcome().rounds, 1);
}

TEST_F(BackgroundTest, FailedGroupIsForgottenAndSignalledAgainWhileTheLoopComputes) {
  Join(3);
  SignalAt(1);
  s.Step(2);
  s.Clear();
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(s.Only<Finished>().detail, "gone");
  EXPECT_EQ(s.Only<Ready>().iteration, 2) << "what the replica is at now";
  s.Clear();
  s.SayAdopt(2);  // it cannot be repaired
  EXPECT_FALSE(s.Only<Adopted>().ok);
  s.Clear();
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  s.Reduced(3);
  s.Clear();
  s.Step(3, false, 1);
  EXPECT_EQ(s.Outcome().attempts, 2);
  EXPECT_EQ(s.Outcome().group.id, 3u);
  EXPECT_EQ(s.Only<Ready>().iteration, 3);
}

TEST_F(BackgroundTest, AbortedGroupIsSignalledAgain) {
  Join(1);
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.Clear();
  s.Say(Abort{.group = 2, .reason = "so"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kAborted);
  EXPECT_EQ(s.Only<Ready>().iteration, 1);
  s.Clear();
  s.Reduced(2);  // of a reduction that is off
  s.Say(Abort{.group = 2, .reason = "again"});
  EXPECT_TRUE(s.Sent().empty());
}

TEST_F(BackgroundTest, FailuresDoNotWidenTheRunAhead) {
  Join(2);
  SignalAt(1);
  s.Step(2);
  s.Say(Script::MakeGroup(2));
  s.Reduced(2, false);
  s.Clear();
  s.Step(3);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  s.Reduced(3, false);  // its new signal is of this step
  EXPECT_EQ(s.Only<Ready>().iteration, 3);
  s.Clear();
  s.Say(Script::MakeGroup(4, GroupKind::kTrain, 3));
  EXPECT_EQ(Started().gain, 0) << "over what was offered the last time";
  s.Reduced(4);
  s.Applied(3);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Said<Ready>().empty()) << "it was in the group";
}

TEST_F(BackgroundTest, GroupOfOneMayEndWithinItsStart) {
  Join(0);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.Reduced(2);
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(BackgroundTest, DiscardedStepEndsAtOnceAndSignalsNothing) {
  Join(1);
  s.Step(0, true);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Sent().empty());
  s.Clear();
  SignalAt(1);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 4));
  s.Reduced(2);
  s.Clear();
  s.Step(4, true, 1);
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_EQ(s.Outcome().iteration, 4);
  EXPECT_TRUE(s.Sent().empty());
}

TEST_F(BackgroundTest, OnlyEveryLthStepSignalsTheOthersEnd) {
  s.Join(plans::Every(3, plans::Background(1)));
  for (Iteration i = 1; i <= 9; ++i) {
    s.Clear();
    s.Step(i);
    EXPECT_EQ(s.Said<Ready>().size(), i == 3 ? 1u : 0u) << i;
    EXPECT_EQ(s.Done().has_value(), i != 6) << i;
    if (i == 6) break;
  }
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 3));
  s.Reduced(2);
  s.Applied(6);
  EXPECT_EQ(s.Only<Ready>().iteration, 6);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Step(7);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Sent().empty());
}

TEST_F(BackgroundTest, DiscardedStepsAreNotPartOfTheSection) {
  s.Join(plans::Every(2, plans::Background(1)));
  s.Step(1);
  s.Step(1, true);
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
}

TEST_F(BackgroundTest, FinishWaitsForTheGroupAndAddsTheInbox) {
  Join();
  SignalAt(1);
  s.core.Finish(s.now, &s.actions);
  EXPECT_TRUE(s.Sent().empty());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  s.Reduced(2);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
  s.Clear();
  s.Say(Script::MakeGroup(3, GroupKind::kFinal, 1));
  s.Reduced(3);
  s.Say(Released{.reason = "done"});
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(BackgroundTest, FinishSignalsAgainAfterAFailure) {
  Join();
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.core.Finish(s.now, &s.actions);
  s.Clear();
  s.Reduced(2, false);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  s.Say(Script::MakeGroup(3));
  s.Reduced(3);
  s.Applied(1);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(BackgroundTest, FinishWithAnEmptyInboxIsSaidAtOnce) {
  Join();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(BackgroundTest, TimeoutDoesNotEndAStepWhileItsGroupRuns) {
  s.Attach(kSecond);
  s.Welcome(Overlap(0));
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Clear();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.Pass(10 * kSecond);
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(2, false);
  s.Pass(0);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  // The next one goes on, and does not signal what stands.
  s.Step(2);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 1));
  s.Reduced(3);
  s.Applied(2);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(BackgroundTest, CancelFailsTheGroupAndSignalsNoMore) {
  Join();
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.Clear();
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Clear();
  s.Say(Script::MakeGroup(3));
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Step(2);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
}

TEST_F(BackgroundTest, CancelWhileTheInboxIsAddedEndsTheStepAfterwards) {
  Join(0);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.Reduced(2);
  s.core.Cancel(s.now, &s.actions);
  EXPECT_FALSE(s.Done().has_value());
  s.Applied(1);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
}

TEST_F(BackgroundTest, LeaveFailsTheGroupAndSignalsNoMore) {
  Join();
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.Clear();
  s.core.Leave(s.now, "why not", &s.actions);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_EQ(s.Only<prd::Leave>().reason, "why not");
}

TEST_F(BackgroundTest, NewIncarnationForgetsTheGroupTheSignalAndTheInbox) {
  Join(1);
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.Reduced(2);  // in the inbox
  s.Step(2, false, 1);
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  s.Clear();
  s.core.GiveIncarnation(kMe);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  s.Pass(kSecond);
  s.Welcome(Overlap(1));
  s.Clear();
  s.Step(3);
  EXPECT_FALSE(s.Done().has_value()) << "it waits for a replica";
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.SayAdopt();
  s.Fetched(40);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Outcome().iteration, 40);
  s.Clear();
  SignalAt(41);
}

TEST_F(BackgroundTest, MembershipLostWhileTheInboxIsAdded) {
  Join(0);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  s.Reduced(2);
  s.core.GiveIncarnation(kMe);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.Applied(1, 0);  // the new incarnation has no inbox
  EXPECT_FALSE(s.Done().has_value());
  s.Pass(kSecond);
  s.Welcome(Overlap(0));
  s.Clear();
  s.SayAdopt();
  s.Fetched(7);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Count<ApplyNow>(), 0u);
}

TEST_F(BackgroundTest, SecondGroupAtATimeEndsTheSession) {
  Join();
  SignalAt(1);
  s.Say(Script::MakeGroup(2));
  s.Say(Script::MakeGroup(3));
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
  EXPECT_THAT(s.Done()->message(), HasSubstr("group 2 still runs here"));
}

TEST_F(BackgroundTest, GroupBeforeTheReplicaEndsTheSession) {
  s.Attach();
  s.Welcome(Overlap(1));
  s.Clear();
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
}

TEST_F(BackgroundTest, AnswersAndSchedulesHaveNoPlaceHere) {
  Join(0);
  s.Step(1);
  s.Say(QueryReply{.iteration = 1});
  EXPECT_FALSE(s.Done().has_value());
  Schedule schedule{.first = 9, .members = {}, .hosts = {0}, .reason = "r"};
  schedule.members.push_back({.rank = 3, .incarnation = kMe});
  s.Say(schedule);
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
}

}  // namespace
}  // namespace prd::background_core_test
