// Whole runs: what must come out is known from theory or from the workload.
#include <gtest/gtest.h>

#include "config/engine_text.h"
#include "engines/registry.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

RunResult Good(const Workload& workload, std::uint64_t seed = 1) {
  RunResult run = Simulate(workload, {.seed = seed});
  EXPECT_EQ(run.invariant, "") << run.violation;
  return run;
}

TEST(Run, AllReduceTakesTheSlowestStepAndTheRing) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nsteps = 100\nseconds = 100.0\n[compute]\nmean_ms = 20.0\n"
      "slow_workers = 1\nslow_factor = 3.0\n[network]\ndelay_us = 100.0\njitter_us = 0.0\n"
      "[reduce]\nbytes = 4e6\nlocal_latency_us = 0.0\nlocal_bandwidth_mb_per_s = 1000.0\n"
      "[job]\nname = \"sim\"\nengine = \"all-reduce\"\n");
  const RunResult run = Good(workload);
  EXPECT_TRUE(run.all_finished);
  EXPECT_EQ(run.stats.throughput.updates(), 100u);
  // 60 ms for the slowest step, 2 * 3/4 * 4 MB at 1 GB/s = 6 ms, two messages of 100 us.
  EXPECT_NEAR(1e3 / run.updates_per_s, 66.2, 0.1);
  EXPECT_NEAR(run.stats.workers[3].IdleShare(), 40.2 / 66.2, 0.01);
  EXPECT_EQ(run.stats.staleness.Quantile(1), 0);
}

// Each of four workers gives 4 MB to each of the others while it computes: what all these take of
// its host's card is the step.
TEST(Run, HopTakesWhatTheCardsOfItsHostsCarry) {
  const auto step_ms = [](const std::string& reduce) {
    const RunResult run = Good(FromText(
        "[cluster]\nworkers = 4\nworkers_per_host = 1\nsteps = 50\nseconds = 100.0\n[compute]\n"
        "mean_ms = 20.0\n[network]\ndelay_us = 100.0\njitter_us = 0.0\n[reduce]\nbytes = 4e6\n"
        "latency_us = 0.0\nbandwidth_mb_per_s = 100.0\n" +
        reduce + "[job]\nname = \"sim\"\nengine = \"hop\"\n[job.hop]\ngraph = \"complete\"\n"));
    EXPECT_TRUE(run.all_finished);
    return 1e3 * run.seconds / 50;
  };
  EXPECT_NEAR(step_ms(""), 120, 5);
  EXPECT_NEAR(step_ms("host_bandwidth_mb_per_s = 200.0\n"), 60, 3);
  EXPECT_NEAR(step_ms("host_bandwidth_mb_per_s = 1000.0\n"), 40, 3);  // of a link
}

TEST(Run, PReduceComesNearItsBoundWithAStraggler) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.job.engine = PReduceOptions{.group_size = 3};
  const RunResult run = Good(workload);
  EXPECT_TRUE(run.all_finished);
  EXPECT_NEAR(run.bound_updates_per_s, 24, 0.01);  // (7 * 10 + 2) / 3
  EXPECT_GT(run.updates_per_s / run.bound_updates_per_s, 0.78);
  EXPECT_LT(run.updates_per_s / run.bound_updates_per_s, 1);
  ASSERT_TRUE(run.rho.has_value());
  EXPECT_GT(*run.rho, 0.5);
  EXPECT_LT(*run.rho, 1);
}

// Steps per second of all workers together.
double StepsPerSecond(Workload workload, const EngineOptions& options) {
  workload.job.engine = options;
  const RunResult run = Good(workload);
  std::int64_t steps = 0;
  for (const WorkerStats& worker : run.stats.workers) steps += worker.steps;
  return static_cast<double>(steps) / workload.cluster.seconds;
}

TEST(Run, PReducesOwnGroupSizeIsNearTheFastest) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.compute.spread = 0.2;
  workload.cluster.steps = 0;
  workload.cluster.seconds = 100;
  for (const int workers : {2, 3, 4, 5, 8, 16}) {
    workload.cluster.workers = workers;
    double best = 0;
    for (int size = 2; size <= std::min(workers, 8); ++size) {
      best = std::max(best, StepsPerSecond(workload, PReduceOptions{.group_size = size}));
    }
    EXPECT_GE(StepsPerSecond(workload, PReduceOptions{}), 0.9 * best) << workers << " workers";
  }
  // Steps that hardly vary: nobody is left over.
  workload.compute.spread = 0.02;
  for (const int workers : {3, 4, 5, 6, 8}) {
    workload.cluster.workers = workers;
    double best = 0;
    for (int size = 2; size <= workers; ++size) {
      best = std::max(best, StepsPerSecond(workload, PReduceOptions{.group_size = size}));
    }
    EXPECT_GE(StepsPerSecond(workload, PReduceOptions{}), 1.02 * best) << workers << " workers";
  }
  // With two slow ones of four, only groups of two do without them.
  workload.cluster.workers = 4;
  workload.compute.slow_workers = 2;
  EXPECT_GT(StepsPerSecond(workload, PReduceOptions{}),
            1.5 * StepsPerSecond(workload, PReduceOptions{.group_size = 3}));
}

// What options say of the pace holds: one slow worker in five.
TEST(Run, TheSlowestSetsThePaceWhereOptionsSaySo) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.cluster.workers = 5;
  workload.cluster.steps = 0;
  workload.cluster.seconds = 60;
  using Generator = PragueOptions::Generator;
  const std::vector<EngineOptions> engines = {PReduceOptions{},
                                              PReduceOptions{.group_size = 5},
                                              EagerOptions{.quorum = EagerOptions::kSolo},
                                              EagerOptions{.quorum = 5},
                                              BackupOptions{},
                                              BackupOptions{.backups = 0},
                                              EsyncOptions{},
                                              PragueOptions{},
                                              PragueOptions{.group_size = 2},
                                              PragueOptions{.overlap = true},
                                              PragueOptions{.generator = Generator::kStatic},
                                              PragueOptions{.generator = Generator::kRandom},
                                              AdPsgdOptions{},
                                              HopOptions{},
                                              HopOptions{.backups = 1},
                                              HopOptions{.max_jump = 10},
                                              HopOptions{.backups = 1, .max_jump = 10},
                                              HopOptions{.staleness = 5, .max_jump = 10},
                                              SspOptions{.staleness = 0},
                                              SspOptions{},
                                              SspOptions{.staleness = -1}};
  for (const EngineOptions& engine : engines) {
    const bool slow = !SlowestSetsPace(engine, 5).empty();
    const double all_at_slowest = 5 * 2;  // steps per second
    const double pace = StepsPerSecond(workload, engine) / all_at_slowest;
    EXPECT_EQ(slow, pace < 1.2) << EngineText(engine) << " makes " << pace << " times the steps";
  }
}

TEST(Run, TheSameSeedGivesTheSameRunAndAnotherSeedAnother) {
  for (const Workload& workload : FaultWorkloads()) {
    const RunResult first = Good(workload, 5);
    EXPECT_EQ(first.hash, Good(workload, 5).hash) << workload.name;
    EXPECT_NE(first.hash, Good(workload, 6).hash) << workload.name;
  }
}

// Faults that are asked for do happen, and everybody finishes nevertheless.
TEST(Run, FaultsHappen) {
  std::uint64_t restarts = 0, expired = 0, failed = 0, adoptions = 0;
  for (const Workload& workload : FaultWorkloads()) {
    const RunResult run = Good(workload, 3);
    EXPECT_TRUE(run.all_finished) << workload.name;
    restarts += run.restarts;
    expired += run.stats.expired;
    failed += run.stats.failed_groups;
    adoptions += run.stats.adoptions;
    if (workload.name == "none") {
      EXPECT_EQ(run.restarts + run.stats.expired + run.stats.failed_groups, 0u);
    }
    if (workload.name == "controller") {
      EXPECT_GE(run.restarts, 1u);
    }
    if (workload.name == "reductions") {
      EXPECT_GE(run.stats.failed_groups, 5u);
    }
    if (workload.name == "workers") {
      EXPECT_GE(run.stats.expired, 1u);
    }
  }
  EXPECT_GE(restarts, 2u);
  EXPECT_GE(expired, 3u);
  EXPECT_GE(failed, 10u);
  EXPECT_GE(adoptions, 5u);
}

// And so does what training loops and launchers do, what users forget, and what comes of it.
TEST(Run, PausesAveragesGoalsDifferencesAndLaunchesHappen) {
  const auto count = [](const char* workload, const EngineOptions& engine, const auto& is) {
    Workload base = Loaded(workload);
    base.job.engine = engine;
    int records = 0;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const RunResult run = Simulate(base, {.seed = seed, .on_record = [&](const Record& record) {
                                              records += is(record.body) ? 1 : 0;
                                            }});
      EXPECT_EQ(run.invariant, "") << workload << ", seed " << seed << run.violation;
      EXPECT_TRUE(run.all_finished) << workload << ", seed " << seed;
    }
    return records;
  };
  const auto pauses = [](const RecordBody& body) {
    const auto* left = std::get_if<WorkerLeft>(&body);
    return left != nullptr && left->why == LeftReason::kPaused;
  };
  const auto averages = [](const RecordBody& body) {
    const auto* from = std::get_if<FromWorker>(&body);
    return from != nullptr && std::holds_alternative<AskMembers>(from->envelope.body);
  };
  const auto goals = [](const RecordBody& body) {
    return std::holds_alternative<GoalReached>(body);
  };
  const auto differ = [](const RecordBody& body) {
    const auto* told = std::get_if<ReplicasDiffer>(&body);
    return told != nullptr && !told->ranks.empty();
  };
  const auto repairs = [](const RecordBody& body) {
    const auto* ordered = std::get_if<AdoptOrdered>(&body);
    return ordered != nullptr && ordered->reason.starts_with("its replica differs");
  };
  const auto refuses_launch = [](const RecordBody& body) {
    const auto* refused = std::get_if<HelloRefused>(&body);
    return refused != nullptr && refused->reason.find("launch") != std::string::npos;
  };
  EXPECT_GE(count("faults/pauses.toml", PReduceOptions{}, pauses), 20);
  EXPECT_GE(count("faults/pauses.toml", PReduceOptions{}, averages), 20);
  EXPECT_EQ(count("faults/goals.toml", PReduceOptions{}, goals), 5);
  EXPECT_GE(count("faults/replicas.toml", AllReduceOptions{}, differ), 5);
  EXPECT_GE(count("faults/replicas.toml", AllReduceOptions{}, repairs), 5);
  EXPECT_GE(count("faults/state.toml", AllReduceOptions{}, differ), 2);
  EXPECT_GE(count("faults/launches.toml", PReduceOptions{}, refuses_launch), 1);
}

TEST(Run, ATimelineHasEverySlice) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.cluster.steps = 20;
  const RunResult run = Simulate(workload, {.seed = 1, .keep_slices = true});
  std::vector<DurationNs> computed(8);
  for (const Slice& slice : run.stats.slices) {
    EXPECT_LE(slice.from, slice.to);
    if (slice.kind == Slice::Kind::kCompute) computed[slice.worker] += slice.to - slice.from;
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(computed[i], run.stats.workers[i].computed);
}

TEST(Run, AThousandWorkers) {
  Workload workload = Loaded("workloads/thousand.toml");
  workload.cluster.seconds = 5;
  const RunResult run = Good(workload);
  EXPECT_GT(run.stats.throughput.updates(), 5000u);
  EXPECT_EQ(run.stats.failed_groups, 0u);
  EXPECT_EQ(run.stats.adoptions, 999u);
}

double UpdatesPerSecond(Workload workload, const char* engine) {
  workload.job.engine = *ParseEngine(engine);
  return Good(workload).updates_per_s;
}

constexpr const char* kSolo = "eager:quorum=1,max_stale_rounds=0,sync_every=0";
constexpr const char* kMajority = "eager:max_stale_rounds=0,sync_every=0";

// Eager-SGD's speedups over synchronous SGD (PPoPP 2020, sections 6.2.1 and 6.2.3): solo 1.50, 1.75
// and 2.01 with one of eight delayed by 200, 300 and 400 ms, majority 1.29 with all skewed.
TEST(Run, EagerRoundsOutrunAllReduceAsInThePaper) {
  Workload workload = Loaded("workloads/eager_hyperplane.toml");
  for (const auto& [delay_ms, paper] : {std::pair(200.0, 1.50), {300.0, 1.75}, {400.0, 2.01}}) {
    workload.compute.inject_max_ms = delay_ms;
    const double all_reduce = UpdatesPerSecond(workload, "all-reduce");
    EXPECT_NEAR(UpdatesPerSecond(workload, kSolo) / all_reduce, paper, 0.08 * paper) << delay_ms;
  }
  workload = Loaded("workloads/eager_shifted.toml");
  const double all_reduce = UpdatesPerSecond(workload, "all-reduce");
  EXPECT_NEAR(UpdatesPerSecond(workload, kMajority) / all_reduce, 1.29, 0.1);
}

// ESync: two of six devices are 100 times slower, and nobody waits for them idly.
TEST(Run, EsyncKeepsUnequalDevicesComputing) {
  Workload workload = Loaded("workloads/esync_devices.toml");
  workload.cluster.seconds = 60;
  workload.training.target_loss = 0;
  const auto idle = [&](const char* engine) {
    workload.job.engine = *ParseEngine(engine);
    const RunResult run = Good(workload);
    double sum = 0;
    for (const WorkerStats& worker : run.stats.workers) sum += worker.IdleShare() / 6;
    return sum;
  };
  EXPECT_GT(idle("all-reduce"), 0.6);
  EXPECT_LT(idle("esync"), 0.2);
  EXPECT_LT(idle("esync:mode=delayed-ack"), 0.2);
}

// With constant steps and a quiet network, who is READY waits less than one of its own iterations
// and the margin; here also by the clock of the worker, and so with the messages' ways.
TEST(Run, EsyncWaitsAreShorterThanAnIteration) {
  Workload workload = Loaded("workloads/esync_devices.toml");
  workload.cluster.seconds = 60;
  workload.network.jitter_us = 0;
  workload.training = {};
  const RunResult run = Simulate(workload, {.seed = 1, .keep_slices = true});
  EXPECT_EQ(run.invariant, "") << run.violation;
  int waits = 0;
  for (const Slice& slice : run.stats.slices) {
    if (slice.kind != Slice::Kind::kWait || slice.from.ns < 10 * kSecond) continue;
    const double step_ms = slice.worker < 2 ? 2000 : 20;
    const double margin_ms = 1, ways_ms = 4 * 0.1 + 0.2;  // a query, and the way to the barrier
    EXPECT_LE(static_cast<double>(slice.to - slice.from) / kMillisecond,
              step_ms + margin_ms + ways_ms)
        << "worker " << slice.worker;
    ++waits;
  }
  EXPECT_GT(waits, 100);
}

// A worker that waits for ever is named, with what the controller has to say about it.
TEST(Run, AStuckWorkerIsExplained) {
  const Workload workload = FromText(
      "[cluster]\nworkers = 4\nsteps = 50\nseconds = 20.0\n"
      "[job]\nname = \"sim\"\nengine = \"all-reduce\"\n");
  const RunResult run = Simulate(workload, {.seed = 1, .mutation = Mutation::kLostFinished});
  EXPECT_EQ(run.invariant, "no-hang");
  EXPECT_NE(run.violation.find("the controller says: in group"), std::string::npos)
      << run.violation;
  EXPECT_FALSE(run.last_events.empty());
}

constexpr const char* kFreezes =
    "[cluster]\nworkers = 6\nsteps = 150\nseconds = 120.0\n"
    "[job]\nname = \"sim\"\nengine = \"p-reduce\"\nlease_ms = 400\nheartbeat_ms = 100\n"
    "[job.p-reduce]\ngroup_size = 2\n[faults]\nuntil_ms = 2000.0\n";

// A worker that stands still for longer than its lease is lost, and comes back with its own
// replica.
TEST(Run, WorkersThatStandStillAreLostAndGoOn) {
  const RunResult run = Good(FromText(std::string(kFreezes) + "worker_freezes_per_s = 0.3\n"));
  EXPECT_TRUE(run.all_finished);
  EXPECT_GE(run.stats.expired, 1u);
  EXPECT_GE(run.stats.failed_groups, 1u);
}

TEST(Run, AControllerThatStandsStillLosesNobody) {
  const RunResult run = Good(FromText(std::string(kFreezes) + "controller_freezes_per_s = 1.0\n"));
  EXPECT_TRUE(run.all_finished);
  EXPECT_GT(run.seconds, 3.0);
  EXPECT_EQ(run.stats.expired, 0u);
}

// The controller shows the wall clock's time, and decides nothing by it.
TEST(Run, StepsOfTheWallClockHaveNoEffect) {
  const RunResult run = Good(FromText(std::string(kFreezes) + "clock_steps_per_s = 10.0\n"));
  EXPECT_EQ(run.hash, Good(FromText(kFreezes)).hash);
}

// A controller whose history loses its end, or all of it, or is put back as it was, again and
// again; one of the workers is killed and does not come back before the others have gone on without
// it.
TEST(Run, NobodyHangsWhenTheHistoryIsLostUnderAnyEngine) {
  const Workload base = FromText(
      "[cluster]\nworkers = 5\nsteps = 150\nseconds = 120.0\n"
      "[job]\nname = \"sim\"\nengine = \"p-reduce\"\nlease_ms = 400\nheartbeat_ms = 100\n"
      "start_grace_ms = 1000\n"
      "[faults]\nuntil_ms = 2500.0\ncontroller_dies_per_s = 1.5\nforget = 0.4\nwipe = 0.4\n"
      "old_copy = 1.0\nworker_dies = 0.003\nreturn_ms = 60000.0\n");
  for (const EngineOptions& engine : AllEngines()) {
    Workload workload = base;
    workload.job.engine = engine;
    std::uint64_t restarts = 0, lost = 0, averages = 0, expired = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const RunResult run = Simulate(
          workload, {.seed = seed, .on_record = [&](const Record& record) {
                       lost += std::holds_alternative<HistoryLost>(record.body) ? 1 : 0;
                       const auto* formed = std::get_if<GroupFormed>(&record.body);
                       if (formed == nullptr || formed->kind != GroupKind::kInitial) return;
                       averages += formed->reason.find("trained before") != std::string::npos;
                     }});
      EXPECT_EQ(run.invariant, "") << EngineText(engine) << ", seed " << seed << run.violation;
      restarts += run.restarts;
      expired += run.stats.expired;
    }
    EXPECT_GE(restarts, 20u) << EngineText(engine);
    EXPECT_GE(lost, 3u) << EngineText(engine);
    EXPECT_GE(averages, 5u) << EngineText(engine);
    EXPECT_GE(expired, 1u) << EngineText(engine);
  }
}

}  // namespace
}  // namespace prd::sim
