// What operators do to a job: evict, drain, end, pause, resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/all_reduce/options.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobOperatorTest : public JobTest {
 protected:
  // With an engine that does as it is told. Odd ranks are on host "odd".
  void Start(const Plan& plan, int workers) {
    script_ = {.plan = plan, .joining = Engine::Joining::kAnytime};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Make(AllReduceOptions{}, workers, spec_);
    for (Rank r = 0; r < workers; ++r) JoinOn(r, r % 2 == 0 ? "even" : "odd");
    for (Rank r = 0; r < workers; ++r) Done(r);
    script_.heard.clear();
  }
  void JoinOn(Rank rank, const std::string& host) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).host_name = host;
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
  }
  void Next(GroupKind kind, const std::vector<Rank>& ranks, Iteration iteration = 1) {
    GroupFormed form{.kind = kind, .iteration = iteration, .reason = "told"};
    for (const Rank rank : ranks) {
      form.members.push_back({.rank = rank, .weight = 1.0 / static_cast<double>(ranks.size())});
    }
    script_.next.push_back({form});
  }
  static OperatorActed Act(OperatorVerb verb, Rank rank = kNoRank, const std::string& host = "") {
    return {.verb = verb, .rank = rank, .host = host, .by = "identity alice", .reason = "disk"};
  }
  std::string WhyNot(const OperatorActed& act) { return job_->CheckAct(act).message(); }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }
  bool AnyFailed() const {
    return std::any_of(history_.begin(), history_.end(), [](const Record& record) {
      const auto* ended = std::get_if<GroupEnded>(&record.body);
      return ended != nullptr && !ended->ok;
    });
  }
  void ExpectReplaysAsTold() {
    JobSpec spec = job_->spec();
    Script again{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    ExpectReplays(spec);
  }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobOperatorTest, WhoIsEvictedIsToldWhyAndGone) {
  Start(plans::kModels, 3);
  Step(Act(OperatorVerb::kEvict, 1));
  ASSERT_NE(Sent<Released>(1), nullptr);
  EXPECT_EQ(Sent<Released>(1)->reason, "evicted by identity alice: disk");
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->why, LeftReason::kEvicted);
  EXPECT_EQ(State(1), Job::State::kAbsent);
  EXPECT_THAT(Heard(), ElementsAre("left 1"));
  ASSERT_EQ(job_->dismissed().size(), 1u);
  EXPECT_EQ(job_->dismissed()[0].incarnation, incarnation_[1]);
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kEvict, 1)), HasSubstr("no worker holds rank 1"));
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kEvict, 15)), HasSubstr("no worker holds rank 15"));
  JoinOn(1, "odd");  // a fresh process may
  EXPECT_NE(State(1), Job::State::kAbsent);
  ExpectReplaysAsTold();
}

// Its group fails: the others learn it at once.
TEST_F(JobOperatorTest, AGroupOfWhoIsEvictedFails) {
  Start(plans::kModels, 3);
  script_.next.emplace_back();
  Next(GroupKind::kTrain, {0, 1});
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Step(Act(OperatorVerb::kEvict, 1));
  ASSERT_NE(Sent<Abort>(0), nullptr);
  EXPECT_THAT(Sent<Abort>(0)->reason, HasSubstr("evicted by identity alice: disk"));
}

TEST_F(JobOperatorTest, ARunWhoseLastWorkerIsEvictedIsOver) {
  Start(plans::kModels, 1);
  Step(Act(OperatorVerb::kEvict, 0));
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_TRUE(Recorded<RunEnded>()->finished) << "nobody comes back to it";
}

// A computing worker goes at once; one that has signalled, once its group is through; no group
// fails.
TEST_F(JobOperatorTest, WhoDrainsGoesOnceItsGroupIsThrough) {
  Start(plans::kModels, 6);
  script_.next.emplace_back();
  Next(GroupKind::kTrain, {0, 1});
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Say(3, Ready{.iteration = 1});
  Heard();
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  EXPECT_NE(Sent<Released>(5), nullptr) << "it computes";
  EXPECT_EQ(Sent<Released>(1), nullptr);
  EXPECT_EQ(Sent<Released>(3), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("left 5"));
  EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("in group 2"));
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kDrain, kNoRank, "odd")), HasSubstr("drained already"));
  Done(1);
  EXPECT_EQ(Sent<Released>(1), nullptr) << "rank 0 may need it yet";
  Say(1, Ready{.iteration = 2});
  EXPECT_THAT(Heard(), ElementsAre("ok 1 owes 0")) << "held back";
  EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("drained by identity alice: disk; leaves once"));
  Done(0);
  ASSERT_NE(Sent<Released>(1), nullptr);
  EXPECT_EQ(Sent<Released>(1)->reason, "drained by identity alice: disk");
  Heard();
  Next(GroupKind::kTrain, {2, 3});
  Say(2, Ready{.iteration = 1});
  Done(2);
  Done(3);
  EXPECT_NE(Sent<Released>(3), nullptr) << "its step has counted";
  EXPECT_FALSE(AnyFailed());
  EXPECT_TRUE(job_->draining().empty());
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kDrain, kNoRank, "odd")),
              HasSubstr("has no worker on host odd; its hosts are even"));
  ExpectReplaysAsTold();
}

// Rounds take everybody who has joined, and so do groups that are formed ahead: the engine hears at
// once that it is gone, and the group that runs ends with it.
TEST_F(JobOperatorTest, WhereGroupsNeedNoSignalWhoDrainsLeavesTheEngineFirst) {
  for (const bool rounds : {false, true}) {
    Start(rounds ? plans::kRounds : plans::kAhead, 3);
    Next(rounds ? GroupKind::kRound : GroupKind::kTrain, {0, 1, 2});
    if (rounds) {
      Say(1, Ready{.iteration = 1, .gradients = 1});
    } else {
      Say(1, Ready{.iteration = 1});
    }
    Heard();
    Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
    EXPECT_THAT(Heard(), ElementsAre("left 1, paused"));
    EXPECT_EQ(Sent<Abort>(0), nullptr);
    EXPECT_EQ(Sent<Released>(1), nullptr);
    EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("in group 2"));
    StateArchive saved = StateArchive::Saver();
    job_->Archive(saved);
    Done(0);
    Done(2);
    Done(1);
    ASSERT_NE(Sent<Released>(1), nullptr);
    EXPECT_FALSE(AnyFailed());
    EXPECT_EQ(job_->live(), 2);
    ExpectReplaysAsTold();
  }
}

// In a round it computes on meanwhile, and what it says is taken.
TEST_F(JobOperatorTest, WhoDrainsInARoundMaySignalAndPause) {
  Start(plans::kRounds, 2);
  Next(GroupKind::kRound, {0, 1});
  Say(0, Ready{.iteration = 1, .gradients = 1});
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  Say(1, Ready{.iteration = 1, .gradients = 1});
  Say(1, Pause{});
  EXPECT_EQ(Sent<Refused>(1), nullptr);
  EXPECT_EQ(job_->workers()[1].owed, 1u);
  Done(1);
  Done(0);
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->gradients, 1u) << "of its last step, in no round";
}

// Also in a group before its newest.
TEST_F(JobOperatorTest, WhoDrainsIsThereForWhoseGroupIsNotThrough) {
  Start(plans::kModels, 3);
  script_.next.emplace_back();
  Next(GroupKind::kTrain, {0, 1});
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Done(1);
  Heard();
  script_.next.emplace_back();
  Next(GroupKind::kTrain, {1, 2}, 2);
  Say(1, Ready{.iteration = 2});
  Say(2, Ready{.iteration = 1});
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  Done(1);
  Done(2);
  EXPECT_EQ(Sent<Released>(1), nullptr) << "rank 0 reduces yet";
  Done(0);
  EXPECT_NE(Sent<Released>(1), nullptr);
  EXPECT_FALSE(AnyFailed());
}

// Session::LeaveSoon: the group that it is in runs on, also one that waits for its training loop.
TEST_F(JobOperatorTest, WhoHasStoppedLeavesAsWhoDrains) {
  for (const Plan& plan : {plans::kRounds, plans::kAhead}) {
    Start(plan, 3);
    Next(TrainsInRounds(plan) ? GroupKind::kRound : GroupKind::kTrain, {0, 1, 2});
    Say(0, Ready{.iteration = 1, .gradients = TrainsInRounds(plan) ? 1u : 0u});
    ASSERT_NE(Sent<Group>(1), nullptr);
    Say(1, Pause{});
    Say(1, Leave{"SIGTERM"});
    EXPECT_EQ(Sent<Released>(1), nullptr);
    EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("in group 2"));
    for (const Rank rank : {0, 2, 1}) Done(rank);
    ASSERT_NE(Sent<Released>(1), nullptr);
    EXPECT_EQ(Sent<Released>(1)->reason, "SIGTERM");
    ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
    EXPECT_EQ(Recorded<WorkerLeft>()->why, LeftReason::kLeft);
    EXPECT_FALSE(AnyFailed());
    EXPECT_EQ(job_->live(), 2);
    ExpectReplaysAsTold();
  }
  Start(plans::kModels, 3);
  Say(2, Finish{});
  Say(2, Leave{"SIGTERM"});
  EXPECT_NE(Sent<Released>(2), nullptr) << "nobody needs anything of it";
  Start(plans::kModels, 2);
  for (const Rank rank : {0, 1}) Say(rank, Finish{});
  Say(1, Leave{"SIGTERM"});  // the final average is on its way to it
  EXPECT_EQ(Sent<Released>(1), nullptr);
  for (const Rank rank : {0, 1}) Done(rank);
  EXPECT_NE(Sent<Released>(1), nullptr);
  EXPECT_FALSE(AnyFailed());
}

// Whoever copies from it does so to the end.
TEST_F(JobOperatorTest, WhoDrainsIsThereForWhoCopiesFromIt) {
  Start(plans::kModels, 2);
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  JoinOn(0, "even");
  ASSERT_EQ(job_->workers()[0].source, 1);
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  EXPECT_EQ(Sent<Released>(1), nullptr);
  Say(0, Adopted{.ok = true});
  EXPECT_NE(Sent<Released>(1), nullptr);
  EXPECT_EQ(State(0), Job::State::kActive);
}

TEST_F(JobOperatorTest, NoSignalGetsThroughAPause) {
  Start(plans::kModels, 2);
  Step(Act(OperatorVerb::kPause));
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  EXPECT_THAT(Heard(), IsEmpty());
  EXPECT_THAT(job_->Explain({5'000'000'099}, 0), HasSubstr("held back: paused by identity alice"));
  EXPECT_THAT(job_->WaitsFor({5'000'000'099}, 0), HasSubstr("paused by identity alice"));
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kPause)), HasSubstr("paused already, by identity alice"));
  ExpectReplaysAsTold();
  script_.next.emplace_back();
  Next(GroupKind::kTrain, {0, 1});
  Step(Act(OperatorVerb::kResume));
  EXPECT_THAT(Heard(), ElementsAre("ready 0@1 owes 0", "ready 1@1 owes 0"));
  EXPECT_NE(Sent<Group>(0), nullptr);
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kResume)), HasSubstr("is not paused"));
}

// Nothing of it waits for the next event: a controller that starts again would not know of it.
TEST_F(JobOperatorTest, ALateSignalThatAPauseHeldBackJoinsAnewAtOnce) {
  Start(plans::kGradients, 2);
  Step(Act(OperatorVerb::kPause));
  Say(1, Ready{.iteration = 1});
  script_.next.push_back({UpdateDropped{.rank = 1, .iteration = 1, .reason = "late"}});
  Step(Act(OperatorVerb::kResume));
  EXPECT_THAT(Heard(), ElementsAre("ready 1@1 owes 0", "left 1", "joined 1@0", "ready 1@1 owes 0"));
  ExpectReplaysAsTold();
}

TEST_F(JobOperatorTest, WhoSignalledBeforeAPauseIsToldOfIt) {
  Start(plans::kModels, 2);
  Say(0, Ready{.iteration = 1, .waiting = true});
  Step(Act(OperatorVerb::kPause));
  EXPECT_THAT(job_->Explain({5'000'000'099}, 0),
              HasSubstr("; the job is paused by identity alice for"));
}

TEST_F(JobOperatorTest, WhoDrainsDoesNotWaitForAPauseToEnd) {
  Start(plans::kModels, 3);
  Say(1, Ready{.iteration = 1});
  Step(Act(OperatorVerb::kPause));
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  EXPECT_NE(Sent<Released>(1), nullptr);
}

TEST_F(JobOperatorTest, AScheduleCannotBePaused) {
  Start(plans::kSchedule, 2);
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kPause)), HasSubstr("follow a schedule"));
  Step(Act(OperatorVerb::kDrain, kNoRank, "odd"));
  EXPECT_NE(Sent<Released>(1), nullptr);
}

TEST_F(JobOperatorTest, AJobThatIsEndedIsDoneAsIfItsGoalWereReached) {
  Make(AllReduceOptions{}, 2);
  Join(0);
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kEnd)), HasSubstr("has not begun"));
  Start(plans::kModels, 2);
  EXPECT_FALSE(job_->progress().done);
  Step(Act(OperatorVerb::kPause));
  Say(0, Ready{.iteration = 1});
  Next(GroupKind::kTrain, {0});
  Step(Act(OperatorVerb::kEnd));
  EXPECT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_TRUE(job_->progress().done);
  ASSERT_NE(Sent<Group>(0), nullptr) << "the pause is over";
  EXPECT_TRUE(Sent<Group>(0)->last);
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kEnd)), HasSubstr("is done already"));
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kPause)), HasSubstr("is done"));
  ExpectReplaysAsTold();
}

TEST_F(JobOperatorTest, AJobThatAWorkerStopsIsDoneAsIfItsGoalWereReached) {
  Start(plans::kModels, 2);
  Say(1, StopJob{.reason = "the loss has not fallen"});
  EXPECT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_EQ(job_->stopped_by(), "stopped by rank 1: the loss has not fallen");
  EXPECT_TRUE(job_->progress().done);
  Say(0, StopJob{.reason = "so say I"});
  EXPECT_EQ(Recorded<GoalReached>(), nullptr) << "it is reached once";
  EXPECT_EQ(job_->stopped_by(), "stopped by rank 1: the loss has not fallen");
  EXPECT_THAT(WhyNot(Act(OperatorVerb::kEnd)), HasSubstr("is done already"));
  Say(0, Finish{});
  Say(1, Leave{.reason = "over"});
  Done(0);
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_THAT(Recorded<RunEnded>()->reason, HasSubstr("stopped by rank 1: the loss has not"));
  ExpectReplaysAsTold();
}

TEST_F(JobOperatorTest, WhoeverStopsAfterTheGoalChangesNothing) {
  Start(plans::kModels, 2);
  Step(Act(OperatorVerb::kEnd));
  Say(0, StopJob{});
  EXPECT_EQ(job_->stopped_by(), "");
  ExpectReplaysAsTold();
}

// What was saved before there were operators is what is saved where they have done nothing.
TEST_F(JobOperatorTest, AStateWithoutOperatorsIsAsBefore) {
  Start(plans::kModels, 2);
  const std::string before = SaveState(*job_);
  Step(Act(OperatorVerb::kPause));
  EXPECT_GT(SaveState(*job_).size(), before.size());
  Step(Act(OperatorVerb::kResume));
  EXPECT_EQ(SaveState(*job_).size(), before.size());
}

TEST_F(JobOperatorTest, WordsAreBounded) {
  Start(plans::kModels, 2);
  OperatorActed act = Act(OperatorVerb::kPause);
  act.reason = std::string(10'000, 'x');
  EXPECT_EQ(job_->CheckAct(act).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace prd
