// What a training loop may rely on under every plan, message by message: clocks, the goal, pauses,
// averages of all, and words about waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/plans.h"
#include "tests/worker/core_script.h"

namespace prd::contract_core_test {
namespace {

using ::testing::HasSubstr;
using testing::kMe;
using testing::kPeer;
using testing::Script;

std::vector<std::string> Lines(const Script& s) {
  std::vector<std::string> lines;
  for (const Action& action : s.actions) {
    if (const auto* line = std::get_if<LogLine>(&action)) lines.push_back(line->text);
  }
  return lines;
}

// ---- clocks ----

TEST(ClocksTest, StepsThatAreNotDiscardedCountWithTheirSamples) {
  Script s;
  s.Join(plans::kGradients);
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().own, (Trained{.steps = 1, .samples = 6}));
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  s.Applied(1);
  EXPECT_EQ(s.Outcome().own, (Trained{.steps = 1, .samples = 6}));
  s.Clear();
  s.Step(2, true);
  EXPECT_EQ(s.Outcome().own, (Trained{.steps = 1, .samples = 6})) << "discarded";
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Only<Ready>().own, (Trained{.steps = 2, .samples = 12}));
}

TEST(ClocksTest, StepsThatSaveTheSignalAreToldSoonAfter) {
  Script s;
  s.Join(plans::Every(8, plans::kModels));
  s.Clear();
  s.Step(1);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.now = s.now + 150 * kMillisecond;
  s.Step(2);
  EXPECT_EQ(s.Only<Progressed>(), (Progressed{.own = {.steps = 2, .samples = 12}}));
  s.Acknowledge();
  s.Clear();
  s.Step(3);
  EXPECT_TRUE(s.Said<Progressed>().empty()) << "told less than 100 ms ago";
  s.Clear();
  s.Pass(kSecond);  // a heartbeat
  EXPECT_EQ(s.Only<Progressed>().own.steps, 3);
  s.Acknowledge();
  s.Clear();
  s.Pass(kSecond);
  EXPECT_TRUE(s.Said<Progressed>().empty()) << "nothing new";
}

TEST(ClocksTest, WhatIsNotAcknowledgedDoesNotPileUp) {
  Script s;
  s.Join(plans::Every(1000, plans::kModels));
  for (int step = 1; step <= 100; ++step) {
    s.now = s.now + 150 * kMillisecond;
    s.Step(step);
  }
  EXPECT_LE(s.Said<Progressed>().size(), 16u);
  s.Acknowledge();
  s.Clear();
  s.now = s.now + 150 * kMillisecond;
  s.Step(101);
  EXPECT_EQ(s.Only<Progressed>().own.steps, 101);
}

TEST(ClocksTest, FinishAndLeaveTellWhatIsNotTold) {
  for (const bool leave : {false, true}) {
    Script s;
    s.Join(plans::Every(8, plans::kModels));
    s.Clear();
    s.Step(1);
    s.Clear();
    leave ? s.core.Leave(s.now, "asked to", &s.actions) : s.core.Finish(s.now, &s.actions);
    ASSERT_EQ(s.Sent().size(), 2u);
    EXPECT_TRUE(std::holds_alternative<Progressed>(s.Sent()[0].body));
    EXPECT_EQ(s.Said<Leave>().size(), leave ? 1u : 0u);
    EXPECT_EQ(s.Said<Finish>().size(), leave ? 0u : 1u);
  }
}

TEST(ClocksTest, CountsGoOnOverANewIncarnationAndOverAProcessBeforeThisOne) {
  Script s;
  s.Attach();
  s.seq = 0;
  s.heard = 1;
  s.Say(Welcome{.run = 9,
                .rank = 3,
                .plan = plans::kGradients,
                .lease_ms = 2000,
                .heartbeat_ms = 100,
                .own = {.steps = 40, .samples = 400}});
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().own, (Trained{.steps = 41, .samples = 406}));
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.core.GiveIncarnation(kMe + 1);
  s.Pass(kSecond);
  EXPECT_EQ(s.Only<Hello>().own, (Trained{.steps = 41, .samples = 406}));
}

TEST(ClocksTest, AStepThatEndsWhileTheHelloIsNotAnsweredIsToldLater) {
  Script s;
  s.Join(plans::Every(8, plans::kModels));
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.core.GiveIncarnation(kMe + 1);
  s.Pass(kSecond);
  EXPECT_EQ(s.Only<Hello>().own.steps, 0);
  s.Clear();
  s.Step(1);
  s.Welcome(plans::Every(8, plans::kModels));
  s.SayAdopt();
  s.Step(2, /*discard=*/true);
  s.Fetched(3);
  s.core.Leave(s.now, "asked to", &s.actions);
  EXPECT_EQ(s.Only<Progressed>().own, (Trained{.steps = 1, .samples = 6}));
}

TEST(ClocksTest, TheJobsProgressIsTheNewestToldAndNeverFalls) {
  Script s;
  SessionCore::Options options;
  options.hello.job = "job";
  options.hello.own = {.steps = 7, .samples = 70};
  options.hello.job_trained = {.steps = 50, .samples = 500};
  s.core.Attach(s.now, options, &s.actions);
  EXPECT_EQ(s.Only<Hello>().own.steps, 7);
  EXPECT_EQ(s.core.progress().trained.steps, 50) << "of the checkpoint";
  const auto tell = [&s](JobProgress progress, ControllerBody body, Seq seq) {
    s.core.OnEnvelope(s.now,
                      {.identity = s.identity,
                       .incarnation = kMe,
                       .seq = seq,
                       .ack = 1,
                       .progress = progress,
                       .body = std::move(body)},
                      &s.actions);
  };
  tell({.trained = {.steps = 60, .samples = 600}, .workers = 2},
       Welcome{.run = 9, .rank = 3, .heartbeat_ms = 100}, 1);
  EXPECT_EQ(s.core.progress(), (JobProgress{.trained = {60, 600}, .workers = 2}));
  tell({.trained = {.steps = 90, .samples = 900}, .workers = 3, .done = true}, HeartbeatAck{}, 0);
  EXPECT_TRUE(s.core.progress().done);
  tell({.trained = {.steps = 80, .samples = 800}, .workers = 3}, HeartbeatAck{}, 0);
  EXPECT_EQ(s.core.progress(), (JobProgress{.trained = {90, 900}, .workers = 3, .done = true}));
  // Another run goes on from there.
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "its history is lost"});
  s.core.GiveIncarnation(kMe + 1);
  s.Pass(kSecond);
  EXPECT_EQ(s.Only<Hello>().job_trained, (Trained{.steps = 90, .samples = 900}));
}

TEST(ClocksTest, StepsThatAreNotFiniteAreToldOnce) {
  Script s;
  s.Join(plans::kGradients);
  s.core.NoteNonfinite();
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().nonfinite, 1u);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  s.Applied(1);
  s.Clear();
  s.Step(2);
  EXPECT_EQ(s.Only<Ready>().nonfinite, 0u);
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  s.Reduced(3);
  s.Applied(2);
  s.Clear();
  s.core.NoteNonfinite();
  s.core.Leave(s.now, "not finite", &s.actions);
  EXPECT_EQ(s.Only<Progressed>().nonfinite, 1u);
}

TEST(ClocksTest, LossesAreToldOnce) {
  Script s;
  s.Join();
  s.core.NoteLosses({.count = 2, .mean = 1});
  s.core.NoteLosses({.count = 1, .mean = 4});
  s.Step(1);
  EXPECT_EQ(s.Only<Ready>().losses, (Losses{.count = 3, .mean = 2}));
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  s.Clear();
  s.core.NoteLosses({.count = 1, .mean = -7});
  s.core.Finish(s.now, &s.actions);
  EXPECT_EQ(s.Only<Progressed>().losses, (Losses{.count = 1, .mean = -7}));
}

// ---- the goal ----

class Goal : public Script {
 public:
  void Tell(bool done) {
    core.OnEnvelope(now,
                    {.identity = identity,
                     .incarnation = core.incarnation(),
                     .seq = 0,
                     .ack = heard,
                     .progress = {.done = done},
                     .body = HeartbeatAck{}},
                    &actions);
  }
};

TEST(GoalTest, MembersOfTheLastGroupStopWithTheSameStep) {
  Goal s;
  s.Join(plans::kGradients);
  s.Tell(true);
  s.Step(1, true);
  EXPECT_FALSE(s.Outcome().done) << "the others end with a group";
  s.Clear();
  s.Step(1);  // whose group was formed before
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  s.Applied(1);
  EXPECT_FALSE(s.Outcome().done);
  s.Clear();
  s.Step(2);
  Group last = Script::MakeGroup(3, GroupKind::kTrain, 2);
  last.last = true;
  s.Say(last);
  s.Reduced(3);
  s.Applied(2);
  EXPECT_TRUE(s.Outcome().done);
  s.Clear();
  s.Step(3, true);
  EXPECT_TRUE(s.Outcome().done) << "no group ended it";
}

// Whoever was late for the last group would train on alone.
TEST(GoalTest, WhoCopiesTheLastGroupsResultStopsToo) {
  for (const bool done : {false, true}) {
    Goal s;
    s.Join(plans::kGradients);
    s.Tell(done);
    s.Step(1);
    s.SayAdopt();
    s.Fetched(7);
    EXPECT_TRUE(s.Outcome().adopted);
    EXPECT_EQ(s.Outcome().done, done);
  }
}

// A member for whom a group failed copies its result, and stops if the other members do.
TEST(GoalTest, WhoCopiesTheResultOfItsOwnGroupStopsWithIt) {
  for (const bool last : {false, true}) {
    Goal s;
    s.Join(plans::kGradients);
    s.Tell(true);
    s.Step(1);
    Group group = Script::MakeGroup(2, GroupKind::kTrain, 1);
    group.last = last;
    s.Say(group);
    s.Reduced(2, false);
    s.SayAdopt();
    s.Fetched(1);
    EXPECT_TRUE(s.Outcome().adopted);
    EXPECT_EQ(s.Outcome().done, last);
  }
}

TEST(GoalTest, OthersStopOnceToldSo) {
  Goal s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  EXPECT_FALSE(s.Outcome().done);
  s.Clear();
  s.Step(2);
  s.Tell(true);
  s.Say(Script::MakeGroup(3, GroupKind::kTrain, 2));
  s.Reduced(3);
  EXPECT_TRUE(s.Outcome().done);
}

// ---- pauses ----

TEST(PauseTest, PauseSaysSoAndResumeWaitsForTheAnswer) {
  Script s;
  s.Join(plans::kGradients);
  s.core.Pause(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.core.paused());
  s.Acknowledge();
  s.Clear();
  // A group that was formed before the controller knew.
  s.Say(Script::MakeGroup(2));
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  s.Acknowledge();
  s.Clear();
  s.core.Resume(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Resume>().size(), 1u);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Resumed{});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_FALSE(s.Outcome().adopted);
  EXPECT_FALSE(s.core.paused());
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Said<Ready>().size(), 1u);
}

// ---- the mean of numbers ----

class MeanTest : public ::testing::Test {
 protected:
  void Mean(std::vector<double> values, bool resumes = true) {
    s.core.Mean(s.now, std::move(values), resumes, &s.actions);
  }
  // What was given, answered so.
  void Answer(std::vector<double> values, std::string wrong = {}) {
    s.Acknowledge();
    s.Say(NumbersMean{.call = call, .values = std::move(values), .wrong = std::move(wrong)});
  }
  void Given() { call = s.Only<GiveNumbers>().call; }
  std::vector<double> Numbers() {
    for (const Action& action : s.actions) {
      if (const auto* done = std::get_if<CallDone>(&action)) return done->numbers;
    }
    return {};
  }
  Script s;
  std::uint64_t call = 0;
};

TEST_F(MeanTest, ItPausesGivesAndResumes) {
  s.Join(plans::kGradients);
  Mean({1, 2});
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  Given();
  EXPECT_TRUE(s.core.paused());
  EXPECT_EQ(s.Only<GiveNumbers>().values, (std::vector<double>{1, 2}));
  Answer({3, 4});
  EXPECT_EQ(s.Said<prd::Resume>().size(), 1u);
  EXPECT_FALSE(s.Done().has_value());
  s.Acknowledge();
  s.Say(Resumed{});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(Numbers(), (std::vector<double>{3, 4}));
  EXPECT_FALSE(s.core.paused());
}

TEST_F(MeanTest, InAPauseItStaysPaused) {
  s.Join(plans::kGradients);
  s.core.Pause(s.now, &s.actions);
  s.Acknowledge();
  s.Clear();
  Mean({1}, false);
  Given();
  Answer({7});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.core.paused());
  EXPECT_TRUE(s.Said<prd::Resume>().empty());
}

TEST_F(MeanTest, AnotherCountIsNamedOnceItTrainsAgain) {
  s.Join(plans::kGradients);
  Mean({1});
  Given();
  Answer({}, "found 1 numbers, needed are 2");
  s.Say(Resumed{});
  EXPECT_EQ(s.Done()->code(), Code::kInvalidArgument);
  EXPECT_EQ(s.Done()->message(), "found 1 numbers, needed are 2");
}

TEST_F(MeanTest, ANewIncarnationJoinsPausesAndGivesTheSameAgain) {
  s.Join(plans::kGradients);
  Mean({1});
  Given();
  s.Clear();
  s.core.GiveIncarnation(kMe + 1);
  s.Aside(Refused{.code = Code::kAborted, .reason = "lost"});
  s.Pass(kSecond);
  EXPECT_EQ(s.Said<Hello>().size(), 1u);
  s.Clear();
  s.Welcome(plans::kGradients);
  s.SayAdopt();
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  s.Fetched(5);
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  EXPECT_EQ(s.Only<GiveNumbers>().call, call);
  Answer({4});
  s.Say(Resumed{});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(Numbers(), (std::vector<double>{4}));
}

TEST_F(MeanTest, WhoIsToLeaveSoonLeavesAtOnce) {
  s.Join(plans::kGradients);
  Mean({1});
  s.Clear();
  s.core.LeaveSoon(s.now, "a notice", 0, &s.actions);
  EXPECT_EQ(s.Only<prd::Leave>().reason, "a notice");
  s.Say(Released{.reason = "left"});
  EXPECT_EQ(s.Done()->code(), Code::kAborted);
}

TEST_F(MeanTest, ACancelEndsIt) {
  s.Join(plans::kGradients);
  Mean({1});
  s.Clear();
  s.core.Cancel(s.now, &s.actions);
  EXPECT_EQ(s.Done()->code(), Code::kCancelled);
}

TEST(PauseTest, WhoResumesBehindTheOthersCopiesFirst) {
  Script s;
  s.Join(plans::kGradients);
  s.core.Pause(s.now, &s.actions);
  s.Clear();
  s.SayAdopt();
  EXPECT_EQ(s.Count<StartFetch>(), 0u) << "the caller may be reading its parameters";
  EXPECT_FALSE(s.Interrupted());
  s.core.Resume(s.now, &s.actions);
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
  s.Fetched(17);
  EXPECT_FALSE(s.Done().has_value());
  s.Say(Resumed{});
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Outcome().adopted);
  EXPECT_EQ(s.core.iteration(), 17);
}

TEST(PauseTest, WhatIsSignalledIsAnsweredFirst) {
  Script s;
  s.Join(plans::Background(2));
  s.Step(1);
  s.Clear();
  s.core.Pause(s.now, &s.actions);
  EXPECT_TRUE(s.Said<prd::Pause>().empty());
  s.Say(Script::MakeGroup(2, GroupKind::kTrain, 1));
  s.Reduced(2);
  s.Applied(1);  // what the average changed is added
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  EXPECT_TRUE(s.Done()->ok());
}

TEST(PauseTest, RoundsTakeWhatIsOwedFirst) {
  Script s;
  s.Join(plans::kRounds);
  s.Step(0);
  s.Round(2, 1, true);
  s.Reduced(2);
  s.Applied(1);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.core.Pause(s.now, &s.actions);
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  s.Clear();
  // A round that was announced before: nothing is owed.
  s.Round(3, 2, false);
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
}

TEST(PauseTest, GroupsAnnouncedAheadAreGivenUp) {
  Script s;
  s.Join(plans::kAhead);
  s.Say(Script::MakeGroup(2));
  s.Clear();
  s.core.Pause(s.now, &s.actions);
  // Takes part in what it knows of, as in Finish, or gives it up: the pause ends in any case.
  if (!s.Done()) s.Reduced(2);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
  EXPECT_EQ(s.Said<Finished>().size(), 1u);
  s.Clear();
  s.Say(Script::MakeGroup(3));
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_THAT(s.Only<Finished>().detail, HasSubstr("pauses"));
}

TEST(PauseTest, WhoIsLostInAPauseComesBackOnlyWhenItResumes) {
  Script s;
  s.Join(plans::kGradients);
  s.core.Pause(s.now, &s.actions);
  s.Clear();
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  s.core.GiveIncarnation(kMe + 1);
  s.Pass(kSecond);
  s.Pass(kSecond);
  EXPECT_TRUE(s.Said<Hello>().empty());
  EXPECT_EQ(s.core.NextDeadline(), std::nullopt) << "nothing to wake for";
  s.core.Resume(s.now, &s.actions);
  EXPECT_EQ(s.Said<Hello>().size(), 1u);
  EXPECT_FALSE(s.core.paused());
  s.seq = 0;
  s.heard = 1;
  s.Say(Welcome{.run = 9, .rank = 3, .plan = plans::kGradients, .heartbeat_ms = 100});
  s.SayAdopt();
  s.Fetched(30);
  EXPECT_TRUE(s.Done()->ok());
  EXPECT_TRUE(s.Outcome().adopted);
}

TEST(PauseTest, ResumeThatTimesOutMayBeCalledAgain) {
  Script s;
  s.Attach(10 * kSecond);
  s.Welcome(plans::kGradients);
  s.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  s.Reduced(1);
  s.Clear();
  s.core.Pause(s.now, &s.actions);
  s.Clear();
  s.core.Resume(s.now, &s.actions);
  s.Pass(11 * kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  s.Clear();
  s.core.Resume(s.now, &s.actions);
  EXPECT_TRUE(s.Said<prd::Resume>().empty()) << "said already";
  s.Say(Resumed{});
  EXPECT_TRUE(s.Done()->ok());
}

// ---- leaving at the next boundary ----

void Soon(Script& s, DurationNs grace = 0) {
  s.core.LeaveSoon(s.now, "SIGTERM", grace, &s.actions);
}

void ExpectLeft(const Script& s) {
  const std::optional<Status> done = s.Done();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->code(), Code::kAborted);
  EXPECT_EQ(done->message(), "left: SIGTERM");
}

// Before the step, or while it waits, or twice: it ends whole, and the worker leaves with it.
TEST(LeaveSoonTest, TheStepThatIsUnderWayCounts) {
  for (const bool waits : {false, true}) {
    Script s;
    s.Join(plans::kModels);
    if (!waits) Soon(s);
    EXPECT_TRUE(s.Sent().empty()) << "its step is computed yet";
    s.Step(1);
    if (waits) Soon(s);
    s.core.LeaveSoon(s.now, "again", 1, &s.actions);
    s.Say(Script::MakeGroup(2));
    s.Reduced(2);
    EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
    EXPECT_EQ(s.Said<prd::Pause>().size(), 1u);
    EXPECT_EQ(s.Only<prd::Leave>().reason, "SIGTERM");
    EXPECT_FALSE(s.Done().has_value()) << "the controller may need it yet";
    s.Say(Released{"SIGTERM"});
    ExpectLeft(s);
    EXPECT_EQ(s.core.own().steps, 1);
    s.Clear();
    s.Step(2);
    ExpectLeft(s);
  }
}

TEST(LeaveSoonTest, WhatIsOwedIsReducedFirst) {
  Script s;
  s.Join(plans::kRounds);
  s.Step(0);
  s.Round(2, 1, false);
  s.Reduced(2);
  Soon(s);
  s.Clear();
  s.Applied(1);  // a round without its gradient
  EXPECT_TRUE(s.Said<prd::Leave>().empty());
  s.Round(3, 2, true);
  s.Reduced(3);
  s.Applied(2);
  EXPECT_EQ(s.Said<prd::Leave>().size(), 1u);
  // What was announced before the controller knew is carried out.
  s.Clear();
  s.Round(4, 3, false);
  s.Reduced(4);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  s.Say(Released{"SIGTERM"});
  s.Applied(3);
  ExpectLeft(s);
}

TEST(LeaveSoonTest, GroupsAnnouncedAheadAreCarriedOut) {
  Script s;
  s.Join(plans::kAhead);
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  Soon(s);
  s.Reduced(2);
  EXPECT_EQ(s.Said<prd::Leave>().size(), 1u);
  s.Clear();
  s.Say(Script::MakeGroup(3));
  EXPECT_EQ(s.Count<StartReduce>(), 1u);
  s.Reduced(3);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kOk);
  s.Say(Released{"SIGTERM"});
  ExpectLeft(s);
}

TEST(LeaveSoonTest, BeforeTheJobHasBegunItLeavesAtOnce) {
  Script before;
  Soon(before);
  before.Attach();
  ExpectLeft(before);

  Script not_admitted;
  not_admitted.Attach();
  Soon(not_admitted);
  ExpectLeft(not_admitted);

  Script waits;
  waits.Attach();
  waits.Welcome();
  Soon(waits);
  EXPECT_EQ(waits.Only<prd::Leave>().reason, "SIGTERM");
  waits.Say(Released{"SIGTERM"});
  ExpectLeft(waits);

  Script starts;  // the others would wait for it
  starts.Attach();
  starts.Welcome();
  starts.Say(Script::MakeGroup(1, GroupKind::kInitial, 0));
  Soon(starts);
  EXPECT_TRUE(starts.Said<prd::Leave>().empty());
  starts.Reduced(1);
  EXPECT_EQ(starts.Said<prd::Leave>().size(), 1u);
  starts.Say(Released{"SIGTERM"});
  ExpectLeft(starts);
}

TEST(LeaveSoonTest, InAPauseItLeavesAtOnceAndAfterResume) {
  Script s;
  s.Join(plans::kGradients);
  s.core.Pause(s.now, &s.actions);
  s.Clear();
  Soon(s);
  EXPECT_EQ(s.Said<prd::Leave>().size(), 1u);
  s.Clear();
  s.core.Resume(s.now, &s.actions);
  EXPECT_TRUE(s.Sent().empty()) << "it does not come back";
  s.Say(Released{"SIGTERM"});
  ExpectLeft(s);

  Script copies;  // while it copies what the others have
  copies.Join(plans::kGradients);
  copies.core.Pause(copies.now, &copies.actions);
  copies.Clear();
  copies.core.Resume(copies.now, &copies.actions);
  copies.SayAdopt();
  Soon(copies);
  copies.Fetched(17);
  EXPECT_TRUE(copies.Said<prd::Leave>().empty());
  copies.Say(Resumed{});
  EXPECT_EQ(copies.Said<prd::Leave>().size(), 1u);
}

TEST(LeaveSoonTest, FinishDoesNotWaitButForAnAverageThatHasBegun) {
  Script waits;
  waits.Join();
  waits.core.Finish(waits.now, &waits.actions);
  Soon(waits);
  EXPECT_EQ(waits.Said<prd::Leave>().size(), 1u);
  waits.Say(Released{"SIGTERM"});
  ExpectLeft(waits);

  Script comes;  // asked for before
  comes.Join();
  Soon(comes);
  comes.core.Finish(comes.now, &comes.actions);
  EXPECT_TRUE(comes.Said<prd::Finish>().empty());
  EXPECT_EQ(comes.Said<prd::Leave>().size(), 1u);

  Script meets;  // the average, which has begun before the controller hears of it
  meets.Join();
  meets.core.Finish(meets.now, &meets.actions);
  Soon(meets);
  meets.Say(Script::MakeGroup(2, GroupKind::kFinal));
  meets.Reduced(2);
  EXPECT_EQ(meets.Only<Finished>().outcome, Outcome::kOk);
  meets.Say(Released{"the job is done"});
  EXPECT_TRUE(meets.Done()->ok());

  Script averages;
  averages.Join();
  averages.core.Finish(averages.now, &averages.actions);
  averages.Say(Script::MakeGroup(2, GroupKind::kFinal));
  Soon(averages);
  averages.Reduced(2);
  EXPECT_TRUE(averages.Said<prd::Leave>().empty());
  averages.Say(Released{"the job is done"});
  EXPECT_TRUE(averages.Done()->ok());
}

TEST(LeaveSoonTest, AfterItsGraceItLeavesInTheMidstOfAWait) {
  for (const bool reduces : {false, true}) {
    Script s;
    s.Join();
    s.Step(1);
    Soon(s, 3 * kSecond);
    if (reduces) s.Say(Script::MakeGroup(2));
    s.Pass(2 * kSecond);
    EXPECT_TRUE(s.Said<prd::Leave>().empty());
    ASSERT_TRUE(s.core.NextDeadline().has_value());
    EXPECT_LE(*s.core.NextDeadline(), s.now + kSecond);
    s.Pass(kSecond);
    EXPECT_EQ(s.Said<prd::Leave>().size(), 1u);
    ASSERT_TRUE(s.Done().has_value());
    EXPECT_EQ(s.Done()->ToString(), "aborted: left: SIGTERM, whose grace is over");
    EXPECT_EQ(s.Count<CancelReduce>(), reduces ? 1u : 0u);
    EXPECT_EQ(s.Said<Finished>().size(), reduces ? 1u : 0u) << "the others hear at once";
  }
}

// Its job does not forget a worker that has paused before its group is over.
TEST(LeaveSoonTest, WhoLeavesAtOnceReportsAGroupThatComesYet) {
  Script s;
  s.Join(plans::kRounds);
  s.core.Pause(s.now, &s.actions);
  s.core.Leave(s.now, "bye", &s.actions);
  s.Clear();
  s.Round(2, 1, false);
  EXPECT_EQ(s.Only<Finished>().outcome, Outcome::kFailed);
  EXPECT_EQ(s.Count<StartReduce>(), 0u);
}

TEST(LeaveSoonTest, WhomTheJobHasLostDoesNotComeBack) {
  Script s;
  s.Join();
  s.Step(1);
  Soon(s);
  s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
  ExpectLeft(s);
}

// ---- the average of all ----

Members MembersOf(const std::vector<Rank>& ranks) {
  Members members;
  members.members.push_back({.rank = 3, .incarnation = kMe});
  for (const Rank rank : ranks) {
    members.members.push_back({.rank = rank, .incarnation = kPeer + static_cast<unsigned>(rank)});
  }
  return members;
}

std::vector<Rank> Copied(const Script& s) {
  std::vector<Rank> ranks;
  for (const Action& action : s.actions) {
    if (const auto* copy = std::get_if<CopyForAverage>(&action)) ranks.push_back(copy->source.rank);
  }
  return ranks;
}

TEST(AverageTest, AllOthersAreCopiedOneAfterAnother) {
  Script s;
  s.Join();
  s.core.Average(s.now, false, &s.actions);
  EXPECT_EQ(s.Said<AskMembers>().size(), 1u);
  s.Say(MembersOf({4, 5}));
  EXPECT_EQ(Copied(s), (std::vector<Rank>{4}));
  s.core.OnCopiedForAverage(s.now, Status(Code::kUnavailable, "gone"), &s.actions);
  EXPECT_THAT(Lines(s), ::testing::ElementsAre(HasSubstr("leaves out rank 4: gone")));
  EXPECT_EQ(Copied(s), (std::vector<Rank>{4, 5}));
  EXPECT_FALSE(s.Done().has_value());
  s.core.OnCopiedForAverage(s.now, Status::Ok(), &s.actions);
  EXPECT_TRUE(s.Done()->ok());
}

TEST(AverageTest, EqualReplicasAskNobody) {
  for (const Plan& plan : {plans::kGradients, plans::kAsked}) {
    Script s;
    s.Join(plan);
    s.core.Average(s.now, false, &s.actions);
    EXPECT_TRUE(s.Done()->ok());
    EXPECT_TRUE(s.Said<AskMembers>().empty());
  }
}

TEST(AverageTest, AveragedStateIsAskedForWhereGradientsAreReduced) {
  Script s;
  s.Join(plans::kGradients);
  s.core.Average(s.now, true, &s.actions);
  EXPECT_FALSE(s.Done().has_value());
  EXPECT_EQ(s.Said<AskMembers>().size(), 1u);
}

TEST(AverageTest, GroupsDoNotWriteTheReplicaMeanwhile) {
  Script s;
  s.Join();
  s.core.Average(s.now, false, &s.actions);
  s.Say(MembersOf({4}));
  s.SayAdopt();
  EXPECT_EQ(s.Count<StartFetch>(), 0u);
  s.core.OnCopiedForAverage(s.now, Status::Ok(), &s.actions);
  EXPECT_TRUE(s.Done()->ok());
  s.Clear();
  s.Step(1);
  EXPECT_EQ(s.Count<StartFetch>(), 1u);
}

TEST(AverageTest, CancelAndALostLeaseEndIt) {
  for (const bool cancel : {true, false}) {
    Script s;
    s.Join();
    s.core.Average(s.now, false, &s.actions);
    s.Say(MembersOf({4}));
    if (cancel) {
      s.core.Cancel(s.now, &s.actions);
    } else {
      s.Aside(Refused{.code = Code::kAborted, .reason = "its lease ran out"});
    }
    EXPECT_EQ(s.Count<CancelCopyForAverage>(), 1u);
    EXPECT_EQ(s.Done()->code(), cancel ? Code::kCancelled : Code::kUnavailable);
  }
}

// ---- waiting ----

TEST(WaitingTest, AttachSaysForWhomItWaits) {
  Script s;
  s.Attach();
  s.Welcome();
  s.Aside(HeartbeatAck{.waits_for = "waits for the common start: 2 of 3, missing rank 2"});
  for (int second = 1; second <= 4; ++second) s.Pass(kSecond);
  EXPECT_TRUE(Lines(s).empty());
  s.Aside(HeartbeatAck{.waits_for = "waits for the common start: 2 of 3, missing rank 2"});
  s.Pass(kSecond);
  EXPECT_THAT(Lines(s), ::testing::ElementsAre(
                            "Attach has waited for 5 s: waits for the common start: 2 of 3, "
                            "missing rank 2"));
  for (int second = 6; second <= 130; ++second) {
    s.Aside(HeartbeatAck{});
    s.Pass(kSecond);
  }
  EXPECT_EQ(Lines(s).size(), 4u) << "after 5, 15, 60 and 120 s";
}

TEST(WaitingTest, AControllerThatDoesNotAnswerIsNamed) {
  Script s;
  SessionCore::Options options;
  options.controller = "tcp://there:1";
  s.core.Attach(s.now, options, &s.actions);
  for (int second = 1; second <= 6; ++second) s.Pass(kSecond);
  EXPECT_THAT(Lines(s), ::testing::ElementsAre("Attach has waited for 5 s: the controller at "
                                               "tcp://there:1 has not answered for 5 s"));
}

TEST(WaitingTest, ARefusalThatMayPassIsSaid) {
  Script s;
  s.Attach();
  for (int second = 1; second <= 6; ++second) {
    s.Aside(Refused{.code = Code::kUnavailable, .reason = "launch A still runs", .retry_ms = 500});
    s.Pass(kSecond);
  }
  EXPECT_THAT(Lines(s), ::testing::ElementsAre(HasSubstr("not admitted yet: launch A still runs")));
}

TEST(WaitingTest, StepNamesTheGroupAndTheCopyThatItWaitsFor) {
  Script s;
  s.Join();
  s.Step(1);
  s.Say(Script::MakeGroup(2));
  const auto pass = [&s](int seconds) {
    for (int second = 0; second < seconds; ++second) {
      s.Aside(HeartbeatAck{});
      s.Pass(kSecond);
    }
  };
  pass(6);
  EXPECT_THAT(Lines(s), ::testing::ElementsAre(HasSubstr("group 2 is reduced, with rank 4")));
  s.Reduced(2, false);
  s.SayAdopt();
  s.Clear();
  pass(10);
  EXPECT_THAT(Lines(s), ::testing::ElementsAre(HasSubstr("the model of rank 4 is copied")));
}

TEST(WaitingTest, StepsThatAllWaitLongAreSaidOnceAMinute) {
  Script s;
  s.Join(plans::kGradients);
  GroupId group = 2;
  for (int step = 1; step <= 30; ++step) {  // of 7 s each: 210 s
    s.Step(step);
    for (int second = 0; second < 7; ++second) {
      s.Aside(HeartbeatAck{});
      s.Pass(kSecond);
    }
    s.Say(Script::MakeGroup(group, GroupKind::kTrain, step));
    s.Reduced(group++);
    s.Applied(step);
    s.Acknowledge();
    std::erase_if(s.actions,
                  [](const Action& action) { return !std::holds_alternative<LogLine>(action); });
  }
  EXPECT_GE(Lines(s).size(), 3u);
  EXPECT_LE(Lines(s).size(), 4u);
}

TEST(WaitingTest, StartTimeoutIsForTheStartAlone) {
  Script s;
  SessionCore::Options options;
  options.timeout = 5 * kSecond;
  options.start_timeout = 20 * kSecond;
  s.core.Attach(s.now, options, &s.actions);
  s.Welcome();
  for (int second = 1; second <= 19; ++second) {
    s.Aside(HeartbeatAck{.waits_for = "missing rank 2"});
    s.Pass(kSecond);
  }
  EXPECT_FALSE(s.Done().has_value()) << "the controller answers";
  s.Aside(HeartbeatAck{.waits_for = "missing rank 2"});
  s.Pass(kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  EXPECT_THAT(s.Done()->message(), HasSubstr("within 20000 ms: missing rank 2"));
}

TEST(WaitingTest, AControllerThatIsGoneBeforeTheStartEndsTheCallAfterTimeout) {
  Script s;
  SessionCore::Options options;
  options.timeout = 5 * kSecond;
  options.start_timeout = 60 * kSecond;
  options.controller = "tcp://there:1";
  s.core.Attach(s.now, options, &s.actions);
  s.Welcome();
  for (int second = 1; second <= 6; ++second) s.Pass(kSecond);
  EXPECT_EQ(s.Done()->code(), Code::kUnavailable);
  EXPECT_EQ(s.Done()->message(),
            "the controller at tcp://there:1 has not answered for 5000 ms: does "
            "prd run there, and is PRD_CONTROLLER right?");
}

}  // namespace
}  // namespace prd::contract_core_test
