// The job around the engine, message by message.
#include "engines/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
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
              HasSubstr("found 99, this daemon speaks " + std::to_string(kOldestVersion) + " to " +
                        std::to_string(kProtocolVersion)));
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

// A peer knows incarnations and ranks, and no token.
TEST_F(JobTest, NothingCountsWithoutTheTokenOfItsHello) {
  Running(PReduceOptions{}, 2);
  WorkerEnvelope ready = From(1, Ready{.iteration = 1});
  ready.token = {1, 2};
  EXPECT_EQ(job_->Admit(ready).verdict, Verdict::kForeign);
  WorkerEnvelope hello = HelloOf(1);
  hello.incarnation = ready.incarnation;
  EXPECT_EQ(job_->Admit(hello).verdict, Verdict::kDuplicate) << "its own, again";
  hello.token = ready.token;
  EXPECT_EQ(job_->Admit(hello).verdict, Verdict::kForeign);
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

// The source is dead, and its lease runs on. The worker is given another source at once, and from
// then on one a second.
TEST_F(JobTest, ACopyThatFailsIsOrderedAgainOnceASecond) {
  Running(PReduceOptions{.group_size = 2}, 2);
  Join(5);
  std::vector<Instant> orders{{now_}};
  const auto fail = [&] {
    Say(5, Adopted{.ok = false, .detail = "gone"});
    if (Sent<Adopt>(5) != nullptr) orders.push_back({now_});
  };
  fail();
  ASSERT_EQ(orders.size(), 2u);
  const std::size_t before = history_.size();
  for (int pause = 0; pause < 10; ++pause) {
    fail();
    EXPECT_EQ(Sent<Adopt>(5), nullptr);
    EXPECT_THAT(job_->Explain({now_}, 5), HasSubstr("did not answer as its model was copied; "
                                                    "copies again in 1.0 s"));
    EXPECT_EQ(job_->WaitsFor({now_}, 5), job_->Explain({now_}, 5));
    ASSERT_TRUE(job_->NextDeadline().has_value());
    EXPECT_EQ(*job_->NextDeadline(), Instant{now_} + kSecond);
    Say(0, Ready{.iteration = pause + 1});  // training goes on meanwhile, and nobody is asked
    Say(1, Ready{.iteration = pause + 1});
    for (Rank r = 0; r < 2; ++r) Done(r);
    EXPECT_EQ(job_->NextDeadline()->ns, orders.back().ns + 1 + kSecond);
    now_ = job_->NextDeadline()->ns - 1;
    Step(DeadlineReached{});
    ASSERT_NE(Sent<Adopt>(5), nullptr);
    EXPECT_THAT(Sent<Adopt>(5)->reason, HasSubstr("joins a running job; rank"));
    orders.push_back({now_});
  }
  for (std::size_t i = 2; i + 1 < orders.size(); ++i) EXPECT_GT(orders[i + 1] - orders[i], kSecond);
  // Of each second: a report, a deadline and an order, besides the group's own records.
  EXPECT_EQ(history_.size() - before, 10u * (3 + 6));
  Say(5, Adopted{.ok = true, .iteration = 7});
  EXPECT_EQ(State(5), Job::State::kActive);
  EXPECT_FALSE(job_->NextDeadline().has_value());
  ExpectReplays(job_->spec());
}

// Meanwhile those with a replica go, and the pause ends with the common start that follows.
TEST_F(JobTest, ANewCommonStartEndsThePauseOfACopy) {
  Running(PReduceOptions{.group_size = 2}, 1);
  Join(1);
  Say(1, Adopted{.ok = false, .detail = "gone"});
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  ASSERT_NE(Sent<Group>(1), nullptr);
  EXPECT_EQ(Sent<Group>(1)->kind, GroupKind::kInitial);
  EXPECT_THAT(job_->Explain({now_}, 1), HasSubstr("in group"));
  now_ = job_->NextDeadline().value_or(Instant{now_}).ns;
  Done(1);
  EXPECT_EQ(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(State(1), Job::State::kActive);
  EXPECT_THAT(job_->Explain({now_}, 1), HasSubstr("computing"));
  Say(1, Ready{.iteration = 1});
  Done(1);
  Say(1, Finish{});
  Done(1);
  EXPECT_TRUE(job_->finished());
  ExpectReplays(job_->spec());
}

TEST_F(JobTest, WhoMissedARoundAsksForItOnceASecond) {
  Running(AllReduceOptions{}, 3);
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  Done(0);
  Done(1, Outcome::kFailed);
  Done(2, Outcome::kFailed);
  for (const Rank r : {1, 2}) {
    Say(r, Adopted{.ok = false, .detail = "gone"});
    EXPECT_EQ(Sent<Adopt>(r), nullptr) << "there is no other source";
  }
  Say(1, Ready{.iteration = 1});
  Say(2, Finish{});
  for (const Rank r : {1, 2}) EXPECT_EQ(State(r), Job::State::kActive) << "held back";
  ASSERT_TRUE(job_->NextDeadline().has_value());
  Job loaded(1, job_->spec());
  ASSERT_TRUE(loaded.Load(SaveState(*job_)).ok());
  EXPECT_EQ(loaded.NextDeadline(), job_->NextDeadline());
  while (Sent<Adopt>(2) == nullptr) {  // each has a pause of its own
    ASSERT_TRUE(job_->NextDeadline().has_value());
    now_ = job_->NextDeadline()->ns - 1;
    Step(DeadlineReached{});
  }
  EXPECT_EQ(Sent<Adopt>(2)->source.rank, 0);
  Say(2, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(2), Job::State::kFinishing);
  Say(1, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(1), Job::State::kActive);
  EXPECT_FALSE(job_->NextDeadline().has_value());
  ExpectReplays(job_->spec());
}

TEST_F(JobTest, WhereNobodyIsLeftToCopyFromAWorkerGoesOnWithItsOwnModel) {
  for (const bool finishes : {false, true}) {
    Running(AllReduceOptions{}, 2);
    for (Rank r = 0; r < 2; ++r) Say(r, Ready{.iteration = 1});
    Done(0);
    Done(1, Outcome::kFailed);
    Say(1, Adopted{.ok = false, .detail = "gone"});
    if (finishes) {
      Say(1, Finish{});
    } else {
      Say(1, Ready{.iteration = 1});
    }
    Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
    EXPECT_EQ(Sent<Group>(1), nullptr);
    ASSERT_TRUE(job_->NextDeadline().has_value());
    now_ = job_->NextDeadline()->ns - 1;
    Step(DeadlineReached{});
    ASSERT_NE(Sent<Group>(1), nullptr) << "alone";
    EXPECT_EQ(Sent<Group>(1)->kind, finishes ? GroupKind::kFinal : GroupKind::kTrain);
    ExpectReplays(job_->spec());
  }
}

TEST_F(JobTest, WhoIsRefusedIsNamedToThoseWhoWaitUntilItHasJoined) {
  Make(PReduceOptions{}, 3);
  Join(0);
  Step(HelloRefused{.rank = 2, .host_name = "node", .pid = 7, .reason = "the model differs"});
  const std::string text = job_->WaitsFor({now_}, 0);
  EXPECT_THAT(text, HasSubstr("1 of 3 workers are here; missing: ranks 1, 2; refused: rank 2 (pid "
                              "7 on node): the model differs"));
  EXPECT_EQ(job_->Explain({now_}, 0), text);
  EXPECT_EQ(job_->StartWaits({now_}), text);
  Step(HelloRefused{.rank = 2, .host_name = "node", .pid = 7, .reason = "the model differs"});
  EXPECT_EQ(job_->refusals().size(), 1u);
  for (std::uint32_t pid = 20; pid < 40; ++pid) {
    Step(HelloRefused{.rank = kNoRank, .host_name = "other", .pid = pid, .reason = "no place"});
  }
  EXPECT_EQ(job_->refusals().size(), 8u) << "the newest";
  EXPECT_THAT(job_->WaitsFor({now_}, 0), HasSubstr("; refused: a worker (pid 39 on other): no "
                                                   "place; a worker (pid 38 on other): no place; "
                                                   "and 6 more"));
  Step(HelloRefused{.rank = 2, .host_name = "node", .pid = 7, .reason = "the model differs"});
  Job loaded(1, job_->spec());
  ASSERT_TRUE(loaded.Load(SaveState(*job_)).ok());
  EXPECT_EQ(loaded.WaitsFor({now_}, 0), job_->WaitsFor({now_}, 0));
  Join(2);
  EXPECT_THAT(job_->WaitsFor({now_}, 0), testing::Not(HasSubstr("rank 2")));
  EXPECT_EQ(job_->refusals().size(), 7u);
  ExpectReplays(job_->spec());
}

TEST_F(JobTest, WhoHasWaitedForSomeSecondsIsToldForWhom) {
  Running(AllReduceOptions{}, 2);
  Say(0, Ready{.iteration = 1});
  const Instant since{now_};
  EXPECT_EQ(job_->WaitsFor(since + 2 * kSecond, 0), "");
  EXPECT_EQ(job_->WaitsFor(since + 3 * kSecond, 0), job_->Explain(since + 3 * kSecond, 0));
  EXPECT_THAT(job_->WaitsFor(since + 3 * kSecond, 0), HasSubstr("rank 1"));
  EXPECT_EQ(job_->WaitsFor(since + 9 * kSecond, 1), "") << "it computes";
  Say(1, Ready{.iteration = 1});
  Done(0);
  EXPECT_EQ(job_->WaitsFor(since + 9 * kSecond, 0), "") << "it computes";
  EXPECT_THAT(job_->WaitsFor(since + 9 * kSecond, 1), HasSubstr("in group 2"));
  Done(1);
  Say(0, Finish{});
  EXPECT_THAT(job_->WaitsFor(since + 9 * kSecond, 0), HasSubstr("waiting for rank 1 to finish"));
}

TEST_F(JobTest, WorkersOfTwoLaunchesAreNeverInOneRun) {
  Make(PReduceOptions{}, 3);
  const auto of_launch = [this](Rank rank, const std::string& launch) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).launch = launch;
    return hello;
  };
  const auto join = [&](Rank rank, const std::string& launch) {
    const WorkerEnvelope hello = of_launch(rank, launch);
    ASSERT_EQ(job_->Admit(hello).verdict, Verdict::kStep);
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
  };
  join(0, "");
  join(1, "slurm 7");
  const Job::Admission other = job_->Admit(of_launch(2, "slurm 8"));
  ASSERT_EQ(other.verdict, Verdict::kRefuse);
  EXPECT_EQ(other.refusal->code, Code::kUnavailable);
  EXPECT_EQ(other.refusal->retry_ms, 500u);
  EXPECT_THAT(other.refusal->reason,
              HasSubstr("launch slurm 7 of job toy still runs (rank 0, pid 42 on host); this is "
                        "launch slurm 8"));
  WorkerEnvelope remains = of_launch(2, "slurm 6");
  std::get<Hello>(remains.body).former = {5, 5};
  const Job::Admission gone = job_->Admit(remains);
  ASSERT_EQ(gone.verdict, Verdict::kRefuse);
  EXPECT_EQ(gone.refusal->code, Code::kFailedPrecondition);
  EXPECT_THAT(gone.refusal->reason, HasSubstr("a new launch of job toy has begun: slurm 7"));
  Job loaded(1, job_->spec());
  ASSERT_TRUE(loaded.Load(SaveState(*job_)).ok());
  EXPECT_EQ(loaded.Admit(of_launch(2, "slurm 8")).verdict, Verdict::kRefuse);
  EXPECT_EQ(job_->Admit(of_launch(2, "slurm 7")).verdict, Verdict::kStep);
  EXPECT_EQ(job_->Admit(of_launch(2, "")).verdict, Verdict::kStep) << "it says nothing of launches";
}

TEST_F(JobTest, ARunIsFinishedIfItsLastWorkerWentByItself) {
  Running(PReduceOptions{.group_size = 2}, 2);
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  Say(1, Leave{.reason = "has other plans"});
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_TRUE(Recorded<RunEnded>()->finished);
  EXPECT_THAT(Recorded<RunEnded>()->reason, HasSubstr("rank 1: has other plans"));
  EXPECT_TRUE(job_->finished());

  Running(PReduceOptions{.group_size = 2}, 2);
  Say(0, Leave{});
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_FALSE(Recorded<RunEnded>()->finished);
  EXPECT_THAT(Recorded<RunEnded>()->reason, HasSubstr("rank 1: its lease of 2000 ms ran out"));
  EXPECT_FALSE(job_->finished());

  Running(PReduceOptions{.group_size = 2}, 2);
  Step(HistoryLost{.rank = 0, .incarnation = incarnation_[0]});
  ASSERT_NE(Recorded<RunEnded>(), nullptr);
  EXPECT_FALSE(Recorded<RunEnded>()->finished);
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
