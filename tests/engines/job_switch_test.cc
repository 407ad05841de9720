// A job goes on in another run: where the old one stops, and where the new one begins.
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

class JobSwitchTest : public JobTest {
 protected:
  void Start(const Plan& plan, int workers, Engine::Joining joining = Engine::Joining::kAnytime) {
    script_ = {.plan = plan, .joining = joining};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Make(AllReduceOptions{}, workers, spec_);
    for (Rank r = 0; r < workers; ++r) Join(r);
    for (Rank r = 0; r < workers; ++r) Done(r);
    script_.heard.clear();
  }
  static OperatorActed Switch() {
    return {.verb = OperatorVerb::kSwitch,
            .by = "user 0",
            .reason = "slow",
            .spec = "another engine",
            .next = 7};
  }
  std::string WhyNot(const OperatorActed& act) { return job_->CheckAct(act).message(); }
  void ExpectReplaysAsTold() {
    JobSpec spec = job_->spec();
    Script again{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    ExpectReplays(spec);
  }
  // The run that follows, of this plan.
  void Next(const Plan& plan) {
    former_ = *job_->next();
    script_ = {.plan = plan, .joining = Engine::Joining::kAnytime};
    Make(AllReduceOptions{}, 0, spec_);
  }
  // Two workers, who have the final average of the run that ends.
  void SwitchTwo() {
    Start(plans::kModels, 2);
    Step(Switch());
    for (const Rank r : {0, 1}) Say(r, Finish{});
    for (const Rank r : {0, 1}) Done(r);
    Next(plans::kModels);
  }
  // To the run that follows, with the old one's model if `former`.
  void Return(Rank rank, Iteration iteration, std::uint64_t former) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).iteration = iteration;
    std::get<Hello>(hello.body).former = {former, 1};
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    ASSERT_EQ(job_->Admit(hello).verdict, Verdict::kStep);
    Step(FromWorker{hello});
  }
  const GroupFormed* Formed() { return Recorded<GroupFormed>(); }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobSwitchTest, AllEndTheirStepsTakeTheAverageAndAreSentToTheNextRun) {
  Start(plans::kModels, 3);
  Say(0, Progressed{.own = {.steps = 5, .samples = 50}});
  Step(Switch());
  for (Rank r = 0; r < 3; ++r) {
    ASSERT_NE(Sent<EndRun>(r), nullptr);
    EXPECT_EQ(Sent<EndRun>(r)->reason, "the job goes on in run 7, by user 0: slow");
  }
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("already"));
  EXPECT_THAT(WhyNot({.verb = OperatorVerb::kPause}), HasSubstr("try again"));
  EXPECT_THAT(WhyNot({.verb = OperatorVerb::kEnd}), HasSubstr("try again"));
  const WorkerEnvelope late = HelloOf(3);
  EXPECT_EQ(job_->Admit(late).refusal->code, Code::kUnavailable);
  Say(0, Finish{});
  Say(2, Finish{});
  EXPECT_EQ(Formed(), nullptr) << "rank 1 computes";
  EXPECT_THAT(job_->Explain({now_}, 0), HasSubstr("waits for rank 1 to end theirs"));
  Say(1, Finish{});
  ASSERT_NE(Formed(), nullptr);
  EXPECT_EQ(Formed()->kind, GroupKind::kFinal);
  Done(0);
  Done(1);
  EXPECT_EQ(Recorded<RunEnded>(), nullptr);
  EXPECT_EQ(job_->next(), nullptr);
  Done(2);
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_EQ(Recorded<RunEnded>()->next, 7u);
  EXPECT_FALSE(Recorded<RunEnded>()->finished) << "its workers go on";
  for (Rank r = 0; r < 3; ++r) {
    ASSERT_NE(Sent<Refused>(r), nullptr);
    EXPECT_EQ(Sent<Refused>(r)->code, Code::kAborted);
    EXPECT_EQ(Sent<Released>(r), nullptr);
  }
  ASSERT_NE(job_->next(), nullptr);
  EXPECT_EQ(job_->next()->run, 1u);
  EXPECT_EQ(job_->next()->trained, (Trained{.steps = 5, .samples = 50}));
  ASSERT_EQ(job_->next()->ranks.size(), 3u);
  for (const FormerRank& of : job_->next()->ranks) EXPECT_TRUE(of.awaited && of.has_model);
  ExpectReplaysAsTold();
}

TEST_F(JobSwitchTest, WhatCannotBeSwitchedIsRefusedBeforeAnythingStops) {
  script_ = {.plan = plans::kModels, .joining = Engine::Joining::kAnytime};
  spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
  Make(AllReduceOptions{}, 2, spec_);
  Join(0);
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("waits for a common start"));
  Join(1);
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("waits for a common start"));
  Done(0);
  Done(1);
  OperatorActed nowhere = Switch();
  nowhere.next = kNoRun;
  EXPECT_THAT(WhyNot(nowhere), HasSubstr("names a run"));
  Step(OperatorActed{.verb = OperatorVerb::kPause, .by = "user 0"});
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("is paused, by user 0: resume it first"));
  Step(OperatorActed{.verb = OperatorVerb::kResume, .by = "user 0"});
  EXPECT_EQ(WhyNot(Switch()), "");
  Say(0, Pause{});
  Say(1, Pause{});
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("none of its workers trains"));
  Say(0, Resume{});
  Say(1, Finish{});
  EXPECT_THAT(WhyNot(Switch()), HasSubstr("have finished training"));
}

// The next run is done once it has begun.
TEST_F(JobSwitchTest, AJobThatIsStoppedMeanwhileIsDoneInTheNextRun) {
  Start(plans::kModels, 2);
  Step(Switch());
  Say(1, StopJob{.reason = "enough"});
  Say(0, Finish{});
  Say(1, Finish{});
  Done(0);
  Done(1);
  ASSERT_NE(job_->next(), nullptr);
  const FormerRun former = *job_->next();
  EXPECT_EQ(former.stopped, "stopped by rank 1: enough");
  ExpectReplaysAsTold();
  Job next(7, spec_);
  JobOutput out;
  next.Start({now_}, 0, {.high = 7, .low = 1}, former, &out);
  EXPECT_EQ(next.stopped_by(), former.stopped);
}

// It comes to the next run when it resumes.
TEST_F(JobSwitchTest, WhoPausesIsNotWaitedFor) {
  Start(plans::kModels, 3);
  Say(2, Pause{});
  Step(Switch());
  Say(0, Finish{});
  Say(1, Finish{});
  ASSERT_NE(Formed(), nullptr);
  EXPECT_EQ(Formed()->members.size(), 2u);
  Say(2, Resume{});
  EXPECT_EQ(Sent<Resumed>(2), nullptr) << "in the next run";
  Done(0);
  Done(1);
  ASSERT_NE(job_->next(), nullptr);
  EXPECT_NE(Sent<Refused>(2), nullptr);
  EXPECT_TRUE(job_->next()->ranks[2].awaited) << "it is in Resume";
  EXPECT_FALSE(job_->next()->ranks[2].has_model);
  ExpectReplaysAsTold();
}

TEST_F(JobSwitchTest, WhereAllOthersHaveGoneThoseWhoResumeGoOnAlone) {
  Start(plans::kModels, 2);
  Say(1, Pause{});
  Step(Switch());
  Say(0, Leave{.reason = "spot"});
  EXPECT_EQ(job_->next(), nullptr) << "rank 1 pauses yet";
  Say(1, Resume{});
  ASSERT_NE(job_->next(), nullptr);
  EXPECT_TRUE(job_->next()->ranks[1].awaited);
}

TEST_F(JobSwitchTest, ARunThatAllHaveLeftIsOver) {
  Start(plans::kModels, 1);
  Step(Switch());
  Say(0, Leave{.reason = "spot"});
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_EQ(Recorded<RunEnded>()->next, kNoRun);
  EXPECT_EQ(job_->next(), nullptr);
}

// Members for whom the average failed copy it first.
TEST_F(JobSwitchTest, AllHaveTheAverageBeforeTheyGo) {
  Start(plans::kGradients, 2, Engine::Joining::kBarrier);
  Step(Switch());
  Say(0, Finish{});
  Say(1, Finish{});
  Done(0);
  Done(1, Outcome::kFailed);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(job_->next(), nullptr);
  Say(1, Adopted{.ok = true, .iteration = 0});
  EXPECT_NE(job_->next(), nullptr);
  ExpectReplaysAsTold();
}

// Nobody is left to copy it from: the next run is not told that this worker has it.
TEST_F(JobSwitchTest, WhoCouldNotCopyTheAverageHasItNot) {
  Start(plans::kGradients, 2, Engine::Joining::kBarrier);
  Step(Switch());
  Say(0, Finish{});
  Say(1, Finish{});
  Done(1);
  Done(0, Outcome::kFailed);
  Say(0, Adopted{.ok = false, .detail = "gone"});
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  for (int i = 0; i < 20 && job_->next() == nullptr; ++i) {
    ASSERT_TRUE(job_->NextDeadline().has_value());
    now_ = job_->NextDeadline()->ns - 1;
    Step(DeadlineReached{});
  }
  ASSERT_NE(job_->next(), nullptr);
  EXPECT_TRUE(job_->next()->ranks[0].awaited);
  EXPECT_FALSE(job_->next()->ranks[0].has_model);
  EXPECT_FALSE(job_->next()->ranks[1].awaited);
}

TEST_F(JobSwitchTest, WhoWasRemovedStaysSo) {
  Start(plans::kModels, 3);
  Step(OperatorActed{.verb = OperatorVerb::kEvict, .rank = 2, .by = "user 0"});
  Step(Switch());
  Say(0, Finish{});
  Say(1, Finish{});
  Done(0);
  Done(1);
  ASSERT_NE(job_->next(), nullptr);
  ASSERT_EQ(job_->next()->dismissed.size(), 1u);
  EXPECT_EQ(job_->next()->dismissed[0].incarnation, incarnation_[2]);
  ASSERT_EQ(job_->next()->ranks.size(), 3u) << "what was trained under a rank counts on";
  EXPECT_FALSE(job_->next()->ranks[2].awaited);
}

TEST_F(JobSwitchTest, TheNextRunWaitsForAllAndBeginsWithTheirAverage) {
  Start(plans::kModels, 3);
  Say(1, Progressed{.own = {.steps = 9, .samples = 90}});
  Step(Switch());
  for (Rank r = 0; r < 3; ++r) Say(r, Finish{});
  for (Rank r = 0; r < 3; ++r) Done(r);
  Next(plans::kModels);
  EXPECT_EQ(job_->progress().trained, (Trained{.steps = 9, .samples = 90}));
  EXPECT_EQ(job_->live(), 0);
  EXPECT_FALSE(job_->ended()) << "they come";
  Return(1, 4, former_.identity);
  EXPECT_EQ(Formed(), nullptr);
  EXPECT_THAT(job_->StartWaits({now_}), HasSubstr("missing: ranks 0, 2;"));
  ASSERT_NE(Sent<Welcome>(1), nullptr);
  EXPECT_EQ(Sent<Welcome>(1)->own, (Trained{.steps = 9, .samples = 90}));
  Return(5, 90, 12345);  // of some other run: it is not what they have agreed on
  Return(0, 4, former_.identity);
  EXPECT_EQ(Formed(), nullptr);
  Return(2, 4, former_.identity);
  ASSERT_NE(Formed(), nullptr);
  EXPECT_EQ(Formed()->kind, GroupKind::kInitial);
  EXPECT_EQ(Formed()->iteration, 4);
  for (const GroupShare& share : Formed()->members) {
    EXPECT_EQ(share.weight, share.rank == 0 ? 1 : 0) << share.rank;
  }
  EXPECT_THAT(Formed()->reason, HasSubstr("the final average of run 1"));
  ExpectReplaysAsTold();
}

// The former run's model counts in the first start alone: later ones begin with what was learned.
TEST_F(JobSwitchTest, ALaterStartTakesWhatWasLearnedSince) {
  SwitchTwo();
  Return(0, 4, 99);
  Return(1, 6, 99);
  ASSERT_NE(Formed(), nullptr);
  for (const GroupShare& share : Formed()->members) EXPECT_EQ(share.weight, 0.5);
}

TEST_F(JobSwitchTest, WhoDoesNotComeIsNotWaitedForForEver) {
  SwitchTwo();
  Return(0, 4, former_.identity);
  const std::optional<Instant> until = job_->NextDeadline();
  ASSERT_TRUE(until.has_value());
  now_ = until->ns - 1;
  Step(DeadlineReached{});
  ASSERT_NE(Formed(), nullptr);
  EXPECT_EQ(Formed()->members.size(), 1u);
}

TEST_F(JobSwitchTest, ARunToWhichNobodyComesEnds) {
  SwitchTwo();
  now_ = job_->NextDeadline()->ns - 1;
  Step(DeadlineReached{});
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_THAT(Recorded<RunEnded>()->reason, HasSubstr("none of the workers of run 1 is here"));
  EXPECT_FALSE(Recorded<RunEnded>()->finished);
}

}  // namespace
}  // namespace prd
