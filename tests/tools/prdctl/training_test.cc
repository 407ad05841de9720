// How far a job is, whose replicas differ, and whose steps were not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "tests/tools/prdctl/printed.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;

// What a job records of these messages.
class TrainingTest : public ::testing::Test {
 protected:
  void Start(EngineOptions engine, Trained goal) {
    JobSpec spec;
    spec.name = "mnist";
    spec.engine = std::move(engine);
    spec.workers = 3;
    spec.goal = goal;
    spec.text = JobSpecToToml(spec);
    run_ = std::make_unique<prd::Run>(1, spec);
    RunOutput out;
    run_->Start(now_, 0, {}, {}, &out);
    records_ = out.records;
    for (Rank r = 0; r < 3; ++r) {
      Say(r, Hello{.job = "mnist", .rank = r, .host = "h", .endpoints = {"tcp://x:1"}});
    }
    for (Rank r = 0; r < 3; ++r) Say(r, Finished{.group = 1});
  }
  void Say(Rank rank, WorkerBody body) {
    now_.ns += kMs;
    RunOutput out;
    run_->Step(now_,
               FromWorker{{.run = 1,
                           .rank = rank,
                           .incarnation = 10u + static_cast<Incarnation>(rank),
                           .seq = ++seq_[rank],
                           .body = std::move(body)}},
               &out);
    records_.insert(records_.end(), out.records.begin(), out.records.end());
  }
  Json Jobs() {
    MemorySource source = SourceOf(records_);
    return Printed([&](const Console& c) { return ShowJobs(source, false, false, c); })["runs"];
  }
  std::string JobsText() {
    MemorySource source = SourceOf(records_);
    return Text([&](const Console& c) { return ShowJobs(source, false, false, c); });
  }
  Json Workers() {
    MemorySource source = SourceOf(records_);
    return Printed([&](const Console& c) { return ShowWorkers(source, "", c); })["workers"];
  }
  std::string WorkersText() {
    MemorySource source = SourceOf(records_);
    return Text([&](const Console& c) { return ShowWorkers(source, "", c); });
  }

  std::unique_ptr<prd::Run> run_;
  Instant now_{kSecond};
  std::map<Rank, Seq> seq_;
  std::vector<Record> records_;
};

TEST_F(TrainingTest, JobsAndWorkersTellStepsAndSamples) {
  Start(PReduceOptions{}, {.steps = 7});
  EXPECT_EQ(Jobs()[0]["steps"], 0);
  EXPECT_THAT(WorkersText(), Not(HasSubstr("STEPS"))) << "nobody has told any";
  Say(0, Progressed{.own = {.steps = 4, .samples = 256}});
  Say(1, Progressed{.own = {.steps = 2, .samples = 128}});
  Json jobs = Jobs();
  EXPECT_EQ(jobs[0]["steps"], 6);
  EXPECT_EQ(jobs[0]["samples"], 384);
  EXPECT_EQ(jobs[0]["done"], false);
  EXPECT_EQ(jobs[0]["differ"], Json::array());
  Say(2, Progressed{.own = {.steps = 1}});
  EXPECT_EQ(Jobs()[0]["done"], true);
  EXPECT_THAT(JobsText(), HasSubstr(", goal reached"));
  const Json workers = Workers();
  EXPECT_EQ(workers[0]["steps"], 4);
  EXPECT_EQ(workers[0]["samples"], 256);
  EXPECT_EQ(workers[2]["steps"], 1);
  EXPECT_EQ(workers[2]["samples"], 0);
  EXPECT_THAT(WorkersText(), HasSubstr("STEPS"));
  EXPECT_THAT(WorkersText(), HasSubstr("SAMPLES"));
  for (Rank r = 0; r < 3; ++r) Say(r, Leave{.reason = "has enough"});
  EXPECT_EQ(Workers()[0]["steps"], 4) << "of those who have gone too";
  jobs = Jobs();
  EXPECT_EQ(jobs[0]["steps"], 7);
  EXPECT_EQ(jobs[0]["samples"], 384);
  EXPECT_THAT(JobsText(), HasSubstr("  7  "));
  EXPECT_EQ(jobs[0]["ended"], true);
  EXPECT_THAT(std::get<RunEnded>(records_.back().body).reason,
              HasSubstr("; the job has trained 7 steps, 384 samples"));
}

TEST_F(TrainingTest, WhoPausesOrDiffersOrIsNotFiniteIsSeen) {
  Start(AllReduceOptions{}, {});
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1, .own = {1, 0}});
  for (Rank r = 0; r < 3; ++r) Say(r, Finished{.group = 2, .digest = r == 1 ? 9u : 7u});
  Say(2, Progressed{.own = {1, 0}, .nonfinite = 3});
  Say(0, Pause{});
  EXPECT_EQ(Jobs()[0]["differ"], Json::array({1}));
  EXPECT_THAT(JobsText(), HasSubstr(", rank 1 differs"));
  const Json workers = Workers();
  EXPECT_EQ(workers[0]["state"], "paused");
  EXPECT_EQ(workers[1]["detail"], "differs from the others since group 2");
  EXPECT_THAT(workers[1]["why"].get<std::string>(),
              HasSubstr("rank 1's parameters differ from those of most members since group 2"));
  EXPECT_EQ(workers[2]["nonfinite"], 3);
  EXPECT_EQ(workers[1]["nonfinite"], 0);
  EXPECT_THAT(WorkersText(), HasSubstr("NOT FINITE"));
}

}  // namespace
}  // namespace prd::ctl
