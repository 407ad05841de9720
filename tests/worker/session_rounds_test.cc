// Whole sessions under engines whose rounds go on while workers compute, span several local steps,
// or drop what comes late. Every model starts at 0 and adds its gradients, so that the average at
// the end tells whether each gradient was counted exactly once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/session_worker.h"

namespace prd::session_rounds_test {
namespace {

using testing::FakeDaemon;
using testing::InParallel;
using testing::kSize;
using testing::SpecFor;
using testing::Worker;

// Blocks until it holds; fails the test after 20 s.
void WaitUntil(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The gradients that a training loop has given, and what the models must be worth in the end.
class Ledger {
 public:
  void Give(Worker* worker, float gradient) {
    for (float& value : worker->gradients) value = gradient;
    const std::lock_guard lock(mutex_);
    given_ += gradient;
  }
  void ExpectEnd(const Worker& worker, int workers) const {
    const std::lock_guard lock(mutex_);
    const double mean = given_ / workers;
    EXPECT_NEAR(worker.values.front(), mean, 1e-3 * mean);
    EXPECT_NEAR(worker.values.back(), mean, 1e-3 * mean);
  }

 private:
  mutable std::mutex mutex_;
  double given_ = 0;
};

void Attach(Worker* worker) {
  worker->values.assign(kSize, 0.f);
  const Status status = worker->session->Attach(worker->replica());
  ASSERT_TRUE(status.ok()) << status.ToString();
}

// All loops are through; nobody has finished yet.
class Meeting {
 public:
  explicit Meeting(int workers) : missing_(workers) {}
  void Come() {
    --missing_;
    WaitUntil([this] { return missing_ == 0; });
  }

 private:
  std::atomic<int> missing_;
};

TEST(SessionRoundsTest, RoundsGoOnWhileAWorkerComputes) {
  EagerOptions solo;
  solo.quorum = EagerOptions::kSolo;
  FakeDaemon daemon(SpecFor(solo, 2));
  Ledger ledger;
  Meeting meeting(2);
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Attach(worker);
    if (rank == 0) {
      for (int step = 1; step <= 4; ++step) {
        ledger.Give(worker, 1.f);
        const Result<StepResult> result = worker->session->Step();
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        EXPECT_EQ(result->iteration, step);
        EXPECT_EQ(result->rounds, 1);
        EXPECT_TRUE(result->included);
        EXPECT_EQ(result->members, (std::vector<int>{0, 1}));
        EXPECT_EQ(result->weights, (std::vector<double>{0.5, 0}));
        EXPECT_FLOAT_EQ(worker->values[3], 0.5f * static_cast<float>(step));
      }
    } else {
      // The other one's rounds complete although this one is in no call.
      EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
        const auto* from = std::get_if<FromWorker>(&record.body);
        if (from == nullptr || from->envelope.rank != 1) return false;
        const auto* finished = std::get_if<Finished>(&from->envelope.body);
        return finished != nullptr && finished->group == 5;  // 1 is the common start
      }));
      EXPECT_EQ(worker->values[3], 0.f) << "the replica is the caller's meanwhile";
      ledger.Give(worker, 10.f);
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->rounds, 4);
      EXPECT_EQ(result->iteration, 4);
      EXPECT_FALSE(result->included) << "it comes later";
      EXPECT_FLOAT_EQ(worker->values[3], 2.f) << "the sum of the four";
    }
    meeting.Come();
    const Status status = worker->session->Finish();
    ASSERT_TRUE(status.ok()) << status.ToString();
    ledger.ExpectEnd(*worker, 2);
  });
}

TEST(SessionRoundsTest, EveryGradientCountsOnceWhateverTheControllerGoesThrough) {
  for (const bool restarts : {false, true}) {
    EagerOptions majority;
    majority.sync_every = 5;
    FakeDaemon daemon(SpecFor(majority, 3));
    Ledger ledger;
    std::atomic<std::int64_t> rounds{0};
    std::thread killer([&] {
      for (const int at : {3, 12}) {
        if (!restarts) return;
        WaitUntil([&] { return rounds >= at; });
        daemon.Restart();
      }
    });
    InParallel(daemon, 3, [&](Worker* worker, int rank) {
      Attach(worker);
      for (int step = 1; step <= 20; ++step) {
        ledger.Give(worker, static_cast<float>(rank + 1));
        const Result<StepResult> result = worker->session->Step({.discard = false});
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        EXPECT_GT(result->rounds, 0);
        EXPECT_FALSE(result->adopted);
        rounds = std::max<std::int64_t>(rounds, result->iteration);
      }
      const Status status = worker->session->Finish();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ledger.ExpectEnd(*worker, 3);
    });
    killer.join();
  }
}

TEST(SessionRoundsTest, DiscardedStepGivesNoGradientToARound) {
  EagerOptions all;
  all.quorum = 2;
  FakeDaemon daemon(SpecFor(all, 2));
  Ledger ledger;
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    Attach(worker);
    for (int step = 1; step <= 6; ++step) {
      const bool discard = rank == 1 && step % 2 == 0;
      if (discard) {
        worker->gradients.assign(kSize, 1e6f);
      } else {
        ledger.Give(worker, 1.f);
      }
      const Result<StepResult> result = worker->session->Step({.discard = discard});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->included, !discard);
    }
    ASSERT_TRUE(worker->session->Finish().ok());
    ledger.ExpectEnd(*worker, 2);
  });
}

TEST(SessionRoundsTest, StepThatComesTooLateIsCutShortAndCatchesUp) {
  FakeDaemon daemon(SpecFor(BackupOptions{}, 3));
  std::atomic<bool> caught_up{false};
  InParallel(daemon, 3, [&](Worker* worker, int rank) {
    Attach(worker);
    worker->gradients.assign(kSize, 1.f);
    if (rank == 2) {
      WaitUntil([&] { return worker->session->Interrupted(); });
      worker->gradients.assign(kSize, 1e6f);
      const Result<StepResult> result = worker->session->Step({.discard = true});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(result->adopted);
      EXPECT_EQ(result->rounds, 0);
      EXPECT_FALSE(result->included);
      EXPECT_GE(result->iteration, 1);
      EXPECT_FLOAT_EQ(worker->values[5], static_cast<float>(result->iteration));
      caught_up = true;
    }
    while (rank != 2 && !caught_up) {
      worker->gradients.assign(kSize, 1.f);
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(result->adopted || (result->rounds == 1 && result->included));
    }
    const Status status = worker->session->Finish();
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_LT(worker->values[5], 1e5f) << "the late gradient is in nobody's model";
  });
}

TEST(SessionRoundsTest, LocalStepsAreAveragedWhenTheControllerSaysSo) {
  for (const EsyncOptions::Mode mode :
       {EsyncOptions::Mode::kBlocking, EsyncOptions::Mode::kDelayedAck}) {
    EsyncOptions options;
    options.mode = mode;
    options.stall_factor = 0;  // nobody is too slow to be waited for
    FakeDaemon daemon(SpecFor(options, 2));
    Ledger ledger;
    std::atomic<int> fast_steps{0};
    InParallel(daemon, 2, [&](Worker* worker, int rank) {
      Attach(worker);
      // Nobody is ready before all have been heard.
      if (rank == 1) WaitUntil([&] { return fast_steps >= 3; });
      int alone = 0;
      std::uint32_t local = 0;
      for (int rounds = 0; rounds < 3;) {
        const bool discard = worker->session->Interrupted();
        if (!discard) ledger.Give(worker, static_cast<float>(rank + 1));
        const Result<StepResult> result = worker->session->Step({.discard = discard});
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        ASSERT_FALSE(result->adopted);
        if (rank == 0) ++fast_steps;
        if (result->rounds == 0) {
          ++alone;
          EXPECT_EQ(result->local_steps, local + (discard ? 0 : 1));
          EXPECT_TRUE(result->members.empty());
          EXPECT_EQ(result->iteration, rounds);
        } else {
          ++rounds;
          EXPECT_EQ(result->local_steps, 0u);
          EXPECT_EQ(result->members.size(), 2u);
          EXPECT_EQ(result->iteration, rounds);
          EXPECT_TRUE(result->included);
        }
        local = result->local_steps;
      }
      EXPECT_GE(alone, rank == 0 ? 3 : 0);
      const Status status = worker->session->Finish();
      ASSERT_TRUE(status.ok()) << status.ToString();
      ledger.ExpectEnd(*worker, 2);
    });
  }
}

TEST(SessionRoundsTest, ReplicasWithoutGradientsAreRefusedWhereTheyAreReduced) {
  for (const EngineOptions& engine :
       {EngineOptions(EagerOptions{}), EngineOptions(BackupOptions{.backups = 0})}) {
    FakeDaemon daemon(SpecFor(engine, 1));
    Worker worker(daemon, 0);
    Replica replica = worker.replica();
    replica.gradients.clear();
    const Status status = worker.session->Attach(std::move(replica));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("reduces gradients"), std::string::npos) << status.ToString();
  }
  FakeDaemon daemon(SpecFor(EsyncOptions{}, 1));
  Worker worker(daemon, 0);
  EXPECT_FALSE(worker.session->needs_gradients());
  Replica replica = worker.replica();
  replica.gradients.clear();
  EXPECT_TRUE(worker.session->Attach(std::move(replica)).ok());
  EXPECT_FALSE(worker.session->needs_gradients());
  EXPECT_TRUE(worker.session->Leave("enough").ok());
}

TEST(SessionRoundsTest, GradientsMayComeOnceTheEngineIsKnown) {
  FakeDaemon daemon(SpecFor(EagerOptions{}, 2));
  Ledger ledger;
  Meeting meeting(2);
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    worker->values.assign(kSize, 0.f);
    Replica replica = worker->replica();
    const std::vector<Tensor> gradients = std::exchange(replica.gradients, {});
    replica.gradients_later = true;
    ASSERT_TRUE(worker->session->Attach(std::move(replica)).ok());
    ASSERT_TRUE(worker->session->needs_gradients());
    if (rank == 0) {  // the other one's rounds go on meanwhile
      EXPECT_NE(worker->session->Step().status().message().find("SetGradients comes first"),
                std::string::npos);
      EXPECT_EQ(worker->session->SetGradients({gradients[0]}).code(), Code::kInvalidArgument);
    }
    ASSERT_TRUE(worker->session->SetGradients(gradients).ok());
    for (int step = 0; step < 5; ++step) {
      ledger.Give(worker, 1.f);
      ASSERT_TRUE(worker->session->Step().ok());
    }
    meeting.Come();
    ASSERT_TRUE(worker->session->Finish().ok());
    ledger.ExpectEnd(*worker, 2);
  });
}

}  // namespace
}  // namespace prd::session_rounds_test
