// The job around the engine, message by message.
#include "engines/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engines/job_testing.h"

namespace prd {
namespace {

using testing::HasSubstr;

TEST_F(JobTest, CommonStartIsTheLowestRanksModel) {
  Make(PReduceOptions{}, 3);
  Join(2);
  Join(0);
  EXPECT_EQ(Sent<Group>(0), nullptr);
  EXPECT_THAT(job_->Explain({5}, 0), HasSubstr("2 of 3 workers"));
  Join(1);
  const Group* group = Sent<Group>(1);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->kind, GroupKind::kInitial);
  ASSERT_EQ(group->members.size(), 3u);
  for (const GroupMember& member : group->members) {
    EXPECT_EQ(member.weight, member.rank == 0 ? 1 : 0);
  }
}

TEST_F(JobTest, RefusesWhatCannotJoinAndSaysWhy) {
  Running(PReduceOptions{}, 2);
  WorkerEnvelope hello = HelloOf(3);
  std::get<Hello>(hello.body).version = 99;
  EXPECT_THAT(WhyRefused(hello),
              HasSubstr("found 99, this daemon speaks " + std::to_string(kProtocolVersion)));
  EXPECT_THAT(WhyRefused(HelloOf(16)), HasSubstr("rank: found 16, allowed is 0 to 15"));
  EXPECT_THAT(WhyRefused(HelloOf(-2)), HasSubstr("rank: found -2"));
  EXPECT_THAT(WhyRefused(HelloOf(1)), HasSubstr("rank 1 of job toy is held by pid 42 on host"));
  EXPECT_EQ(job_->Admit(HelloOf(1)).refusal->code, Code::kUnavailable);
  hello = HelloOf(3);
  std::get<Hello>(hello.body).model_hash = 1;
  EXPECT_THAT(WhyRefused(hello), HasSubstr("the model differs"));
  hello = HelloOf(3);
  std::get<Hello>(hello.body).endpoints.clear();
  EXPECT_THAT(WhyRefused(hello), HasSubstr("1 to 8 endpoints"));
  hello = HelloOf(3);
  std::get<Hello>(hello.body).host = std::string(300, 'x');
  EXPECT_THAT(WhyRefused(hello), HasSubstr("no text over 256 bytes"));
  hello = HelloOf(3);
  hello.incarnation = 0;
  EXPECT_THAT(WhyRefused(hello), HasSubstr("incarnation other than 0"));
  WorkerEnvelope ready = From(1, Ready{.iteration = 1});
  ready.incarnation = 5;
  EXPECT_THAT(WhyRefused(ready), HasSubstr("is not held by this incarnation"));
  EXPECT_EQ(job_->Admit(ready).refusal->code, Code::kAborted);
}

TEST_F(JobTest, DuplicatesAndGapsChangeNothing) {
  Running(PReduceOptions{}, 2);
  WorkerEnvelope again = From(1, Ready{.iteration = 1});
  again.seq = 2;
  EXPECT_EQ(job_->Admit(again).verdict, Verdict::kDuplicate);
  again.seq = 9;
  EXPECT_EQ(job_->Admit(again).verdict, Verdict::kGap);
}

TEST_F(JobTest, WhoBreaksTheProtocolIsEvictedAndOthersGoOn) {
  Running(AllReduceOptions{}, 3);
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Say(2, Ready{.iteration = -5});
  ASSERT_NE(Sent<Refused>(2), nullptr);
  EXPECT_THAT(Sent<Refused>(2)->reason, HasSubstr("iteration -5, after iteration 0"));
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->why, LeftReason::kEvicted);
  ASSERT_NE(Sent<Group>(0), nullptr) << "the barrier is released";
  EXPECT_EQ(Sent<Group>(0)->members.size(), 2u);
}

TEST_F(JobTest, AReportOnAnotherGroupIsABreach) {
  Running(PReduceOptions{}, 2);
  Say(1, Finished{.group = 77});
  ASSERT_NE(Sent<Refused>(1), nullptr);
  EXPECT_THAT(Sent<Refused>(1)->reason, HasSubstr("a report on group 77 while computing"));
  EXPECT_EQ(State(1), Job::State::kAbsent);
}

TEST_F(JobTest, ADeadMemberAbortsItsGroupAndTheOthersRegroup) {
  Running(PReduceOptions{.group_size = 3}, 3);
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  ASSERT_NE(Sent<Group>(2), nullptr);
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  ASSERT_NE(Sent<Abort>(0), nullptr);
  EXPECT_THAT(Sent<Abort>(0)->reason, HasSubstr("rank 2 is gone: its lease of 2000 ms ran out"));
  Done(0, Outcome::kAborted);
  Done(1, Outcome::kAborted);
  ASSERT_NE(Recorded<GroupEnded>(), nullptr);
  EXPECT_FALSE(Recorded<GroupEnded>()->ok);
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  ASSERT_NE(Sent<Group>(1), nullptr);
  EXPECT_EQ(Sent<Group>(1)->members.size(), 2u);
}

// A gradient round that some committed and some did not: those who did are the truth.
TEST_F(JobTest, AMemberThatMissedARoundAdoptsTheResult) {
  Running(AllReduceOptions{}, 3);
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  Done(0);
  Done(1, Outcome::kFailed);
  EXPECT_NE(Sent<Abort>(2), nullptr);
  Say(1, Ready{.iteration = 1});  // tries again: held back, for it is not known yet what happened
  EXPECT_THAT(job_->Explain({9}, 1), HasSubstr("held back until all members of group 2"));
  Done(2, Outcome::kOk);  // the abort came too late there
  ASSERT_NE(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(Sent<Adopt>(1)->source.rank, 0);
  Say(0, Ready{.iteration = 2});
  Say(2, Ready{.iteration = 2});
  EXPECT_EQ(Sent<Group>(0), nullptr) << "no round without the one that catches up";
  Say(1, Adopted{.ok = true, .iteration = 1});
  Say(1, Ready{.iteration = 2});
  ASSERT_NE(Sent<Group>(1), nullptr);
  EXPECT_EQ(Sent<Group>(1)->iteration, 2);
}

TEST_F(JobTest, ARoundThatNobodyCommittedIsTriedAgain) {
  Running(AllReduceOptions{}, 2);
  Say(0, Ready{.iteration = 1});
  Say(1, Ready{.iteration = 1});
  Done(0, Outcome::kFailed);
  Say(0, Ready{.iteration = 1});
  Done(1, Outcome::kAborted);
  EXPECT_EQ(Sent<Adopt>(0), nullptr);
  Say(1, Ready{.iteration = 1});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_EQ(Sent<Group>(0)->iteration, 1);
}

TEST_F(JobTest, ALateWorkerCopiesARunningModel) {
  Running(PReduceOptions{.group_size = 2}, 2);
  Say(0, Ready{.iteration = 1});
  Join(5);
  ASSERT_NE(Sent<Adopt>(5), nullptr);
  const Rank source = Sent<Adopt>(5)->source.rank;
  EXPECT_EQ(State(5), Job::State::kAdopting);
  Say(5, Adopted{.ok = false, .detail = "gone"});
  ASSERT_NE(Sent<Adopt>(5), nullptr) << "from another source";
  EXPECT_NE(Sent<Adopt>(5)->source.rank, source);
  Say(5, Adopted{.ok = true, .iteration = 7});
  EXPECT_EQ(State(5), Job::State::kActive);
  Say(5, Ready{.iteration = 8});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_EQ(Sent<Group>(0)->iteration, 8);
}

TEST_F(JobTest, TheFinalAverageWaitsForAllWhoLive) {
  Running(PReduceOptions{.group_size = 2}, 3);
  Say(0, Finish{});
  Say(1, Finish{});
  EXPECT_THAT(job_->Explain({9}, 0), HasSubstr("waiting for rank 2 to finish"));
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_EQ(Sent<Group>(0)->kind, GroupKind::kFinal);
  EXPECT_EQ(Sent<Group>(0)->members[0].weight, 0.5);
  Done(0);
  Done(1, Outcome::kFailed);
  ASSERT_NE(Sent<Adopt>(1), nullptr) << "the average exists: the other takes it over";
  EXPECT_EQ(Sent<Released>(0), nullptr) << "not before everybody has it";
  Say(1, Adopted{.ok = true, .iteration = 0});
  EXPECT_NE(Sent<Released>(0), nullptr);
  EXPECT_NE(Sent<Released>(1), nullptr);
  EXPECT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_TRUE(job_->ended());
}

TEST_F(JobTest, ASnapshotContinuesAsTheOriginal) {
  Running(PReduceOptions{.group_size = 2}, 3);
  Say(0, Ready{.iteration = 1});
  Job copy(1, job_->spec());
  ASSERT_TRUE(copy.Load(SaveState(*job_)).ok());
  EXPECT_EQ(copy.StateHash(), job_->StateHash());
  EXPECT_EQ(copy.live(), 3);
  const WorkerEnvelope ready = From(1, Ready{.iteration = 1});
  JobOutput other;
  copy.Step({50}, FromWorker{ready}, &other);
  out_ = {};
  job_->Step({50}, FromWorker{ready}, &out_);
  EXPECT_EQ(other.records, out_.records);
  EXPECT_EQ(copy.StateHash(), job_->StateHash());
  Job broken(1, job_->spec());
  EXPECT_EQ(broken.Load("nonsense").code(), Code::kDataLoss);
}

}  // namespace
}  // namespace prd
