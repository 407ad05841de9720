// Rounds in the background (TrainsInRounds), message by message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::rounds_core_test {
namespace {

using ::testing::HasSubstr;
using testing::kMe;
using testing::kPeer;
using testing::Script;

constexpr Plan kEager = plans::kRounds;

// Joined, and owing the gradient of a step that waits for round 1.
class RoundsTest : public ::testing::Test {
 protected:
  void Join(const Plan& plan = kEager) { s.Join(plan); }
  void JoinAndStep() {
    Join();
    s.Step(0);
    EXPECT_EQ(s.Count<Deposit>(), 1u);
    s.Clear();
  }
  // The step's gradient is in round 1, which it has applied; the next one is owed, and its step
  // is over as well because round 2 came without it.
  void OweOneOutsideACall() {
    JoinAndStep();
    s.Round(2, 1, false);
    s.Reduced(2);
    s.Applied(1);
    EXPECT_TRUE(s.Done()->ok());
    EXPECT_FALSE(s.Outcome().included);
    s.Clear();
  }
  Script s;
};

TEST_F(RoundsTest, StepDepositsSignalsAndAppliesTheRound) {
  Join();
  s.Step(0);
  ASSERT_EQ(s.actions.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Deposit>(s.actions[0])) << "before the controller is told";
  EXPECT_EQ(s.Signal(), (Ready{.iteration = 1, .step_ns = 5, .samples = 6, .gradients = 1}));
  s.Clear();
  s.now = s.now + 3 * kMillisecond;
  s.Round(2, 1, true);
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.now = s.now + 4 * kMillisecond;
  s.Reduced(2);
  const Finished finished = s.Only<Finished>();
  EXPECT_EQ(finished.outcome, Outcome::kOk);
  EXPECT_EQ(finished.included, 1u);
  EXPECT_EQ(finished.wait_ns, 3 * kMillisecond);
  EXPECT_EQ(finished.reduce_ns, 4 * kMillisecond);
  EXPECT_EQ(finished.bytes, 10u);
  ASSERT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_FALSE(s.Done().has_value());
  s.Applied(1);
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.iteration, 1);
  EXPECT_EQ(step.rounds, 1);
  EXPECT_TRUE(step.included);
  EXPECT_EQ(step.group.id, 2u);
  EXPECT_EQ(step.attempts, 1);
  EXPECT_EQ(step.sent_bytes, 10u);
  EXPECT_EQ(step.waited, 7 * kMillisecond);
  EXPECT_EQ(step.reduced, 4 * kMillisecond);
  EXPECT_EQ(s.core.iteration(), 1);
}

TEST_F(RoundsTest, RoundStartsAtOnceOutsideACallAndGivesNothingWhereTheWeightIsZero) {
  Join();
  s.Round(2, 1, false);
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().included, 0u);
  EXPECT_EQ(s.Count<ApplyNow>(), 0u) << "nobody is in a step";
  s.Clear();
  // The next step finds it: it waits for nothing, and is not in it.
  s.Step(0);
  EXPECT_EQ(s.Signal(),
            (Ready{.iteration = 1, .step_ns = 5, .samples = 6, .waiting = false, .gradients = 1}));
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_EQ(s.Outcome().group.id, 2u);
}

TEST_F(RoundsTest, OutboxStaysWhenTheControllerDidNotKnowOfItsGradient) {
  JoinAndStep();
  s.Round(2, 1, false);  // formed before the signal was there
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().included, 0u);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
  s.Clear();
  s.Round(3, 2, true);  // in the background
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().included, 1u);
}

TEST_F(RoundsTest, RoundsRunDuringApplyAndAreForTheNextStep) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Reduced(2);
  s.Clear();
  s.Round(3, 2, false);
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  s.Applied(1);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, 2u) << "the newest that it applied";
  s.Clear();
  s.Step(0);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
}

TEST_F(RoundsTest, ApplyMayTakeMoreRoundsThanWereThereWhenItWasTold) {
  JoinAndStep();
  s.Round(2, 1, false);
  s.Reduced(2);
  s.Round(3, 2, true);
  s.Reduced(3);
  s.Applied(2, 2);
  EXPECT_EQ(s.Outcome().rounds, 2);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, 3u);
  s.Clear();
  s.Step(0);
  EXPECT_EQ(s.Only<Ready>().iteration, 3);
  EXPECT_TRUE(s.Only<Ready>().waiting);
}

TEST_F(RoundsTest, OnlyTheNewestRoundCountsWhereOlderOnesAreDropped) {
  Join(plans::kNewestRound);
  s.Step(0);
  s.Round(2, 1, true);
  s.Reduced(2);
  s.Round(3, 2, false);
  s.Reduced(3);
  s.Applied(2);
  EXPECT_FALSE(s.Outcome().included) << "its round was replaced by the next one";
}

TEST_F(RoundsTest, StepWaitsToDepositWhileItsGradientsAreUnderWay) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.Step(0);
  EXPECT_EQ(s.Count<Deposit>(), 0u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Reduced(3);
  // Report, deposit, signal, apply: in this order.
  EXPECT_EQ(s.Only<Finished>().included, 1u);
  EXPECT_EQ(s.Only<Ready>().gradients, 1u);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_TRUE(std::holds_alternative<ApplyNow>(s.actions.back()));
  s.Applied(2);
  EXPECT_FALSE(s.Outcome().included) << "the one before is";
}

TEST_F(RoundsTest, StepDepositsAtOnceBesideARoundThatItGivesNothingTo) {
  Join();
  s.Round(2, 1, false);
  s.Step(0);
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().included, 0u);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
}

TEST_F(RoundsTest, FailedRoundLeavesTheStepWaitingWithoutAnotherSignal) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Reduced(2, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(s.Only<Finished>().included, 0u);
  s.Clear();
  s.Say(Abort{.group = 2, .reason = "nobody has it", .undone = true});
  EXPECT_TRUE(s.actions.empty()) << "not answered, nor signalled again";
  s.Round(3, 1, true);  // the same round's number
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().included, 1u);
  s.Applied(1);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().attempts, 2);
}

TEST_F(RoundsTest, DepositWaitsUntilTheFateOfAFailedRoundIsKnown) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.Reduced(3, false);
  s.Say(Abort{.group = 3, .reason = "crossed the report"});
  s.Clear();
  s.Step(0);
  EXPECT_TRUE(s.actions.empty());
  s.Say(Abort{.group = 3, .reason = "late"});
  EXPECT_TRUE(s.actions.empty()) << "without `undone` it says nothing";
  s.Say(Abort{.group = 3, .reason = "nobody has it", .undone = true});
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
  s.Round(4, 2, true);
  s.Reduced(4);
  EXPECT_EQ(s.Only<Finished>().included, 2u);
  s.Applied(2);
  EXPECT_TRUE(s.Outcome().included);
}

TEST_F(RoundsTest, ResultOfAFailedRoundIsTakenFromAPeer) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.Reduced(3, false);
  s.Clear();
  s.SayAdopt(3);  // waits for no call
  ASSERT_EQ(s.Count<StartFetch>(), 1u);
  const auto& fetch = std::get<StartFetch>(s.actions.front());
  EXPECT_EQ(fetch.result, 3u);
  EXPECT_TRUE(fetch.contributed);
  EXPECT_EQ(fetch.source.incarnation, kPeer);
  s.Fetched(2);
  EXPECT_EQ(s.Only<Adopted>(), (Adopted{.ok = true, .iteration = 2, .included = 1}));
  s.Clear();
  s.Step(0);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  s.Applied(2);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, 3u);
}

TEST_F(RoundsTest, ResultThatCannotBeHadLeavesTheFateOpen) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.Reduced(3, false);
  s.SayAdopt(3);
  s.Step(0);
  s.Clear();
  s.Fetched(0, false);
  EXPECT_FALSE(s.Only<Adopted>().ok);
  EXPECT_EQ(s.Count<Deposit>(), 0u);
  s.Clear();
  s.SayAdopt(3);  // from another
  s.Fetched(2);
  EXPECT_EQ(s.Only<Adopted>().included, 1u);
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
}

TEST_F(RoundsTest, WhoGaveNothingTakesTheResultTooAndDepositsMeanwhile) {
  Join();
  s.Round(2, 1, false);
  s.Reduced(2, false);
  s.Clear();
  s.SayAdopt(2);
  EXPECT_FALSE(std::get<StartFetch>(s.actions.front()).contributed);
  s.Step(0);
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  s.Fetched(1);
  EXPECT_EQ(s.Only<Adopted>(), (Adopted{.ok = true, .iteration = 1}));
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_FALSE(s.Outcome().adopted);
}

TEST_F(RoundsTest, ResultAdoptedDuringAStepVoidsNoSignal) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Reduced(2, false);
  s.SayAdopt(2);
  s.Fetched(1);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Applied(1);
  EXPECT_TRUE(s.Outcome().included);
}

TEST_F(RoundsTest, OrdersToAdoptWhatDidNotFailHereAreRefused) {
  JoinAndStep();
  for (const GroupId wrong : {GroupId{1}, GroupId{2}, GroupId{77}}) {
    s.Clear();
    s.SayAdopt(wrong);
    EXPECT_EQ(s.Count<StartFetch>(), 0u);
    EXPECT_FALSE(s.Only<Adopted>().ok);
  }
  s.Round(2, 1, true);
  s.Clear();
  s.SayAdopt(2);  // still runs
  EXPECT_FALSE(s.Only<Adopted>().ok);
  s.Reduced(2, false);
  s.SayAdopt(2);
  s.Clear();
  s.SayAdopt(2);  // twice
  EXPECT_FALSE(s.Only<Adopted>().ok);
  EXPECT_EQ(s.Count<StartFetch>(), 0u);
  s.Fetched(1);
  s.Clear();
  s.SayAdopt(2);  // has it
  EXPECT_FALSE(s.Only<Adopted>().ok);
}

TEST_F(RoundsTest, AbortedRoundIsReportedAndItsFateOpen) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Say(Abort{.group = 2, .reason = "rank 4 is gone"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kAborted);
  s.Clear();
  s.Reduced(2);  // of a reduction that is off
  EXPECT_TRUE(s.actions.empty());
  s.Say(Abort{.group = 2, .reason = "nobody has it", .undone = true});
  s.Round(3, 1, true);
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
}

TEST_F(RoundsTest, DiscardedStepArrivesWithoutAGradient) {
  Join();
  s.Step(0, true);
  EXPECT_EQ(s.Count<Deposit>(), 0u);
  EXPECT_EQ(s.Signal(), (Ready{.iteration = 1, .step_ns = 5, .samples = 6}));
  s.Round(2, 1, false);
  s.Reduced(2);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().rounds, 1);
}

TEST_F(RoundsTest, AverageRunsWhileAStepWaitsAndEndsItNot) {
  JoinAndStep();
  s.Say(Script::MakeGroup(2, GroupKind::kAverage, 0));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Reduced(2, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Clear();
  s.Say(Script::MakeGroup(3, GroupKind::kAverage, 0));
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Say(Script::MakeGroup(4, GroupKind::kAverage, 0));
  s.Say(Abort{.group = 4, .reason = "so"});
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Round(5, 1, true);
  s.Reduced(5);
  s.Applied(1);
  EXPECT_TRUE(s.Outcome().included);
}

TEST_F(RoundsTest, AverageOutsideAStepFails) {
  OweOneOutsideACall();
  s.Say(Script::MakeGroup(3, GroupKind::kAverage, 1));
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
}

TEST_F(RoundsTest, FinishWaitsUntilNothingIsOwed) {
  OweOneOutsideACall();
  s.core.Finish(s.now, &s.actions);
  EXPECT_TRUE(s.Said<Finish>().empty());
  EXPECT_EQ(s.Only<Ready>().gradients, 0u);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
  s.Clear();
  s.Round(3, 2, true);
  EXPECT_TRUE(s.Said<Finish>().empty());
  s.Reduced(3);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Said<Finish>().empty()) << "the round is not applied";
  s.Applied(2);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
}

TEST_F(RoundsTest, FinishSignalsAgainForAGradientThatMissedTheRound) {
  OweOneOutsideACall();
  s.Round(3, 2, false);
  s.core.Finish(s.now, &s.actions);
  s.Clear();
  s.Reduced(3);
  s.Applied(2);
  EXPECT_EQ(s.Only<Ready>().iteration, 3);
  EXPECT_TRUE(s.Said<Finish>().empty());
  s.Round(4, 3, true);
  s.Reduced(4);
  s.Applied(3);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
}

TEST_F(RoundsTest, FinishAppliesWhatIsThereFirst) {
  Join();
  s.Round(2, 1, false);
  s.Reduced(2);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Sent().empty());
  s.Applied(1);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
}

TEST_F(RoundsTest, RoundAfterFinishIsTakenPartInAndAppliedBeforeTheFinalAverage) {
  Join();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  s.Clear();
  s.Round(2, 1, false);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  s.Say(Script::MakeGroup(3, GroupKind::kFinal, 1));
  EXPECT_EQ(s.Count<StartReduce>(), 1u) << "the round alone";
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_EQ(s.Count<StartReduce>(), 2u);
  s.Reduced(3);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Released{});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Said<Finish>().empty()) << "once";
}

TEST_F(RoundsTest, FinalAverageThatFindsNobodyInACallAppliesFirst) {
  s.Attach(kSecond);
  s.Welcome(kEager);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Round(2, 1, false);
  s.Reduced(2);
  s.Say(Script::MakeGroup(3, GroupKind::kFinal, 1));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  s.Applied(1);
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  EXPECT_TRUE(s.Said<Finish>().empty()) << "said already";
}

TEST_F(RoundsTest, NewIncarnationOwesNothing) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.core.GiveIncarnation(kMe);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Count<BecomeIncarnation>(), 1u);
  s.Welcome(kEager);
  s.Clear();
  s.Reduced(3);
  EXPECT_TRUE(s.actions.empty()) << "of the life before";
  s.Step(0);
  EXPECT_EQ(s.Count<Deposit>(), 0u) << "nobody may hear of it before there is a replica";
  s.SayAdopt();
  s.Fetched(7);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Outcome().rounds, 0);
  s.Clear();
  // Nothing is owed: Finish has only the fetched replica's own inbox to look at.
  s.core.Finish(s.now, &s.actions);
  s.Applied(7, 0);
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
}

TEST_F(RoundsTest, FetchedReplicaMayBringRoundsThatTheStepAppliesOrNone) {
  for (const std::int64_t rounds : {0, 3}) {
    Script t;
    t.Attach();
    t.Welcome(kEager);
    t.SayAdopt();
    t.Fetched(7);
    EXPECT_TRUE(t.Done()->ok());
    t.Clear();
    t.Step(0);
    EXPECT_EQ(t.Count<Deposit>(), 1u);
    EXPECT_FALSE(t.Only<Ready>().waiting);
    EXPECT_EQ(t.Count<ApplyNow>(), 1u);
    t.Clear();
    t.Applied(7, rounds);
    if (rounds > 0) {
      EXPECT_EQ(t.Outcome().rounds, rounds);
      continue;
    }
    EXPECT_FALSE(t.Done().has_value());
    EXPECT_EQ(t.Only<Ready>().iteration, 8);
    EXPECT_TRUE(t.Only<Ready>().waiting);
    EXPECT_EQ(t.Only<Ready>().gradients, 0u) << "it was offered before";
    t.Round(2, 8, true);
    t.Reduced(2);
    t.Applied(8);
    EXPECT_TRUE(t.Outcome().included);
  }
}

TEST_F(RoundsTest, RoundBetweenAnEmptyInboxAndItsReportIsNotLost) {
  s.Attach();
  s.Welcome(kEager);
  s.SayAdopt();
  s.Fetched(7);
  s.Clear();
  s.Step(0);
  s.Round(2, 8, true);
  s.Reduced(2);  // after the caller's thread had found nothing
  s.Clear();
  s.Applied(7, 0);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Applied(8, 1);
  EXPECT_TRUE(s.Outcome().included);
}

TEST_F(RoundsTest, CancelCallsTheRoundOffAndLaterOnesToo) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Clear();
  s.SayAdopt(3);
  EXPECT_FALSE(s.Only<Adopted>().ok);
  s.Say(Abort{.group = 3, .undone = true});
  s.Clear();
  s.Round(4, 2, true);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
}

TEST_F(RoundsTest, CancelDuringApplyDoesNotLeaveTheCallWaiting) {
  s.Attach();
  s.Welcome(kEager);
  s.SayAdopt();
  s.Fetched(7);
  s.Clear();
  s.Step(0);
  s.core.Cancel(s.now, &s.actions);
  EXPECT_FALSE(s.Done().has_value());
  s.Applied(7, 0);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
}

TEST_F(RoundsTest, LeaveCallsTheRoundOff) {
  OweOneOutsideACall();
  s.Round(3, 2, true);
  s.Reduced(3, false);
  s.SayAdopt(3);
  s.Clear();
  s.core.Leave(s.now, "bye", &s.actions);
  EXPECT_EQ(s.Count<CancelFetch>(), 1u);
  EXPECT_FALSE(s.Only<Adopted>().ok);
  EXPECT_EQ(s.Said<Leave>().size(), 1u);
  s.Clear();
  s.Round(4, 2, false);  // it was announced before
  EXPECT_EQ(s.Only<Finished>().group, 4u);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
  s.Clear();
  s.SayAdopt(3);
  EXPECT_TRUE(s.actions.empty());
}

TEST_F(RoundsTest, StepAfterOneThatTimedOutSignalsOnlyOnce) {
  s.Attach(kSecond);
  s.Welcome(kEager);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  s.Clear();
  s.Step(0);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Acknowledge();
  s.Clear();
  // The controller has a signal that waits. This step's gradient is given when that is answered.
  s.Step(0);
  EXPECT_TRUE(s.actions.empty());
  s.Round(2, 1, true);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().included, 1u);
  EXPECT_EQ(s.Count<Deposit>(), 1u);
  EXPECT_FALSE(s.Only<Ready>().waiting);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().included);
}

TEST_F(RoundsTest, RunningRoundDoesNotTimeOut) {
  s.Attach(kSecond);
  s.Welcome(kEager);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  s.Step(0);
  s.Round(2, 1, true);
  s.Clear();
  s.Pass(5 * kSecond);
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(2);
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(RoundsTest, ImpossibleRoundsEndTheSession) {
  const auto ends = [](const char* why, auto prepare) {
    SCOPED_TRACE(why);
    Script t;
    t.Join(kEager);
    t.Step(0);
    prd::Group group = Script::MakeGroup(2, GroupKind::kRound, 1);
    prepare(&t, &group);
    t.Clear();
    t.Say(group);
    EXPECT_EQ(t.Count<StartReduce>(), 0u);
    ASSERT_TRUE(t.Done().has_value());
    EXPECT_EQ(t.Done()->code(), Code::kDataLoss);
    EXPECT_THAT(t.Done()->message(), HasSubstr(why));
  };
  ends("iteration is out of range", [](Script*, prd::Group* group) {
    group->iteration = std::numeric_limits<Iteration>::max();
  });
  ends("does not belong", [](Script*, prd::Group* group) { group->kind = GroupKind::kTrain; });
  ends("not after 0", [](Script*, prd::Group* group) { group->iteration = 0; });
  ends("no part in a round", [](Script*, prd::Group* group) { group->initial_weight = 0.1; });
  ends("still runs", [](Script* t, prd::Group* group) {
    t->Round(2, 1, true);
    group->id = 3;
  });
  ends("still runs", [](Script* t, prd::Group* group) {
    t->Say(Script::MakeGroup(2, GroupKind::kAverage, 0));
    group->id = 3;
  });
  ends("what became of", [](Script* t, prd::Group* group) {
    t->Round(2, 1, true);
    t->Reduced(2, false);
    group->id = 3;
  });
  ends("has not offered", [](Script* t, prd::Group* group) {
    t->Round(2, 1, true);
    t->Reduced(2);
    t->Applied(1);
    t->core.Finish(t->now, &t->actions);
    *group = Script::MakeGroup(3, GroupKind::kRound, 2);
  });
  ends("is behind", [](Script* t, prd::Group* group) {
    t->Round(2, 1, true);
    t->Reduced(2);
    t->Applied(1);
    t->Step(0);
    *group = Script::MakeGroup(3, GroupKind::kAverage, 0);
  });
}

TEST_F(RoundsTest, RoundsBeforeTheReplicaOrUnderAnotherPlanEndTheSession) {
  s.Attach();
  s.Welcome(kEager);
  s.Round(2, 1, false);
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
  EXPECT_THAT(s.Done()->message(), HasSubstr("no replica"));
  for (const Plan& plan : {plans::kModels, plans::kGradients, plans::kAsked}) {
    for (const GroupKind kind : {GroupKind::kRound, GroupKind::kAverage}) {
      Script t;
      t.Join(plan);
      t.Say(Script::MakeGroup(2, kind, 1));
      EXPECT_EQ(t.Count<StartReduce>(), 0u);
      t.Step(1);
      EXPECT_EQ(t.Done()->code(), Code::kDataLoss);
    }
  }
}

// ---- a new incarnation ----

class RoundsHelloTest : public RoundsTest {
 protected:
  // Its incarnation is over, and it may say Hello again.
  void Refuse() {
    s.core.GiveIncarnation(3003);
    s.Clear();
    s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    s.Pass(kSecond);
  }
  // Of a copied replica of iteration 5, two rounds are in the inbox.
  void CopyWithInbox() {
    JoinAndStep();
    s.SayAdopt();
    s.Fetched(5, true, 2);
    EXPECT_TRUE(s.Outcome().adopted);
    EXPECT_EQ(s.Only<Adopted>().iteration, 5);
    s.Clear();
  }
};

TEST_F(RoundsHelloTest, TellsOfNoRoundInItsInbox) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Reduced(2);
  s.Applied(1);
  s.Round(3, 2, false);
  s.Reduced(3);  // outside a call
  Refuse();
  EXPECT_EQ(s.Only<Hello>().iteration, 1);
}

TEST_F(RoundsHelloTest, TellsOfNoRoundInACopiedInbox) {
  CopyWithInbox();
  Refuse();
  EXPECT_EQ(s.Only<Hello>().iteration, 3);
  // Nor does the next one.
  s.core.GiveIncarnation(4004);
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "another run"});
  s.Pass(kSecond);
  EXPECT_EQ(s.Only<Hello>().iteration, 3);
}

TEST_F(RoundsHelloTest, TellsOfACopiedInboxOnceItIsApplied) {
  CopyWithInbox();
  s.Step(0);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(5, 2);
  Refuse();
  EXPECT_EQ(s.Only<Hello>().iteration, 5);
}

// The round that `apply` works on is in the replica when others read it.
TEST_F(RoundsHelloTest, WaitsForApply) {
  JoinAndStep();
  s.Round(2, 1, true);
  s.Reduced(2);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  Refuse();
  EXPECT_EQ(s.Said<Hello>().size(), 0u);
  EXPECT_FALSE(s.core.NextDeadline().has_value()) << "nothing is to be done until then";
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
  ASSERT_TRUE(s.core.NextDeadline().has_value());
  EXPECT_LE(*s.core.NextDeadline(), s.now);
  s.Pass(0);
  EXPECT_EQ(s.Only<Hello>().iteration, 1);
  EXPECT_EQ(s.core.incarnation(), 3003u);
}

}  // namespace
}  // namespace prd::rounds_core_test
