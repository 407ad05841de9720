// The simulator's parts, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engines/violation.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/cards.h"
#include "tools/sim/data_plane.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/gradient_book.h"
#include "tools/sim/history_store.h"
#include "tools/sim/objective.h"
#include "tools/sim/peer_probes.h"
#include "tools/sim/step_times.h"
#include "tools/sim/store_book.h"

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

TEST(Cards, AllThatAHostSendsOrReceivesSharesItsCard) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nworkers_per_host = 1\n[reduce]\nbandwidth_mb_per_s = 1000.0\n");
  Cards cards(workload);
  EXPECT_EQ(cards.Carry({100}, 0, 1, 1e3), Instant{1100});
  EXPECT_EQ(cards.Carry({100}, 1, 0, 1e3), Instant{1100}) << "the other way is another matter";
  EXPECT_EQ(cards.Carry({100}, 2, 3, 1e3), Instant{1100});
  EXPECT_EQ(cards.Carry({600}, 0, 2, 1e3), Instant{2100}) << "after what it sends to 1";
  EXPECT_EQ(cards.Carry({600}, 3, 1, 1e3), Instant{2100}) << "after what 1 gets of 0";
  EXPECT_EQ(cards.Carry({9000}, 0, 1, 1e3), Instant{10000});
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(cards.Carry({9000}, 0, 1, 9e18), Instant{9000} + kForever);
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

// The controller has begun anew without worker 2, which finds the announcement of an older group.
class LateRound : public UndoneRound {
 protected:
  void TakesItsOwn() {
    const std::uint64_t gradient = book_.Deposit(2);
    book_.Took(2, 1, {.group = 4, .round = 1, .sum = {}, .gradients = {gradient}}, true);
  }
};

TEST_F(LateRound, OfAWorkerThatTheRunCountsOnIsAViolation) {
  try {
    TakesItsOwn();
    FAIL() << "worker 0 has another group as round 1";
  } catch (const Violation& violation) {
    EXPECT_EQ(violation.invariant(), "rounds-agree");
  }
}

TEST_F(LateRound, OfARemovedWorkerIsNoneOfTheRuns) {
  world_.replicas[2].removed = true;
  TakesItsOwn();
  EXPECT_TRUE(world_.replicas[2].owed.empty());
  EXPECT_NO_THROW(book_.Took(1, 1, {.group = 5, .round = 1, .sum = {}, .gradients = {1}}, true))
      << "round 1 is still that of group 5";
  EXPECT_NO_THROW(book_.CheckEnd());
}

// The others' round stands, and so does the removed worker's gradient in it.
TEST_F(LateRound, OfARemovedWorkerMayBeTheRuns) {
  world_.replicas[1].removed = true;
  book_.Took(1, 1, {.group = 5, .round = 1, .sum = {}, .gradients = {1}}, true);
  EXPECT_NO_THROW(book_.CheckEnd());
  AnotherGroup();
  EXPECT_NO_THROW(book_.CheckEnd()) << "its gradient is lost with the round";
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

// ---- forgetting ----

// Three writes of run 1 at 10, 20 and 30 ns with a snapshot after the second; run 2 begins with the
// third.
class ForgettingStore : public testing::Test {
 protected:
  ForgettingStore()
      : store_(
            true, [](const Record&) {}, true) {
    Write({At(1, 0, 10), At(1, 1, 10)});
    Write({At(1, 2, 20)});
    EXPECT_TRUE(store_.SaveSnapshot(1, 3, "three").ok());
    Write({At(1, 3, 30), At(2, 0, 30)});
  }
  static Record At(RunId run, std::uint64_t index, std::int64_t ns) {
    return {.run = run, .index = index, .now = {ns}, .body = DeadlineReached{}};
  }
  void Write(const std::vector<Record>& records) { EXPECT_TRUE(store_.Append(records).ok()); }
  HistoryStore store_;
};

TEST_F(ForgettingStore, WithoutItsEndItIsAsItWas) {
  EXPECT_EQ(store_.writes(), 4u);
  store_.Forget(1);
  EXPECT_FALSE(store_.runs().contains(2));
  EXPECT_EQ(store_.runs().at(1).records.size(), 3u);
  EXPECT_EQ(store_.runs().at(1).snapshot, "three");
  store_.Forget(1);
  EXPECT_EQ(store_.runs().at(1).snapshot, "");
  EXPECT_EQ(store_.runs().at(1).snapshot_index, 0u);
  Write({At(1, 3, 25)});  // as if the fourth record had never been
  EXPECT_EQ(store_.runs().at(1).next_index, 4u);
}

TEST_F(ForgettingStore, AnOldCopyHasNothingNewer) {
  EXPECT_EQ(store_.WritesSince({20}), 1u);
  EXPECT_EQ(store_.WritesSince({19}), 3u);
  store_.Forget(store_.WritesSince({0}));
  EXPECT_TRUE(store_.runs().empty());
}

// The history of shards without copies has lost its end, and with it what it said of workers that
// had gone.
class ForgottenShards : public testing::Test {
 protected:
  ForgottenShards() : world_(workload_, 1), stats_(3, false, 0), book_(&world_, &stats_) {}
  void Seen(RecordBody body) {
    records_.push_back({.run = 1, .index = records_.size(), .body = std::move(body)});
    book_.Seen(1, records_.back());
  }
  void Joins(Rank rank) { Seen(WorkerJoined{.rank = rank, .incarnation = Who(rank)}); }
  void Goes(Rank rank) {
    Seen(WorkerLeft{.rank = rank, .incarnation = Who(rank), .why = LeftReason::kLost});
  }
  void SaysReady(Rank rank) {
    Seen(FromWorker{
        .envelope = {.rank = rank, .incarnation = Who(rank), .body = Ready{.iteration = 1}}});
  }
  // One shard, which its owner has from this rank; kNoRank: it begins anew.
  void Placed(const std::vector<Rank>& members, Rank owner, Rank source) {
    Seen(PlacementSet{.epoch = ++epoch_,
                      .members = members,
                      .at = std::vector<Iteration>(members.size()),
                      .shards = {{.owner = owner, .holders = {}, .source = source}},
                      .reason = "updates were lost"});
  }
  void Opens() { Seen(PlacementOpened{.epoch = epoch_}); }
  static Incarnation Who(Rank rank) {
    return (Incarnation{7} << kWorkerBits) | static_cast<Incarnation>(rank);
  }

  const Workload workload_ = FromText("[cluster]\nworkers = 3\n");
  World world_;
  Stats stats_;
  StoreBook book_;
  std::vector<Record> records_;
  std::uint64_t epoch_ = 0;
};

TEST_F(ForgottenShards, WhoWasSaidToHaveGoneIsThere) {
  Joins(0);
  Joins(1);
  Placed({0, 1}, 0, kNoRank);
  Opens();
  const std::size_t kept = records_.size();
  Goes(0);
  Goes(1);
  records_.resize(kept);
  book_.Forgot(1, records_);
  Goes(1);
  Placed({0}, 0, 0);
  Opens();
  SaysReady(0);
  Joins(2);
  EXPECT_THROW(Placed({0, 2}, 2, kNoRank), Violation) << "rank 0 has the shard";
  records_.pop_back();
  Goes(0);
  EXPECT_NO_THROW(Placed({2}, 2, kNoRank));
}

// ---- links ----

// A group of workers that begin it together; each has an incarnation of its own.
class LinkedGroup : public testing::Test {
 protected:
  explicit LinkedGroup(std::int64_t workers = 4) {
    workload_.cluster.workers = workers;
    workload_.faults.link_cuts_per_s = 1;
    workload_.job.lease_ms = 100;
    world_.emplace(workload_, 1);
    boxes_.emplace(&*world_);
    data_.emplace(&*world_, &*boxes_);
    probes_.emplace(&*world_);
    for (std::uint32_t i = 0; i < workers; ++i) {
      world_->replicas[i].incarnation = Who(i);
      world_->replicas[i].tag = 5;
    }
  }
  static Incarnation Who(std::uint32_t worker) { return (Incarnation{7} << kWorkerBits) | worker; }
  void Begin(GroupId id, bool ring_only, bool digest = false) {
    std::vector<GroupMember> members;
    const auto n = static_cast<std::uint32_t>(world_->replicas.size());
    for (std::uint32_t i = 0; i < n; ++i) {
      members.push_back({.rank = static_cast<Rank>(i), .incarnation = Who(i), .weight = 1.0 / n});
    }
    const Group group{.id = id,
                      .members = SharedList<GroupMember>(std::move(members)),
                      .iteration = 1,
                      .ring_only = ring_only,
                      .digest = digest};
    for (std::uint32_t i = 0; i < n; ++i) data_->Begin(i, 1, {.group = group}, Plan());
  }
  // Runs until nothing is left to happen, or so long.
  void Run(DurationNs within = kSecond) {
    const Instant end = world_->now + within;
    while (!world_->queue.empty()) {
      const SimEvent event = world_->queue.Pop();
      if (event.at > end) return;
      world_->now = event.at;
      std::vector<PlaneResult> results;
      if (event.kind == EventKind::kReduced) results = data_->OnReduced(event.what);
      if (event.kind == EventKind::kReduceFails) results = data_->OnFails(event.who, event.what);
      if (event.kind == EventKind::kSilent) results = data_->OnSilent(event.who, event.what);
      if (event.kind == EventKind::kProbe) {
        for (const GroupMember& of : probes_->OnProbe(event.who, event.what)) {
          probed_.emplace_back(world_->now, of.rank);
        }
      }
      for (PlaneResult& result : results) {
        at_[result.worker] = world_->now;
        results_[result.worker] = std::move(result);
      }
    }
  }
  void CutBothWays(std::uint32_t a, std::uint32_t b, Instant until) {
    world_->links.Cut(a, b, until);
    world_->links.Cut(b, a, until);
  }

  Workload workload_;
  std::optional<World> world_;
  std::optional<ReplicaBoxes> boxes_;
  std::optional<DataPlane> data_;
  std::optional<PeerProbes> probes_;
  std::map<std::uint32_t, PlaneResult> results_;
  std::map<std::uint32_t, Instant> at_;
  std::vector<std::pair<Instant, Rank>> probed_;
};

constexpr DurationNs kLease = 100 * kMillisecond;

TEST_F(LinkedGroup, ACutLinkFailsItAfterALeaseAndItsEndsNameEachOther) {
  CutBothWays(1, 2, {10 * kSecond});
  Begin(1, false);
  Run();
  ASSERT_EQ(results_.size(), 4u);
  for (const auto& [worker, result] : results_) {
    EXPECT_FALSE(result.ok) << worker;
    EXPECT_GE(at_[worker].ns, kLease) << worker;
    EXPECT_LE(at_[worker].ns, kLease + 2 * kMillisecond) << worker;
  }
  EXPECT_EQ(results_[1].unreachable, std::vector<Rank>{2});
  EXPECT_EQ(results_[2].unreachable, std::vector<Rank>{1});
  EXPECT_TRUE(results_[0].unreachable.empty());
  EXPECT_TRUE(results_[3].unreachable.empty());
}

// A question needs an answer.
TEST_F(LinkedGroup, OneDirectionIsEnoughToBreakIt) {
  world_->links.Cut(1, 2, {10 * kSecond});
  Begin(1, false);
  Run();
  EXPECT_EQ(results_[1].unreachable, std::vector<Rank>{2});
  EXPECT_EQ(results_[2].unreachable, std::vector<Rank>{1});
}

TEST_F(LinkedGroup, ARingNeedsOnlyLinksBetweenNeighbours) {
  CutBothWays(0, 2, {10 * kSecond});
  Begin(1, true);
  Run();
  ASSERT_EQ(results_.size(), 4u);
  for (const auto& [worker, result] : results_) EXPECT_TRUE(result.ok) << worker;
  CutBothWays(0, 3, {10 * kSecond});  // the last one's next is the first
  Begin(2, true);
  Run();
  EXPECT_EQ(results_[3].unreachable, std::vector<Rank>{0});
}

TEST_F(LinkedGroup, AGroupTellsTheDigestOfWhatItLeavesIfItIsAsked) {
  for (std::uint32_t i = 0; i < 4; ++i) world_->replicas[i].x = {1.0 * i, 2, 3};
  Begin(1, false, true);
  Run();
  const std::uint64_t digest = results_[0].digest;
  EXPECT_NE(digest, 0u);
  for (const auto& [worker, result] : results_) EXPECT_EQ(result.digest, digest) << worker;
  EXPECT_EQ(world_->replicas[2].Digest(), digest);
  world_->replicas[2].x[1] += 1e-9;
  EXPECT_NE(world_->replicas[2].Digest(), digest);
  Begin(2, false);
  Run();
  EXPECT_EQ(results_[0].digest, 0u);
}

TEST_F(LinkedGroup, ALinkThatIsBackInTimeFailsNothing) {
  CutBothWays(1, 2, {kLease / 2});
  Begin(1, false);
  Run();
  for (const auto& [worker, result] : results_) EXPECT_TRUE(result.ok) << worker;
  EXPECT_GE(at_[0].ns, kLease / 2);
}

TEST_F(LinkedGroup, ASlowLinkIsNotABrokenOne) {
  world_->links.Slow(1, 2, {kLease}, 5 * kLease);
  Begin(1, false);
  Run();
  ASSERT_EQ(results_.size(), 4u);
  for (const auto& [worker, result] : results_) EXPECT_TRUE(result.ok) << worker;
  EXPECT_GE(at_[0].ns, 5 * kLease);
}

TEST_F(LinkedGroup, WhoStandsStillDoesNotAnswer) {
  world_->frozen_until[3] = {10 * kSecond};
  Begin(1, false);
  Run(kSecond);
  for (const std::uint32_t worker : {0u, 1u, 2u}) {
    EXPECT_EQ(results_[worker].unreachable, std::vector<Rank>{3}) << worker;
  }
}

TEST_F(LinkedGroup, WhoHasDiedIsUnreachableAtOnce) {
  Begin(1, false);
  data_->Gone(3);
  world_->replicas[3].incarnation = 0;
  Run();
  EXPECT_EQ(results_[0].unreachable, std::vector<Rank>{3});
  EXPECT_LE(at_[0].ns, 2 * kMillisecond);
}

TEST_F(LinkedGroup, AProbeAsksUntilItIsAnswered) {
  CutBothWays(0, 1, {kSecond});
  CutBothWays(0, 2, {30 * kSecond});
  const std::vector<GroupMember> targets = {{.rank = 1, .incarnation = Who(1)},
                                            {.rank = 2, .incarnation = Who(2)}};
  probes_->Ask(0, SharedList<GroupMember>(std::vector<GroupMember>(targets)));
  Run(10 * kSecond);
  ASSERT_EQ(probed_.size(), 1u);
  EXPECT_EQ(probed_[0].second, 1);
  EXPECT_GE(probed_[0].first.ns, kSecond);
  EXPECT_LE(probed_[0].first.ns, kSecond + 300 * kMillisecond);
  probes_->Ask(0, {});
  Run(60 * kSecond);
  EXPECT_EQ(probed_.size(), 1u);
}

}  // namespace
}  // namespace prd::sim
