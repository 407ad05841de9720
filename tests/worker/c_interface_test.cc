// The C interface, as a C program uses it (c_training.c), against a controller in this process.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/c_training.h"
#include "tests/worker/fake_daemon.h"

namespace prd::c_interface_test {
namespace {

using testing::FakeDaemon;
using testing::SpecFor;

void InThreads(int workers, const std::function<const char*(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&body, rank] {
      const char* failure = body(rank);
      EXPECT_STREQ(failure, nullptr) << "rank " << rank;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool SaidHello(const FakeDaemon& daemon) {
  return daemon.WaitFor([](const Record& record) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    return from != nullptr && std::holds_alternative<Hello>(from->envelope.body);
  });
}

bool Left(const FakeDaemon& daemon, const std::string& reason) {
  return daemon.WaitFor([&reason](const Record& record) {
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    return left != nullptr && left->reason.find(reason) != std::string::npos;
  });
}

TEST(CInterfaceTest, TrainsUnderEveryEngineWithGradientsAtOnceOrLater) {
  PReduceOptions overlap;
  overlap.overlap = true;
  const EngineOptions engines[] = {
      AllReduceOptions{}, BackupOptions{}, PReduceOptions{}, overlap,      EagerOptions{},
      EsyncOptions{},     PragueOptions{}, AdPsgdOptions{},  HopOptions{}, SspOptions{}};
  for (const EngineOptions& engine : engines) {
    for (const int later : {0, 1}) {
      FakeDaemon daemon(SpecFor(engine, 3));
      std::vector<std::unique_ptr<model>> models;
      for (int rank = 0; rank < 3; ++rank) models.push_back(std::make_unique<model>());
      InThreads(3, [&](int rank) {
        return c_train(daemon.endpoint().c_str(), rank, 5, later,
                       models[static_cast<std::size_t>(rank)].get());
      });
      for (const auto& other : models) {
        EXPECT_EQ(std::memcmp(other->values, models[0]->values, sizeof other->values), 0)
            << EngineName(engine);
        EXPECT_GT(other->values[kValues - 1], 0.f) << EngineName(engine);
        // ssp's shards may add updates in different orders.
        EXPECT_NEAR(other->values[0], other->values[kValues - 1], 1e-4) << EngineName(engine);
      }
    }
  }
}

TEST(CInterfaceTest, ACallThatWaitsMayBeBroughtToItsEndLater) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  std::promise<void> waits;
  const auto tell = [](void* promise) { static_cast<std::promise<void>*>(promise)->set_value(); };
  InThreads(2, [&](int rank) {
    if (rank == 0) return c_goes_on_later(daemon.endpoint().c_str(), tell, &waits);
    waits.get_future().wait();
    auto other = std::make_unique<model>();
    return c_train(daemon.endpoint().c_str(), 1, 1, 0, other.get());
  });
}

TEST(CInterfaceTest, ACallThatWaitsMayBeGivenUp) {
  {
    FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
    EXPECT_STREQ(c_leaves_while_it_waits(daemon.endpoint().c_str()), nullptr);
  }
  {
    FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
    EXPECT_STREQ(c_closes_while_it_waits(daemon.endpoint().c_str()), nullptr);
  }
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  EXPECT_STREQ(c_cancels(daemon.endpoint().c_str()), nullptr);
  FakeDaemon another(SpecFor(AllReduceOptions{}, 2));
  EXPECT_STREQ(c_leaves_soon(another.endpoint().c_str()), nullptr);
}

TEST(CInterfaceTest, AnApplyThatFailsLeavesTheJobWithItsReason) {
  for (const EngineOptions& engine :
       {EngineOptions(AllReduceOptions{}), EngineOptions(PReduceOptions{.group_size = 2}),
        EngineOptions(EagerOptions{})}) {
    FakeDaemon daemon(SpecFor(engine, 1));
    EXPECT_STREQ(c_apply_fails(daemon.endpoint().c_str()), nullptr) << EngineName(engine);
    EXPECT_TRUE(Left(daemon, "apply raised Exception: out of luck")) << EngineName(engine);
  }
}

TEST(CInterfaceTest, ACallStaysOnItsThread) {
  const auto elsewhere = [](void (*run)(void*), void* context) {
    std::thread(run, context).join();
  };
  for (const EngineOptions& engine :
       {EngineOptions(AllReduceOptions{}), EngineOptions(PReduceOptions{.group_size = 2})}) {
    FakeDaemon daemon(SpecFor(engine, 1));
    EXPECT_STREQ(c_applied_elsewhere(daemon.endpoint().c_str(), elsewhere), nullptr);
  }
}

TEST(CInterfaceTest, ASessionThatIsClosedLeaves) {
  for (const EngineOptions& engine :
       {EngineOptions(AllReduceOptions{}), EngineOptions(PReduceOptions{.group_size = 2})}) {
    FakeDaemon daemon(SpecFor(engine, 1));
    EXPECT_STREQ(c_closed_before_applied(daemon.endpoint().c_str()), nullptr);
    EXPECT_TRUE(Left(daemon, "its session was destroyed"));
  }
}

TEST(CInterfaceTest, StructsMayBeOfAnotherVersion) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  EXPECT_STREQ(c_structs_of_other_versions(daemon.endpoint().c_str()), nullptr);
}

TEST(CInterfaceTest, WrongArgumentsAreNamedAndChangeNothing) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  EXPECT_STREQ(c_wrong_arguments(daemon.endpoint().c_str()), nullptr);
}

TEST(CInterfaceTest, ACheckpointAPauseAndAnEndWithoutWaiting) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  EXPECT_STREQ(c_resumes(daemon.endpoint().c_str()), nullptr);
  EXPECT_TRUE(Left(daemon, "finished, does not wait"));
}

TEST(CInterfaceTest, AForkedChildIsToldAndLeavesTheSessionAlone) {
#if defined(PRD_ADDRESS_SANITIZER)
  GTEST_SKIP() << "for the reason that MisuseTest of this name gives";
#endif
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 1));
  EXPECT_STREQ(c_forked(daemon.endpoint().c_str()), nullptr);
}

TEST(CInterfaceTest, TheLogIsAskedForAndTheAverageOfAll) {
  FakeDaemon daemon(SpecFor(PReduceOptions{.group_size = 2}, 2));
  InThreads(2, [&](int rank) { return c_asks_and_averages(daemon.endpoint().c_str(), rank); });
}

TEST(CInterfaceTest, ModelsWithOtherTagsAreOtherModels) {
  FakeDaemon daemon(SpecFor(AllReduceOptions{}, 2));
  InThreads(2, [&](int rank) {
    EXPECT_TRUE(rank == 0 || SaidHello(daemon));
    return c_tags_differ(daemon.endpoint().c_str(), rank);
  });
}

}  // namespace
}  // namespace prd::c_interface_test
