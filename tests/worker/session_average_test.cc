// Whole sessions whose models are averaged in groups that are drawn ahead, or run while the
// training loop computes. Every model starts at 0 and adds its gradients, and every average leaves
// the mean of all models as it is, so that the model at the end tells whether each gradient was
// counted exactly once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/session_worker.h"

namespace prd::session_average_test {
namespace {

using testing::FakeDaemon;
using testing::InParallel;
using testing::kSize;
using testing::SpecFor;
using testing::Worker;

constexpr int kWorkers = 4;

struct Way {
  const char* name;
  EngineOptions engine;
  // False where a worker that finishes may call off a group that others have completed (a schedule
  // is replaced as soon as one of its members is through).
  bool keeps_mean = true;
};

PReduceOptions OverlappedPReduce() {
  PReduceOptions options;
  options.group_size = 2;
  options.weights = PReduceOptions::Weights::kConstant;
  options.overlap = true;
  return options;
}

PragueOptions Prague(PragueOptions::Generator generator, bool overlap) {
  PragueOptions options;
  options.generator = generator;
  options.group_size = 2;
  options.overlap = overlap;
  return options;
}

AdPsgdOptions AdPsgd(bool overlap, std::int64_t section_length = 1) {
  AdPsgdOptions options;
  options.overlap = overlap;
  options.section_length = section_length;
  return options;
}

bool IsStatic(const EngineOptions& engine) {
  const auto* prague = engine.As<PragueOptions>();
  return prague != nullptr && prague->generator == PragueOptions::Generator::kStatic;
}

std::vector<Way> AllWays() {
  using Generator = PragueOptions::Generator;
  std::vector<Way> ways = {{"p-reduce, overlap", OverlappedPReduce()},
                           {"ad-psgd", AdPsgd(false)},
                           {"ad-psgd, overlap", AdPsgd(true)},
                           {"ad-psgd, every third step", AdPsgd(false, 3)},
                           {"prague random", Prague(Generator::kRandom, false)},
                           {"prague random, overlap", Prague(Generator::kRandom, true)},
                           {"prague smart", Prague(Generator::kSmart, false)},
                           {"prague smart, overlap", Prague(Generator::kSmart, true)},
                           {"prague static", Prague(Generator::kStatic, false)},
                           {"prague static, overlap", Prague(Generator::kStatic, true), false}};
  PragueOptions sections = Prague(Generator::kStatic, false);
  sections.section_length = 2;
  ways.push_back({"prague static, every second step", sections});
  return ways;
}

// All end with the same step of the job, so that every replica has a part in the final average; by
// a schedule, each with its own `steps`.
JobSpec SpecToEnd(const Way& way, std::int64_t steps) {
  JobSpec spec = SpecFor(way.engine, kWorkers);
  if (!IsStatic(way.engine)) spec.goal.steps = steps * kWorkers;
  return spec;
}

// A training loop that sees to it that its model changes only inside the session's calls.
class Loop {
 public:
  Loop(Worker* worker, int rank) : worker_(worker), rank_(rank) {
    worker_->values.assign(kSize, 0.f);
    const Status status = worker_->session->Attach(worker_->replica());
    EXPECT_TRUE(status.ok()) << status.ToString();
    seen_ = worker_->values;
  }

  Result<StepResult> Step() {
    worker_->gradients.assign(kSize, static_cast<float>(rank_ + 1));
    const std::int64_t before = worker_->session->iteration();
    ExpectUntouched();
    Result<StepResult> result = worker_->session->Step({.samples = 1});
    if (!result.ok()) {
      ADD_FAILURE() << result.status().ToString();
      return result;
    }
    EXPECT_FALSE(result->adopted);
    EXPECT_GE(result->iteration, before + 1);
    EXPECT_EQ(result->iteration, worker_->session->iteration());
    EXPECT_EQ(result->included, result->rounds > 0);
    if (result->rounds > 0) {
      EXPECT_FALSE(result->members.empty());
      EXPECT_EQ(result->weights.size(), result->members.size());
    }
    rounds_ += result->rounds;
    ++steps_;
    done_ = result->done;
    seen_ = worker_->values;
    return result;
  }

  // Only the caller's own calls may have written it.
  void ExpectUntouched() const {
    EXPECT_EQ(std::memcmp(seen_.data(), worker_->values.data(), kSize * sizeof(float)), 0);
  }

  // Whether the job's goal is reached; by a schedule, whether so many steps are made.
  bool Ended(const Way& way, std::int64_t steps) const {
    return IsStatic(way.engine) ? steps_ == steps : done_;
  }

  void Finish() {
    ExpectUntouched();
    const Status status = worker_->session->Finish();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  std::int64_t rounds() const { return rounds_; }
  const std::vector<float>& values() const { return worker_->values; }

 private:
  Worker* worker_;
  int rank_;
  std::vector<float> seen_;
  std::int64_t rounds_ = 0;
  std::int64_t steps_ = 0;
  bool done_ = false;
};

// The models that the workers end with.
class Ends {
 public:
  explicit Ends(int workers) : ends_(static_cast<std::size_t>(workers)) {}
  void Put(int rank, const std::vector<float>& values) {
    ends_[static_cast<std::size_t>(rank)] = values;
  }
  void Expect(double mean, bool exactly = true) const {
    for (const std::vector<float>& values : ends_) {
      ASSERT_EQ(values.size(), kSize);
      EXPECT_EQ(std::memcmp(values.data(), ends_[0].data(), kSize * sizeof(float)), 0);
      if (!exactly) continue;
      EXPECT_NEAR(values.front(), mean, 1e-4 * mean);
      EXPECT_NEAR(values.back(), mean, 1e-4 * mean);
    }
  }

 private:
  std::vector<std::vector<float>> ends_;
};

// Blocks until it holds; fails the test after 20 s.
void WaitUntil(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool IsGroup(const Record& record, GroupKind kind) {
  const auto* formed = std::get_if<GroupFormed>(&record.body);
  return formed != nullptr && formed->kind == kind;
}

// Whether this rank has reported a group of its that succeeded, other than the common start.
bool Averaged(const Record& record, Rank rank) {
  const auto* from = std::get_if<FromWorker>(&record.body);
  if (from == nullptr || from->envelope.rank != rank) return false;
  const auto* finished = std::get_if<Finished>(&from->envelope.body);
  return finished != nullptr && finished->outcome == Outcome::kOk && finished->group > 1;
}

TEST(SessionAverageTest, EveryGradientCountsOnceAndOnlyCallsChangeTheModel) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    const int steps =
        IsStatic(way.engine) ? 40 : 16;  // a worker may be 16 steps ahead of its groups
    FakeDaemon daemon(SpecToEnd(way, steps));
    Ends ends(kWorkers);
    std::atomic<std::int64_t> rounds{0};
    std::atomic<std::int64_t> added{0};
    std::atomic<int> training{kWorkers};
    InParallel(daemon, kWorkers, [&](Worker* worker, int rank) {
      SCOPED_TRACE(way.name);
      Loop loop(worker, rank);
      while (!loop.Ended(way, steps) && loop.Step().ok()) added += rank + 1;
      --training;
      // A worker that finishes early changes the schedule; elsewhere a step may wait for one that
      // finishes.
      WaitUntil([&] { return training == 0 || !IsStatic(way.engine); });
      loop.Finish();
      rounds += loop.rounds();
      ends.Put(rank, loop.values());
    });
    ends.Expect(static_cast<double>(added) / kWorkers, way.keeps_mean);
    // A schedule's groups follow each other at once, and are added all the same.
    EXPECT_GT(rounds, IsStatic(way.engine) ? steps : 0);
  }
}

TEST(SessionAverageTest, ADaemonThatRestartsCostsNothing) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    FakeDaemon daemon(SpecToEnd(way, 12));
    Ends ends(kWorkers);
    std::atomic<int> steps{0};
    std::atomic<std::int64_t> added{0};
    std::atomic<int> training{kWorkers};
    std::thread killer([&] {
      WaitUntil([&] { return steps >= 12 || training == 0; });
      daemon.Restart();
    });
    InParallel(daemon, kWorkers, [&](Worker* worker, int rank) {
      SCOPED_TRACE(way.name);
      Loop loop(worker, rank);
      while (!loop.Ended(way, 12) && loop.Step().ok()) {
        added += rank + 1;
        ++steps;
      }
      --training;
      // A worker that finishes early changes the schedule; elsewhere a step may wait for one that
      // finishes.
      WaitUntil([&] { return training == 0 || !IsStatic(way.engine); });
      loop.Finish();
      ends.Put(rank, loop.values());
    });
    killer.join();
    ends.Expect(static_cast<double>(added) / kWorkers, way.keeps_mean);
  }
}

// A partner need not be in a call: its replica is averaged as it is, and gets its part later.
TEST(SessionAverageTest, AveragesWithOneThatComputes) {
  FakeDaemon daemon(SpecFor(AdPsgd(false), 2));
  Ends ends(2);
  std::atomic<bool> first{false};
  std::atomic<bool> second{false};
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Loop loop(worker, rank);
    if (rank == 0) {
      const Result<StepResult> result = loop.Step();
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->rounds, 1);
      EXPECT_EQ(result->iteration, 1);
      EXPECT_EQ(result->members.size(), 2u);
      EXPECT_EQ(result->weights, (std::vector<double>{0.5, 0.5}));
      EXPECT_FLOAT_EQ(loop.values()[3], 0.5f);
      first = true;
      WaitUntil([&] { return second.load(); });
      loop.ExpectUntouched();
    } else {
      EXPECT_TRUE(daemon.WaitFor([](const Record& record) { return Averaged(record, 1); }));
      loop.ExpectUntouched();
      EXPECT_EQ(worker->session->iteration(), 0);
      WaitUntil([&] { return first.load(); });  // else its step may tell of two averages
      // 2 of its own and half of the other's 1, averaged with the other half.
      const Result<StepResult> result = loop.Step();
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->rounds, 2);
      EXPECT_EQ(result->iteration, 1);
      EXPECT_FLOAT_EQ(loop.values()[3], (0.5f + 2.5f) / 2);
      second = true;
    }
    loop.Finish();
    ends.Put(rank, loop.values());
  });
  ends.Expect(1.5);
}

// p-reduce with overlap: the loop goes on while its signal stands, and waits when it has gone on
// for too long; the average comes with a later step, and with it the group's iteration.
TEST(SessionAverageTest, TrainsOnWhileItsGroupForms) {
  PReduceOptions options = OverlappedPReduce();
  options.overlap_steps = 3;
  FakeDaemon daemon(SpecFor(options, 2));
  std::atomic<bool> ahead{false};
  Ends ends(2);
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Loop loop(worker, rank);
    if (rank == 0) {
      for (int step = 1; step <= 3; ++step) {  // the third one beyond the signal's own waits
        const Result<StepResult> result = loop.Step();
        ASSERT_TRUE(result.ok());
        EXPECT_EQ(result->rounds, 0);
        EXPECT_TRUE(result->members.empty());
        EXPECT_EQ(result->iteration, step);
      }
      ahead = true;
      const Result<StepResult> result = loop.Step();
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->rounds, 1);
      EXPECT_EQ(result->members, (std::vector<int>{0, 1}));
    } else {
      WaitUntil([&] { return ahead.load(); });
      ASSERT_TRUE(loop.Step().ok());
    }
    loop.Finish();
    ends.Put(rank, loop.values());
  });
  ends.Expect((4 * 1 + 1 * 2) / 2.0);
}

// prague: a group that was announced while a member computes begins when its loop comes.
TEST(SessionAverageTest, WaitsForOneThatComputes) {
  FakeDaemon daemon(SpecFor(Prague(PragueOptions::Generator::kSmart, false), 2));
  Ends ends(2);
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Loop loop(worker, rank);
    if (rank == 1) {
      EXPECT_TRUE(
          daemon.WaitFor([](const Record& record) { return IsGroup(record, GroupKind::kTrain); }));
      loop.ExpectUntouched();
    }
    const Result<StepResult> result = loop.Step();
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->rounds, 1);
    EXPECT_EQ(result->iteration, 1);
    EXPECT_EQ(result->members.size(), 2u);
    EXPECT_FLOAT_EQ(loop.values()[3], 1.5f);
    loop.Finish();
    ends.Put(rank, loop.values());
  });
  ends.Expect(1.5);
}

// The static schedule: no signal, no announcement, no report; the steps tell the groups all the
// same. On one host the phases are: a pair of heads' neighbours, all, a pair, all.
TEST(SessionAverageTest, AScheduleNeedsNoMessages) {
  FakeDaemon daemon(SpecFor(Prague(PragueOptions::Generator::kStatic, false), kWorkers));
  Ends ends(kWorkers);
  std::atomic<int> training{kWorkers};
  InParallel(daemon, kWorkers, [&](Worker* worker, int rank) {
    Loop loop(worker, rank);
    std::vector<std::size_t> sizes;
    for (int step = 0; step < 8; ++step) {
      const Result<StepResult> result = loop.Step();
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->iteration, step + 1);
      if (result->rounds > 0) {
        EXPECT_EQ(result->weights,
                  std::vector<double>(result->members.size(),
                                      1.0 / static_cast<double>(result->members.size())));
        EXPECT_NE(result->reason.find("phase"), std::string::npos) << result->reason;
      }
      sizes.push_back(result->members.size());
    }
    const std::size_t pair0 = rank >= 2 ? 2 : 0;
    const std::size_t pair2 = rank == 0 || rank == 3 ? 2 : 0;
    EXPECT_EQ(sizes, (std::vector<std::size_t>{pair0, 4, pair2, 4, pair0, 4, pair2, 4}));
    --training;
    WaitUntil([&] { return training == 0; });
    loop.Finish();
    ends.Put(rank, loop.values());
  });
  ends.Expect(8 * 2.5);
  for (const Record& record : daemon.records()) {
    EXPECT_FALSE(IsGroup(record, GroupKind::kTrain));
    if (const auto* from = std::get_if<FromWorker>(&record.body)) {
      EXPECT_FALSE(std::holds_alternative<Ready>(from->envelope.body));
    }
  }
}

TEST(SessionAverageTest, StepsOfASectionEndAtOnce) {
  FakeDaemon daemon(SpecFor(AdPsgd(false, 3), 2));
  Ends ends(2);
  std::atomic<int> training{2};
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Loop loop(worker, rank);
    for (int step = 1; step <= 6; ++step) {
      const Result<StepResult> result = loop.Step();
      ASSERT_TRUE(result.ok());
      EXPECT_GE(result->rounds, step % 3 == 0 ? 1 : 0);
    }
    --training;
    WaitUntil([&] { return training == 0; });
    loop.Finish();
    ends.Put(rank, loop.values());
  });
  ends.Expect(6 * 1.5);
  std::size_t signals = 0;
  for (const Record& record : daemon.records()) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    signals += from != nullptr && std::holds_alternative<Ready>(from->envelope.body);
  }
  EXPECT_EQ(signals, 4u);
}

TEST(SessionAverageTest, OneLeavesAndTheOthersGoOn) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    FakeDaemon daemon(SpecFor(way.engine, kWorkers));
    InParallel(daemon, kWorkers, [&](Worker* worker, int rank) {
      SCOPED_TRACE(way.name);
      Loop loop(worker, rank);
      for (int step = 0; step < 16; ++step) {
        if (rank == 2 && step == 5) {
          EXPECT_TRUE(worker->session->Leave("enough").ok());
          return;
        }
        if (!loop.Step().ok()) return;
      }
      loop.Finish();
    });
  }
}

}  // namespace
}  // namespace prd::session_average_test
