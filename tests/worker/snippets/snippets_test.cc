// The code in the manuals is what it says: it compiles without a warning, trains, and tells errors.
// extract.py takes it from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prd/session.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engines/all_reduce/options.h"
#include "tests/worker/fake_daemon.h"

namespace {

using prd::testing::FakeDaemon;

constexpr std::int64_t max_steps = 5;
constexpr std::int64_t batch = 16;
constexpr std::int64_t data_size = 64;  // of the whole data set

// What a training program has besides: the model x, whose gradient is x - 3.
struct Training {
  struct Optimizer {
    Training* training;
    void Step() const {
      for (std::size_t i = 0; i < training->weights.size(); ++i) {
        training->weights[i] -= training->rate * training->gradients[i];
      }
      ++training->applied;
    }
  };
  std::vector<float> weights = std::vector<float>(8, 1.f);
  std::vector<float> gradients = std::vector<float>(8, 0.f);
  float rate = 0.1f;
  int applied = 0;
  std::string failed;  // what Fail was given
};

#define PRD_TRAINING(training)                                                        \
  [[maybe_unused]] std::vector<float>& weights = (training)->weights;                 \
  [[maybe_unused]] std::vector<float>& gradients = (training)->gradients;             \
  [[maybe_unused]] const Training::Optimizer optimizer{training};                     \
  [[maybe_unused]] const auto ComputeGradients = [&] {                                \
    for (std::size_t i = 0; i < weights.size(); ++i) gradients[i] = weights[i] - 3.f; \
  };                                                                                  \
  [[maybe_unused]] const auto Fail = [&](const prd::Status& status) {                 \
    (training)->failed = status.ToString();                                           \
    return 1;                                                                         \
  }

int Header(Training* training) {
  PRD_TRAINING(training);
#include "session_1.inc"
  return 0;
}

#include "counts.inc"
static_assert(ksession == 1 && kworker_README == 3,
              "a manual has other snippets: have this test run them");

// A session that has attached, for snippets of what comes after.
prd::Result<prd::Session> Attached(Training* training) {
  auto session = prd::Session::FromEnvironment();
  if (!session.ok()) return session.status();
  prd::Replica replica;
  replica.parameters = {{training->weights.data(), training->weights.size(), prd::DType::kF32}};
  replica.gradients = {{training->gradients.data(), training->gradients.size(), prd::DType::kF32}};
  replica.apply = [training] { Training::Optimizer{training}.Step(); };
  const prd::Status attached = session->Attach(std::move(replica));
  if (!attached.ok()) return attached;
  return session;
}

class SnippetsTest : public ::testing::Test {
 protected:
  SnippetsTest() : daemon_(prd::testing::SpecFor(prd::AllReduceOptions{}, 1)) {
    setenv("PRD_CONTROLLER", daemon_.endpoint().c_str(), 1);
    setenv("PRD_JOB", "job", 1);
    setenv("PRD_TIMEOUT_MS", "30000", 1);
  }
  ~SnippetsTest() override {
    for (const char* name : {"PRD_CONTROLLER", "PRD_JOB", "PRD_TIMEOUT_MS"}) unsetenv(name);
  }
  FakeDaemon daemon_;
  Training training_;
};

TEST_F(SnippetsTest, TheHeadersLoopTrainsToItsEnd) {
  EXPECT_EQ(Header(&training_), 0) << training_.failed;
  EXPECT_EQ(training_.applied, max_steps);
}

TEST_F(SnippetsTest, TheLoopTellsThatNoJobHasThatName) {
  setenv("PRD_JOB", "unknown", 1);
  EXPECT_EQ(Header(&training_), 1);
  EXPECT_THAT(training_.failed, ::testing::HasSubstr("not found"));
  EXPECT_EQ(training_.applied, 0);
}

TEST_F(SnippetsTest, TheLoopTellsThatItsOptionsAreWrong) {
  setenv("PRD_RANK", "first", 1);
  EXPECT_EQ(Header(&training_), 1);
  EXPECT_THAT(training_.failed, ::testing::HasSubstr("PRD_RANK"));
  unsetenv("PRD_RANK");
}

TEST_F(SnippetsTest, AScheduleGoesByTheJobsProgress) {
  auto attached = Attached(&training_);
  ASSERT_TRUE(attached.ok()) << attached.status().ToString();
  prd::Session& session = *attached;
  const double base_rate = 0.1;
  const auto set_rate = [this](double rate) { training_.rate = static_cast<float>(rate); };
  constexpr int epochs = 4;
#include "worker_README_1.inc"
  EXPECT_FLOAT_EQ(training_.rate, 0.1f) << "nothing is trained yet";
}

TEST_F(SnippetsTest, APauseKeepsEvaluationOutOfTheSteps) {
  auto attached = Attached(&training_);
  ASSERT_TRUE(attached.ok()) << attached.status().ToString();
  prd::Session& session = *attached;
  Training* const training = &training_;
  PRD_TRAINING(training);
  int evaluated = 0;
  const auto Evaluate = [&evaluated] { ++evaluated; };
  const auto run = [&]() -> int {
#include "worker_README_2.inc"
    return 0;
  };
  EXPECT_EQ(run(), 0) << training_.failed;
  EXPECT_EQ(evaluated, 1);
}

TEST_F(SnippetsTest, ACheckpointHasTheAverageAndTheClocks) {
  auto attached = Attached(&training_);
  ASSERT_TRUE(attached.ok()) << attached.status().ToString();
  prd::Session& session = *attached;
  Training* const training = &training_;
  PRD_TRAINING(training);
  std::vector<float> saved;
  prd::TrainingCount saved_own, saved_job;
  const auto Save = [&](const std::vector<float>& model, const prd::TrainingCount& own,
                        const prd::TrainingCount& job) {
    saved = model;
    saved_own = own;
    saved_job = job;
  };
  const auto run = [&]() -> int {
    ComputeGradients();
    const auto step = session.Step({.samples = batch});
    if (!step.ok()) return Fail(step.status());
#include "worker_README_3.inc"
    return 0;
  };
  EXPECT_EQ(run(), 0) << training_.failed;
  EXPECT_EQ(saved, training_.weights);
  EXPECT_EQ(saved_own.steps, 1);
  EXPECT_EQ(saved_own.samples, batch);
}

}  // namespace
