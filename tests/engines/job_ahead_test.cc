// The job around an engine whose groups form before their members are ready (DrawnAhead), and one
// whose workers follow a schedule: signals stand until something answers them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/all_reduce/options.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class JobAheadTest : public JobTest {
 protected:
  void Start(Plan plan, int workers) {
    script_.plan = plan;
    Running(AllReduceOptions{}, workers, SpecFor(&script_));
    script_.heard.clear();
  }
  static JobSpec SpecFor(Script* script) {
    JobSpec spec;
    spec.make_engine = [script](const EngineOptions&) { return std::make_unique<Puppet>(script); };
    return spec;
  }
  // The next event leads to this group; members after `active` are passive.
  void Next(const std::vector<Rank>& members, std::size_t active = 1) {
    GroupFormed form{.iteration = 77, .reason = "told"};
    for (std::size_t i = 0; i < members.size(); ++i) {
      form.members.push_back({.rank = members[i],
                              .weight = 1.0 / static_cast<double>(members.size()),
                              .passive = i >= active});
    }
    script_.next.push_back({form});
  }
  void BeReady(Rank rank, Iteration iteration) { Say(rank, Ready{.iteration = iteration}); }
  const Job::Worker& Worker(Rank rank) { return job_->workers()[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }
  std::string WhyEvicted() {
    return Recorded<WorkerLeft>() == nullptr ? "not evicted" : Recorded<WorkerLeft>()->reason;
  }

  Script script_;
};

constexpr Plan kBlocking = plans::kAhead;
constexpr Plan kBackground = plans::Background(2, Membership::kAhead);

TEST_F(JobAheadTest, ASignalBeforeTheGroupStandsUntilItsSuccess) {
  for (const Plan& plan : {kBlocking, kBackground}) {
    script_ = {};
    Start(plan, 2);
    Next({0, 1});
    BeReady(0, 1);
    ASSERT_NE(Sent<Group>(0), nullptr);
    ASSERT_NE(Sent<Group>(1), nullptr);
    EXPECT_FALSE(Sent<Group>(1)->members[0].passive);
    EXPECT_TRUE(Sent<Group>(1)->members[1].passive);
    EXPECT_TRUE(Worker(0).signal) << "it is not answered yet";
    Done(1);
    EXPECT_TRUE(Worker(0).signal);
    Done(0);
    EXPECT_FALSE(Worker(0).signal);
    BeReady(0, 2);
    EXPECT_EQ(State(0), Job::State::kActive);
  }
}

TEST_F(JobAheadTest, ASignalMayComeWhileTheGroupIsThere) {
  Start(kBlocking, 3);
  Next({1, 0}, 2);  // answers both
  BeReady(1, 1);
  Done(1);
  EXPECT_FALSE(Worker(1).signal);
  BeReady(0, 1);
  EXPECT_TRUE(Worker(0).signal);
  EXPECT_NE(Worker(0).group, kNoGroup);
  Done(0);
  EXPECT_FALSE(Worker(0).signal);
  EXPECT_THAT(Heard(), ElementsAre("ready 1@1 owes 0", "ok 1 owes 0", "ready 0@1 owes 0",
                                   "ok 0 owes 0", "ended"));
}

TEST_F(JobAheadTest, AGroupMayPassWithoutASignal) {
  Start(kBackground, 2);
  Next({0, 1}, 2);
  BeReady(0, 1);
  Done(1);
  Done(0);
  EXPECT_TRUE(job_->groups().empty());
  BeReady(1, 1);
  EXPECT_TRUE(Worker(1).signal) << "what has passed answers no later signal";
  EXPECT_EQ(State(1), Job::State::kActive);
}

TEST_F(JobAheadTest, APassiveMembersSignalStands) {
  Start(kBackground, 3);
  BeReady(1, 1);
  Next({0, 1});
  BeReady(0, 1);
  Done(0);
  Done(1);
  EXPECT_FALSE(Worker(0).signal);
  ASSERT_TRUE(Worker(1).signal);
  EXPECT_EQ(Worker(1).signal->iteration, 1);
  BeReady(1, 2);
  EXPECT_THAT(WhyEvicted(), HasSubstr("a ready signal while"));
}

TEST_F(JobAheadTest, ASecondSignalWhileOneStandsEvicts) {
  Start(kBackground, 2);
  Next({0, 1});
  BeReady(0, 1);
  BeReady(0, 2);
  EXPECT_THAT(WhyEvicted(), HasSubstr("a ready signal while"));
  EXPECT_NE(Sent<Abort>(1), nullptr);
}

TEST_F(JobAheadTest, AFailureKeepsTheSignalAndIsToldInOrder) {
  Start(kBlocking, 3);
  Next({0, 1, 2});
  BeReady(0, 1);
  Heard();
  Done(1, Outcome::kFailed);
  EXPECT_NE(Sent<Abort>(0), nullptr);
  EXPECT_NE(Sent<Abort>(2), nullptr);
  Done(2, Outcome::kAborted);
  Next({0, 2});
  script_.next.emplace(script_.next.begin());  // after the report of 0 comes the end of the group
  Done(0, Outcome::kAborted);
  EXPECT_THAT(Heard(), ElementsAre("failed 1 owes 0", "failed 2 owes 0", "failed 0 owes 0",
                                   "ended, nobody"));
  ASSERT_NE(Sent<Group>(0), nullptr) << "the signal that stands is good for another group";
  EXPECT_TRUE(Worker(0).signal);
  Done(0);
  EXPECT_FALSE(Worker(0).signal);
}

// A member that has the result is through; the others need not have it.
TEST_F(JobAheadTest, ASuccessAnswersAlsoWhereOthersFail) {
  Start(kBackground, 2);
  Next({0, 1}, 2);
  BeReady(0, 1);
  BeReady(1, 1);
  Done(0);
  Done(1, Outcome::kFailed);
  EXPECT_FALSE(Worker(0).signal);
  EXPECT_TRUE(Worker(1).signal);
  EXPECT_EQ(Sent<Adopt>(1), nullptr) << "models are averaged, not shared";
}

TEST_F(JobAheadTest, FinishCrossesAnAnnouncedGroup) {
  Start(kBlocking, 3);
  Next({0, 1});
  BeReady(0, 1);
  Heard();
  Say(1, Finish{});
  EXPECT_EQ(State(1), Job::State::kFinishing);
  EXPECT_EQ(Sent<Abort>(0), nullptr) << "it takes part still";
  Done(1);
  Done(0);
  EXPECT_THAT(Heard(), ElementsAre("left 1", "ok 0 owes 0", "ended"));
  Say(0, Finish{});
  EXPECT_EQ(Recorded<GroupFormed>(), nullptr);
  Say(2, Finish{});
  ASSERT_NE(Recorded<GroupFormed>(), nullptr);
  EXPECT_EQ(Recorded<GroupFormed>()->kind, GroupKind::kFinal);
}

TEST_F(JobAheadTest, TheFinalAverageWaitsForGroupsOfWhoFinished) {
  Start(kBackground, 2);
  Next({0, 1});
  BeReady(0, 1);
  Done(0);
  Say(0, Finish{});
  Say(1, Finish{});
  EXPECT_EQ(Recorded<GroupFormed>(), nullptr) << "rank 1 is in a group";
  Heard();
  Done(1);
  EXPECT_THAT(Heard(), ElementsAre("ended")) << "no report of one who left";
  ASSERT_NE(Recorded<GroupFormed>(), nullptr);
  EXPECT_EQ(Recorded<GroupFormed>()->kind, GroupKind::kFinal);
}

TEST_F(JobAheadTest, FinishWhileItsSignalStandsEvicts) {
  Start(kBackground, 2);
  Next({0, 1});
  BeReady(0, 1);
  Say(0, Finish{});
  EXPECT_THAT(WhyEvicted(), HasSubstr("finished while"));
}

TEST_F(JobAheadTest, TheDeathOfAMemberAborts) {
  Start(kBlocking, 3);
  Next({0, 1, 2}, 2);
  BeReady(0, 1);
  Heard();
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  ASSERT_NE(Sent<Abort>(0), nullptr);
  ASSERT_NE(Sent<Abort>(2), nullptr);
  EXPECT_THAT(Sent<Abort>(2)->reason, HasSubstr("rank 1 is gone"));
  Done(0, Outcome::kAborted);
  Done(2, Outcome::kOk);  // was through before the order came
  EXPECT_THAT(Heard(), ElementsAre("left 1", "failed 0 owes 0", "ok 2 owes 0", "ended, nobody"));
  EXPECT_TRUE(Worker(0).signal);
}

// It finished, then died in the group that it was in: the engine has heard of its end already.
TEST_F(JobAheadTest, TheDeathOfOneWhoFinishedAbortsToo) {
  Start(kBackground, 3);
  Next({0, 1});
  BeReady(0, 1);
  Say(1, Finish{});
  Heard();
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  EXPECT_NE(Sent<Abort>(0), nullptr);
  Done(0, Outcome::kAborted);
  EXPECT_THAT(Heard(), ElementsAre("failed 0 owes 0", "ended, nobody"));
}

TEST_F(JobAheadTest, AnAnswerEndsASignalWithoutAGroup) {
  Start(kBackground, 2);
  script_.next.push_back({QueryAnswered{.rank = 0, .ready = false, .reason = "needs none"}});
  BeReady(0, 5);
  ASSERT_NE(Sent<QueryReply>(0), nullptr);
  EXPECT_EQ(Sent<QueryReply>(0)->iteration, 5);
  EXPECT_FALSE(Sent<QueryReply>(0)->ready);
  ASSERT_NE(Recorded<QueryAnswered>(), nullptr);
  EXPECT_EQ(Recorded<QueryAnswered>()->reason, "needs none");
  EXPECT_FALSE(Worker(0).signal);
  BeReady(0, 6);
  EXPECT_EQ(State(0), Job::State::kActive);
}

TEST_F(JobAheadTest, AnAnswerMayComeWhileItIsInAGroup) {
  Start(kBackground, 2);
  Next({1, 0});
  BeReady(1, 1);
  script_.next.push_back({QueryAnswered{.rank = 0, .ready = false, .reason = "needs none"}});
  BeReady(0, 1);
  EXPECT_FALSE(Worker(0).signal);
  EXPECT_NE(Worker(0).group, kNoGroup);
  Done(0);
  EXPECT_EQ(State(0), Job::State::kActive);
}

TEST_F(JobAheadTest, AWorkersIterationIsItsOwn) {
  Start(kBackground, 2);
  Next({0, 1});
  BeReady(0, 9);
  Done(1);
  Done(0);
  EXPECT_EQ(Worker(0).iteration, 9) << "not the group's 77";
  EXPECT_EQ(Worker(1).iteration, 0);
  BeReady(1, 3);
  EXPECT_EQ(Worker(1).iteration, 3);
  BeReady(1, 2);
  EXPECT_EQ(State(1), Job::State::kAbsent);
}

TEST_F(JobAheadTest, ALateWorkerJoinsBesideRunningGroups) {
  Start(kBackground, 2);
  Next({0, 1});
  BeReady(0, 4);
  Join(2);
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  Heard();
  Say(2, Adopted{.ok = true, .iteration = 4});
  EXPECT_THAT(Heard(), ElementsAre("joined 2@4"));
  EXPECT_NE(Worker(0).group, kNoGroup);
}

TEST_F(JobAheadTest, TheEngineSaysWhyAWorkerWaitsAndTheJobTheRest) {
  Start(kBlocking, 2);
  Next({0, 1});
  BeReady(0, 1);
  EXPECT_EQ(job_->Explain({50}, 0), "as it is told");
  EXPECT_EQ(job_->Explain({50}, 1), "as it is told");
}

TEST_F(JobAheadTest, AScheduleGoesToAllAndIsRecorded) {
  Start(plans::kSchedule, 3);
  const ScheduleSet set{.members = {0, 2}, .hosts = {0, 1}, .reason = "told"};
  script_.next.push_back({set});
  Say(1, Finish{});
  for (const Rank rank : {0, 2}) {
    const auto* schedule = Sent<Schedule>(rank);
    ASSERT_NE(schedule, nullptr);
    ASSERT_EQ(schedule->members.size(), 2u);
    EXPECT_EQ(schedule->members[1].rank, 2);
    EXPECT_EQ(schedule->members[1].incarnation, incarnation_[2]);
    EXPECT_THAT(schedule->members[1].endpoints, ElementsAre("tcp://127.0.0.1:1"));
    EXPECT_THAT(schedule->hosts, ElementsAre(0, 1));
    EXPECT_EQ(schedule->reason, "told");
  }
  EXPECT_EQ(Sent<Schedule>(1), nullptr);
  ASSERT_NE(Recorded<ScheduleSet>(), nullptr);
  EXPECT_EQ(Recorded<ScheduleSet>()->first, Sent<Schedule>(0)->first);
  EXPECT_THAT(Recorded<ScheduleSet>()->members, ElementsAre(0, 2));
}

TEST_F(JobAheadTest, ASignalUnderAScheduleIsRefused) {
  Start(plans::kSchedule, 2);
  BeReady(0, 1);
  EXPECT_THAT(WhyEvicted(), HasSubstr("under a schedule that needs none"));
  ASSERT_NE(Sent<Refused>(0), nullptr);
}

TEST_F(JobAheadTest, AReplayEndsInTheSameState) {
  Start(kBackground, 4);
  Next({0, 1});
  BeReady(0, 1);
  BeReady(2, 1);
  Done(1);
  Done(0, Outcome::kFailed);
  script_.next.push_back({QueryAnswered{.rank = 3, .ready = false, .reason = "needs none"}});
  BeReady(3, 8);
  Next({3, 2});
  BeReady(3, 9);
  Say(1, Finish{});
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  Script script{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
  JobSpec spec = job_->spec();
  spec.make_engine = SpecFor(&script).make_engine;
  ExpectReplays(spec);
}

}  // namespace
}  // namespace prd
