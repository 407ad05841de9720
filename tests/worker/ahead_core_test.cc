// Groups that are drawn before their members are ready (DrawnAhead), message by message: Prague's
// blocking workers, and those that take part in the background (AD-PSGD, Prague with overlap).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::ahead_core_test {
namespace {

using ::testing::HasSubstr;
using testing::kMe;
using testing::Script;

constexpr Plan kAhead = plans::kAhead;

prd::Group Ahead(GroupId id, bool passive = false) {
  prd::Group group = Script::MakeGroup(id, GroupKind::kTrain, 77);  // without meaning
  group.members.Mutable()[0].passive = passive;
  return group;
}

class AheadTest : public ::testing::Test {
 protected:
  std::optional<StartReduce> Started() const {
    for (const Action& action : s.actions) {
      if (const auto* start = std::get_if<StartReduce>(&action)) return *start;
    }
    return std::nullopt;
  }
  // Where among the actions something of this type was said; the first one.
  template <typename T>
  std::ptrdiff_t At() const {
    for (std::size_t i = 0; i < s.actions.size(); ++i) {
      const auto* send = std::get_if<SendToController>(&s.actions[i]);
      if (send != nullptr && std::holds_alternative<T>(send->envelope.body)) {
        return static_cast<std::ptrdiff_t>(i);
      }
    }
    return -1;
  }
  Script s;
};

// ---- blocking ----

TEST_F(AheadTest, GroupIsHeldWhileTheLoopComputes) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  EXPECT_FALSE(Started());
  EXPECT_TRUE(s.Sent().empty());
  s.Step(1);
  ASSERT_EQ(s.actions.size(), 2u);
  EXPECT_EQ(s.Signal(), (Ready{.iteration = 1, .step_ns = 5, .samples = 6}));
  EXPECT_EQ(At<Ready>(), 0) << "before it takes part";
  EXPECT_EQ(Started()->group.id, 2u);
  EXPECT_EQ(Started()->group.iteration, 1) << "its own count";
  EXPECT_EQ(Started()->gain, 0);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  EXPECT_EQ(s.Outcome().iteration, 1);
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_TRUE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, 2u);
  EXPECT_EQ(s.core.iteration(), 1);
}

TEST_F(AheadTest, GroupThatComesDuringTheStepEndsIt) {
  s.Join(kAhead);
  s.Step(1);
  s.now = s.now + 5 * kMillisecond;
  s.Say(Ahead(2));
  s.now = s.now + 2 * kMillisecond;
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().wait_ns, 5 * kMillisecond);
  EXPECT_EQ(s.Outcome().waited, 5 * kMillisecond);
  EXPECT_EQ(s.Outcome().reduced, 2 * kMillisecond);
  EXPECT_EQ(s.Outcome().attempts, 1);
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Only<Ready>().iteration, 2) << "the signal before has ended";
}

TEST_F(AheadTest, StandingSignalIsNotRepeatedAfterFailuresAndAborts) {
  s.Join(kAhead);
  s.Step(1);
  s.Clear();
  s.Say(Ahead(2));
  s.Reduced(2, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Say(Ahead(3));
  s.Say(Abort{.group = 3, .reason = "so"});
  EXPECT_EQ(s.Count<CancelReduce>(), 1u);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Ahead(4));
  s.Reduced(4);
  EXPECT_EQ(s.Outcome().attempts, 3);
  EXPECT_EQ(s.Outcome().group.id, 4u);
  EXPECT_TRUE(s.Said<Ready>().empty());
}

TEST_F(AheadTest, PassiveGroupDoesNotEndTheStep) {
  s.Join(kAhead);
  s.Step(1);
  s.Clear();
  s.Say(Ahead(2, true));
  s.now = s.now + 4 * kMillisecond;
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  EXPECT_EQ(s.Only<Finished>().wait_ns, 0) << "it was not its own wait";
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Clear();
  s.now = s.now + 3 * kMillisecond;
  s.Say(Ahead(3));
  s.Reduced(3);
  const StepOutcome step = s.Outcome();
  EXPECT_EQ(step.rounds, 2) << "both are in its parameters";
  EXPECT_EQ(step.group.id, 3u);
  EXPECT_EQ(step.attempts, 1);
  EXPECT_EQ(step.waited, 3 * kMillisecond);
  EXPECT_EQ(step.reduced, 4 * kMillisecond);
}

TEST_F(AheadTest, PassiveGroupThatWasHeldRunsInTheNextStepWhichStillWaits) {
  s.Join(kAhead);
  s.Say(Ahead(2, true));
  EXPECT_FALSE(Started());
  s.Step(1);
  EXPECT_LT(At<Ready>(), 1);
  EXPECT_TRUE(Started());
  s.Reduced(2);
  EXPECT_FALSE(s.Done().has_value());
}

TEST_F(AheadTest, AnswerEndsTheStepWithoutAGroup) {
  s.Join(kAhead);
  s.Step(4);
  s.now = s.now + 2 * kMillisecond;
  s.Say(QueryReply{.iteration = 3});
  s.Say(QueryReply{.iteration = 4, .ready = true});
  EXPECT_FALSE(s.Done().has_value()) << "neither is for this signal";
  s.Say(QueryReply{.iteration = 4});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_EQ(s.Outcome().group.id, kNoGroup);
  EXPECT_EQ(s.Outcome().waited, 2 * kMillisecond);
  s.Clear();
  s.Say(QueryReply{.iteration = 4});
  s.Step(5);
  EXPECT_EQ(s.Only<Ready>().iteration, 5);
}

TEST_F(AheadTest, AnswerDuringAPassiveGroupEndsTheStepAfterIt) {
  s.Join(kAhead);
  s.Step(1);
  s.Say(Ahead(2, true));
  s.Say(QueryReply{.iteration = 1});
  EXPECT_FALSE(s.Done().has_value());
  s.Reduced(2);
  EXPECT_EQ(s.Outcome().rounds, 1);
}

TEST_F(AheadTest, HeldGroupIsReportedWhenCalledOff) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.Say(Abort{.group = 2, .reason = "a member left"});
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kAborted);
  EXPECT_EQ(s.Only<Finished>().detail, "a member left");
  s.Clear();
  s.Step(1);
  EXPECT_FALSE(Started());
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  s.Clear();
  s.Say(Ahead(3));
  EXPECT_TRUE(Started());
}

TEST_F(AheadTest, StepThatDoesNotSynchroniseEndsAlsoWhenAGroupIsHeld) {
  s.Join(plans::Every(2, plans::kAhead));
  s.Say(Ahead(2));
  s.Step(1);
  EXPECT_EQ(s.Outcome().rounds, 0);
  EXPECT_FALSE(s.Outcome().included);
  EXPECT_TRUE(s.Sent().empty());
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
  EXPECT_TRUE(Started());
}

TEST_F(AheadTest, DiscardedStepEndsAndLeavesTheGroupHeld) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.Step(0, true);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Sent().empty());
  s.Clear();
  s.Step(1);
  EXPECT_TRUE(Started());
}

TEST_F(AheadTest, StepsWithoutMembershipWaitForItAndForAReplica) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.core.GiveIncarnation(kMe);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.Pass(kSecond);
  s.Clear();
  s.Step(1);
  s.Welcome(kAhead);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_FALSE(Started()) << "the group was the other incarnation's";
  s.SayAdopt();
  s.Fetched(30);
  EXPECT_TRUE(s.Outcome().adopted);
}

TEST_F(AheadTest, FinishTakesPartInWhatIsHeldAndSaysFinishFirst) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.core.Finish(s.now, &s.actions);
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
  EXPECT_TRUE(Started());
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
}

TEST_F(AheadTest, FinishTakesPartInGroupsThatCrossIt) {
  s.Join(kAhead);
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
  s.Clear();
  s.Say(Ahead(2, true));
  EXPECT_TRUE(Started());
  s.Reduced(2, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Clear();
  s.Say(Ahead(3));
  s.Say(Abort{.group = 3, .reason = "so"});
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kAborted);
  s.Clear();
  s.Say(Script::MakeGroup(4, GroupKind::kFinal, 9));
  EXPECT_EQ(Started()->group.iteration, 9);
  s.Reduced(4);
  s.Say(Released{.reason = "done"});
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(AheadTest, FinishWaitsForASignalThatStands) {
  s.Attach(kSecond);
  s.Welcome(kAhead);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Clear();
  s.Step(1);
  s.Pass(2 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  s.Say(Ahead(2, true));
  s.core.Finish(s.now, &s.actions);
  EXPECT_TRUE(Started());
  s.Reduced(2);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  s.Say(QueryReply{.iteration = 1});
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(AheadTest, StepAfterOneThatTimedOutDoesNotSignalWhatStands) {
  s.Attach(kSecond);
  s.Welcome(kAhead);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Step(1);
  s.Pass(2 * kSecond);
  s.Clear();
  s.Step(2);
  EXPECT_TRUE(s.Said<Ready>().empty());
  s.Say(QueryReply{.iteration = 1});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().iteration, 2);
}

TEST_F(AheadTest, CancelFailsWhatIsHeldAndWhatRuns) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Clear();
  s.Say(Ahead(3));
  EXPECT_EQ(s.Only<Finished>().detail, "cancelled by its user");
  Script t;
  t.Join(kAhead);
  t.Step(1);
  t.Say(Ahead(2));
  t.Clear();
  t.core.Cancel(t.now, &t.actions);
  EXPECT_EQ(t.Count<CancelReduce>(), 1u);
  EXPECT_EQ(t.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(t.Done()->code(), Code::kCancelled);
}

TEST_F(AheadTest, LeaveFailsWhatIsHeld) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.core.Leave(s.now, "why not", &s.actions);
  EXPECT_LT(At<Finished>(), At<prd::Leave>());
  EXPECT_EQ(s.Only<Finished>().detail, "its session leaves");
}

TEST_F(AheadTest, OrderToAdoptVoidsTheSignalAndWhatIsHeld) {
  s.Join(kAhead);
  s.Say(Ahead(2));
  s.SayAdopt();
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Step(1);
  s.Fetched(0, false);
  EXPECT_EQ(s.Only<Ready>().iteration, 1);
  s.Clear();
  s.SayAdopt();
  s.Fetched(0, false);
  EXPECT_EQ(s.Only<Ready>().iteration, 1) << "the first one was voided";
}

TEST_F(AheadTest, ImpossibleGroupsEndTheSession) {
  const auto dies = [](Script* t, const char* why) {
    t->Clear();
    t->Step(2);
    ASSERT_TRUE(t->Done().has_value());
    EXPECT_EQ(t->Done()->code(), Code::kDataLoss);
    EXPECT_THAT(t->Done()->message(), HasSubstr(why));
  };
  Script two;
  two.Join(kAhead);
  two.Say(Ahead(2));
  two.Say(Ahead(3));
  dies(&two, "another group still runs here");
  Script bare;
  bare.Join(kAhead);
  bare.SayAdopt();
  bare.Say(Ahead(3));
  dies(&bare, "no replica yet");
}

// ---- in the background ----

Plan Both(std::uint32_t run_ahead) { return plans::Background(run_ahead, Membership::kAhead); }

TEST_F(AheadTest, PassivePartIsTakenAtOnceWhileTheLoopComputes) {
  s.Join(Both(0));
  s.Say(Ahead(2, true));
  ASSERT_TRUE(Started());
  EXPECT_EQ(Started()->gain, 0);
  s.Reduced(2);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  EXPECT_EQ(s.Only<Finished>().wait_ns, 0);
  s.Clear();
  s.Say(Ahead(3, true));
  s.Reduced(3);
  s.Clear();
  s.Step(1, false, 2);
  EXPECT_EQ(s.Only<Ready>().iteration, 1);
  EXPECT_FALSE(s.Done().has_value()) << "they were not its own";
  s.Say(Ahead(4));
  s.Reduced(4);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(1);
  EXPECT_EQ(s.Outcome().rounds, 3);
  EXPECT_EQ(s.Outcome().group.id, 4u);
  EXPECT_EQ(s.Outcome().attempts, 1);
  EXPECT_EQ(s.Outcome().iteration, 1);
}

TEST_F(AheadTest, InitiatorWaitsThroughPassiveGroupsAndFailures) {
  s.Join(Both(0));
  s.Step(1);
  s.Clear();
  s.Say(Ahead(2, true));
  s.Reduced(2);
  EXPECT_EQ(s.Count<ApplyNow>(), 0u);
  s.Say(Ahead(3));
  s.Reduced(3, false);
  EXPECT_TRUE(s.Said<Ready>().empty()) << "the signal stands";
  s.Say(Ahead(4));
  s.Say(Abort{.group = 4, .reason = "so"});
  EXPECT_TRUE(s.Said<Ready>().empty());
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Ahead(5));
  s.Reduced(5);
  s.Applied(1, 2);
  EXPECT_EQ(s.Outcome().rounds, 2);
  EXPECT_EQ(s.Outcome().attempts, 3);
}

TEST_F(AheadTest, SignalStandsOverStepsUntilItsGroupOrAnAnswer) {
  s.Join(Both(2));
  s.Step(1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Say(Ahead(2));
  s.Reduced(2);
  s.Clear();
  s.Step(2, false, 1);
  EXPECT_EQ(s.Only<Ready>().iteration, 2);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Say(Ahead(3, true));
  s.Reduced(3);
  s.Clear();
  s.Step(3, false, 1);
  EXPECT_TRUE(s.Said<Ready>().empty()) << "a passive group answers nothing";
  s.Clear();
  s.Step(4);
  EXPECT_FALSE(s.Done().has_value()) << "the third since its signal";
  s.Say(QueryReply{.iteration = 2});
  EXPECT_EQ(s.Only<Ready>().iteration, 4);
  EXPECT_TRUE(s.Done()->ok());
}

TEST_F(AheadTest, GroupThatIsThroughBeforeTheSignalLeavesItStanding) {
  s.Join(Both(0));
  s.Say(Ahead(2));  // drawn ahead for this worker
  s.Reduced(2);
  s.Clear();
  s.Step(1, false, 1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(QueryReply{.iteration = 1});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Outcome().rounds, 1);
  EXPECT_EQ(s.Count<ApplyNow>(), 0u);
}

TEST_F(AheadTest, GroupThatRunsWhileTheSignalIsSaidAnswersIt) {
  s.Join(Both(0));
  s.Say(Ahead(2));
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u) << "nothing stood";
  s.Reduced(2);
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Only<Finished>().wait_ns, 0) << "it was there before the signal";
}

TEST_F(AheadTest, FinishWaitsForItsSignalAndAddsWhatIsThere) {
  s.Join(Both(3));
  s.Step(1);
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  s.Say(Ahead(2, true));
  s.Reduced(2);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  s.Say(Ahead(3));
  s.Reduced(3);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
  s.Applied(1, 2);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(AheadTest, AveragesThatCrossFinishAreAddedBeforeTheFinalOne) {
  s.Join(Both(1));
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
  s.Say(Ahead(2, true));
  s.Reduced(2);
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Say(Ahead(3, true));
  s.Reduced(3);
  s.Clear();
  s.Say(Script::MakeGroup(4, GroupKind::kFinal, 1));
  EXPECT_FALSE(Started());
  s.Applied(0, 1);
  EXPECT_FALSE(Started()) << "the second average is not part of the parameters yet";
  EXPECT_EQ(s.Count<ApplyNow>(), 1u);
  s.Applied(0, 1);
  EXPECT_EQ(Started()->group.id, 4u);
  EXPECT_TRUE(s.Said<prd::Finish>().empty());
}

TEST_F(AheadTest, NoPassiveGroupKeepsFinishFromBeingSaid) {
  s.Join(Both(1));
  s.Say(Ahead(2, true));
  s.Clear();
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Finish>().size(), 1u);
}

TEST_F(AheadTest, SecondGroupInTheBackgroundEndsTheSession) {
  s.Join(Both(1));
  s.Say(Ahead(2, true));
  s.Say(Ahead(3, true));
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Done()->code(), Code::kDataLoss);
}

}  // namespace
}  // namespace prd::ahead_core_test
