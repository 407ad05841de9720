// Workers that pause and resume, and who has a replica.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/all_reduce/options.h"
#include "engines/engine_watch.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobPauseTest : public JobTest {
 protected:
  // With an engine that does as it is told.
  void Start(const Plan& plan, Engine::Joining joining, int workers) {
    script_ = {.plan = plan, .joining = joining, .next = {}, .heard = {}, .done = {}};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Running(AllReduceOptions{}, workers, spec_);
    script_.heard.clear();
  }
  // The next event leads to a group of these.
  void Next(GroupKind kind, Iteration iteration, const std::vector<Rank>& ranks) {
    GroupFormed form{.kind = kind, .iteration = iteration, .reason = "told"};
    for (const Rank rank : ranks) {
      form.members.push_back({.rank = rank, .weight = 1.0 / static_cast<double>(ranks.size())});
    }
    script_.next.push_back({form});
  }
  // A group of these, all of whom signal and have the result.
  void Train(Iteration iteration, const std::vector<Rank>& ranks) {
    for (std::size_t i = 1; i < ranks.size(); ++i) script_.next.emplace_back();
    Next(GroupKind::kTrain, iteration, ranks);
    for (const Rank rank : ranks) Say(rank, Ready{.iteration = iteration});
    for (const Rank rank : ranks) Done(rank);
    script_.heard.clear();
  }
  // The engine of a replay is told what this one was.
  void ExpectReplaysAsTold() {
    JobSpec spec = job_->spec();
    Script again{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    ExpectReplays(spec);
  }
  void Lose(Rank rank) { Step(LeaseExpired{.rank = rank, .incarnation = incarnation_[rank]}); }
  const Job::Worker& Worker(Rank rank) { return job_->workers()[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobPauseTest, AWorkerThatPausesTrainsNoMoreAndStays) {
  Start(plans::kModels, Engine::Joining::kAnytime, 2);
  Say(1, Progressed{.own = {.steps = 3}});
  Say(1, Pause{});
  EXPECT_EQ(State(1), Job::State::kPaused);
  EXPECT_THAT(Heard(), ElementsAre("left 1, paused"));
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->why, LeftReason::kPaused);
  EXPECT_EQ(Recorded<WorkerLeft>()->reason, "pauses at iteration 0");
  EXPECT_EQ(job_->progress().workers, 2);
  EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("pauses for"));
  EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("at iteration 0; the others go on without it"));
  Say(0, Finish{});
  EXPECT_EQ(Sent<Group>(0), nullptr) << "the final average waits for it";
  EXPECT_THAT(job_->Explain({99}, 0), HasSubstr("waiting for rank 1 to finish; rank 1 pauses"));
  Heard();
  Say(1, Resume{});
  EXPECT_NE(Sent<Resumed>(1), nullptr);
  EXPECT_EQ(State(1), Job::State::kActive);
  EXPECT_THAT(Heard(), ElementsAre("joined 1@0"));
  EXPECT_THAT(Recorded<WorkerJoined>()->reason, HasSubstr("goes on with its own model"));
  Say(1, Finish{});
  EXPECT_NE(Sent<Group>(1), nullptr);
  EXPECT_EQ(Sent<Group>(1)->kind, GroupKind::kFinal);
}

// Models that differ by design are its own affair; where all hold one, it copies what it missed.
TEST_F(JobPauseTest, WhoResumesHasItsOwnModelOrTheNewest) {
  for (const bool equal : {false, true}) {
    Start(equal ? plans::kGradients : plans::kModels, Engine::Joining::kAnytime, 3);
    Train(1, {0, 1, 2});
    Say(1, Pause{});
    Train(2, {0, 2});
    Say(1, Resume{});
    if (equal) {
      EXPECT_EQ(Sent<Resumed>(1), nullptr);
      ASSERT_NE(Sent<Adopt>(1), nullptr);
      EXPECT_EQ(Sent<Adopt>(1)->reason, "others have gone on");
      EXPECT_THAT(Heard(), IsEmpty());
      Say(1, Adopted{.ok = true, .iteration = 2});
    }
    ASSERT_NE(Sent<Resumed>(1), nullptr);
    EXPECT_THAT(Heard(), ElementsAre(equal ? "joined 1@2" : "joined 1@1"));
    script_ = {.plan = script_.plan, .next = {}, .heard = {}, .done = {}};
  }
}

TEST_F(JobPauseTest, WhoMissedNothingCopiesNothing) {
  for (const Engine::Joining joining :
       {Engine::Joining::kAnytime, Engine::Joining::kBarrier, Engine::Joining::kPause}) {
    Start(plans::kGradients, joining, 2);
    Train(1, {0, 1});
    Say(0, Pause{});
    Say(1, Pause{});
    Say(1, Resume{});
    EXPECT_NE(Sent<Resumed>(1), nullptr);
    Train(2, {1});
    Lose(1);
    Say(0, Resume{});
    EXPECT_NE(Sent<Resumed>(0), nullptr) << "nobody is left who has gone on";
    EXPECT_EQ(State(0), Job::State::kActive);
  }
}

// Those who share every round hold back until it has copied: else it would be behind at once.
TEST_F(JobPauseTest, ABarrierWaitsForWhoResumes) {
  Start(plans::kGradients, Engine::Joining::kBarrier, 3);
  Train(1, {0, 1, 2});
  Say(1, Pause{});
  script_.next.emplace_back();
  Next(GroupKind::kTrain, 2, {0, 2});
  Say(0, Ready{.iteration = 2});
  Say(2, Ready{.iteration = 2});
  Say(1, Resume{});
  EXPECT_EQ(Sent<Adopt>(1), nullptr) << "a round runs";
  EXPECT_EQ(job_->WaitsFor({9}, 1), "has paused; waiting for the running round to end");
  Done(0);
  Done(2);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Heard();
  Say(0, Ready{.iteration = 3});
  EXPECT_THAT(Heard(), IsEmpty()) << "held back";
  EXPECT_THAT(job_->Explain({9}, 0), HasSubstr("held back while a late worker copies a model"));
  Say(1, Adopted{.ok = true, .iteration = 2});
  EXPECT_NE(Sent<Resumed>(1), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("joined 1@2", "ready 0@3 owes 0"));
  ExpectReplaysAsTold();
}

TEST_F(JobPauseTest, ACopyThatFailsIsTakenFromAnotherOrNotAtAll) {
  Start(plans::kGradients, Engine::Joining::kBarrier, 3);
  Train(1, {0, 1, 2});
  Say(1, Pause{});
  Train(2, {0, 2});
  Say(1, Resume{});
  const Rank source = Sent<Adopt>(1)->source.rank;
  Say(1, Adopted{.ok = false, .detail = "gone"});
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  EXPECT_NE(Sent<Adopt>(1)->source.rank, source);
  Lose(0);
  Lose(2);
  Heard();
  Say(1, Adopted{.ok = false, .detail = "gone too"});
  EXPECT_NE(Sent<Resumed>(1), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("joined 1@1"));
  Say(1, Ready{.iteration = 2});
  EXPECT_EQ(State(1), Job::State::kActive);
  EXPECT_THAT(Heard(), ElementsAre("ready 1@2 owes 0")) << "no copy holds it back any more";
}

// A round that was announced before takes it along, and is over before the worker is back.
TEST_F(JobPauseTest, ARoundThatRunsTakesAWorkerAlongThatPauses) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Next(GroupKind::kRound, 1, {0, 1});
  Say(0, Ready{.iteration = 1, .gradients = 1});
  Say(1, Ready{.iteration = 1, .waiting = false, .gradients = 1});
  const GroupId round = Worker(1).group;
  Say(1, Pause{});
  EXPECT_EQ(State(1), Job::State::kPaused);
  EXPECT_EQ(Sent<Abort>(1), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->gradients, 1u);
  Say(1, Resume{});
  EXPECT_EQ(Sent<Resumed>(1), nullptr);
  Heard();
  Say(1, Finished{.group = round, .included = 1});
  EXPECT_THAT(Heard(), IsEmpty()) << "the engine knows it no more";
  EXPECT_EQ(Sent<Resumed>(1), nullptr);
  Say(0, Finished{.group = round, .included = 1});
  EXPECT_NE(Sent<Resumed>(1), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("ok 0 owes 0", "ended", "joined 1@1"));
}

// What it owes goes with its replica, and is told.
TEST_F(JobPauseTest, GradientsOfAModelThatIsReplacedAreDropped) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Say(1, Ready{.iteration = 1, .waiting = false, .gradients = 1});
  Say(1, Pause{});
  Next(GroupKind::kRound, 1, {0});
  Say(0, Ready{.iteration = 1, .gradients = 1});
  Say(0, Finished{.group = Worker(0).group, .included = 1});
  Say(1, Resume{});
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(Worker(1).owed, 1u);
  Say(1, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(Worker(1).owed, 0u);
  ASSERT_NE(Recorded<UpdateDropped>(), nullptr);
  EXPECT_THAT(Recorded<UpdateDropped>()->reason, HasSubstr("1 of its gradients were in no round"));
  EXPECT_NE(Sent<Resumed>(1), nullptr);
}

// A group that waits for its training loop would wait for long: its worker says so.
TEST_F(JobPauseTest, AGroupThatWaitsForItsLoopIsCalledOff) {
  Start(plans::kAhead, Engine::Joining::kAnytime, 2);
  GroupFormed form{.iteration = 1, .reason = "told"};
  form.members = {{.rank = 0, .weight = 0.5}, {.rank = 1, .weight = 0.5, .passive = true}};
  script_.next.push_back({form});
  Say(0, Ready{.iteration = 1});
  ASSERT_NE(Sent<Group>(1), nullptr);
  Say(1, Pause{});
  EXPECT_EQ(Sent<Abort>(0), nullptr);
  Say(1, Resume{});
  EXPECT_EQ(Sent<Resumed>(1), nullptr) << "its part of the group is not over";
  Done(1, Outcome::kFailed);
  ASSERT_NE(Sent<Abort>(0), nullptr);
  EXPECT_NE(Sent<Resumed>(1), nullptr);
  Done(0, Outcome::kAborted);

  Start(plans::Background(1, Membership::kAhead), Engine::Joining::kAnytime, 2);
  script_.next.push_back({form});
  Say(0, Ready{.iteration = 1});
  Say(1, Pause{});
  EXPECT_EQ(Sent<Abort>(0), nullptr) << "in the background it goes on";
}

// Said while the worker cannot stop yet: before all have the common start, or before a copy.
TEST_F(JobPauseTest, APauseMayHaveToWait) {
  const auto make = [this] {
    script_ = {.plan = plans::kGradients, .next = {}, .heard = {}, .done = {}};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Make(AllReduceOptions{}, 2, spec_);
    Join(0);
    Join(1);
    Done(0);
    Say(0, Pause{});
    EXPECT_EQ(State(0), Job::State::kStarting);
  };
  make();
  Done(1);
  EXPECT_EQ(State(0), Job::State::kPaused);
  EXPECT_THAT(Heard(), ElementsAre("joined 0@0", "joined 1@0", "left 0, paused"));

  make();
  Say(0, Resume{});
  EXPECT_EQ(Sent<Resumed>(0), nullptr);
  Done(1);
  EXPECT_NE(Sent<Resumed>(0), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("joined 0@0", "joined 1@0"));

  make();
  Say(0, Finish{});
  Done(1);
  EXPECT_EQ(State(0), Job::State::kFinishing);
}

TEST_F(JobPauseTest, APauseBeforeAnOrderedCopyCountsAfterIt) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 2);
  Next(GroupKind::kTrain, 1, {0});
  Say(0, Ready{.iteration = 1});
  Done(0);
  script_.next.push_back({UpdateDropped{.rank = 1, .iteration = 0, .reason = "late"}});
  Say(1, Ready{.iteration = 1});
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Say(1, Pause{});
  EXPECT_EQ(State(1), Job::State::kActive);
  Say(1, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(1), Job::State::kPaused);
}

// Rank 1 has the newer model, but copies from a worker that has gone: it cannot serve it yet.
TEST_F(JobPauseTest, ALateWorkerWaitsForANewerModelWhoseWorkerCopiesOneItself) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 3);
  Train(1, {1, 2});
  Train(2, {2});
  script_.next.push_back({UpdateDropped{.rank = 1, .iteration = 1, .reason = "late"}});
  Say(1, Ready{.iteration = 2});
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  script_.heard.clear();
  script_.next.push_back({UpdateDropped{.rank = 0, .iteration = 0, .reason = "late"}});
  Say(0, Ready{.iteration = 1});
  EXPECT_THAT(Heard(), ElementsAre("ready 0@1 owes 0"));  // it does not join anew
  EXPECT_EQ(job_->Explain({now_}, 0),
            "waiting to copy a newer model: the worker that has it copies one itself; looks again "
            "in 1.0 s");
  Say(1, Adopted{.ok = false, .iteration = 1});
  now_ = job_->NextDeadline()->ns - 1;
  Step(DeadlineReached{});
  ASSERT_NE(Sent<Adopt>(0), nullptr);
  EXPECT_EQ(Sent<Adopt>(0)->source.rank, 1);
}

TEST_F(JobPauseTest, AWorkerMayFinishOrLeaveWhileItPauses) {
  Start(plans::kModels, Engine::Joining::kAnytime, 3);
  Say(1, Pause{});
  Say(2, Pause{});
  Heard();
  for (const Rank r : {0}) Say(r, Progressed{.own = {.steps = 400}});
  Say(1, Finish{});
  EXPECT_EQ(State(1), Job::State::kFinishing);
  Say(2, Leave{.reason = "has enough"});
  EXPECT_THAT(Heard(), IsEmpty()) << "the engine knows them no more";
  Say(0, Finish{});
  ASSERT_NE(Recorded<GroupFormed>(), nullptr);
  EXPECT_EQ(Recorded<GroupFormed>()->reason,
            "final average of rank 0; rank 1 stopped 400 steps before and takes it")
      << "it trained no more from when it paused";
  ExpectReplaysAsTold();
}

TEST_F(JobPauseTest, WhatCannotBeEvicts) {
  const std::vector<std::pair<WorkerBody, std::string>> wrong = {
      {Pause{}, "paused while pauses for"},
      {Ready{.iteration = 1}, "a ready signal while pauses for"}};
  for (const auto& [body, why] : wrong) {
    Start(plans::kModels, Engine::Joining::kAnytime, 2);
    Say(1, Pause{});
    Say(1, body);
    ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
    EXPECT_THAT(Recorded<WorkerLeft>()->reason, HasSubstr(why));
  }
  Start(plans::kModels, Engine::Joining::kAnytime, 2);
  Say(1, Resume{});
  EXPECT_THAT(Recorded<WorkerLeft>()->reason, HasSubstr("resumed while computing"));
  Say(0, Ready{.iteration = 1});
  Say(0, Pause{});
  EXPECT_THAT(Recorded<WorkerLeft>()->reason, HasSubstr("paused while"));
}

TEST_F(JobPauseTest, ALateWorkerCopiesFromOneThatPausesIfNobodyElseHasAModel) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 3);
  Train(1, {0, 1, 2});
  Say(0, Pause{});
  Join(5);
  EXPECT_NE(Sent<Adopt>(5)->source.rank, 0);
  Lose(5);
  Lose(1);
  Lose(2);
  Join(6);
  ASSERT_NE(Sent<Adopt>(6), nullptr);
  EXPECT_EQ(Sent<Adopt>(6)->source.rank, 0);
  EXPECT_EQ(Recorded<GroupFormed>(), nullptr) << "no new common start";
}

// Two were to copy the only one that trained, and it is gone: the newer of the two goes on, the
// other one copies it.
TEST_F(JobPauseTest, TheNewestOfThoseWhoResumeGoesOn) {
  for (const bool fails_first : {false, true}) {
    Start(plans::kRounds, Engine::Joining::kPause, 3);
    const auto round = [this](Iteration iteration, const std::vector<Rank>& ranks) {
      Next(GroupKind::kRound, iteration, ranks);
      Say(ranks.front(), Ready{.iteration = iteration});
      for (const Rank rank : ranks) Done(rank);
    };
    round(1, {0, 1, 2});
    Say(1, Pause{});
    round(2, {0, 2});
    Say(2, Pause{});
    round(3, {0});
    Say(1, Resume{});
    Say(2, Resume{});
    ASSERT_EQ(State(1), Job::State::kAdopting);
    ASSERT_EQ(State(2), Job::State::kAdopting);
    Lose(0);
    Heard();
    const Rank first = fails_first ? 1 : 2;
    Say(first, Adopted{.ok = false, .detail = "gone"});
    Say(3 - first, Adopted{.ok = false, .detail = "gone"});
    EXPECT_EQ(State(2), Job::State::kActive);
    EXPECT_EQ(Worker(2).iteration, 2);
    EXPECT_THAT(Heard(), ElementsAre("joined 2@2"));
    now_ += kSecond;  // until when it waits if it was the first whose copy failed
    if (fails_first) Step(DeadlineReached{});
    EXPECT_EQ(Worker(1).source, 2) << "it has the older replica";
    Say(1, Adopted{.ok = true, .iteration = 2});
    EXPECT_THAT(Heard(), ElementsAre("joined 1@2"));
    EXPECT_NE(Sent<Resumed>(1), nullptr);
    ExpectReplaysAsTold();
  }
}

// Rank 1, which still pauses, has an older model than its own.
TEST_F(JobPauseTest, WhoResumesDoesNotGoBack) {
  Start(plans::kRounds, Engine::Joining::kPause, 3);
  for (Iteration iteration = 1; iteration <= 3; ++iteration) {
    std::vector<Rank> ranks = {0, 2, 1};
    ranks.resize(static_cast<std::size_t>(4 - iteration));
    Next(GroupKind::kRound, iteration, ranks);
    Say(0, Ready{.iteration = iteration});
    for (const Rank rank : ranks) Done(rank);
    if (iteration < 3) Say(ranks.back(), Pause{});
  }
  Say(2, Resume{});
  ASSERT_EQ(Worker(2).source, 0);
  Lose(0);
  Heard();
  Say(2, Adopted{.ok = false, .detail = "gone"});
  EXPECT_EQ(Sent<Adopt>(2), nullptr);
  EXPECT_NE(Sent<Resumed>(2), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("joined 2@2"));
  Say(2, Ready{.iteration = 3});
  EXPECT_EQ(State(2), Job::State::kActive);
  ExpectReplaysAsTold();
}

// Rank 0 has the oldest model, and the newest is lost as it is to be copied.
TEST_F(JobPauseTest, WhoResumesIsCopiedByWhoWouldGoOnWithAnOlderModel) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 3);
  Train(1, {0, 1, 2});
  Train(2, {1, 2});
  Say(2, Pause{});
  Train(3, {1});
  script_.next.push_back({UpdateDropped{.rank = 0, .iteration = 1, .reason = "late"}});
  Say(0, Ready{.iteration = 2});
  ASSERT_EQ(Worker(0).source, 1);
  Say(0, Adopted{.ok = false, .detail = "does not answer"});
  Say(0, Ready{.iteration = 2});
  Lose(1);
  Heard();
  now_ += 2 * kSecond;
  Say(2, Resume{});
  EXPECT_THAT(Heard(), ElementsAre("joined 2@2"));
  ASSERT_NE(Sent<Adopt>(0), nullptr);
  EXPECT_EQ(Sent<Adopt>(0)->source.rank, 2);
  ExpectReplaysAsTold();
}

// While rank 3 copies from rank 0, which is lost, rank 4 copies what rank 1 had when it paused.
TEST_F(JobPauseTest, ANewerModelThatIsBroughtLeavesOlderOnesBehind) {
  for (const Engine::Joining joining : {Engine::Joining::kPause, Engine::Joining::kBarrier}) {
    const bool rounds = joining == Engine::Joining::kPause;
    Start(rounds ? plans::kRounds : plans::kGradients, joining, 2);
    Say(1, Pause{});
    Next(rounds ? GroupKind::kRound : GroupKind::kTrain, 1, {0});
    Say(0, Ready{.iteration = 1});
    Done(0);
    Join(3);
    ASSERT_NE(Sent<Adopt>(3), nullptr);
    ASSERT_EQ(Sent<Adopt>(3)->source.rank, 0);
    Lose(0);
    Join(4);
    ASSERT_NE(Sent<Adopt>(4), nullptr);
    ASSERT_EQ(Sent<Adopt>(4)->source.rank, 1);
    Say(4, Adopted{.ok = true, .iteration = 0});
    EXPECT_EQ(State(4), Job::State::kActive);
    Say(3, Adopted{.ok = true, .iteration = 1});
    EXPECT_EQ(State(3), Job::State::kActive);
    EXPECT_EQ(State(4), Job::State::kAbsent);
    ASSERT_NE(Sent<Refused>(4), nullptr);
    EXPECT_EQ(Sent<Refused>(4)->code, Code::kAborted) << "it comes back by itself";
    EXPECT_EQ(Sent<Refused>(4)->reason, "its model is of iteration 0, others have one of 1");
    Join(4);
    ASSERT_NE(Sent<Adopt>(4), nullptr);
    EXPECT_EQ(Sent<Adopt>(4)->source.rank, 3) << "not of the one that paused before";
    ExpectReplaysAsTold();
  }
}

// Rank 1 copies what rank 0 had after round 2, which goes with rank 0; the others make another one.
TEST_F(JobPauseTest, WhatIsCopiedFromOneThatIsGoneMayBeOfAnotherRound) {
  for (const bool joins : {false, true}) {
    Start(plans::kGradients, Engine::Joining::kAnytime, 3);
    Train(1, {0, 1, 2});
    Next(GroupKind::kTrain, 2, {0});
    Say(0, Ready{.iteration = 2});
    Done(0);
    const Rank copies = joins ? 5 : 1;
    if (joins) {
      Join(5);
    } else {
      script_.next.push_back({UpdateDropped{.rank = 1, .iteration = 1, .reason = "late"}});
      Say(1, Ready{.iteration = 2});
    }
    ASSERT_NE(Sent<Adopt>(copies), nullptr);
    ASSERT_EQ(Sent<Adopt>(copies)->source.rank, 0);
    Lose(0);
    Train(2, {2});
    Say(copies, Adopted{.ok = true, .iteration = 2});
    ASSERT_NE(Sent<Adopt>(copies), nullptr);
    EXPECT_EQ(Sent<Adopt>(copies)->source.rank, 2);
    EXPECT_NE(State(copies), joins ? Job::State::kActive : Job::State::kAdopting);
    Say(copies, Adopted{.ok = true, .iteration = 2});
    EXPECT_EQ(Sent<Adopt>(copies), nullptr) << "its source is there";
    EXPECT_EQ(State(copies), Job::State::kActive);
    ExpectReplaysAsTold();
  }
}

TEST_F(JobPauseTest, WhatIsCopiedFromOneThatIsGoneIsUsedWhereNobodyHasAnother) {
  Start(plans::kRounds, Engine::Joining::kPause, 1);
  Join(1);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Lose(0);
  Say(1, Adopted{.ok = true, .iteration = 0});
  EXPECT_EQ(State(1), Job::State::kActive);
  EXPECT_FALSE(Worker(1).outdated);
}

// As rank 5 has copied what rank 0 had, both of them are lost whom it might copy instead.
TEST_F(JobPauseTest, WhatIsCopiedFromOneThatIsGoneIsBegunWithWhereNobodyHasAnother) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 3);
  Train(1, {0, 1, 2});
  Next(GroupKind::kTrain, 2, {0});
  Say(0, Ready{.iteration = 2});
  Done(0);
  Join(5);
  Lose(0);
  Train(2, {2});
  Say(5, Adopted{.ok = true, .iteration = 2});
  ASSERT_EQ(Worker(5).source, 2);
  Lose(1);
  Lose(2);
  Say(5, Adopted{.ok = false, .detail = "gone"});
  EXPECT_EQ(State(5), Job::State::kJoining);
  for (const Rank rank : {0, 1}) Join(rank);
  ASSERT_NE(Sent<Group>(5), nullptr);
  EXPECT_EQ(Sent<Group>(5)->kind, GroupKind::kInitial);
  EXPECT_EQ(Sent<Group>(5)->iteration, 2);
  EXPECT_THAT(Sent<Group>(5)->reason, HasSubstr("the parameters of rank 5, the newest"));
  ExpectReplaysAsTold();
}

// ---- who has a replica ----

TEST_F(JobPauseTest, MembersAreThoseWhoHaveAReplica) {
  Start(plans::kModels, Engine::Joining::kAnytime, 3);
  const auto asked = [this](Rank rank) {
    Say(rank, AskMembers{});
    std::vector<Rank> ranks;
    const auto* members = Sent<Members>(rank);
    if (members == nullptr) return ranks;
    for (const GroupMember& member : members->members) {
      ranks.push_back(member.rank);
      EXPECT_EQ(member.incarnation, incarnation_[member.rank]);
      EXPECT_FALSE(member.endpoints.empty());
    }
    return ranks;
  };
  EXPECT_THAT(asked(1), ElementsAre(0, 1, 2));
  Say(1, Pause{});
  Say(2, Finish{});
  Join(5);
  EXPECT_THAT(asked(1), ElementsAre(0, 1, 2)) << "rank 5 copies";
  Say(5, Adopted{.ok = true, .iteration = 0});
  EXPECT_THAT(asked(5), ElementsAre(0, 1, 2, 5));
  Lose(0);
  EXPECT_THAT(asked(5), ElementsAre(1, 2, 5));
  EXPECT_EQ(State(5), Job::State::kActive);
}

// ---- with every engine ----

// Three workers that do what they are told, by the job's messages.
class JobPauseOfTest : public JobPauseTest, public testing::WithParamInterface<EngineOptions> {
 protected:
  void SetUp() override {
    spec_.make_engine = [](const EngineOptions& options) {
      return std::make_unique<EngineWatch>(MakeEngine(options), options);
    };
    Make(GetParam(), 3, spec_);
    plan_ = job_->engine().plan();
    for (Rank r = 0; r < 3; ++r) Join(r);
    for (Rank r = 0; r < 3; ++r) AtOnce(r, Finished{.group = 1});
    Settle();
  }
  // Says it, and does what the job wants thereupon, of whomever.
  void AtOnce(Rank rank, WorkerBody body) {
    Say(rank, std::move(body));
    for (std::size_t i = 0; i < out_.sends.size(); ++i) todo_.push_back(out_.sends[i]);
  }
  void Settle() {
    for (int i = 0; i < 1000; ++i) {
      if (!todo_.empty()) {
        const JobOutput::Outgoing next = todo_.front();
        todo_.erase(todo_.begin());
        Heed(next.rank, next.envelope.body);
        continue;
      }
      const std::optional<Instant> deadline = job_->NextDeadline();
      if (!deadline) return;
      now_ = std::max(now_, deadline->ns);
      Step(DeadlineReached{});
      for (const auto& send : out_.sends) todo_.push_back(send);
    }
    FAIL() << "does not come to rest";
  }
  void Heed(Rank rank, const ControllerBody& body) {
    ASSERT_FALSE(std::holds_alternative<Refused>(body)) << std::get<Refused>(body).reason;
    if (const auto* group = std::get_if<Group>(&body)) {
      waits_[rank] = false;
      const bool round = group->kind == GroupKind::kRound;
      const std::uint32_t owed = Worker(rank).owed;
      bool gives = false;
      for (const GroupMember& of : group->members) gives |= of.rank == rank && of.weight > 0;
      if (!DrawnAhead(plan_)) iteration_[rank] = group->iteration;
      AtOnce(rank, Finished{.group = group->id, .included = round && gives ? owed : 0});
    } else if (std::holds_alternative<Adopt>(body)) {
      const Rank source = std::get<Adopt>(body).source.rank;
      iteration_[rank] = iteration_[source];
      copied_[rank] = true;
      waits_[rank] = false;
      AtOnce(rank, Adopted{.ok = true, .iteration = iteration_[rank]});
    } else if (const auto* reply = std::get_if<QueryReply>(&body)) {
      if (!reply->ready) waits_[rank] = false;
      if (!TrainsInGroups(plan_)) iteration_[rank] = reply->next;
    } else if (const auto* hood = std::get_if<Neighbourhood>(&body)) {
      iteration_[rank] = std::max(iteration_[rank], hood->at);
    } else if (const auto* placement = std::get_if<Placement>(&body)) {
      iteration_[rank] = std::max(iteration_[rank], placement->at);
      AtOnce(rank, Placed{.epoch = placement->epoch});
    } else if (std::holds_alternative<Resumed>(body)) {
      resumed_[rank] = true;
    }
  }
  // A local step of each, and what comes of it.
  void Steps(const std::vector<Rank>& ranks, int times) {
    for (int i = 0; i < times; ++i) {
      for (const Rank rank : ranks) {
        if (waits_[rank]) continue;
        if (FollowsSchedule(plan_)) {
          AtOnce(rank, Progressed{.own = {.steps = ++own_[rank]}});
          continue;
        }
        if (CountsLocalSteps(plan_)) ++iteration_[rank];
        const Iteration iteration = iteration_[rank] + (CountsLocalSteps(plan_) ? 0 : 1);
        waits_[rank] = true;
        AtOnce(rank, Ready{.iteration = iteration,
                           .step_ns = kMillisecond,
                           .gradients = TrainsInRounds(plan_) ? 1u : 0u,
                           .local_steps = AsksBeforeGroups(plan_) ? 1u : 0u,
                           .own = {.steps = ++own_[rank]}});
      }
      Settle();
    }
  }

  Plan plan_;
  std::vector<JobOutput::Outgoing> todo_;
  std::map<Rank, bool> waits_, copied_, resumed_;
  std::map<Rank, Iteration> iteration_;
  std::map<Rank, std::int64_t> own_;
};

TEST_P(JobPauseOfTest, OthersGoOnAndItComesBack) {
  Steps({0, 1, 2}, 4);
  for (int i = 0; waits_[1] && i < 20; ++i) Steps({0, 2}, 1);
  ASSERT_FALSE(waits_[1]) << job_->Explain({now_}, 1);
  const std::int64_t before = own_[0] + own_[2];
  AtOnce(1, Pause{});
  Settle();
  ASSERT_EQ(State(1), Job::State::kPaused);
  Steps({0, 2}, 10);
  EXPECT_GE(own_[0] + own_[2], before + 10) << "nobody waits for one that pauses";
  copied_.clear();
  AtOnce(1, Resume{});
  Settle();
  EXPECT_TRUE(resumed_[1]);
  EXPECT_EQ(copied_[1], ReplicasAreEqual(plan_));
  ASSERT_EQ(State(1), Job::State::kActive);
  const std::int64_t own = own_[1];
  Steps({0, 1, 2}, 10);
  EXPECT_GE(own_[1], own + 3) << job_->Explain({now_}, 1);
  // All pause, and the first that is back has nobody to copy from who is newer.
  std::vector<Rank> active = {0, 1, 2};
  for (const Rank r : {0, 1, 2}) {
    for (int i = 0; waits_[r] && i < 20; ++i) Steps(active, 1);
    if (waits_[r]) return;  // its engine has it wait for one that pauses meanwhile
    AtOnce(r, Pause{});
    Settle();
    active.erase(active.begin());
  }
  for (const Rank r : {0, 1, 2}) AtOnce(r, Resume{});
  Settle();
  for (const Rank r : {0, 1, 2}) EXPECT_EQ(State(r), Job::State::kActive);
  Steps({0, 1, 2}, 4);
  ExpectReplays(job_->spec());
}

INSTANTIATE_TEST_SUITE_P(All, JobPauseOfTest, testing::ValuesIn(AllEngines()), [](const auto& of) {
  std::string name(EngineName(of.param));
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace prd
