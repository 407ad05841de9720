// What a job's workers have trained, as they tell it: the tally of each rank, and of the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engines/job_limits.h"
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
TEST_F(JobTrainingTest, WhatCameBeforeIsOfThoseWhoMakeTheStart) {
  Make(PReduceOptions{}, 2);
  JoinWith(0, {}, {100, 0});
  JoinWith(1, {}, {200, 0});
  EXPECT_EQ(OfJob(), (Trained{200, 0}));
  Done(0, Outcome::kFailed);
  Lose(1);
  JoinWith(1, {}, {150, 0});
  EXPECT_EQ(OfJob(), (Trained{150, 0}));
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

}  // namespace
}  // namespace prd
