// Whole sessions whose workers exchange updates with their neighbours (hop) or share their
// parameters in shards (ssp), against models that are worked out here, step by step, in double
// precision.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engines/hop/options.h"
#include "engines/ssp/options.h"
#include "prd/session.h"
#include "tests/worker/fake_daemon.h"

namespace prd::session_exchange_test {
namespace {

using testing::FakeDaemon;
using testing::SpecFor;

constexpr int kWorkers = 4;
constexpr std::size_t kCount = testing::kModelSize / 2 + 7;  // f64

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // by rank

// What the loss pulls a worker towards: each somewhere else.
double Target(int rank, std::size_t i) { return rank + static_cast<double>(i % 17) / 16; }

// A step against the gradient of 0.5 (x - target)^2.
double Moved(double at, double computed_at, int rank, std::size_t i) {
  return at - 0.25 * (computed_at - Target(rank, i));
}

// One worker's session, model and training loop. What a step moves is computed on the model as it
// is when the loop begins, like a gradient.
class Trainer {
 public:
  Trainer(const FakeDaemon& daemon, int rank) : rank_(rank), values(kCount) {
    Result<Session> made = Session::Create(testing::OptionsFor(daemon, rank));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    session = std::make_unique<Session>(std::move(made).value());
    std::fill(values.begin(), values.end(), rank + 1.0);
  }

  Status Attach() {
    Replica replica;
    replica.parameters = {{values.data(), kCount - 5, DType::kF64},
                          {values.data() + kCount - 5, 5, DType::kF64}};
    replica.apply = [this] {
      if (fails) throw std::runtime_error("out of luck");
      if (constant) {
        for (double& value : values) value += *constant;
        return;
      }
      for (std::size_t i = 0; i < kCount; ++i) {
        values[i] = Moved(values[i], computed_at_[i], rank_, i);
      }
    };
    const Status status = session->Attach(std::move(replica));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return status;
  }

  Result<StepResult> Step() {
    computed_at_ = values;
    Result<StepResult> result = session->Step({.samples = 1});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result;
  }

  void Finish() {
    const Status status = session->Finish();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

 private:
  int rank_;
  Row computed_at_;

 public:
  std::vector<double> values;
  std::optional<double> constant;  // each `apply` adds this
  bool fails = false;
  std::unique_ptr<Session> session;
};

void InParallel(const FakeDaemon& daemon, int workers,
                const std::function<void(Trainer&, int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      Trainer trainer(daemon, rank);
      body(trainer, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Blocks until all workers have come here: who finishes earlier than others changes what they wait
// for.
class Gate {
 public:
  explicit Gate(int workers) : missing_(workers) {}
  void Pass() {
    --missing_;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (missing_ > 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::atomic<int> missing_;
};

// The models after each step, and after the final average.
struct Trace {
  explicit Trace(int workers) : steps(static_cast<std::size_t>(workers)), ends(steps.size()) {}
  std::vector<Rows> steps;  // by rank, then step
  Rows ends;
};

Trace TrainAll(const EngineOptions& engine, int workers, int steps) {
  FakeDaemon daemon(SpecFor(engine, workers));
  Trace trace(workers);
  Gate gate(workers);
  InParallel(daemon, workers, [&](Trainer& trainer, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (!trainer.Attach().ok()) return;
    EXPECT_EQ(trainer.values, Row(kCount, 1.0));  // rank 0's
    for (int k = 0; k < steps; ++k) {
      const Result<StepResult> result = trainer.Step();
      if (!result.ok()) break;
      EXPECT_EQ(result->iteration, k + 1);
      EXPECT_FALSE(result->adopted);
      EXPECT_TRUE(result->included);
      EXPECT_EQ(result->rounds, 1);
      trace.steps[r].push_back(trainer.values);
    }
    gate.Pass();
    trainer.Finish();
    trace.ends[r] = trainer.values;
  });
  return trace;
}

void ExpectNear(const Row& found, const Row& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-12) << where << ", element " << i;
  }
}

// All ended as the mean of what they trained, bit for bit the same.
void ExpectAverage(const Trace& trace) {
  Row mean(kCount);
  for (const Rows& rows : trace.steps) {
    ASSERT_FALSE(rows.empty());
    for (std::size_t i = 0; i < kCount; ++i) {
      mean[i] += rows.back()[i] / static_cast<double>(trace.steps.size());
    }
  }
  for (const Row& end : trace.ends) {
    ASSERT_EQ(end, trace.ends[0]);
    ExpectNear(end, mean, "the final average");
  }
}

// ---- hop ----

HopOptions Ring(HopOptions::Order order, int max_iteration_gap) {
  HopOptions options;
  options.graph.kind = Graph::Kind::kRing;
  options.order = order;
  options.max_iteration_gap = max_iteration_gap;
  return options;
}

// Figure 2 of the paper: X' = W X - the gradients at X, or W (X - the gradients at X), with a third
// for each neighbour on the ring.
TEST(SessionExchangeTest, HopIsItsMatrixStepByStep) {
  constexpr int kSteps = 8;
  for (const HopOptions::Order order : {HopOptions::Order::kParallel, HopOptions::Order::kSerial}) {
    for (const int gap : {0, 1, 5}) {
      const bool serial = order == HopOptions::Order::kSerial;
      const std::string name = (serial ? "serial, gap " : "parallel, gap ") + std::to_string(gap);
      SCOPED_TRACE(name);
      const Trace trace = TrainAll(Ring(order, gap), kWorkers, kSteps);
      Rows models(kWorkers, Row(kCount, 1.0));
      for (int k = 0; k < kSteps; ++k) {
        Rows sent = models;
        for (int r = 0; serial && r < kWorkers; ++r) {
          for (std::size_t i = 0; i < kCount; ++i) {
            double& x = sent[static_cast<std::size_t>(r)][i];
            x = Moved(x, x, r, i);
          }
        }
        Rows next(kWorkers, Row(kCount));
        for (int r = 0; r < kWorkers; ++r) {
          const auto at = static_cast<std::size_t>(r);
          const Row& left = sent[(at + kWorkers - 1) % kWorkers];
          const Row& right = sent[(at + 1) % kWorkers];
          for (std::size_t i = 0; i < kCount; ++i) {
            const double mixed = (sent[at][i] + left[i] + right[i]) / 3;
            next[at][i] = serial ? mixed : Moved(mixed, models[at][i], r, i);
          }
          ASSERT_GT(trace.steps[at].size(), static_cast<std::size_t>(k));
          ExpectNear(trace.steps[at][static_cast<std::size_t>(k)], next[at],
                     "rank " + std::to_string(r) + ", step " + std::to_string(k));
        }
        models = next;
      }
      ExpectAverage(trace);
    }
  }
}

std::vector<std::pair<const char*, HopOptions>> HopWays() {
  HopOptions standard;
  HopOptions gapless = standard;
  gapless.max_iteration_gap = 0;
  HopOptions backups = standard;
  backups.graph.kind = Graph::Kind::kComplete;
  backups.backups = 1;
  HopOptions stale = standard;
  stale.staleness = 3;
  HopOptions skips = backups;
  skips.max_iteration_gap = 4;
  skips.max_jump = 3;
  HopOptions serial = backups;
  serial.order = HopOptions::Order::kSerial;
  return {{"standard", standard}, {"no token queues", gapless},
          {"backups", backups},   {"staleness", stale},
          {"skips", skips},       {"serial, backups", serial}};
}

// Workers of different speed, in all ways: everybody gets to the end, in order, and the models stay
// between the targets.
TEST(SessionExchangeTest, HopTrainsInAllWays) {
  for (const auto& [name, options] : HopWays()) {
    SCOPED_TRACE(name);
    FakeDaemon daemon(SpecFor(options, kWorkers));
    Rows ends(kWorkers);
    std::atomic<std::uint64_t> sent{0};
    InParallel(daemon, kWorkers, [&, name = name, options = options](Trainer& trainer, int rank) {
      SCOPED_TRACE(name);
      if (!trainer.Attach().ok()) return;
      std::int64_t at = 0;
      while (at < 20) {
        if (rank == 3) std::this_thread::yield();
        const Result<StepResult> result = trainer.Step();
        if (!result.ok()) return;
        EXPECT_GT(result->iteration, at);
        EXPECT_TRUE(options.max_jump > 0 || result->iteration == at + 1);
        EXPECT_EQ(result->iteration, trainer.session->iteration());
        at = result->iteration;
        sent += result->sent_bytes;
      }
      trainer.Finish();
      ends[static_cast<std::size_t>(rank)] = trainer.values;
    });
    EXPECT_GT(sent, 20 * kCount * sizeof(double));
    for (const Row& end : ends) {
      ASSERT_EQ(end, ends[0]);
      for (std::size_t i = 0; i < end.size(); ++i) {
        ASSERT_GE(end[i], Target(0, i));
        ASSERT_LE(end[i], Target(kWorkers - 1, i));
      }
    }
  }
}

// ---- ssp ----

SspOptions Ssp(int staleness, int replicas, int shards) {
  SspOptions options;
  options.staleness = staleness;
  options.replicas = replicas;
  options.shards = shards;
  return options;
}

// Staleness 0: what all-reduce makes of it, the same bits everywhere.
TEST(SessionExchangeTest, SspWithoutStalenessIsAllReduce) {
  constexpr int kSteps = 8;
  for (const int shards : {1, 5, 8}) {
    SCOPED_TRACE(shards);
    const Trace trace = TrainAll(Ssp(0, 1, shards), kWorkers, kSteps);
    Row model(kCount, 1.0);
    for (int k = 0; k < kSteps; ++k) {
      Row next(kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        for (int r = 0; r < kWorkers; ++r) next[i] += Moved(model[i], model[i], r, i) / kWorkers;
      }
      model = next;
      for (const Rows& rows : trace.steps) {
        ASSERT_GT(rows.size(), static_cast<std::size_t>(k));
        ASSERT_EQ(rows[static_cast<std::size_t>(k)], trace.steps[0][static_cast<std::size_t>(k)]);
        ExpectNear(rows[static_cast<std::size_t>(k)], model, "step " + std::to_string(k));
      }
    }
    ExpectAverage(trace);
  }
}

// Whatever the staleness: each update is in the model once, with its share.
TEST(SessionExchangeTest, SspCountsEachUpdateOnce) {
  for (const int staleness : {0, 2, -1}) {
    for (const int replicas : {0, 1, 2}) {
      SCOPED_TRACE("staleness " + std::to_string(staleness) + ", replicas " +
                   std::to_string(replicas));
      constexpr int kSteps = 12;
      FakeDaemon daemon(SpecFor(Ssp(staleness, replicas, 0), kWorkers));
      Rows ends(kWorkers);
      Gate gate(kWorkers);
      InParallel(daemon, kWorkers, [&](Trainer& trainer, int rank) {
        trainer.constant = rank + 1;
        if (!trainer.Attach().ok()) return;
        for (int k = 0; k < kSteps; ++k) {
          const Row before = trainer.values;
          const Result<StepResult> result = trainer.Step();
          if (!result.ok()) break;
          EXPECT_EQ(result->iteration, k + 1);
          // Its own update is there, and no other one is lost meanwhile.
          EXPECT_GE(trainer.values[7], before[7] + (rank + 1.0) / kWorkers - 1e-9);
        }
        gate.Pass();
        trainer.Finish();
        ends[static_cast<std::size_t>(rank)] = trainer.values;
      });
      for (const Row& end : ends) {
        ASSERT_EQ(end, ends[0]);
        ExpectNear(end, Row(kCount, 1.0 + kSteps * (1 + 2 + 3 + 4) / 4.0), "the end");
      }
    }
  }
}

// ---- both ----

std::vector<std::pair<std::string, EngineOptions>> AllWays() {
  std::vector<std::pair<std::string, EngineOptions>> ways;
  for (const auto& [name, options] : HopWays()) ways.emplace_back(name, options);
  for (const int staleness : {0, 2, -1}) {
    ways.emplace_back("ssp, staleness " + std::to_string(staleness), Ssp(staleness, 1, 0));
  }
  return ways;
}

TEST(SessionExchangeTest, ADaemonThatRestartsCostsNothing) {
  for (const auto& [name, engine] : AllWays()) {
    SCOPED_TRACE(name);
    FakeDaemon daemon(SpecFor(engine, kWorkers));
    Rows ends(kWorkers);
    std::atomic<int> steps{0};
    std::atomic<int> training{kWorkers};
    Gate gate(kWorkers);
    std::thread killer([&] {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (steps < 16 && training > 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      daemon.Restart();
    });
    InParallel(daemon, kWorkers, [&, name = name](Trainer& trainer, int rank) {
      SCOPED_TRACE(name);
      trainer.constant = rank + 1;
      if (!trainer.Attach().ok()) return;
      // Not so many steps: who skips iterations makes fewer, and needs the others' to the end.
      while (trainer.session->iteration() < 12) {
        if (!trainer.Step().ok()) break;
        ++steps;
      }
      --training;
      gate.Pass();
      trainer.Finish();
      ends[static_cast<std::size_t>(rank)] = trainer.values;
    });
    killer.join();
    for (const Row& end : ends) ASSERT_EQ(end, ends[0]);
    if (engine.As<SspOptions>() != nullptr) {
      ExpectNear(ends[0], Row(kCount, 1.0 + 12 * 2.5), "the end");
    }
  }
}

TEST(SessionExchangeTest, OneLeavesAndTheOthersGoOn) {
  for (const auto& [name, engine] : AllWays()) {
    SCOPED_TRACE(name);
    FakeDaemon daemon(SpecFor(engine, kWorkers));
    Rows ends(kWorkers);
    InParallel(daemon, kWorkers, [&, name = name](Trainer& trainer, int rank) {
      SCOPED_TRACE(name);
      if (!trainer.Attach().ok()) return;
      for (int k = 0; k < 12; ++k) {
        if (rank == 2 && k == 4) {
          EXPECT_TRUE(trainer.session->Leave("enough").ok());
          return;
        }
        if (!trainer.Step().ok()) return;
      }
      trainer.Finish();
      ends[static_cast<std::size_t>(rank)] = trainer.values;
    });
    EXPECT_EQ(ends[1], ends[0]);
    EXPECT_EQ(ends[3], ends[0]);
    EXPECT_FALSE(ends[0].empty());
  }
}

TEST(SessionExchangeTest, AnApplyThatThrowsLeavesTheOthersToGoOn) {
  for (const auto& [name, engine] : AllWays()) {
    SCOPED_TRACE(name);
    FakeDaemon daemon(SpecFor(engine, 3));
    Rows ends(3);
    InParallel(daemon, 3, [&, name = name](Trainer& trainer, int rank) {
      SCOPED_TRACE(name);
      if (!trainer.Attach().ok()) return;
      for (int k = 0; k < 6; ++k) {
        if (rank == 2 && k == 2) {
          trainer.fails = true;
          EXPECT_THROW((void)trainer.session->Step().ok(), std::runtime_error);
          EXPECT_EQ(trainer.session->Step().status().code(), Code::kFailedPrecondition);
          return;
        }
        if (!trainer.Step().ok()) return;
      }
      trainer.Finish();
      ends[static_cast<std::size_t>(rank)] = trainer.values;
    });
    EXPECT_EQ(ends[1], ends[0]);
    EXPECT_FALSE(ends[0].empty());
  }
}

// The controller does not hear of one any more, and takes it for dead; it joins again, by a new
// replica, and all end as one.
TEST(SessionExchangeTest, OneThatIsTakenForDeadJoinsAgain) {
  for (const auto& [name, engine] : std::vector<std::pair<std::string, EngineOptions>>{
           {"hop", HopOptions{}}, {"ssp", Ssp(2, 1, 0)}}) {
    SCOPED_TRACE(name);
    FakeDaemon daemon(SpecFor(engine, kWorkers));
    Rows ends(kWorkers);
    std::atomic<bool> back{false};
    Gate gate(kWorkers);
    InParallel(daemon, kWorkers, [&, name = name](Trainer& trainer, int rank) {
      SCOPED_TRACE(name);
      if (!trainer.Attach().ok()) return;
      for (int k = 0; k < 4; ++k) {
        if (!trainer.Step().ok()) return;
      }
      gate.Pass();
      if (rank == 3) {
        EXPECT_TRUE(daemon.Lose(3));
        daemon.Hear();
      }
      bool adopted = false;
      for (int k = 0; k < 8 || !back; ++k) {
        const Result<StepResult> result = trainer.Step();
        if (!result.ok()) break;
        adopted = adopted || result->adopted;
        if (adopted) back = true;
      }
      EXPECT_EQ(adopted, rank == 3);
      trainer.Finish();
      ends[static_cast<std::size_t>(rank)] = trainer.values;
    });
    for (const Row& end : ends) ASSERT_EQ(end, ends[0]);
    EXPECT_FALSE(ends[0].empty());
  }
}

}  // namespace
}  // namespace prd::session_exchange_test
