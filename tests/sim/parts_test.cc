// The simulator's parts, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engines/violation.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/data_plane.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/gradient_book.h"
#include "tools/sim/history_store.h"
#include "tools/sim/objective.h"
#include "tools/sim/step_times.h"

namespace prd::sim {
namespace {

TEST(EventQueue, PopsByTimeThenByOrderOfPushing) {
  EventQueue queue;
  Prng prng(3);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    queue.Push({static_cast<std::int64_t>(prng.Below(100))}, EventKind::kTurn, 0, i);
  }
  SimEvent last = queue.Pop();
  for (int i = 1; i < 2000; ++i) {
    const SimEvent event = queue.Pop();
    ASSERT_TRUE(last.at < event.at || (last.at == event.at && last.what < event.what));
    last = event;
  }
  EXPECT_TRUE(queue.empty());
}

double MeanMs(StepTimes* times, std::uint32_t worker, int draws) {
  double sum = 0;
  for (int i = 0; i < draws; ++i) sum += static_cast<double>(times->Next(worker)) / kMillisecond;
  return sum / draws;
}

TEST(StepTimes, EveryModelHasTheMeanItIsGiven) {
  for (const char* model : {"constant", "normal", "lognormal", "pareto"}) {
    const Workload workload = FromText("[compute]\nmodel = \"" + std::string(model) +
                                       "\"\nmean_ms = 20.0\nspread = 0.3\ntail = 4.0\n"
                                       "slow_workers = 1\nslow_factor = 5.0\n");
    StepTimes times(workload, 7);
    EXPECT_NEAR(MeanMs(&times, 1, 40000), 20, 0.4) << model;
    EXPECT_NEAR(MeanMs(&times, 0, 40000), 100, 2) << model;
    EXPECT_NEAR(times.MeanNs(0), 100e6, 1) << model;
  }
}

TEST(StepTimes, HiccupsCountInTheMean) {
  const Workload workload =
      FromText("[compute]\nmean_ms = 10.0\nhiccup_probability = 0.1\nhiccup_factor = 11.0\n");
  StepTimes times(workload, 7);
  EXPECT_NEAR(MeanMs(&times, 0, 40000), 20, 0.7);
  EXPECT_NEAR(times.MeanNs(0), 20e6, 1);
}

TEST(StepTimes, RecordedOnesComeInOrderOverAndOver) {
  Workload workload = FromText("[cluster]\nworkers = 2\n");
  workload.recorded = {{5, 6, 7}, {9}};
  StepTimes times(workload, 1);
  std::vector<DurationNs> drawn;
  for (int i = 0; i < 4; ++i) drawn.push_back(times.Next(0));
  EXPECT_EQ(drawn, (std::vector<DurationNs>{5, 6, 7, 5}));
  EXPECT_EQ(times.Next(1), 9);
}

// The delays of the example trainer's --inject.
TEST(StepTimes, InjectedDelays) {
  const std::string one =
      "[cluster]\nworkers = 8\n[compute]\nmean_ms = 10.0\ninject = \"one\"\n"
      "inject_max_ms = 90.0\n";
  StepTimes drawn(FromText(one), 3);
  for (int step = 0; step < 50; ++step) {
    int delayed = 0;
    for (std::uint32_t worker = 0; worker < 8; ++worker) {
      delayed += drawn.Next(worker) == 100 * kMillisecond ? 1 : 0;
    }
    EXPECT_EQ(delayed, 1) << step;
  }
  StepTimes shifted(FromText("[cluster]\nworkers = 3\n[compute]\nmean_ms = 1.0\n"
                             "inject = \"shifted\"\ninject_min_ms = 10.0\ninject_max_ms = 30.0\n"),
                    3);
  for (const DurationNs ms : {11, 21, 31, 11}) EXPECT_EQ(shifted.Next(0), ms * kMillisecond);
  EXPECT_EQ(shifted.Next(2), 31 * kMillisecond);
  EXPECT_NEAR(shifted.MeanNs(1), 21e6, 1);
}

// Two of three workers share a device that does the work of one.
TEST(Devices, SharersSlowEachOtherDownWhileBothCompute) {
  const Workload workload =
      FromText("[cluster]\nworkers = 3\n[compute]\nshared_workers = 2\ncontention = 1.0\n");
  Devices devices(workload);
  std::vector<Devices::Finish> changed;
  devices.Begin({0}, 0, 100, &changed);
  EXPECT_EQ(changed.back().at.ns, 100);
  changed.clear();
  devices.Begin({0}, 2, 100, &changed);  // alone on its own
  EXPECT_EQ(changed.back().at.ns, 100);
  changed.clear();
  devices.Begin({50}, 1, 100, &changed);
  ASSERT_EQ(changed.size(), 2u);
  EXPECT_EQ(changed[0].worker, 0u);
  EXPECT_EQ(changed[0].at.ns, 150);  // 50 left, at half speed
  EXPECT_EQ(changed[1].at.ns, 250);
  EXPECT_TRUE(devices.Valid(0, changed[0].ticket));
  changed.clear();
  devices.End({150}, 0, &changed);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].at.ns, 200);  // 50 left, at full speed
}

TEST(DataPlane, ARingCostsWhatItsFormulaSays) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 8\nworkers_per_host = 4\n[reduce]\nbytes = 8e6\noverhead_us = 10.0\n"
      "latency_us = 50.0\nbandwidth_mb_per_s = 1000.0\nlocal_latency_us = 5.0\n"
      "local_bandwidth_mb_per_s = 4000.0\n");
  EXPECT_EQ(DataPlane::RingCost(workload, {3}, 1), 0);
  // Within a host: 10 us + 2 * 5 us + 8 MB / 4 GB/s.
  EXPECT_NEAR(static_cast<double>(DataPlane::RingCost(workload, {0, 1}, 2)), 2020e3, 1);
  // Between hosts: 10 us + 2 * 3 * 50 us + 2 * 3/4 * 8 MB / 1 GB/s.
  EXPECT_NEAR(static_cast<double>(DataPlane::RingCost(workload, {0, 1, 4, 5}, 4)), 12310e3, 1);
}

// Two of four contribute: one stage sums halves, three pass the whole on.
TEST(DataPlane, OnlyContributorsBytesAreSummed) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nworkers_per_host = 1\n[reduce]\nbytes = 8e6\n"
      "latency_us = 50.0\nbandwidth_mb_per_s = 1000.0\n");
  EXPECT_NEAR(static_cast<double>(DataPlane::RingCost(workload, {0, 1, 2, 3}, 2)), 12200e3, 1);
  EXPECT_EQ(DataPlane::RingCost(workload, {0, 1, 2, 3}, 0), 0);
}

// Group 5 is round 1, with the gradient of worker 1. Worker 0 alone takes the result of group 5.
// Later worker 0 is gone, and worker 2 takes group 6 as round 1.
class UndoneRound : public testing::Test {
 protected:
  UndoneRound() : world_(workload_, 1), book_(&world_, Mutation::kNone) {
    for (Replica& replica : world_.replicas) replica.run = 1;
    const std::uint64_t gradient = book_.Deposit(1);
    book_.Took(0, 1, {.group = 5, .round = 1, .sum = {}, .gradients = {gradient}}, false);
  }
  void Goes(std::uint32_t worker) {
    book_.Lost(worker);
    world_.replicas[worker].run = kNoRun;
  }
  void AnotherGroup() {
    Goes(0);
    book_.Took(2, 1, {.group = 6, .round = 1, .sum = {}, .gradients = {}}, false);
  }

  const Workload workload_ = FromText("[cluster]\nworkers = 3\n");
  World world_;
  GradientBook book_;
};

TEST_F(UndoneRound, AGradientLostBeforeStaysLost) {
  Goes(1);
  AnotherGroup();
  EXPECT_NO_THROW(book_.CheckEnd());
}

TEST_F(UndoneRound, AGradientOfAWorkerThatLivesIsOwedAgain) {
  AnotherGroup();
  EXPECT_NO_THROW(book_.CheckEnd());
  world_.replicas[1].owed.clear();
  EXPECT_THROW(book_.CheckEnd(), Violation);
}

Record Numbered(std::uint64_t index) {
  return {.run = 1, .index = index, .now = {static_cast<std::int64_t>(index)}, .body = RunEnded{}};
}

TEST(HistoryStore, ATornWriteKeepsAPrefixAndDoesNotReturn) {
  std::uint64_t seen = 0;
  HistoryStore store(true, [&seen](const Record&) { ++seen; });
  HistoryStore::Fate fate = HistoryStore::Fate::kFine;
  store.SetFate([&fate] { return fate; });
  store.SetTear([](std::uint64_t) { return std::uint64_t{2}; });
  const std::vector<Record> records = {Numbered(0), Numbered(1), Numbered(2)};
  fate = HistoryStore::Fate::kFails;
  EXPECT_FALSE(store.Append(records).ok());
  EXPECT_EQ(seen, 0u);
  fate = HistoryStore::Fate::kTorn;
  EXPECT_THROW((void)store.Append(records), ControllerDied);
  EXPECT_EQ(seen, 2u);
  EXPECT_EQ(store.runs().at(1).next_index, 2u);
}

TEST(HistoryStore, AHoleIsAViolation) {
  HistoryStore store(true, [](const Record&) {});
  const std::vector<Record> records = {Numbered(0), Numbered(2)};
  EXPECT_THROW((void)store.Append(records), Violation);
}

class Objectives : public testing::TestWithParam<const char*> {};

// The gradient is that of the loss: averaged over many draws and all shards it agrees with
// differences of the loss, and following it ends where the loss is 0.
TEST_P(Objectives, GradientsAreThoseOfTheLoss) {
  TrainingPart training = FromText(std::string("[training]\nobjective = \"") + GetParam() +
                                   "\"\ndimensions = 4\nexamples = 200\nskew = 0.5\n")
                              .training;
  const auto objective = MakeObjective(training, 4, 5);
  Prng prng(1);
  std::vector<double> x = objective->Start();
  for (double& value : x) value += 0.3;
  std::vector<double> mean(4), gradient(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    objective->Gradient(static_cast<std::uint32_t>(i % 4), x, &prng, &gradient);
    for (std::size_t j = 0; j < 4; ++j) mean[j] += gradient[j] / kDraws;
  }
  for (std::size_t j = 0; j < 4; ++j) {
    constexpr double kStep = 1e-5;
    std::vector<double> ahead = x, behind = x;
    ahead[j] += kStep;
    behind[j] -= kStep;
    const double slope = (objective->Loss(ahead) - objective->Loss(behind)) / (2 * kStep);
    EXPECT_NEAR(mean[j], slope, 0.03) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Objectives, testing::Values("quadratic", "logistic"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Objectives, TheLeastLossIsFound) {
  const auto objective = MakeObjective(
      FromText("[training]\nobjective = \"logistic\"\ndimensions = 3\nexamples = 100\n").training,
      1, 5);
  Prng prng(1);
  std::vector<double> x = objective->Start();
  const double before = objective->Loss(x);
  std::vector<double> gradient(3), mean(3);
  for (int i = 0; i < 3000; ++i) {
    objective->Gradient(0, x, &prng, &gradient);
    for (std::size_t j = 0; j < 3; ++j) {
      x[j] -= 0.05 * gradient[j];
      if (i >= 1000) mean[j] += x[j] / 2000;
    }
  }
  EXPECT_GT(before, 0.1);
  EXPECT_GE(objective->Loss(mean), -1e-9);
  EXPECT_LT(objective->Loss(mean), 0.02);
}

}  // namespace
}  // namespace prd::sim
