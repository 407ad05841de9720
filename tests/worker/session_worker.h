// Whole sessions in threads of the test's process.
#ifndef PRD_TESTS_WORKER_SESSION_WORKER_H_
#define PRD_TESTS_WORKER_SESSION_WORKER_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "prd/session.h"
#include "tests/worker/fake_daemon.h"

namespace prd::testing {

inline constexpr std::size_t kSize = kModelSize;  // f32

// A model whose training is to add its gradient, and the session it trains through.
class Worker {
 public:
  Worker(const FakeDaemon& daemon, int rank, const std::string& job = "job")
      : values(kSize, static_cast<float>(rank)), gradients(kSize, 0.f) {
    SessionOptions options = OptionsFor(daemon, rank);
    options.job = job;
    Result<Session> made = Session::Create(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    session = std::make_unique<Session>(std::move(made).value());
  }

  Replica replica() {
    Replica replica;
    replica.parameters = {{values.data(), kSize - 3, DType::kF32},
                          {values.data() + kSize - 3, 3, DType::kF32}};
    replica.gradients = {{gradients.data(), kSize - 3, DType::kF32},
                         {gradients.data() + kSize - 3, 3, DType::kF32}};
    replica.apply = [this] {
      for (std::size_t i = 0; i < kSize; ++i) values[i] += gradients[i];
    };
    return replica;
  }

  std::vector<float> values;
  std::vector<float> gradients;
  std::unique_ptr<Session> session;
};

// Runs body(worker, rank) for every rank on a thread of its own.
inline void InParallel(const FakeDaemon& daemon, int workers,
                       const std::function<void(Worker*, int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      Worker worker(daemon, rank);
      body(&worker, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_SESSION_WORKER_H_
