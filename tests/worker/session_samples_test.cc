// Whole sessions whose batches are unequal: two workers that weigh by samples learn what one
// process learns from the joint batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/prng.h"
#include "engines/registry.h"
#include "tests/worker/session_worker.h"

namespace prd::session_samples_test {
namespace {

using testing::FakeDaemon;
using testing::OptionsFor;
using testing::SpecFor;

constexpr int kWorkers = 2;
constexpr std::int64_t kBatch[kWorkers] = {16, 64};
constexpr std::size_t kDimensions = 24;
constexpr int kSteps = 40;
constexpr float kRate = 0.05F;

using Vector = std::vector<float>;

// The gradient of a linear regression's mean squared error, summed over a worker's batch of a step.
// Each worker's examples have a target of their own, so that what weighs how much decides.
std::vector<double> SumOfGradients(const Vector& at, int rank, int step) {
  Prng random(static_cast<std::uint64_t>(1 + rank + kWorkers * step));
  std::vector<double> sum(kDimensions, 0.0);
  for (std::int64_t example = 0; example < kBatch[rank]; ++example) {
    std::vector<double> x(kDimensions);
    double error = 0;
    for (std::size_t i = 0; i < kDimensions; ++i) {
      x[i] = 2 * random.Unit() - 1;
      error += x[i] * (static_cast<double>(at[i]) - (rank == 0 ? 3.0 : -1.0));
    }
    for (std::size_t i = 0; i < kDimensions; ++i) sum[i] += 2 * error * x[i];
  }
  return sum;
}

void Descend(const Vector& gradient, Vector* at) {
  for (std::size_t i = 0; i < kDimensions; ++i) (*at)[i] -= kRate * gradient[i];
}

// One process, with the examples of both in each batch.
Vector Jointly() {
  Vector at(kDimensions, 0.F);
  for (int step = 0; step < kSteps; ++step) {
    Vector gradient(kDimensions);
    const auto first = SumOfGradients(at, 0, step);
    const auto second = SumOfGradients(at, 1, step);
    for (std::size_t i = 0; i < kDimensions; ++i) {
      const double mean = (first[i] + second[i]) / static_cast<double>(kBatch[0] + kBatch[1]);
      gradient[i] = static_cast<float>(mean);
    }
    Descend(gradient, &at);
  }
  return at;
}

// One of two workers. Ends with what it has after Finish.
void Train(const FakeDaemon& daemon, int rank, Vector* parameters) {
  parameters->assign(kDimensions, 0.F);
  Vector gradient(kDimensions, 0.F);
  Result<Session> session = Session::Create(OptionsFor(daemon, rank));
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  Replica replica;
  replica.parameters = {{parameters->data(), kDimensions, DType::kF32}};
  replica.gradients = {{gradient.data(), kDimensions, DType::kF32}};
  replica.apply = [&] { Descend(gradient, parameters); };
  const Status attached = session->Attach(std::move(replica));
  ASSERT_TRUE(attached.ok()) << attached.ToString();
  // Steps that learn nothing, until something is reduced. Under esync a round may take any number
  // of local steps: all but the first of each are such.
  const auto idle = [&] {
    for (bool reduced = false; !reduced;) {
      std::fill(gradient.begin(), gradient.end(), 0.F);
      const Result<StepResult> result = session->Step({.samples = kBatch[rank]});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      reduced = result->rounds > 0;
    }
  };
  idle();
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<double> sum = SumOfGradients(*parameters, rank, step);
    for (std::size_t i = 0; i < kDimensions; ++i) {
      gradient[i] = static_cast<float>(sum[i] / static_cast<double>(kBatch[rank]));
    }
    const Result<StepResult> result = session->Step({.samples = kBatch[rank]});
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_FALSE(result->adopted);
    if (result->rounds == 0) idle();
  }
  const Status finished = session->Finish();
  ASSERT_TRUE(finished.ok()) << finished.ToString();
}

// How far the workers' parameters are from those of one process, at most.
double Distance(const EngineOptions& engine) {
  FakeDaemon daemon(SpecFor(engine, kWorkers));
  std::vector<Vector> parameters(kWorkers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back(
        [&, rank] { Train(daemon, rank, &parameters[static_cast<std::size_t>(rank)]); });
  }
  for (std::thread& thread : threads) thread.join();
  const Vector joint = Jointly();
  double most = 0;
  for (const Vector& one : parameters) {
    for (std::size_t i = 0; i < kDimensions; ++i) {
      most = std::max(most, std::abs(static_cast<double>(one[i]) - static_cast<double>(joint[i])));
    }
  }
  return most;
}

struct Way {
  const char* name;
  EngineOptions by_samples;
  EngineOptions uniform;
};

// Everything else is as it is by default, where that waits for both workers.
std::vector<Way> AllWays() {
  const EsyncOptions patient{.margin_ms = 60'000, .stall_factor = 0};
  EsyncOptions uniform = patient;
  uniform.weights = EsyncOptions::Weights::kUniform;
  return {
      {"all-reduce", AllReduceOptions{},
       AllReduceOptions{.weights = AllReduceOptions::Weights::kUniform}},
      {"backup", BackupOptions{.backups = 0},
       BackupOptions{.backups = 0, .weights = BackupOptions::Weights::kUniform}},
      {"eager", EagerOptions{.quorum = kWorkers},
       EagerOptions{.quorum = kWorkers, .weights = EagerOptions::Weights::kUniform}},
      {"esync", patient, uniform},
      {"p-reduce",
       PReduceOptions{.group_size = kWorkers, .weights = PReduceOptions::Weights::kSamples},
       PReduceOptions{.group_size = kWorkers, .weights = PReduceOptions::Weights::kConstant}},
  };
}

TEST(SessionSamplesTest, UnequalBatchesTrainAsOneProcessWithTheJointBatches) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(way.name);
    EXPECT_LT(Distance(way.by_samples), 1e-5);
    EXPECT_GT(Distance(way.uniform), 1e-2) << "the test would not see wrong weights";
  }
}

}  // namespace
}  // namespace prd::session_samples_test
