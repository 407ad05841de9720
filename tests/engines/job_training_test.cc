// What a job's workers have trained, as they tell it: the tally of each rank, and of the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engines/job_limits.h"
#include "engines/registry.h"
#include "tests/engines/job_testing.h"

namespace prd {
namespace {

using testing::HasSubstr;

class JobTrainingTest : public JobTest {
 protected:
  void JoinWith(Rank rank, Trained own, Trained job_trained = {}) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).own = own;
    std::get<Hello>(hello.body).job_trained = job_trained;
    ASSERT_EQ(job_->Admit(hello).verdict, Verdict::kStep);
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
  }
  void Tell(Rank rank, std::int64_t steps, std::int64_t samples = 0) {
    Say(rank, Progressed{.own = {.steps = steps, .samples = samples}});
  }
  void Lose(Rank rank) { Step(LeaseExpired{.rank = rank, .incarnation = incarnation_[rank]}); }
  Trained Of(Rank rank) { return job_->tallies()[static_cast<std::size_t>(rank)].last; }
  Trained OfJob() { return job_->progress().trained; }
  std::string WhyEvicted() {
    const auto* left = Recorded<WorkerLeft>();
    return left != nullptr && left->why == LeftReason::kEvicted ? left->reason : "not evicted";
  }
};

TEST_F(JobTrainingTest, AJobHasTrainedWhatItsWorkersHave) {
  Running(PReduceOptions{}, 3);
  EXPECT_EQ(job_->progress(), (JobProgress{.trained = {}, .workers = 3}));
  Say(0, Ready{.iteration = 1, .samples = 64, .own = {1, 64}});
  Tell(1, 5, 80);
  Tell(1, 7, 112);
  EXPECT_EQ(Of(0), (Trained{1, 64}));
  EXPECT_EQ(Of(1), (Trained{7, 112}));
  EXPECT_EQ(Of(2), Trained());
  EXPECT_EQ(job_->progress(), (JobProgress{.trained = {8, 176}, .workers = 3}));
  Say(2, Leave{.reason = "has enough"});
  EXPECT_EQ(job_->progress(), (JobProgress{.trained = {8, 176}, .workers = 2}));
  ExpectReplays(job_->spec());
}

// The rank's tally outlives its holder: what a worker did while the controller did not hear it is
// counted when it is back, and a new process goes on from what the old one had told.
TEST_F(JobTrainingTest, WhoComesBackGoesOnFromItsTally) {
  Running(PReduceOptions{}, 2);
  Tell(1, 50, 500);
  Lose(1);
  EXPECT_EQ(OfJob(), (Trained{50, 500}));
  JoinWith(1, {53, 530});
  EXPECT_EQ(Sent<Welcome>(1)->own, (Trained{53, 530}));
  EXPECT_EQ(OfJob(), (Trained{53, 530})) << "three steps that it had not told";
  Lose(1);
  JoinWith(1, {});  // a new process
  EXPECT_EQ(Sent<Welcome>(1)->own, (Trained{53, 530}));
  EXPECT_EQ(OfJob(), (Trained{53, 530}));
  Say(1, Adopted{.ok = true, .iteration = 0});
  Tell(1, 54, 540);
  EXPECT_EQ(OfJob(), (Trained{54, 540}));
  ExpectReplays(job_->spec());
}

// From a checkpoint: its own steps go on, and those of the job, which others have made too, come
// before this run.
TEST_F(JobTrainingTest, AResumedJobGoesOnFromWhatItsFirstWorkersBring) {
  Make(PReduceOptions{}, 2);
  JoinWith(0, {40, 400}, {100, 1000});
  EXPECT_EQ(Sent<Welcome>(0)->own, (Trained{40, 400}));
  JoinWith(1, {60, 600}, {110, 900});
  Done(0);
  Done(1);
  EXPECT_EQ(OfJob(), (Trained{110, 1000}));
  Tell(0, 41, 410);
  Tell(1, 62, 620);
  EXPECT_EQ(OfJob(), (Trained{113, 1030}));
  JoinWith(5, {7, 70}, {9000, 90000});
  EXPECT_EQ(OfJob(), (Trained{113, 1030})) << "the start has been made";
  Tell(5, 8, 80);
  EXPECT_EQ(OfJob(), (Trained{114, 1040}));
  ExpectReplays(job_->spec());
}

// Only those who make the start are asked, and if it fails, those who make the next one.
// Workers have been told of it: progress never falls.
TEST_F(JobTrainingTest, WhatCameBeforeStaysWhenWhoSaidSoIsGone) {
  Make(PReduceOptions{}, 2);
  JoinWith(0, {}, {100, 0});
  JoinWith(1, {}, {200, 0});
  EXPECT_EQ(OfJob(), (Trained{200, 0}));
  Done(0, Outcome::kFailed);
  Lose(1);
  JoinWith(1, {}, {150, 0});
  EXPECT_EQ(OfJob(), (Trained{200, 0}));
  Done(0, Outcome::kFailed);
  Lose(1);
  JoinWith(1, {}, {250, 0});
  EXPECT_EQ(OfJob(), (Trained{250, 0}));
}

// A start fails for ranks 1 and 2 while rank 0 trains already. Rank 1 comes again, and has heard of
// that.
TEST_F(JobTrainingTest, WhatTheRunHasTrainedDoesNotComeBeforeIt) {
  Make(PReduceOptions{}, 3);
  for (Rank rank = 0; rank < 3; ++rank) JoinWith(rank, {}, {100, 1000});
  Done(2, Outcome::kFailed);
  Done(0);
  Tell(0, 1, 64);
  EXPECT_EQ(OfJob(), (Trained{101, 1064}));
  Say(0, Leave{.reason = "has enough"});
  Done(1, Outcome::kAborted);
  Lose(1);
  JoinWith(1, {}, {101, 1064});
  JoinWith(0, {}, {101, 1064});
  ASSERT_NE(Sent<Group>(0), nullptr) << "the next common start";
  EXPECT_EQ(OfJob(), (Trained{101, 1064}));
  ExpectReplays(job_->spec());
}

TEST_F(JobTrainingTest, AReportThatCannotBeEvictsItsWorker) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::vector<Trained> wrong = {{9, 100},
                                      {11, 99},
                                      {-1, 100},
                                      {10, -1},
                                      {most, most},
                                      {10 + kMaxJump + 1, 100},
                                      {10, 100 + kMaxSamples + 1}};
  for (const Trained& own : wrong) {
    Running(PReduceOptions{}, 2);
    Tell(1, 10, 100);
    Tell(1, own.steps, own.samples);
    EXPECT_THAT(WhyEvicted(), HasSubstr("a report that it has trained " +
                                        std::to_string(own.steps) + " steps and " +
                                        std::to_string(own.samples) + " samples so far, after 10"));
    EXPECT_EQ(OfJob(), (Trained{10, 100}));
    Say(0, Ready{.iteration = 1, .own = own});
    EXPECT_EQ(State(0),
              own.steps > 0 && own.steps < 1000 && own.samples >= 0 && own.samples <= kMaxSamples
                  ? Job::State::kActive
                  : Job::State::kAbsent);
  }
}

TEST_F(JobTrainingTest, NoTallyOverflows) {
  const Trained most{kMaxTrained, kMaxTrained};
  Make(PReduceOptions{}, 2);
  WorkerEnvelope hello = HelloOf(0);
  for (Trained* told : {&std::get<Hello>(hello.body).own, &std::get<Hello>(hello.body).job_trained,
                        &std::get<Hello>(hello.body).goal}) {
    *told = {kMaxTrained + 1, 0};
    EXPECT_THAT(WhyRefused(hello), HasSubstr("found 9007199254740993 steps"));
    *told = {0, -1};
    EXPECT_THAT(WhyRefused(hello), HasSubstr("-1 samples, allowed are 0 to 9007199254740992"));
    *told = {};
  }
  JoinWith(0, {}, most);
  JoinWith(1, {}, most);
  Done(0);
  Done(1);
  for (const Rank rank : {0, 1}) {
    Tell(rank, 1000, 1000);
    Lose(rank);
    JoinWith(rank, most, most);
    EXPECT_EQ(Sent<Welcome>(rank)->own, most);
    EXPECT_EQ(OfJob(), most);
    Say(rank, Adopted{.ok = rank == 0, .iteration = 0});
  }
  ExpectReplays(job_->spec());
}

// ---- the goal ----

TEST_F(JobTrainingTest, TheGoalIsReachedOnceAndSaidFromThenOn) {
  JobSpec spec;
  spec.goal = {.steps = 6};
  Running(AllReduceOptions{}, 3, spec);
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1, .own = {1, 0}});
  EXPECT_FALSE(Sent<Group>(0)->last);
  for (Rank r = 0; r < 3; ++r) Done(r);
  for (Rank r = 0; r < 2; ++r) Say(r, Ready{.iteration = 2, .own = {2, 0}});
  EXPECT_EQ(Recorded<GoalReached>(), nullptr);
  EXPECT_FALSE(job_->progress().done);
  Say(2, Ready{.iteration = 2, .own = {2, 0}});
  ASSERT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_EQ(*Recorded<GoalReached>(), GoalReached{{.steps = 6}});
  for (Rank r = 0; r < 3; ++r) {
    ASSERT_NE(Sent<Group>(r), nullptr) << "the step that reaches the goal ends with a group";
    EXPECT_TRUE(Sent<Group>(r)->last);
  }
  for (Rank r = 0; r < 3; ++r) {
    EXPECT_FALSE(job_->progress().done);
    Done(r);
  }
  EXPECT_TRUE(job_->progress().done);
  for (Rank r = 0; r < 3; ++r) {  // a step more is allowed
    Say(r, Ready{.iteration = 3, .own = {3, 0}});
    EXPECT_EQ(Recorded<GoalReached>(), nullptr);
  }
  EXPECT_TRUE(Sent<Group>(0)->last);
  for (Rank r = 0; r < 3; ++r) Done(r);
  for (Rank r = 0; r < 3; ++r) Say(r, Finish{});
  EXPECT_FALSE(Sent<Group>(0)->last) << "the final average ends no steps";
  ExpectReplays(job_->spec());
}

// All are to stop with one model: whoever copies is told with the last group's result, and not with
// that of a group which formed before the goal was reached.
TEST_F(JobTrainingTest, WhoIsLateIsToldOnceALastGroupHasEnded) {
  JobSpec spec;
  spec.goal = {.steps = 5};
  Running(BackupOptions{.backups = 1}, 3, spec);
  for (const Rank r : {0, 1}) Say(r, Ready{.iteration = 1, .own = {1, 0}});
  EXPECT_FALSE(Sent<Group>(1)->last);
  Say(2, Ready{.iteration = 1, .own = {3, 0}});
  EXPECT_NE(Recorded<GoalReached>(), nullptr);
  for (const Rank r : {0, 1}) Done(r);
  EXPECT_NE(Sent<Adopt>(2), nullptr);
  EXPECT_FALSE(job_->progress().done) << "ranks 0 and 1 make one step more";
  for (const Rank r : {0, 1}) Say(r, Ready{.iteration = 2, .own = {2, 0}});
  EXPECT_TRUE(Sent<Group>(1)->last);
  for (const Rank r : {0, 1}) Done(r, Outcome::kFailed);
  EXPECT_FALSE(job_->progress().done) << "nobody has the result";
  for (const Rank r : {0, 1}) Say(r, Ready{.iteration = 2, .own = {2, 0}});
  for (const Rank r : {0, 1}) Done(r);
  EXPECT_TRUE(job_->progress().done);
  ExpectReplays(job_->spec());
}

TEST_F(JobTrainingTest, AGoalMayBeInSamples) {
  JobSpec spec;
  spec.goal = {.steps = 100, .samples = 50};
  Running(PReduceOptions{}, 2, spec);
  Tell(0, 1, 49);
  EXPECT_EQ(Recorded<GoalReached>(), nullptr);
  Tell(1, 1, 1);
  ASSERT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_EQ(Recorded<GoalReached>()->trained, (Trained{2, 50}));
}

// Where the config has none: of the first that tells one before the start.
TEST_F(JobTrainingTest, AWorkerMayTellTheGoal) {
  const auto join = [this](Rank rank, Trained goal) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).goal = goal;
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
    return Sent<Welcome>(rank)->goal;
  };
  Make(PReduceOptions{}, 3);
  EXPECT_EQ(join(0, {}), Trained());
  EXPECT_EQ(join(1, {.steps = 7}), Trained{.steps = 7});
  EXPECT_EQ(join(2, {.samples = 5}), Trained{.steps = 7});
  for (Rank r = 0; r < 3; ++r) Done(r);
  Tell(0, 7);
  EXPECT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_EQ(join(3, {.steps = 9}), Trained{.steps = 7});

  JobSpec spec;
  spec.goal = {.samples = 5};
  Make(PReduceOptions{}, 1, spec);
  EXPECT_EQ(join(0, {.steps = 7}), Trained{.samples = 5}) << "the config's counts";

  Make(PReduceOptions{}, 1);
  join(0, {});
  Done(0);
  EXPECT_EQ(join(1, {.steps = 7}), Trained()) << "the job has begun without";
}

// Also one that is behind when the job begins again.
TEST_F(JobTrainingTest, AJobThatHasTrainedEnoughIsDoneWhenItBegins) {
  JobSpec spec;
  spec.goal = {.steps = 100};
  Make(PReduceOptions{}, 1, spec);
  JoinWith(0, {100, 0}, {100, 0});
  EXPECT_FALSE(job_->progress().done) << "it has not begun";
  Done(0);
  EXPECT_NE(Recorded<GoalReached>(), nullptr);
  EXPECT_TRUE(job_->progress().done);
  ExpectReplays(job_->spec());
}

}  // namespace
}  // namespace prd
