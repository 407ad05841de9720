// What a training loop may rely on, with whole sessions: clocks under every engine, misuse that is
// named, and the debug option that looks for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/session_worker.h"
#include "worker/line_log.h"
#include "worker/tensor_watch.h"

namespace prd::session_contract_test {
namespace {

using testing::FakeDaemon;
using ::testing::HasSubstr;
using testing::InParallel;
using testing::kSize;
using testing::Worker;

std::vector<EngineOptions> EveryEngine() {
  PReduceOptions overlap;
  overlap.overlap = true;
  PragueOptions fixed;
  fixed.generator = PragueOptions::Generator::kStatic;
  SspOptions free;
  free.staleness = -1;
  return {AllReduceOptions{}, BackupOptions{}, PReduceOptions{}, overlap,
          EagerOptions{},     EsyncOptions{},  PragueOptions{},  fixed,
          AdPsgdOptions{},    HopOptions{},    SspOptions{},     free};
}

TEST(SessionClocksTest, OwnStepsAreTheCallsThatWereNotDiscardedUnderEveryEngine) {
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 3));
    InParallel(daemon, 3, [&](Worker* worker, int) {
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      for (int step = 1; step <= 6; ++step) {
        const Result<StepResult> result = worker->session->Step({.samples = 10});
        ASSERT_TRUE(result.ok()) << EngineName(engine) << ": " << result.status().ToString();
        EXPECT_EQ(result->steps, step) << EngineName(engine);
        const Progress progress = worker->session->progress();
        EXPECT_EQ(progress.own_steps, step);
        EXPECT_EQ(progress.own_samples, 10 * step);
        EXPECT_FALSE(result->done) << "there is no goal";
      }
      const Result<StepResult> discarded = worker->session->Step({.discard = true});
      ASSERT_TRUE(discarded.ok()) << EngineName(engine) << discarded.status().ToString();
      EXPECT_EQ(discarded->steps, 6);
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << finished.ToString();
    });
  }
}

TEST(SessionClocksTest, AResumedReplicaGoesOnWithItsCount) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.trained = {.steps = 100, .samples = 1000};
  replica.job_trained = {.steps = 400, .samples = 4000};
  ASSERT_TRUE(worker.session->Attach(std::move(replica)).ok());
  EXPECT_EQ(worker.session->progress().own_steps, 100);
  EXPECT_GE(worker.session->progress().steps, 400);
  const Result<StepResult> step = worker.session->Step({.samples = 10});
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->steps, 101);
  EXPECT_EQ(worker.session->progress().own_samples, 1010);
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(SessionEndTest, WhoDoesNotWaitLeavesWithItsParametersAsTheyAre) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 2));
  std::atomic<bool> left{false};
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (float& gradient : worker->gradients) gradient = 1.f;
    ASSERT_TRUE(worker->session->Step().ok());
    if (rank == 1) {
      const Status finished = worker->session->Finish({.wait = false});
      EXPECT_TRUE(finished.ok()) << finished.ToString();
      EXPECT_EQ(worker->values[0], 1.f);
      left = true;
      return;
    }
    EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
      const auto* gone = std::get_if<WorkerLeft>(&record.body);
      return gone != nullptr && gone->why == LeftReason::kLeft &&
             gone->reason == "finished, does not wait";
    }));
    while (!left) std::this_thread::yield();
    for (float& gradient : worker->gradients) gradient = 1.f;
    ASSERT_TRUE(worker->session->Step().ok());
    EXPECT_TRUE(worker->session->Finish().ok());
    EXPECT_EQ(worker->values[0], 2.f);
  });
}

TEST(SessionEndTest, AllStopAtTheGoalUnderEveryEngine) {
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 3));
    std::atomic<std::int64_t> total{0};
    InParallel(daemon, 3, [&](Worker* worker, int rank) {
      SessionOptions options = testing::OptionsFor(daemon, rank);
      options.goal_steps = 30;
      Result<Session> session = Session::Create(options);
      ASSERT_TRUE(session.ok());
      ASSERT_TRUE(session->Attach(worker->replica()).ok());
      std::int64_t steps = 0;
      for (bool done = false; !done;) {
        const Result<StepResult> step = session->Step({.samples = 2});
        ASSERT_TRUE(step.ok()) << EngineName(engine) << ": " << step.status().ToString();
        done = step->done;
        steps = step->steps;
        ASSERT_LT(steps, 3000) << EngineName(engine);
      }
      EXPECT_EQ(session->progress().goal_steps, 30);
      const Status finished = session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << ": " << finished.ToString();
      total += steps;
    });
    // Workers that nothing holds back make some steps until they hear of it.
    EXPECT_GE(total, 30) << EngineName(engine);
  }
}

// ---- beside training ----

TEST(SessionEndTest, AllStopWhenOneSaysSoUnderEveryEngine) {
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 3));
    InParallel(daemon, 3, [&](Worker* worker, int rank) {
      EXPECT_EQ(worker->session->Stop("early").code(), Code::kFailedPrecondition);
      EXPECT_EQ(worker->session->clock(), 0);
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      bool done = false;
      for (int step = 1; step <= 5000 && !done; ++step) {
        const Result<StepResult> result = worker->session->Step();
        ASSERT_TRUE(result.ok()) << EngineName(engine) << ": " << result.status().ToString();
        done = result->done;
        if (rank != 2 && step == 3) {
          EXPECT_TRUE(worker->session->Stop("the loss is low").ok());
        }
      }
      EXPECT_TRUE(done) << EngineName(engine);
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << finished.ToString();
      // All have told their steps by then.
      const double steps = static_cast<double>(worker->session->progress().steps);
      EXPECT_GE(steps, 6);
      EXPECT_EQ(worker->session->clock(), steps / 3);
    });
  }
}

// Worker 0 waits for the mean while the others have steps to make, and worker 1 has paused.
TEST(SessionMeanTest, AllGetTheSameAndNobodyIsHeldUpUnderEveryEngine) {
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 3));
    InParallel(daemon, 3, [&](Worker* worker, int rank) {
      const std::string name(EngineName(engine));
      EXPECT_EQ(worker->session->Mean({1}).status().code(), Code::kFailedPrecondition);
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      EXPECT_EQ(worker->session->Mean({}).status().code(), Code::kInvalidArgument);
      for (int round = 1; round <= 3; ++round) {
        for (int step = 0; step < 1 + 2 * rank; ++step) {
          ASSERT_TRUE(worker->session->Step().ok()) << name;
        }
        if (rank == 1) {
          ASSERT_TRUE(worker->session->Pause().ok()) << name;
        }
        const Result<std::vector<double>> mean =
            worker->session->Mean({1.0 * rank, 1e300 * round, std::nan("")});
        ASSERT_TRUE(mean.ok()) << name << ": " << mean.status().ToString();
        ASSERT_EQ(mean->size(), 3u);
        EXPECT_EQ(mean->at(0), 1) << name;
        EXPECT_TRUE(std::isnan(mean->at(2)));
        if (rank == 1) {
          ASSERT_TRUE(worker->session->Resume().ok()) << name;
        }
      }
      ASSERT_TRUE(worker->session->Step().ok()) << name;
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << name << finished.ToString();
    });
  }
}

TEST(SessionPauseTest, OthersGoOnAndWhoResumesIsEqualAgain) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 3));
  std::atomic<int> steps{0};
  std::atomic<bool> resumed{false};
  std::vector<std::vector<float>> results(3);
  InParallel(daemon, 3, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    const auto step = [&] {
      for (float& gradient : worker->gradients) gradient = 1.f;
      const Result<StepResult> result = worker->session->Step();
      EXPECT_TRUE(result.ok()) << result.status().ToString();
      return result.ok() && result->adopted;
    };
    step();
    if (rank == 1) {
      const float before = worker->values[0];
      {
        PauseScope pause(*worker->session);
        ASSERT_TRUE(pause.status().ok()) << pause.status().ToString();
        while (steps < 10) std::this_thread::yield();
        EXPECT_EQ(worker->values[0], before);
        const Status back = pause.Resume();
        ASSERT_TRUE(back.ok()) << back.ToString();
      }
      EXPECT_GT(worker->values[0], before);
      EXPECT_TRUE(step()) << "the next step says that the replica was replaced";
      resumed = true;
    } else {
      for (int i = 0; i < 10 || !resumed; ++i) {
        step();
        ++steps;
      }
    }
    const Status finished = worker->session->Finish();
    EXPECT_TRUE(finished.ok()) << finished.ToString();
    results[static_cast<std::size_t>(rank)] = worker->values;
  });
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(SessionPauseTest, EveryEngineGoesOnWithoutWhoPauses) {
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 3));
    std::atomic<int> steps{0};
    std::atomic<bool> resumed{false};
    InParallel(daemon, 3, [&](Worker* worker, int rank) {
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      ASSERT_TRUE(worker->session->Step().ok()) << EngineName(engine);
      if (rank == 2) {
        const Status paused = worker->session->Pause();
        ASSERT_TRUE(paused.ok()) << EngineName(engine) << ": " << paused.ToString();
        const int from = steps;
        while (steps < from + 10) std::this_thread::yield();
        const Status back = worker->session->Resume();
        ASSERT_TRUE(back.ok()) << EngineName(engine) << ": " << back.ToString();
        const Result<StepResult> step = worker->session->Step();
        EXPECT_TRUE(step.ok()) << EngineName(engine) << ": " << step.status().ToString();
        if (step.ok()) {
          EXPECT_LT(step->computed, std::chrono::seconds(20));
        }
        resumed = true;
      } else {
        for (int i = 0; i < 12 || !resumed; ++i) {
          const Result<StepResult> step = worker->session->Step();
          ASSERT_TRUE(step.ok()) << EngineName(engine) << ": " << step.status().ToString();
          ++steps;
        }
      }
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << ": " << finished.ToString();
    });
  }
}

// Each loss that is told reaches the controller once, also one after the last step.
TEST(LossesTest, AllReachTheControllerUnderAnyEngine) {
  constexpr int kSteps = 5;
  for (const EngineOptions& engine : EveryEngine()) {
    FakeDaemon daemon(testing::SpecFor(engine, 2));
    InParallel(daemon, 2, [&](Worker* worker, int rank) {
      worker->session->TellLoss(1000);  // is told to nobody
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      for (int i = 0; i < kSteps; ++i) {
        worker->session->TellLoss(std::numeric_limits<double>::quiet_NaN());
        worker->session->TellLoss(rank + i);
        ASSERT_TRUE(worker->session->Step().ok()) << EngineName(engine);
      }
      worker->session->TellLoss(0.25);
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << ": " << finished.ToString();
    });
    std::uint32_t told = 0;
    double sum = 0;
    for (const Record& record : daemon.records()) {
      const auto* from = std::get_if<FromWorker>(&record.body);
      if (from == nullptr) continue;
      Losses losses;
      if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) losses = ready->losses;
      if (const auto* progressed = std::get_if<Progressed>(&from->envelope.body)) {
        losses = progressed->losses;
      }
      told += losses.count;
      sum += losses.count * losses.mean;
    }
    EXPECT_EQ(told, 2u * (kSteps + 1)) << EngineName(engine);
    EXPECT_NEAR(sum, 10 + 15 + 0.5, 1e-9) << EngineName(engine);
  }
}

// There are three workers. Rank 1 leaves, or all do.
void LeaveSoonUnder(const EngineOptions& engine, bool all) {
  FakeDaemon daemon(testing::SpecFor(engine, 3));
  std::atomic<bool> left{false};
  InParallel(daemon, 3, [&](Worker* worker, int rank) {
    const bool leaves = all || rank == 1;
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    std::thread notice;
    Status status;
    for (int i = 0; status.ok() && (leaves || i < 10 || !left); ++i) {
      if (leaves && i == 3) {
        notice = std::thread([worker] { worker->session->LeaveSoon("spot notice"); });
      }
      status = worker->session->Step().status();
    }
    if (notice.joinable()) notice.join();
    if (!leaves) {
      EXPECT_TRUE(status.ok()) << EngineName(engine) << ": " << status.ToString();
      const Status finished = worker->session->Finish();
      EXPECT_TRUE(finished.ok()) << EngineName(engine) << ": " << finished.ToString();
      return;
    }
    EXPECT_EQ(status.code(), Code::kAborted) << EngineName(engine);
    EXPECT_EQ(status.message(), "left: spot notice");
    EXPECT_GE(worker->session->progress().own_steps, 3);
    EXPECT_EQ(worker->session->Finish().code(), Code::kAborted);
    worker->session->LeaveSoon("again");
    EXPECT_TRUE(worker->session->Leave("besides").ok());
    left = true;
  });
  std::string reason;
  for (const Record& record : daemon.records()) {
    if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
      EXPECT_TRUE(ended->ok) << EngineName(engine) << ": " << ended->reason;
    }
    const auto* gone = std::get_if<WorkerLeft>(&record.body);
    if (gone == nullptr || gone->rank != 1) continue;
    EXPECT_TRUE(gone->why == LeftReason::kLeft || gone->why == LeftReason::kPaused);
    reason = gone->reason;
  }
  EXPECT_EQ(reason, "spot notice") << EngineName(engine);
}

TEST(SessionLeaveSoonTest, NoGroupFailsUnderAnyEngine) {
  std::vector<EngineOptions> engines = EveryEngine();
  AdPsgdOptions beside;
  beside.overlap = true;
  engines.push_back(beside);
  for (const EngineOptions& engine : engines) {
    for (const bool all : {false, true}) LeaveSoonUnder(engine, all);
  }
}

TEST(SessionLeaveSoonTest, ItLeavesWhereItWaits) {
  const auto left = [](const Status& status) {
    EXPECT_EQ(status.code(), Code::kAborted);
    EXPECT_THAT(status.message(), HasSubstr("left: SIGTERM"));
  };
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 2));
  Worker alone(daemon, 0);
  std::thread notice([&] { alone.session->LeaveSoon("SIGTERM"); });
  left(alone.session->Attach(alone.replica()));  // for a second worker
  notice.join();

  FakeDaemon other(testing::SpecFor(AllReduceOptions{}, 2));
  std::atomic<bool> over{false};
  InParallel(other, 2, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    if (rank == 1) {  // computes
      while (!over) std::this_thread::yield();
      return;
    }
    worker->session->LeaveSoon("SIGTERM", std::chrono::milliseconds(200));
    left(worker->session->Step().status());
    over = true;
  });
}

// The controller knows that all have the first replica: Average asks it who has one.
bool HasStarted(const Record& record) {
  const auto* ended = std::get_if<GroupEnded>(&record.body);
  return ended != nullptr && ended->ok;
}

TEST(SessionAverageTest, TheMeanOfAllIsGivenWhileTheOthersStay) {
  AdPsgdOptions alone;  // no step of these synchronises
  alone.section_length = 1000;
  FakeDaemon daemon(testing::SpecFor(alone, 3));
  std::atomic<int> ready{0};
  std::atomic<bool> averaged{false};
  InParallel(daemon, 3, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (float& gradient : worker->gradients) gradient = static_cast<float>(rank + 1);
    ASSERT_TRUE(worker->session->Step().ok());
    ++ready;
    while (ready < 3) std::this_thread::yield();
    if (rank == 0) {
      EXPECT_TRUE(daemon.WaitFor(HasStarted));
      std::vector<float> mean(kSize);
      const std::vector<Tensor> into = {{mean.data(), kSize - 3, DType::kF32},
                                        {mean.data() + kSize - 3, 3, DType::kF32}};
      const Status status = worker->session->Average(into);
      EXPECT_TRUE(status.ok()) << status.ToString();
      for (const std::size_t i : {std::size_t{0}, kSize - 1}) EXPECT_NEAR(mean[i], 2.f, 1e-6);
      EXPECT_EQ(worker->values[0], 1.f) << "the replica is as it was";
      EXPECT_EQ(worker->session->Average({}).code(), Code::kInvalidArgument);
      averaged = true;
    }
    while (!averaged) std::this_thread::yield();
    EXPECT_TRUE(worker->session->Finish().ok());
  });
}

TEST(SessionAverageTest, StateThatIsAveragedIsNoPartOfIt) {
  AdPsgdOptions alone;
  alone.section_length = 1000;
  FakeDaemon daemon(testing::SpecFor(alone, 2));
  std::atomic<int> ready{0};
  std::atomic<bool> averaged{false};
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    // By type: state stands between the parameters in the row that is copied.
    std::vector<double> wide(5), wide_state(3, 100.);
    std::vector<float> narrow(7), narrow_state(11, 200.f);
    Replica replica;
    replica.parameters = {{narrow.data(), 7, DType::kF32}, {wide.data(), 5, DType::kF64}};
    replica.state = {{wide_state.data(), 3, DType::kF64, true},
                     {narrow_state.data(), 11, DType::kF32, true}};
    replica.apply = [&] {
      for (double& value : wide) value = rank + 1;
      for (float& value : narrow) value = static_cast<float>(rank + 3);
    };
    ASSERT_TRUE(worker->session->Attach(std::move(replica)).ok());
    ASSERT_TRUE(worker->session->Step().ok());
    ++ready;
    while (ready < 2) std::this_thread::yield();
    if (rank == 0) {
      EXPECT_TRUE(daemon.WaitFor(HasStarted));
      std::vector<float> narrow_mean(7);
      std::vector<double> wide_mean(5);
      const Status status = worker->session->Average(
          {{narrow_mean.data(), 7, DType::kF32}, {wide_mean.data(), 5, DType::kF64}});
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(narrow_mean, std::vector<float>(7, 3.5f));
      EXPECT_EQ(wide_mean, std::vector<double>(5, 1.5));
      averaged = true;
    }
    while (!averaged) std::this_thread::yield();
    EXPECT_TRUE(worker->session->Finish().ok());
  });
}

// ---- misuse ----

TEST(MisuseTest, CallsFromTwoThreadsAreRefusedAndTheFirstGoesOn) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 2));
  Worker first(daemon, 0);
  std::atomic<bool> tried{false};
  std::thread second([&] {
    // Attach of the first waits for the second worker meanwhile.
    Status status;
    do {
      const Result<StepResult> step = first.session->Step();
      status = step.status();
      std::this_thread::yield();
    } while (status.message().find("two threads") == std::string::npos);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("(Step while Attach runs)"));
    tried = true;
    Worker other(daemon, 1);
    EXPECT_TRUE(other.session->Attach(other.replica()).ok());
    EXPECT_TRUE(other.session->Finish().ok());
  });
  Status attached;
  do {  // refused itself while the second thread is inside Step
    attached = first.session->Attach(first.replica());
  } while (attached.message().find("two threads") != std::string::npos);
  EXPECT_TRUE(attached.ok()) << attached.ToString();
  EXPECT_TRUE(tried);
  EXPECT_TRUE(first.session->Finish().ok());
  second.join();
}

TEST(MisuseTest, CallsInsideApplyAreRefused) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  std::string said;
  std::int64_t seen = -1;
  replica.apply = [&] {
    said = worker.session->Step().status().ToString();
    seen = worker.session->progress().own_steps;  // any thread, and here, too
  };
  ASSERT_TRUE(worker.session->Attach(std::move(replica)).ok());
  const Result<StepResult> step = worker.session->Step();
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_THAT(said, HasSubstr("Step was called inside Step"));
  EXPECT_GE(seen, 0);
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(MisuseTest, AForkedChildIsToldAndLeavesTheSessionAlone) {
#if defined(PRD_ADDRESS_SANITIZER)
  GTEST_SKIP() << "AddressSanitizer does not take its allocator's locks at a fork: the "
                  "child may wait for ever for one that another thread held";
#endif
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  auto worker = std::make_unique<Worker>(daemon, 0);
  ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Status status = worker->session->Step().status();
    const bool told = status.code() == Code::kFailedPrecondition &&
                      status.message().find("was forked from pid") != std::string::npos;
    const bool still = worker->session->progress().steps == 0;
    worker->session.reset();  // neither waits nor says anything
    _exit(told && still ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(worker->session->Step().ok()) << "the parent's goes on";
  EXPECT_TRUE(worker->session->Finish().ok());
}

TEST(MisuseTest, AStepAfterARefusalSaysWhy) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  Worker worker(daemon, 0, "unknown");
  const Status attached = worker.session->Attach(worker.replica());
  EXPECT_EQ(attached.code(), Code::kNotFound);
  const Status step = worker.session->Step().status();
  EXPECT_EQ(step.code(), Code::kFailedPrecondition);
  EXPECT_THAT(step.message(), HasSubstr(attached.message()));
}

TEST(MisuseTest, PauseAndResumeComeInTurns) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  EXPECT_THAT(worker.session->Resume().message(), HasSubstr("not paused"));
  ASSERT_TRUE(worker.session->Pause().ok());
  EXPECT_THAT(worker.session->Step().status().message(), HasSubstr("Resume comes first"));
  EXPECT_THAT(worker.session->Finish().message(), HasSubstr("Resume comes first"));
  EXPECT_THAT(worker.session->Pause().message(), HasSubstr("Resume comes first"));
}

TEST(MisuseTest, AParameterThatWasWrittenBetweenCallsIsNamed) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  SessionOptions options;
  options.controller = daemon.endpoint();
  options.job = "job";
  options.check_tensors = true;
  Result<Session> session = Session::Create(options);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  std::vector<float> first(100, 1.f), second(100, 2.f), gradients(200, 1.f);
  Replica replica;
  replica.parameters = {{first.data(), 100, DType::kF32}, {second.data(), 100, DType::kF32}};
  replica.gradients = {{gradients.data(), 100, DType::kF32},
                       {gradients.data() + 100, 100, DType::kF32}};
  replica.apply = [&] { first[0] += 1; };
  ASSERT_TRUE(session->Attach(replica).ok());
  EXPECT_TRUE(session->Step().ok());
  second[7] = 5;
  const Status step = session->Step().status();
  EXPECT_EQ(step.code(), Code::kFailedPrecondition);
  EXPECT_THAT(step.message(), HasSubstr("parameters[1] was written between calls"));
  EXPECT_TRUE(session->Step().ok());
  second[7] = 6;
  EXPECT_THAT(session->SetGradients(replica.gradients).message(), HasSubstr("between calls"));
  EXPECT_TRUE(session->SetGradients(replica.gradients).ok());
  EXPECT_TRUE(session->Finish().ok());
}

// ---- values that are not finite ----

JobSpec OnNonfiniteSpec(EngineOptions engine, OnNonfinite what) {
  JobSpec spec = testing::SpecFor(std::move(engine), 1);
  spec.on_nonfinite = what;
  return spec;
}

bool ToldNonfinite(const FakeDaemon& daemon) {
  return daemon.WaitFor([](const Record& record) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    if (from == nullptr) return false;
    const auto* ready = std::get_if<Ready>(&from->envelope.body);
    const auto* progressed = std::get_if<Progressed>(&from->envelope.body);
    return (ready != nullptr && ready->nonfinite == 1) ||
           (progressed != nullptr && progressed->nonfinite == 1);
  });
}

TEST(NonfiniteTest, PassCountsTheStepAndTellsTheController) {
  FakeDaemon daemon(OnNonfiniteSpec(AllReduceOptions{}, OnNonfinite::kPass));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  worker.gradients[kSize - 1] = NAN;
  ::testing::internal::CaptureStderr();
  const Result<StepResult> step = worker.session->Step();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("gradients[1] has a value that is not finite, in step 1: it counts"));
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_EQ(step->steps, 1);
  EXPECT_TRUE(std::isnan(worker.values[kSize - 1]));
  EXPECT_TRUE(ToldNonfinite(daemon));
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(NonfiniteTest, PassLooksAtParametersWhereThereAreNoGradients) {
  FakeDaemon daemon(OnNonfiniteSpec(PReduceOptions{}, OnNonfinite::kPass));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.gradients.clear();
  ASSERT_TRUE(worker.session->Attach(std::move(replica)).ok());
  worker.gradients[kSize - 1] = NAN;
  ::testing::internal::CaptureStderr();
  const Result<StepResult> step = worker.session->Step();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("parameters[1] has a value that is not finite, in step 1: it counts"));
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_TRUE(ToldNonfinite(daemon));
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(NonfiniteTest, DropDiscardsTheStep) {
  FakeDaemon daemon(OnNonfiniteSpec(PReduceOptions{}, OnNonfinite::kDrop));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  worker.gradients[3] = INFINITY;
  const Result<StepResult> dropped = worker.session->Step();
  ASSERT_TRUE(dropped.ok()) << dropped.status().ToString();
  EXPECT_EQ(dropped->steps, 0);
  EXPECT_EQ(worker.values[3], 0.f);
  worker.gradients[3] = 2;
  const Result<StepResult> step = worker.session->Step();
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->steps, 1);
  EXPECT_EQ(worker.values[3], 2.f);
  EXPECT_TRUE(ToldNonfinite(daemon));
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(NonfiniteTest, DropNeedsGradientsAndSaysSo) {
  FakeDaemon daemon(OnNonfiniteSpec(PReduceOptions{}, OnNonfinite::kDrop));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.gradients.clear();
  const Status attached = worker.session->Attach(std::move(replica));
  EXPECT_EQ(attached.code(), Code::kInvalidArgument);
  EXPECT_THAT(attached.message(), HasSubstr("on_nonfinite"));
}

TEST(NonfiniteTest, StopLeavesAndNamesTheTensorAndTheStep) {
  FakeDaemon daemon(OnNonfiniteSpec(AllReduceOptions{}, OnNonfinite::kStop));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  ASSERT_TRUE(worker.session->Step().ok());
  const float before = worker.values[0];
  worker.gradients[kSize - 1] = -INFINITY;  // of the second tensor
  const Status step = worker.session->Step().status();
  EXPECT_EQ(step.code(), Code::kFailedPrecondition);
  EXPECT_THAT(step.message(), HasSubstr("gradients[1] has a value that is not finite, in step 2"));
  EXPECT_EQ(worker.values[0], before);
  EXPECT_THAT(worker.session->Step().status().message(),
              HasSubstr("has left the job: gradients[1] has a value that is not finite"));
  EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    return left != nullptr && left->reason.find("gradients[1]") != std::string::npos;
  }));
  EXPECT_TRUE(ToldNonfinite(daemon));
}

TEST(NonfiniteTest, WithoutGradientsStopLooksAtTheParameters) {
  FakeDaemon daemon(OnNonfiniteSpec(PReduceOptions{}, OnNonfinite::kStop));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.gradients.clear();
  replica.apply = [&worker] { worker.values[1] = NAN; };
  ASSERT_TRUE(worker.session->Attach(std::move(replica)).ok());
  Status status;
  for (int step = 0; step < 2 && status.ok(); ++step) status = worker.session->Step().status();
  EXPECT_THAT(status.message(), HasSubstr("parameters[0] has a value that is not finite"));
}

// ---- tensors that do not change, and lines ----

TEST(TensorWatchTest, AParameterThatApplyNeverChangesIsNamedOnce) {
  HostMemory memory;
  std::vector<float> moves(10, 1.f), stuck(10, 1.f), idle(10, 1.f), gradient(10, 1.f), none(10);
  TensorWatch watch({{moves.data(), 10, DType::kF32},
                     {stuck.data(), 10, DType::kF32},
                     {idle.data(), 10, DType::kF32}},
                    {{gradient.data(), 10, DType::kF32},
                     {gradient.data(), 10, DType::kF32},
                     {none.data(), 10, DType::kF32}});
  std::vector<std::string> lines;
  for (int step = 1; step <= 3 * TensorWatch::kUnchanged; ++step) {
    watch.BeforeApply(memory);
    moves[0] += 1;
    for (const std::string& line : watch.AfterApply(memory)) lines.push_back(line);
    EXPECT_EQ(lines.size(), step < TensorWatch::kUnchanged ? 0u : 1u);
  }
  EXPECT_THAT(lines.at(0), HasSubstr("parameters[1] has not changed in 16 steps"));
}

TEST(LineLogTest, LinesAreLimitedAndWhatWasLeftOutIsCounted) {
  std::vector<std::string> lines;
  LineLog log([&lines](const std::string& line) { lines.push_back(line); });
  const LineLog::Clock::time_point start{};
  for (int i = 0; i < 30; ++i) log.SayAt(start + std::chrono::seconds(i), std::to_string(i));
  EXPECT_EQ(lines.size(), LineLog::kPerMinute);
  log.SayAt(start + std::chrono::seconds(61), "later");
  EXPECT_EQ(lines.back(), "later (10 lines left out before)");
  log.SayAt(start + std::chrono::seconds(61), "later");
  EXPECT_EQ(lines.size(), LineLog::kPerMinute + 1) << "the same at once";
}

TEST(LineLogTest, WhatOthersWroteIsOneHarmlessLine) {
  std::vector<std::string> lines;
  LineLog log([&lines](const std::string& line) { lines.push_back(line); });
  log.Say("evicted: \x1b[2Jfor\nged");
  EXPECT_EQ(lines.at(0), "evicted: ?[2Jfor?ged");
}

TEST(LineLogTest, ACallbackThatThrowsHarmsNobody) {
  LineLog log([](const std::string&) { throw std::runtime_error("no"); });
  EXPECT_NO_THROW(log.Say("line"));
}

TEST(WaitingTest, TheLogSaysForWhomAttachWaits) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 2));
  std::mutex mutex;
  std::vector<std::string> lines;
  SessionOptions options;
  options.controller = daemon.endpoint();
  options.job = "job";
  options.start_timeout = std::chrono::seconds(8);
  options.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  Result<Session> session = Session::Create(options);
  ASSERT_TRUE(session.ok());
  std::vector<float> values(10, 1.f);
  std::vector<float> gradients(10);
  Replica replica;
  replica.parameters = {{values.data(), 10, DType::kF32}};
  replica.gradients = {{gradients.data(), 10, DType::kF32}};
  replica.apply = [] {};
  const Status attached = session->Attach(replica);
  EXPECT_EQ(attached.code(), Code::kUnavailable);
  EXPECT_THAT(attached.message(), HasSubstr("within 8000 ms: "));
  const std::lock_guard lock(mutex);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], ::testing::StartsWith("Attach has waited for 5 s: "));
}

}  // namespace
}  // namespace prd::session_contract_test
