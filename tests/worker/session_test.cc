// Whole sessions against a controller in this process: real sockets, real threads.
#include "prd/session.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "prd/leave_on_signal.h"
#include "tests/worker/session_worker.h"
#include "worker/mesh/frame.h"

namespace prd::session_test {
namespace {

using testing::FakeDaemon;
using testing::InParallel;
using testing::kSize;
using testing::Worker;

PReduceOptions Pairs() {
  PReduceOptions options;
  options.group_size = 2;
  options.weights = PReduceOptions::Weights::kConstant;
  return options;
}

TEST(SessionTest, AttachGivesEverybodyTheFirstRanksModel) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 3));
  InParallel(daemon, 3, [](Worker* worker, int rank) {
    for (float& value : worker->values) value = static_cast<float>(rank + 10);
    ASSERT_EQ(worker->session->rank(), -1);
    const Status status = worker->session->Attach(worker->replica());
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(worker->values, std::vector<float>(kSize, 10.f));
    EXPECT_EQ(worker->session->rank(), rank);
    EXPECT_EQ(worker->session->workers(), 3);
    EXPECT_EQ(worker->session->engine(), "p-reduce");
    EXPECT_TRUE(worker->session->Finish().ok());
  });
}

TEST(SessionTest, AllReduceSumsWeightedGradientsBeforeEveryStep) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 3));
  InParallel(daemon, 3, [](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (int step = 1; step <= 5; ++step) {
      for (float& gradient : worker->gradients) gradient = static_cast<float>((rank + 1) * step);
      const Result<StepResult> result = worker->session->Step({.samples = 8});
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->iteration, step);
      EXPECT_EQ(result->members, (std::vector<int>{0, 1, 2}));
      EXPECT_EQ(result->reduced_bytes, kSize * sizeof(float));
      EXPECT_GT(result->sent_bytes, 0u);
      EXPECT_FALSE(result->reason.empty());
      EXPECT_EQ(result->attempts, 1);
      // (1 + 2 + 3) / 3 * step
      EXPECT_NEAR(worker->gradients[7], 2.0 * step, 1e-5);
    }
    EXPECT_NEAR(worker->values[kSize - 1], 2.0 * (1 + 2 + 3 + 4 + 5), 1e-4);
    ASSERT_TRUE(worker->session->Finish().ok());
    EXPECT_NEAR(worker->values[0], 30.0, 1e-4);
  });
}

TEST(SessionTest, PartialReduceEndsWithTheSameAverageEverywhere) {
  for (const int steps : {2, 10}) {
    FakeDaemon daemon(testing::SpecFor(Pairs(), 4));
    std::vector<std::vector<float>> results(4);
    InParallel(daemon, 4, [&](Worker* worker, int rank) {
      ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
      for (int step = 0; step < steps; ++step) {
        for (float& gradient : worker->gradients) gradient = static_cast<float>(rank);
        const Result<StepResult> result = worker->session->Step();
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        EXPECT_LE(result->members.size(), 2u);
        EXPECT_GE(result->iteration, step + 1);
      }
      const Status status = worker->session->Finish();
      ASSERT_TRUE(status.ok()) << status.ToString();
      results[static_cast<std::size_t>(rank)] = worker->values;
    });
    for (const std::vector<float>& values : results) {
      ASSERT_EQ(values.size(), kSize);
      EXPECT_EQ(std::memcmp(values.data(), results[0].data(), kSize * sizeof(float)), 0);
      // Each round of pairs keeps the mean of all replicas, which grows by 1.5 a step. With so few
      // steps nobody stops so long before the others that the final average is without it.
      if (steps == 2) {
        EXPECT_NEAR(values[11], 3.0, 1e-3);
      }
    }
  }
}

TEST(SessionTest, DynamicWeightsMayMixTheInitialModelIn) {
  PReduceOptions options;
  options.group_size = 2;
  options.missing = PReduceOptions::Missing::kInitial;
  FakeDaemon daemon(testing::SpecFor(options, 2));
  std::vector<std::vector<float>> results(2);
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    for (float& value : worker->values) value = 100.f;
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (int step = 0; step < 4; ++step) ASSERT_TRUE(worker->session->Step().ok());
    ASSERT_TRUE(worker->session->Finish().ok());
    results[static_cast<std::size_t>(rank)] = worker->values;
  });
  // No gradient: whatever the shares, they add up to the initial model.
  for (const auto& values : results) EXPECT_NEAR(values.at(5), 100.f, 1e-3);
}

TEST(SessionTest, LateWorkerTakesARunningPeersModel) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 2));
  std::atomic<bool> joined{false};
  std::atomic<bool> trained{false};
  std::thread late([&] {
    EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
      const auto* formed = std::get_if<GroupFormed>(&record.body);
      return formed != nullptr && formed->kind == GroupKind::kTrain && formed->iteration >= 3;
    }));
    Worker worker(daemon, 2);
    const Status status = worker.session->Attach(worker.replica());
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(worker.session->rank(), 2);
    EXPECT_GE(worker.session->iteration(), 3);
    EXPECT_GE(worker.values[0], 3.f);  // and not its own 2, nor the initial 0
    joined = true;
    const Result<StepResult> step = worker.session->Step();
    EXPECT_TRUE(step.ok()) << step.status().ToString();
    trained = true;
    EXPECT_TRUE(worker.session->Finish().ok());
  });
  InParallel(daemon, 2, [&](Worker* worker, int) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (int step = 0; step < 5 || !trained; ++step) {
      for (float& gradient : worker->gradients) gradient = joined ? 0.f : 1.f;
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
    }
    EXPECT_TRUE(worker->session->Finish().ok());
  });
  late.join();
}

TEST(SessionTest, ControllerRestartIsOnlyAPause) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 3));
  std::thread killer([&] {
    for (const Iteration at : {2, 10, 29}) {
      EXPECT_TRUE(daemon.WaitFor([at](const Record& record) {
        const auto* formed = std::get_if<GroupFormed>(&record.body);
        return formed != nullptr && formed->iteration >= at;
      }));
      daemon.Restart();
    }
  });
  InParallel(daemon, 3, [&](Worker* worker, int) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (float& gradient : worker->gradients) gradient = 1.f;
    for (int step = 1; step <= 30; ++step) {
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->iteration, step);
    }
    ASSERT_TRUE(worker->session->Finish().ok());
    EXPECT_NEAR(worker->values[3], 30.f, 1e-3);
  });
  killer.join();
}

TEST(SessionTest, KilledWorkerIsDroppedAndTheOthersFinish) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 3));
  const std::string address = daemon.endpoint();
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    execl("/proc/self/exe", "session_test", "--train-until-killed", address.c_str(), nullptr);
    _exit(127);
  }
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (int step = 1; step <= 20; ++step) {
      if (step == 10 && rank == 0) {
        kill(pid, SIGKILL);
        EXPECT_TRUE(daemon.Lose(2));
      }
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
    }
    EXPECT_TRUE(worker->session->Finish().ok());
  });
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(SessionTest, WorkerTheControllerGaveUpComesBackAsANewIncarnation) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 2));
  std::atomic<bool> back{false};
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    for (float& gradient : worker->gradients) gradient = 1.f;
    ASSERT_TRUE(worker->session->Step().ok());
    if (rank == 1) {
      EXPECT_TRUE(daemon.Lose(1));
      daemon.Hear();
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(result->adopted);
      EXPECT_EQ(worker->session->rank(), 1);
      back = true;
    }
    for (int step = 0; step < 5 || !back; ++step) {
      const Result<StepResult> result = worker->session->Step();
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_FALSE(result->adopted);
    }
    const Status status = worker->session->Finish();
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
}

TEST(SessionTest, RefusalsReachTheCaller) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker unknown(daemon, 0, "unknown");
  const Status status = unknown.session->Attach(unknown.replica());
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("no pattern matches"), std::string::npos) << status.ToString();

  Worker first(daemon, 0);
  ASSERT_TRUE(first.session->Attach(first.replica()).ok());
  Worker other(daemon, 1);
  Replica smaller = other.replica();
  smaller.parameters.pop_back();
  smaller.gradients.pop_back();
  const Status differs = other.session->Attach(std::move(smaller));
  EXPECT_EQ(differs.code(), Code::kInvalidArgument);
  EXPECT_NE(differs.message().find("model differs"), std::string::npos) << differs.ToString();
  EXPECT_TRUE(first.session->Finish().ok());
}

TEST(SessionTest, RankThatIsHeldIsWaitedFor) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  auto first = std::make_unique<Worker>(daemon, 0);
  ASSERT_TRUE(first->session->Attach(first->replica()).ok());
  std::thread second([&] {
    Worker worker(daemon, 0);
    const Status status = worker.session->Attach(worker.replica());
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(worker.session->rank(), 0);
  });
  EXPECT_TRUE(first->session->Leave("makes room").ok());
  second.join();
}

TEST(SessionTest, CancelEndsTheWait) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 2));  // the second worker never comes
  Worker worker(daemon, 0);
  std::thread canceller([&] {
    EXPECT_TRUE(daemon.WaitFor(
        [](const Record& record) { return std::holds_alternative<FromWorker>(record.body); }));
    worker.session->Cancel();
  });
  EXPECT_EQ(worker.session->Attach(worker.replica()).code(), Code::kCancelled);
  EXPECT_EQ(worker.session->Attach(worker.replica()).code(), Code::kCancelled);
  canceller.join();
}

TEST(SessionTest, TimeoutEndsAttachWithoutAController) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  SessionOptions options;
  options.controller = "ipc://@prd-test-nobody-listens-here";
  options.job = "job";
  options.timeout = std::chrono::milliseconds(50);
  Result<Session> session = Session::Create(options);
  ASSERT_TRUE(session.ok());
  Worker memory(daemon, 0);
  EXPECT_EQ(session->Attach(memory.replica()).code(), Code::kUnavailable);
  EXPECT_EQ(session->Step().status().code(), Code::kFailedPrecondition);
}

TEST(SessionTest, ExceptionsOfApplyLeaveStepAndTheJob) {
  for (const bool gradients : {false, true}) {
    const EngineOptions engine =
        gradients ? EngineOptions(AllReduceOptions{}) : EngineOptions(Pairs());
    FakeDaemon daemon(testing::SpecFor(engine, 1));
    Worker worker(daemon, 0);
    Replica replica = worker.replica();
    replica.apply = [] { throw std::runtime_error("out of luck"); };
    ASSERT_TRUE(worker.session->Attach(std::move(replica)).ok());
    EXPECT_THROW((void)worker.session->Step().ok(), std::runtime_error);
    const Status later = worker.session->Step().status();
    EXPECT_EQ(later.code(), Code::kFailedPrecondition);
    EXPECT_NE(later.message().find("has left the job: apply threw"), std::string::npos)
        << later.message();
    EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
      const auto* left = std::get_if<WorkerLeft>(&record.body);
      return left != nullptr && left->reason.find("apply threw") != std::string::npos;
    }));
  }
}

TEST(SessionTest, WrongOptionsAndReplicasAreNamed) {
  SessionOptions options;
  EXPECT_NE(Session::Create(options).status().message().find("PRD_JOB"), std::string::npos);
  options.job = "job";
  options.controller = "localhost:5775";
  EXPECT_NE(Session::Create(options).status().message().find("tcp://"), std::string::npos);
  options.controller = "tcp://127.0.0.1:5775";
  for (const std::string& key : {std::string("short"), std::string(40, ' ')}) {  // no Z85
    options.curve_server_key = options.curve_public_key = options.curve_secret_key = key;
    EXPECT_NE(Session::Create(options).status().message().find("curve"), std::string::npos);
  }
  options.curve_server_key = options.curve_public_key = options.curve_secret_key = "";
  options.controller = "tcp://127.0.0.1:99999";
  EXPECT_NE(Session::Create(options).status().message().find("1 to 65535"), std::string::npos);
  options.controller = "tcp://127.0.0.1:5775";
  for (const char* address : {"localhost", "0.0.0.0"}) {
    options.address = address;
    EXPECT_NE(Session::Create(options).status().message().find("PRD_ADDRESS"), std::string::npos);
  }
  options.address = "";
  // It would overflow as nanoseconds.
  using Milliseconds = std::chrono::milliseconds;
  for (Milliseconds SessionOptions::*const time :
       {&SessionOptions::timeout, &SessionOptions::start_timeout,
        &SessionOptions::reduce_timeout}) {
    SessionOptions longest = options;
    longest.*time = Milliseconds::max();
    EXPECT_EQ(Session::Create(longest).status().code(), Code::kInvalidArgument);
  }

  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.gradients.pop_back();
  EXPECT_EQ(worker.session->Attach(replica).code(), Code::kInvalidArgument);
  replica = worker.replica();
  replica.parameters[0].data = reinterpret_cast<char*>(worker.values.data()) + 1;
  EXPECT_NE(worker.session->Attach(replica).message().find("parameters[0]"), std::string::npos);
  replica = worker.replica();
  replica.apply = nullptr;
  EXPECT_NE(worker.session->Attach(replica).message().find("apply"), std::string::npos);
}

// Groups that fail at once are not formed again without a pause.
TEST(SessionTest, AWorkerWithoutDescriptorsJoinsOnceItHasSome) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 2));
  Worker first(daemon, 0), second(daemon, 1);
  std::thread attaching([&] { EXPECT_TRUE(first.session->Attach(first.replica()).ok()); });
  EXPECT_TRUE(daemon.WaitFor(
      [](const Record& record) { return std::holds_alternative<FromWorker>(record.body); }));
  Replica smaller = second.replica();
  smaller.parameters.pop_back();
  smaller.gradients.pop_back();
  EXPECT_EQ(second.session->Attach(std::move(smaller)).code(), Code::kInvalidArgument);
  // Both are connected to the controller, and not to each other.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = dup(0);
  close(lowest);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::thread again([&] {
    const Status status = second.session->Attach(second.replica());
    EXPECT_TRUE(status.ok()) << status.ToString();
  });
  EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    const auto* finished = from == nullptr ? nullptr : std::get_if<Finished>(&from->envelope.body);
    return finished != nullptr && !finished->unreachable.empty();
  }));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::vector<Record> records = daemon.records();
  EXPECT_LT(std::count_if(records.begin(), records.end(),
                          [](const Record& record) {
                            return std::holds_alternative<GroupFormed>(record.body);
                          }),
            20);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  attaching.join();
  again.join();
}

// The controller admits workers of one version alone to a job.
TEST(SessionTest, AWorkerTellsTheVersionOfItsFrames) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  EXPECT_TRUE(daemon.WaitFor([](const Record& record) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    const auto* hello = from == nullptr ? nullptr : std::get_if<Hello>(&from->envelope.body);
    return hello != nullptr && hello->mesh_version == kMeshVersion;
  }));
  EXPECT_TRUE(worker.session->Finish().ok());
}

TEST(SessionTest, WhatAStepSaysOfItsSamplesIsBounded) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  for (const std::int64_t samples : {std::int64_t{-1}, kMaxBatch + 1}) {
    EXPECT_EQ(worker.session->Step({.samples = samples}).status().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(worker.session->Step({.samples = kMaxBatch}).ok());
  EXPECT_TRUE(worker.session->Finish().ok());
}

// A controller takes no message of any size.
TEST(SessionTest, OfALongReasonTheBeginningIsTold) {
  const std::string reason = "why" + std::string(100'000, '!');
  const auto has_why = [](const std::string& told) {
    return told.size() < 1000 && told.find("why!!!") != std::string::npos;
  };
  FakeDaemon daemon(testing::SpecFor(Pairs(), 2));
  InParallel(daemon, 2, [&](Worker* worker, int rank) {
    ASSERT_TRUE(worker->session->Attach(worker->replica()).ok());
    ASSERT_TRUE(worker->session->Step().ok());
    if (rank == 1) {
      EXPECT_TRUE(worker->session->Leave(reason).ok());
      EXPECT_TRUE(daemon.WaitFor([&](const Record& record) {
        const auto* left = std::get_if<WorkerLeft>(&record.body);
        return left != nullptr && has_why(left->reason);
      }));
      return;
    }
    EXPECT_TRUE(worker->session->Stop(reason).ok());
    EXPECT_TRUE(worker->session->Stop("not the first").ok());
    for (Result<StepResult> step = worker->session->Step(); !step->done;) {
      step = worker->session->Step();
      ASSERT_TRUE(step.ok()) << step.status().ToString();
    }
    EXPECT_TRUE(daemon.WaitFor([&](const Record& record) {
      const auto* stopped = std::get_if<FromWorker>(&record.body);
      const auto* stop =
          stopped == nullptr ? nullptr : std::get_if<StopJob>(&stopped->envelope.body);
      return stop != nullptr && has_why(stop->reason);
    }));
    EXPECT_TRUE(worker->session->Finish().ok());
  });
}

TEST(SessionTest, LeaveSoonNeedsNoReasonAndTakesAnyGrace) {
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  worker.session->LeaveSoon(nullptr, std::chrono::milliseconds::max());
  const Status left = worker.session->Step().status();
  EXPECT_EQ(left.code(), Code::kAborted);
  EXPECT_EQ(left.message().find("grace"), std::string::npos) << left.ToString();
}

TEST(SessionTest, ASessionThatHadToLeaveSaysWhyWhereItIsAttachedAgain) {
  FakeDaemon daemon(testing::SpecFor(AllReduceOptions{}, 1));
  Worker worker(daemon, 0);
  Replica replica = worker.replica();
  replica.gradients.clear();
  for (int times = 0; times < 2; ++times) {
    const Status status = worker.session->Attach(replica);
    EXPECT_NE(status.message().find("reduces gradients"), std::string::npos) << status.ToString();
  }
}

// Its copy of a lock may be held by a thread that it does not have.
TEST(SessionTest, AForkedChildIsToldNothingAndEndsByItsSignals) {
#if defined(PRD_THREAD_SANITIZER)
  GTEST_SKIP() << "ThreadSanitizer runs handlers of signals later, and none in such a child";
#endif
  FakeDaemon daemon(testing::SpecFor(Pairs(), 1));
  Worker worker(daemon, 0);
  ASSERT_TRUE(worker.session->Attach(worker.replica()).ok());
  const LeaveOnSignal leaver(*worker.session);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    Session& session = *worker.session;
    session.TellLoss(1);
    const bool nothing = session.rank() == -1 && session.workers() == 0 && session.clock() == 0 &&
                         session.engine().empty() && !session.needs_gradients();
    raise(nothing ? SIGTERM : SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  EXPECT_EQ(leaver.came(), 0);
  EXPECT_EQ(worker.session->rank(), 0);
  EXPECT_TRUE(worker.session->Finish().ok());
}

// The body of the process that KilledWorkerIsDroppedAndTheOthersFinish kills.
int TrainUntilKilled(const char* endpoint) {
  SessionOptions options;
  options.controller = endpoint;
  options.job = "job";
  options.rank = 2;
  Result<Session> session = Session::Create(options);
  std::vector<float> values(kSize);
  std::vector<float> gradients(kSize);
  Replica replica;
  constexpr std::size_t kFirst = kSize - 3;
  replica.parameters = {{values.data(), kFirst, DType::kF32},
                        {values.data() + kFirst, 3, DType::kF32}};
  replica.gradients = {{gradients.data(), kFirst, DType::kF32},
                       {gradients.data() + kFirst, 3, DType::kF32}};
  replica.apply = [] {};
  if (!session.ok() || !session->Attach(std::move(replica)).ok()) return 1;
  while (session->Step().ok()) {
  }
  return 1;
}

}  // namespace
}  // namespace prd::session_test

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--train-until-killed") == 0) {
    return prd::session_test::TrainUntilKilled(argv[2]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
