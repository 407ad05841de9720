#include "server/job_meters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"

namespace prd::job_meters_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs of jobs of their own names.
class JobMetersTest : public ::testing::Test {
 protected:
  void Tell(RunId run, RecordBody body) {
    meters_.Add({.run = run, .index = 0, .now = now_, .body = std::move(body)});
  }
  void Begin(RunId run, const std::string& job) {
    Tell(run, RunStarted{.job = job, .engine = "hop", .spec = "engine = \"hop\"\n"});
  }
  // A signal of rank 0 after so many steps.
  void Steps(RunId run, std::int64_t own) {
    Tell(run, FromWorker{{.rank = 0, .incarnation = 7, .body = Ready{.own = {.steps = own}}}});
  }
  std::string Text() {
    MetricsPage page;
    meters_.Write(now_, 0, {}, &page);
    return page.Text();
  }

  Instant now_{kSecond};
  JobMeters meters_;
};

TEST_F(JobMetersTest, JobsOverTheCapAreCountedTogether) {
  for (RunId run = 1; run <= JobMeters::kMostJobs + 3; ++run) {
    Begin(run, "job-" + std::to_string(run));
    Steps(run, 2);
  }
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("prd_job_steps_total{job=\"job-100\",engine=\"hop\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("job=\"job-101\"")));
  EXPECT_THAT(text, HasSubstr("prd_job_steps_total{job=\"other\",engine=\"hop\"} 6\n"));
}

TEST_F(JobMetersTest, AJobsSeriesGoSomeTimeAfterItsLastRun) {
  Begin(1, "mnist");
  Begin(2, "mnist");
  Steps(1, 3);
  Steps(2, 4);
  Tell(1, RunEnded{});
  now_.ns += 2 * JobMeters::kForget;
  EXPECT_THAT(Text(), HasSubstr("prd_job_steps_total{job=\"mnist\",engine=\"hop\"} 7\n"));
  Tell(2, RunEnded{});
  now_.ns += JobMeters::kForget;
  EXPECT_THAT(Text(), HasSubstr("job=\"mnist\""));
  now_.ns += 1;
  EXPECT_THAT(Text(), Not(HasSubstr("job=\"mnist\"")));
}

// A worker that takes a rank over goes on from what was told under it; nothing is counted twice.
TEST_F(JobMetersTest, StepsAreCountedOnce) {
  Begin(1, "mnist");
  Tell(1, FromWorker{{.incarnation = 7, .body = Hello{.own = {.steps = 100}}}});
  Steps(1, 103);
  Steps(1, 103);
  Tell(1, FromWorker{{.incarnation = 8, .body = Hello{.own = {.steps = 50}}}});
  Tell(1, FromWorker{{.rank = 0, .incarnation = 8, .body = Progressed{.own = {.steps = 105}}}});
  EXPECT_THAT(Text(), HasSubstr("prd_job_steps_total{job=\"mnist\",engine=\"hop\"} 5\n"));
}

TEST_F(JobMetersTest, WhatAWorkerSaysIsBounded) {
  Begin(1, "mnist");
  now_.ns += kSecond;
  Tell(1, FromWorker{
              {.rank = 0, .incarnation = 7, .body = Finished{.group = 1, .reduce_ns = 1LL << 62}}});
  EXPECT_THAT(Text(), HasSubstr("prd_job_reducing_seconds_sum{job=\"mnist\",engine=\"hop\"} 1\n"));
}

TEST_F(JobMetersTest, LabelsAreEscaped) {
  Begin(1, "a\"} 1\nprd_fake{x=\"\\");
  EXPECT_THAT(Text(), HasSubstr("{job=\"a\\\"} 1\\nprd_fake{x=\\\"\\\\\",engine"));
}

// Two of three workers come, and one of them again as another process: no more of them are there.
TEST_F(JobMetersTest, AStartThatWaitsTellsWhenMoreWorkersCame) {
  const Result<Config> config =
      ParseConfig("[[job]]\nname = \"late\"\nengine = \"hop\"\nworkers = 3\n", "");
  ASSERT_TRUE(config.ok());
  JobMeters::Jobs jobs;
  auto& run = jobs[1] = std::make_unique<prd::Run>(1, *FindJob(*config, "late"));
  RunOutput out;
  run->Start(now_, 0, {5, 6}, {}, &out);
  for (const Record& record : out.records) meters_.Add(record);
  const auto comes = [&](Rank rank, Incarnation incarnation) {
    const Hello hello{.job = "late", .rank = rank, .host = "h", .endpoints = {"tcp://x:1"}};
    run->Step(now_, FromWorker{{.incarnation = incarnation, .seq = 1, .body = hello}}, &out);
  };
  const auto text = [&] {
    MetricsPage page;
    meters_.Write(now_, now_.ns, jobs, &page);
    return page.Text();
  };
  const std::string name =
      "prd_job_start_last_arrival_timestamp_seconds{job=\"late\",engine=\"hop\"} ";
  EXPECT_THAT(text(), Not(HasSubstr(name)));
  now_ = {10 * kSecond};
  comes(0, 7);
  EXPECT_THAT(text(), HasSubstr(name + "10\n"));
  now_ = {20 * kSecond};
  EXPECT_THAT(text(), HasSubstr(name + "10\n"));
  comes(1, 8);
  EXPECT_THAT(text(), HasSubstr(name + "20\n"));
  now_ = {30 * kSecond};
  run->Step(now_, LeaseExpired{.rank = 1, .incarnation = 8}, &out);
  EXPECT_THAT(text(), HasSubstr(name + "20\n"));
  comes(1, 9);
  EXPECT_THAT(text(), HasSubstr(name + "20\n"));
  now_ = {40 * kSecond};
  comes(2, 10);
  EXPECT_THAT(text(), Not(HasSubstr(name)));
}

TEST_F(JobMetersTest, SharesOfABatchAreThere) {
  const Result<Config> config = ParseConfig(
      "[[job]]\nname = \"even\"\nengine = \"all-reduce\"\nworkers = 2\nbatch = 9\n", "");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  JobMeters::Jobs jobs;
  auto& run = jobs[1] = std::make_unique<prd::Run>(1, *FindJob(*config, "even"));
  RunOutput out;
  run->Start(now_, 0, {5, 6}, {}, &out);
  for (const Rank rank : {0, 1}) {
    const Hello hello{
        .job = "even", .rank = rank, .host = "h", .endpoints = {"tcp://x:1"}, .takes_shares = true};
    const auto incarnation = static_cast<Incarnation>(7 + rank);
    run->Step(now_, FromWorker{{.incarnation = incarnation, .seq = 1, .body = hello}}, &out);
  }
  for (const std::uint64_t bytes : {9u, 5u}) {  // of two workers, the most counts
    const Progressed told{.memory = {.host = bytes, .host_peak = 10, .device = 2 * bytes}};
    const Rank rank = bytes == 9 ? 0 : 1;
    const auto incarnation = static_cast<Incarnation>(7 + rank);
    const WorkerEnvelope envelope{.rank = rank, .incarnation = incarnation, .seq = 2, .body = told};
    run->Step(now_, FromWorker{envelope}, &out);
  }
  for (const Record& record : out.records) meters_.Add(record);
  MetricsPage page;
  meters_.Write(now_, now_.ns, jobs, &page);
  const std::string text = page.Text();
  const std::string of = "{job=\"even\",engine=\"all-reduce\"";
  EXPECT_THAT(text, HasSubstr("prd_job_worker_memory_bytes" + of + ",place=\"host\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("prd_job_worker_memory_bytes" + of + ",place=\"device\"} 18\n"));
  EXPECT_THAT(text, HasSubstr("prd_batch_samples" + of + "} 9\n"));
  EXPECT_THAT(text, HasSubstr("prd_share_changes_total" + of + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("prd_share_samples" + of + ",rank=\"0\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("prd_share_samples" + of + ",rank=\"1\"} 4\n"));
}

TEST(StepTimes, TheMedianOfManyIsNearlyTheMedian) {
  meters::StepTimes times;
  std::vector<DurationNs> all;
  std::uint64_t drawn = 1;
  DurationNs total = 0, longest = 0;
  for (std::size_t i = 0; i < 20 * meters::StepTimes::kExact; ++i) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    const DurationNs length = 40 * kMillisecond + static_cast<DurationNs>(drawn >> 38);  // to 67 ms
    times.Add(length);
    all.push_back(length);
    total += length;
    longest = std::max(longest, length);
    const auto median = static_cast<double>(meters::Median(all));
    const bool exact = all.size() <= meters::StepTimes::kExact;
    if (exact || i % 1000 == 0) {
      ASSERT_NEAR(static_cast<double>(times.median()), median, exact ? 0 : 0.003 * median) << i;
    }
  }
  EXPECT_EQ(times.count(), all.size());
  EXPECT_EQ(times.total(), total);
  EXPECT_EQ(times.longest(), longest);
}

TEST(StepTimes, OfNothingAndOfNoTime) {
  meters::StepTimes times;
  EXPECT_EQ(times.median(), 0);
  for (std::size_t i = 0; i <= meters::StepTimes::kExact; ++i) times.Add(0);
  EXPECT_LE(times.median(), 1);
}

TEST(Distribution, CountsByBound) {
  const std::vector<double> bounds = {1, 2};
  Distribution sizes(bounds);
  for (const double size : {1.0, 2.0, 2.0, 5.0}) sizes.Observe(size);
  EXPECT_EQ(sizes.counts(), (std::vector<std::uint64_t>{1, 2, 1}));
  MetricsPage page;
  page.Add("job_group_members", {}, sizes);
  EXPECT_THAT(page.Text(), HasSubstr("prd_job_group_members_bucket{le=\"2\"} 3\n"));
  EXPECT_THAT(page.Text(), HasSubstr("prd_job_group_members_count 4\n"));
  EXPECT_THAT(page.Text(), HasSubstr("prd_job_group_members_sum 10\n"));
}

}  // namespace
}  // namespace prd::job_meters_test
