// The job around engines whose rounds go on while workers compute, that answer queries, and that
// drop updates: with an engine that does as it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/all_reduce/options.h"
#include "engines/backup/options.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class JobRoundsTest : public JobTest {
 protected:
  void Start(const Plan& plan, Engine::Joining joining, int workers) {
    script_.plan = plan;
    script_.joining = joining;
    JobSpec spec;
    spec.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Running(AllReduceOptions{}, workers, std::move(spec));
    script_.heard.clear();
  }
  // The next event leads to this group.
  void Next(GroupKind kind, Iteration iteration, const std::vector<double>& weights) {
    GroupFormed form{.kind = kind, .iteration = iteration, .reason = "told"};
    for (std::size_t i = 0; i < weights.size(); ++i) {
      form.members.push_back({.rank = static_cast<Rank>(i), .weight = weights[i]});
    }
    script_.next.push_back({form});
  }
  void BeReady(Rank rank, Iteration iteration, std::uint32_t gradients = 1, bool waiting = true) {
    Say(rank, Ready{.iteration = iteration, .waiting = waiting, .gradients = gradients});
  }
  void Through(Rank rank, std::uint32_t included, Outcome outcome = Outcome::kOk) {
    const GroupId group = Worker(rank).group;
    Say(rank, Finished{.group = group, .outcome = outcome, .included = included});
  }
  const Job::Worker& Worker(Rank rank) { return job_->workers()[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }

  Script script_;
};

TEST_F(JobRoundsTest, ARoundTakesWorkersThatComputeAndCountsWhatTheyOwe) {
  Start(plans::kRounds, Engine::Joining::kPause, 3);
  Next(GroupKind::kRound, 1, {1.0 / 3, 0, 0});
  BeReady(0, 1);
  for (Rank rank = 0; rank < 3; ++rank) ASSERT_NE(Sent<Group>(rank), nullptr);
  EXPECT_EQ(Sent<Group>(2)->kind, GroupKind::kRound);
  BeReady(1, 1);  // was on its way when the round began
  EXPECT_EQ(Worker(1).owed, 1u);
  Through(0, 1);
  Through(1, 0);
  EXPECT_FALSE(Worker(1).signal) << "the round is what it waited for";
  EXPECT_THAT(job_->Explain({99}, 1), HasSubstr("1 gradients in no round yet"));
  Through(2, 0);
  EXPECT_THAT(Heard(), ElementsAre("ready 0@1 owes 1", "ready 1@1 owes 1", "ok 0 owes 0",
                                   "ok 1 owes 1", "ok 2 owes 0", "ended"));
  // A late signal does not wait, and more than one may come before the next round.
  BeReady(2, 1, 1, false);
  BeReady(2, 2);
  EXPECT_EQ(Worker(2).owed, 2u);
  EXPECT_EQ(Worker(2).iteration, 1);
}

// A finished worker stays behind while others train on.
TEST_F(JobRoundsTest, WhoJoinsCopiesTheNewestReplica) {
  Start(plans::kRounds, Engine::Joining::kPause, 3);
  Say(0, Finish{});
  Say(1, Pause{});
  script_.next.push_back({GroupFormed{
      .kind = GroupKind::kRound, .members = {{.rank = 2, .weight = 1}}, .iteration = 1}});
  BeReady(2, 1);
  Through(2, 1);
  Join(3);
  ASSERT_NE(Sent<Adopt>(3), nullptr);
  EXPECT_EQ(Sent<Adopt>(3)->source.rank, 2);
}

TEST_F(JobRoundsTest, WhatAWorkerCannotOweEvictsIt) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Next(GroupKind::kRound, 1, {0.5, 0});
  BeReady(0, 1);
  Through(0, 2);
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_THAT(Recorded<WorkerLeft>()->reason, HasSubstr("with 2 gradients, owing 1"));
  EXPECT_EQ(Recorded<WorkerLeft>()->gradients, 1u);
}

TEST_F(JobRoundsTest, ASignalFromTheFutureOrThePastEvictsIt) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  BeReady(0, 2);
  EXPECT_EQ(State(0), Job::State::kAbsent);
  BeReady(1, 1);
  BeReady(1, 0);
  EXPECT_EQ(State(1), Job::State::kAbsent);
}

TEST_F(JobRoundsTest, AFailedRoundIsRepairedBeforeItEnds) {
  Start(plans::kRounds, Engine::Joining::kPause, 3);
  Next(GroupKind::kRound, 1, {1.0 / 3, 1.0 / 3, 0});
  script_.next.insert(script_.next.begin(), {Effect{}});
  script_.next.front().clear();
  BeReady(1, 1);
  BeReady(0, 1);
  const GroupId round = Worker(0).group;
  Through(0, 1);
  Through(1, 0, Outcome::kFailed);
  EXPECT_NE(Sent<Abort>(2), nullptr);
  EXPECT_FALSE(Sent<Abort>(2)->undone);
  Through(2, 0, Outcome::kAborted);
  for (const Rank rank : {1, 2}) {
    ASSERT_NE(Sent<Adopt>(rank), nullptr);
    EXPECT_EQ(Sent<Adopt>(rank)->result, round);
    EXPECT_EQ(Sent<Adopt>(rank)->source.rank, 0);
  }
  EXPECT_EQ(Recorded<GroupEnded>(), nullptr);
  Say(1, Adopted{.ok = true, .iteration = 1, .included = 1});
  EXPECT_EQ(Worker(1).owed, 0u);
  // The first try fails; there are two who have it now.
  Say(2, Adopted{.ok = false, .detail = "lost"});
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  Heard();
  Say(2, Adopted{.ok = true, .iteration = 1});
  ASSERT_NE(Recorded<GroupEnded>(), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("ok 2 owes 0", "ended"));
  EXPECT_TRUE(job_->groups().empty());
}

TEST_F(JobRoundsTest, ARoundThatNobodyHasIsUndone) {
  Start(plans::kRounds, Engine::Joining::kPause, 3);
  Next(GroupKind::kRound, 1, {1.0 / 3, 1.0 / 3, 0});
  BeReady(0, 1);
  Through(0, 1);
  Through(1, 0, Outcome::kFailed);
  Heard();
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});  // the only one that had it
  Through(2, 0, Outcome::kAborted);
  for (const Rank rank : {1, 2}) {
    ASSERT_NE(Sent<Abort>(rank), nullptr);
    EXPECT_TRUE(Sent<Abort>(rank)->undone);
  }
  EXPECT_THAT(Heard(), ElementsAre("left 0", "failed 2 owes 0", "ended, nobody"));
}

TEST_F(JobRoundsTest, WhoCannotFetchAResultComesBackAsAnother) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Next(GroupKind::kRound, 1, {0.5, 0});
  BeReady(0, 1);
  Through(0, 1);
  Through(1, 0, Outcome::kFailed);
  while (State(1) == Job::State::kActive) Say(1, Adopted{.ok = false, .detail = "no way"});
  ASSERT_NE(Sent<Refused>(1), nullptr);
  EXPECT_EQ(Sent<Refused>(1)->code, Code::kAborted);
  EXPECT_TRUE(job_->groups().empty());
}

TEST_F(JobRoundsTest, SignalsAreHeldBackWhileALateWorkerCopies) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Join(2);
  ASSERT_EQ(State(2), Job::State::kAdopting);
  BeReady(0, 1);
  BeReady(1, 1);
  EXPECT_THAT(Heard(), ElementsAre());
  EXPECT_THAT(job_->Explain({99}, 0), HasSubstr("held back while a late worker copies"));
  Say(2, Adopted{.ok = true, .iteration = 0});
  EXPECT_THAT(Heard(), ElementsAre("joined 2@0", "ready 0@1 owes 1", "ready 1@1 owes 1"));
}

TEST_F(JobRoundsTest, WhoCopiesARoundTooOldCopiesAgain) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Join(2);
  Next(GroupKind::kRound, 1, {0.5});  // somebody leaves, and that completes a quorum
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  Say(2, Adopted{.ok = true, .iteration = 0});
  EXPECT_EQ(State(2), Job::State::kJoining);
  Through(0, 0);
  EXPECT_EQ(State(2), Job::State::kAdopting);
  Heard();
  Say(2, Adopted{.ok = true, .iteration = 1});
  EXPECT_THAT(Heard(), ElementsAre("joined 2@1"));
}

// Its replica stands, and is newer than the copy: who joins would begin where others have been.
TEST_F(JobRoundsTest, WhoCopiesFromOneThatFinishesMeanwhileCopiesAgain) {
  BackupOptions all;
  all.backups = 0;
  Running(all, 1);
  Say(0, Ready{.iteration = 1});
  Join(1);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Done(0);
  Say(0, Finish{});
  ASSERT_EQ(State(0), Job::State::kFinishing);
  Say(1, Adopted{.ok = true, .iteration = 0});
  EXPECT_EQ(Recorded<WorkerJoined>(), nullptr);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(Sent<Adopt>(1)->source.rank, 0);
  Say(1, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(1), Job::State::kActive);
}

TEST_F(JobRoundsTest, WhatIsComputedOnAnOutdatedCopyIsDropped) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Join(2);
  Next(GroupKind::kRound, 1, {0.5});
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  Say(2, Adopted{.ok = true, .iteration = 0});
  BeReady(2, 1);  // it trains with what it has, and cannot know better
  ASSERT_NE(Recorded<UpdateDropped>(), nullptr);
  EXPECT_EQ(State(2), Job::State::kJoining);
  Say(2, Finish{});  // or even finishes: that counts once it has the newest replica
  EXPECT_EQ(State(2), Job::State::kJoining);
  Through(0, 0);
  Say(2, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(2), Job::State::kFinishing);
}

TEST_F(JobRoundsTest, ASignalThatWaitsForNothingIsABreachWhereAllAreAnswered) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 2);
  BeReady(0, 1, 0, false);
  EXPECT_EQ(State(0), Job::State::kAbsent);
  Say(1, Ready{.iteration = 2});  // nobody can be two rounds ahead
  EXPECT_EQ(State(1), Job::State::kAbsent);
}

// Delayed ACK: a worker may be through with all its steps before the others have the common start.
TEST_F(JobRoundsTest, WhoFinishesBehindASignalThatDoesNotWaitIsNoBreach) {
  script_.plan = plans::kAskedLate;
  JobSpec spec;
  spec.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
  Make(AllReduceOptions{}, 2, std::move(spec));
  Join(0);
  Join(1);
  Done(0);
  Say(0, Ready{.iteration = 1, .waiting = false, .local_steps = 1});
  Say(0, Finish{});
  EXPECT_EQ(State(0), Job::State::kStarting);
  Done(1);
  EXPECT_EQ(State(0), Job::State::kFinishing);
}

TEST_F(JobRoundsTest, AnAverageLeavesSignalsWaiting) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  BeReady(0, 1);
  Next(GroupKind::kAverage, 0, {0.5, 0.5});
  BeReady(1, 1);
  ASSERT_NE(Sent<Group>(0), nullptr);
  Through(0, 0);
  Through(1, 0);
  EXPECT_TRUE(Worker(0).signal.has_value());
  Next(GroupKind::kRound, 1, {0.5, 0.5});
  Step(DeadlineReached{});
  EXPECT_NE(Sent<Group>(0), nullptr);
}

TEST_F(JobRoundsTest, WhoFinishesInARoundStillReportsOnIt) {
  Start(plans::kRounds, Engine::Joining::kPause, 2);
  Next(GroupKind::kRound, 1, {0.5, 0});
  BeReady(0, 1);
  Say(1, Finish{});
  EXPECT_EQ(State(1), Job::State::kFinishing);
  Through(1, 0);
  Through(0, 1);
  EXPECT_THAT(Heard(), ElementsAre("ready 0@1 owes 1", "left 1", "ok 0 owes 0", "ended"));
  Say(0, Finish{});
  ASSERT_NE(Sent<Group>(1), nullptr);
  EXPECT_EQ(Sent<Group>(1)->kind, GroupKind::kFinal);
}

TEST_F(JobRoundsTest, QueriesAreAnsweredAndRecorded) {
  Start(plans::kAsked, Engine::Joining::kAnytime, 2);
  script_.next.push_back({QueryAnswered{.rank = 0, .ready = false, .reason = "told"}});
  Say(0, Ready{.iteration = 1, .local_steps = 3});
  ASSERT_NE(Sent<QueryReply>(0), nullptr);
  EXPECT_EQ(*Sent<QueryReply>(0), (QueryReply{.iteration = 1, .local_steps = 3, .ready = false}));
  ASSERT_NE(Recorded<QueryAnswered>(), nullptr);
  EXPECT_FALSE(Worker(0).signal);
  script_.next.push_back({QueryAnswered{.rank = 0, .ready = true, .reason = "told"}});
  Say(0, Ready{.iteration = 1, .local_steps = 4});
  EXPECT_TRUE(Worker(0).signal.has_value()) << "it waits for its group";
  Next(GroupKind::kTrain, 1, {0.5, 0.5});
  Say(1, Ready{.iteration = 1, .local_steps = 1});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_FALSE(Worker(0).signal);
}

TEST_F(JobRoundsTest, ADroppedUpdateIsRecordedAndTheNewestReplicaCopied) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 3);
  Next(GroupKind::kTrain, 1, {0.5, 0.5});
  script_.next.insert(script_.next.begin(), {Effect{}});
  script_.next.front().clear();
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Through(0, 0);
  script_.next.push_back({});
  script_.next.push_back({UpdateDropped{.rank = 2, .iteration = 0, .reason = "late"}});
  Through(1, 0);
  ASSERT_NE(Recorded<UpdateDropped>(), nullptr);
  EXPECT_EQ(*Recorded<UpdateDropped>(),
            (UpdateDropped{.rank = 2, .iteration = 0, .reason = "late"}));
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  EXPECT_EQ(Sent<Adopt>(2)->result, kNoGroup);
  Heard();
  Say(2, Ready{.iteration = 1});  // was on its way
  EXPECT_THAT(Heard(), ElementsAre());
  Say(2, Adopted{.ok = true, .iteration = 1});
  Say(2, Ready{.iteration = 2});
  EXPECT_THAT(Heard(), ElementsAre("ready 2@2 owes 0"));
}

// It signals while its order to copy pauses, and then the only source is gone.
TEST_F(JobRoundsTest, WhoHasNobodyToCopyFromAnyMoreJoinsAnew) {
  BackupOptions one;
  one.backups = 1;
  Running(one, 2);
  Say(1, Ready{.iteration = 1});
  Done(1);
  ASSERT_NE(Sent<Adopt>(0), nullptr) << "what it computes is too late";
  Say(0, Adopted{.ok = false, .detail = "out of reach"});
  Say(0, Ready{.iteration = 1});
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  now_ += 2 * kSecond;
  ASSERT_LE(job_->NextDeadline().value_or(Instant{now_ + kSecond}), Instant{now_ + 1});
  Step(DeadlineReached{});
  ASSERT_NE(Recorded<WorkerJoined>(), nullptr);
  EXPECT_EQ(Recorded<WorkerJoined>()->rank, 0);
  EXPECT_NE(Sent<Group>(0), nullptr) << "its signal counts";
}

TEST_F(JobRoundsTest, AFinishThatCrossesAnOrderToCatchUpCountsAfterIt) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 2);
  Next(GroupKind::kTrain, 1, {1});
  Say(0, Ready{.iteration = 1});
  script_.next.push_back({});
  script_.next.push_back({UpdateDropped{.rank = 1, .iteration = 0, .reason = "late"}});
  Through(0, 0);
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  Say(1, Finish{});
  EXPECT_EQ(State(1), Job::State::kActive);
  Heard();
  Say(1, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(1), Job::State::kFinishing);
  EXPECT_EQ(Worker(1).iteration, 1);
  EXPECT_THAT(Heard(), ElementsAre("left 1"));
}

TEST_F(JobRoundsTest, WhoseReplicaIsTheNewestJoinsAnewInstead) {
  Start(plans::kGradients, Engine::Joining::kAnytime, 2);
  script_.next.push_back({UpdateDropped{.rank = 0, .iteration = 0, .reason = "told"}});
  Say(0, Ready{.iteration = 1});
  EXPECT_EQ(Sent<Adopt>(0), nullptr);
  EXPECT_THAT(Heard(), ElementsAre("ready 0@1 owes 0", "left 0", "joined 0@0", "ready 0@1 owes 0"));
}

}  // namespace
}  // namespace prd
