// Local steps between rounds (AsksBeforeGroups), and steps that are better cut short.
#include <gtest/gtest.h>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::local_steps_core_test {
namespace {

using testing::kMe;
using testing::kPeer;
using testing::Script;

constexpr Plan kBlocking = plans::kAsked;
constexpr Plan kDelayed = plans::kAskedLate;

QueryReply Reply(Iteration iteration, std::uint32_t local_steps, bool ready) {
  return {.iteration = iteration, .local_steps = local_steps, .ready = ready};
}

Ready Query(Iteration iteration, std::uint32_t local_steps, bool waiting) {
  return {.iteration = iteration,
          .step_ns = 5,
          .samples = 6,
          .waiting = waiting,
          .local_steps = local_steps};
}

TEST(LocalStepsTest, BlockingStepEndsWithTheAnswerOrTheRound) {
  Script s;
  s.Join(kBlocking);
  s.Step(0);
  EXPECT_EQ(s.Signal(), Query(1, 1, true));
  s.Say(Reply(1, 1, false));
  ASSERT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_EQ(s.Outcome().local_steps, 1u);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, kNoGroup);
  EXPECT_EQ(s.core.iteration(), 0) << "rounds, not local steps";
  s.Clear();

  s.Step(0);
  EXPECT_EQ(s.Signal(), Query(1, 2, true));
  s.Say(Reply(1, 2, true));
  EXPECT_FALSE(s.Done().has_value()) << "the round's group is to come";
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Reduced(2);
  ASSERT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().local_steps, 0u);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_EQ(s.Outcome().group.id, 2u);
  s.Clear();

  s.Step(0);
  EXPECT_EQ(s.Signal(), Query(2, 1, true));
}

TEST(LocalStepsTest, AnswersThatMatchNothingAreIgnored) {
  Script s;
  s.Join(kBlocking);
  s.Say(Reply(1, 1, false));
  s.Step(0);
  s.Clear();
  s.Say(Reply(2, 1, false));
  s.Say(Reply(1, 2, false));
  s.Say(Reply(0, 0, false));
  EXPECT_TRUE(s.actions.empty());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Say(Reply(1, 1, false));  // the group has answered
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(2);
  EXPECT_TRUE(s.Done()->ok());
  for (const Plan& plan : {plans::kModels, plans::kRounds}) {
    Script other;
    other.Join(plan);
    other.Step(1);
    other.Clear();
    other.Say(Reply(1, 0, false));
    other.Say(Reply(1, 0, true));
    EXPECT_TRUE(other.actions.empty());
  }
}

TEST(LocalStepsTest, FailedRoundIsSignalledAgainWithTheSameSteps) {
  for (const Plan& plan : {kBlocking, kDelayed}) {
    Script s;
    s.Join(plan);
    s.Step(0);
    if (AcknowledgesLate(plan)) {
      s.Say(Reply(1, 1, true));
      s.Clear();
      s.Step(0);
    }
    const std::uint32_t steps = AcknowledgesLate(plan) ? 2 : 1;
    EXPECT_EQ(s.Signal(), Query(1, steps, true));
    s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
    s.Clear();
    s.Reduced(2, false);
    EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
    EXPECT_EQ(s.Signal(), Query(1, steps, true));
    s.Say(Script::MakeGroup(3, GroupKind::kTrain, 1));
    s.Clear();
    s.Say(Abort{.group = 3, .reason = "so"});
    EXPECT_EQ(s.Signal(), Query(1, steps, true));
    s.Say(Script::MakeGroup(4, GroupKind::kTrain, 1));
    s.Reduced(4);
    EXPECT_TRUE(s.Done()->ok());
    EXPECT_EQ(s.Outcome().attempts, 3);
  }
}

TEST(LocalStepsTest, DelayedStepGoesOnUntilItIsTold) {
  Script s;
  s.Join(kDelayed);
  for (std::uint32_t step = 1; step <= 3; ++step) {
    s.Clear();
    s.Step(0);
    EXPECT_EQ(s.Signal(), Query(1, step, false));
    ASSERT_TRUE(s.Done()->ok());
    EXPECT_EQ(s.Outcome().local_steps, step);
    EXPECT_EQ(s.Outcome().rounds, 0);
  }
  s.Clear();
  s.Say(Reply(1, 3, false));  // is not said, and would change nothing
  EXPECT_FALSE(s.Interrupted());
  s.Say(Reply(1, 2, true));  // to an earlier query of the same round
  EXPECT_TRUE(s.Interrupted());
  s.Clear();
  s.Step(0);
  EXPECT_FALSE(s.Interrupted());
  EXPECT_EQ(s.Signal(), Query(1, 4, true));
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_EQ(s.Outcome().local_steps, 0u);
  EXPECT_FALSE(s.Interrupted());
  s.Clear();
  s.Say(Reply(1, 4, true));  // of the round before
  EXPECT_FALSE(s.Interrupted());
  s.Step(0);
  EXPECT_EQ(s.Signal(), Query(2, 1, false));
}

TEST(LocalStepsTest, StepCutShortCountsNotAndWaitsForTheRoundWhenTold) {
  Script s;
  s.Join(kDelayed);
  s.Step(0);
  s.Clear();
  s.Step(0, true);  // nobody asked for that
  EXPECT_TRUE(s.Sent().empty());
  EXPECT_EQ(s.Outcome().local_steps, 1u);
  s.Say(Reply(1, 1, true));
  EXPECT_TRUE(s.Interrupted());
  s.Clear();
  s.Step(0, true);
  EXPECT_FALSE(s.Interrupted());
  EXPECT_EQ(s.Signal(), Query(1, 1, true));
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  EXPECT_TRUE(s.Outcome().included);
  s.Clear();
  Script blocking;
  blocking.Join(kBlocking);
  blocking.Step(0, true);
  EXPECT_TRUE(blocking.Done()->ok());
  EXPECT_TRUE(blocking.Sent().empty());
}

TEST(LocalStepsTest, AdoptedReplicaStartsTheRoundAnew) {
  Script s;
  s.Join(kDelayed);
  s.Step(0);
  s.Say(Reply(1, 1, true));
  s.Clear();
  s.SayAdopt();
  EXPECT_EQ(s.Count<StartFetch>(), 0u) << "the replica is the user's now";
  s.Step(0, true);
  EXPECT_FALSE(s.Interrupted());
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Fetched(6);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Outcome().local_steps, 0u);
  s.Clear();
  s.Step(0);
  EXPECT_EQ(s.Signal(), Query(7, 1, false)) << "nobody was told about this round";
}

TEST(LocalStepsTest, LostMembershipEndsTheRoundItWasToldOf) {
  Script s;
  s.Join(kDelayed);
  s.Step(0);
  s.Say(Reply(1, 1, true));
  EXPECT_TRUE(s.Interrupted());
  s.core.GiveIncarnation(kMe);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_FALSE(s.Interrupted());
  s.Welcome(kDelayed);
  s.Clear();
  s.Step(0);
  EXPECT_FALSE(s.Done().has_value()) << "it has no replica of the job's";
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.SayAdopt();
  s.Fetched(3);
  EXPECT_TRUE(s.Outcome().adopted);
}

TEST(LocalStepsTest, RoundTripIsMeasuredByHeartbeats) {
  Script s;
  s.Join(kBlocking);
  s.Pass(100 * kMillisecond);
  EXPECT_EQ(s.Said<Heartbeat>().size(), 1u);
  s.now = s.now + 4 * kMillisecond;
  s.Aside(HeartbeatAck{});
  s.Step(0);
  EXPECT_EQ(s.Only<Ready>().rtt_ns, 4 * kMillisecond);
  s.Say(Reply(1, 1, false));
  s.Clear();
  // The answer to the first of two may be that to the second.
  s.Pass(100 * kMillisecond);
  s.Pass(100 * kMillisecond);
  s.now = s.now + 90 * kMillisecond;
  s.Aside(HeartbeatAck{});
  s.Aside(HeartbeatAck{});
  s.Step(0);
  EXPECT_EQ(s.Said<Ready>().back().rtt_ns, 4 * kMillisecond);
  s.Say(Reply(1, 2, false));
  s.Clear();
  s.Pass(100 * kMillisecond);
  s.now = s.now + 12 * kMillisecond;
  s.Aside(HeartbeatAck{});
  s.Step(0);
  EXPECT_EQ(s.Said<Ready>().back().rtt_ns, 5 * kMillisecond) << "smoothed";
}

TEST(LocalStepsTest, AbsentControllerIsNoticedWithoutAnswersToo) {
  Script s;
  s.Attach(kSecond);
  s.Welcome(kDelayed);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  int steps = 0;
  for (; steps < 5000; ++steps) {
    s.Clear();
    s.Step(0);
    if (!s.Done()) break;
  }
  EXPECT_EQ(steps, 1024) << "what nobody acknowledges is bounded";
  EXPECT_TRUE(s.Sent().empty());
  s.Acknowledge();
  s.heard = 10;
  s.Aside(HeartbeatAck{});
  EXPECT_EQ(s.Signal(), Query(1, 1025, false));
  EXPECT_TRUE(s.Done()->ok());
  for (steps = 0; steps < 5000; ++steps) {
    s.Clear();
    s.Step(0);
    if (!s.Done()) break;
  }
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
}

TEST(LocalStepsTest, AnswerToAStepThatTimedOutIsNotForTheNext) {
  Script s;
  s.Attach(kSecond);
  s.Welcome(kBlocking);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Acknowledge();
  s.Clear();
  s.Step(0);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  s.Step(0);
  EXPECT_TRUE(s.Said<Ready>().empty()) << "the first is unanswered";
  s.Say(Reply(1, 1, false));
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_EQ(s.Signal(), Query(1, 2, true));
  s.Say(Reply(1, 2, false));
  EXPECT_TRUE(s.Done()->ok());
}

TEST(LocalStepsTest, FinishIsSaidOnceTheSignalThatWaitsIsAnswered) {
  Script s;
  s.Attach(kSecond);
  s.Welcome(kBlocking);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Step(0);
  s.Pass(2 * kSecond);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_TRUE(s.Said<Finish>().empty());
  s.Say(Reply(1, 1, false));
  EXPECT_EQ(s.Said<Finish>().size(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
}

// ---- other plans ----

// Changes reduced every n steps, without asking: steps between two signals end at once.
TEST(LocalStepsTest, ASignalEveryFewStepsIsAnsweredByItsGroup) {
  Script s;
  s.Join({.every = 3, .by = GroupPlan{.payload = Payload::kChange}});
  for (int step = 1; step <= 2; ++step) {
    s.Clear();
    s.Step(1);
    EXPECT_TRUE(s.Said<Ready>().empty());
    EXPECT_EQ(s.Outcome().local_steps, static_cast<std::uint32_t>(step));
    EXPECT_EQ(s.Outcome().rounds, 0);
  }
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().local_steps, 3u);
  EXPECT_TRUE(s.Only<Ready>().waiting);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  ASSERT_TRUE(std::holds_alternative<StartReduce>(s.actions.back()));
  const Reduced what{Payload::kChange, Landing::kBase};
  EXPECT_EQ(std::get<StartReduce>(s.actions.back()).what, what);
  s.Reduced(2);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_EQ(s.Outcome().local_steps, 0u);
  s.Clear();
  s.Step(2);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_EQ(s.Outcome().local_steps, 1u);
}

TEST(InterruptTest, HeldAdoptionInterruptsAStepWhoseGradientsComeTooLate) {
  Script s;
  s.Join(plans::kGradients);
  s.SayAdopt();
  EXPECT_TRUE(s.Interrupted());
  EXPECT_EQ(s.Count<StartFetch>(), 0u);
  s.Clear();
  s.Step(1, true);
  EXPECT_FALSE(s.Interrupted());
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Fetched(4);
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
}

TEST(InterruptTest, StepThatIsCompletedNonethelessAdoptsToo) {
  Script s;
  s.Join(plans::kGradients);
  s.SayAdopt();
  s.Clear();
  s.Step(1);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Fetched(4);
  EXPECT_TRUE(s.Outcome().adopted);
}

TEST(InterruptTest, ModelAveragingAndRoundsHaveNoUseForIt) {
  for (const Plan& plan : {plans::kModels, plans::kRounds}) {
    Script s;
    s.Join(plan);
    s.SayAdopt();
    EXPECT_EQ(s.Count<Interrupt>(), 0u);
  }
}

TEST(InterruptTest, GradientsOfADiscardedStepAreNeverOffered) {
  Script s;
  s.Join(plans::kGradients);
  s.Step(1, true);
  EXPECT_TRUE(s.Sent().empty());
  ASSERT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().iteration, 0);
  s.Clear();
  // Nor when the adoption that it was for fails.
  s.SayAdopt();
  s.Step(1, true);
  s.Clear();
  s.Fetched(0, false);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_FALSE(s.Outcome().adopted);
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
}

TEST(InterruptTest, DiscardedStepOfAveragedModelsChangesNothing) {
  Script s;
  s.Join();
  s.Step(9, true);
  EXPECT_TRUE(s.Sent().empty());
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().iteration, 0);
  EXPECT_EQ(s.core.iteration(), 0);
}

TEST(InterruptTest, LostMembershipWithdrawsTheAdoption) {
  Script s;
  s.Join(plans::kGradients);
  s.SayAdopt();
  EXPECT_TRUE(s.Interrupted());
  s.core.GiveIncarnation(kMe);
  s.now = s.now + kSecond;
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  EXPECT_FALSE(s.Interrupted());
}

}  // namespace
}  // namespace prd::local_steps_core_test
