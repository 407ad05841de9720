// ESync (Li et al., ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in
// Heterogeneous Clusters), section 5. The paper does not say how much slower its CPUs are than its
// GPUs, nor what its network carries: devices, sizes and the objective are chosen here.
#include <algorithm>

#include "engines/registry.h"
#include "tools/sim/cluster.h"
#include "tools/sim/papers/papers.h"

namespace prd::sim {
namespace {

constexpr std::size_t kSlowDevices = 2;

Workload Devices(double slower) {
  Workload workload;
  workload.name = "esync devices";
  workload.cluster.workers = 6;
  workload.cluster.workers_per_host = 1;
  workload.cluster.steps = 0;
  workload.compute.mean_ms = 20;
  workload.compute.slow_workers = kSlowDevices;
  workload.compute.slow_factor = slower;
  workload.compute.poll_ms = 5;
  workload.reduce.bandwidth_mb_per_s = 125;
  workload.training = {.objective = TrainingPart::Objective::kLogistic,
                       .learning_rate = 0.2,
                       .batch = 8,
                       .target_loss = 0.02,
                       .evaluate_ms = 200};
  workload.job.name = "sim";
  workload.job.lease_ms = 20000;
  workload.job.heartbeat_ms = 5000;
  return workload;
}

struct OnDevices {
  std::optional<double> target_s;
  double samples_per_s = 0;
  double bytes_per_s = 0;
  double slow = 1, fast = 1;  // the least share of the time that such a device computes
};

OnDevices MeasureDevices(const EngineOptions& engine, double slower, std::uint64_t seed,
                         std::int64_t updates) {
  Workload workload = Devices(slower);
  workload.job.engine = engine;
  workload.cluster.seconds = 10000;
  OnDevices found{.target_s = SecondsToTarget(workload, seed)};
  workload.training = {};
  workload.cluster.seconds = std::min(600.0, static_cast<double>(updates));
  const RunResult run = Simulate(workload, {.seed = seed});
  if (run.seconds > 0) found.bytes_per_s = static_cast<double>(run.bytes) / run.seconds;
  for (std::size_t i = 0; i < run.stats.workers.size(); ++i) {
    const WorkerStats& worker = run.stats.workers[i];
    const auto all = static_cast<double>(worker.computed + worker.waited + worker.reduced);
    const double share = all > 0 ? static_cast<double>(worker.computed) / all : 0;
    double& least = i < kSlowDevices ? found.slow : found.fast;
    least = std::min(least, share);
    if (run.seconds > 0) {
      found.samples_per_s +=
          static_cast<double>(worker.steps * workload.cluster.samples) / run.seconds;
    }
  }
  return found;
}

// The paper's engines first, then all others.
std::vector<EngineOptions> EnginesOnDevices() {
  EsyncOptions delayed;
  delayed.mode = EsyncOptions::Mode::kDelayedAck;
  std::vector<EngineOptions> engines = {AllReduceOptions{}, EsyncOptions{}, delayed};
  for (const EngineOptions& engine : AllEngines()) {
    if (std::find(engines.begin(), engines.end(), engine) == engines.end()) {
      engines.push_back(engine);
    }
  }
  return engines;
}

void AddDevices(double slower, std::uint64_t seed, std::int64_t updates,
                std::vector<PaperRow>* rows) {
  std::optional<OnDevices> base;  // all-reduce
  for (const EngineOptions& engine : EnginesOnDevices()) {
    const OnDevices found = MeasureDevices(engine, slower, seed, updates);
    if (!base) base = found;
    const auto add = [&](const char* unit, std::optional<double> ours, int digits) {
      rows->push_back({.engine = "esync",
                       .figure = "section 5",
                       .setting = Fixed(slower, 0) + " times slower, " + EngineText(engine),
                       .unit = unit,
                       .ours = ours,
                       .digits = digits});
    };
    add("target_s", found.target_s, 1);
    add("speedup", Over(base->target_s, found.target_s), 2);
    add("samples", Over(found.samples_per_s, base->samples_per_s), 2);
    add("kB/s", found.bytes_per_s / 1e3, 1);
    add("traffic", Over(found.bytes_per_s, base->bytes_per_s), 2);
    add("computing: slow", found.slow, 3);
    add("fast", found.fast, 3);
  }
}

}  // namespace

std::vector<Paper> EsyncPapers(std::uint64_t seed, std::int64_t updates) {
  Paper paper{
      .about =
          "ESync (Li et al.), section 5. The paper: 7 times the training speed of SSGD to accuracy "
          "0.8 (ResNet on i.i.d.\nFashion-MNIST; 2 to 27 times for other models), 33 times its "
          "samples per second, a quarter of ASGD's traffic per second; its\nFigure 5 gives no "
          "numbers for computing time: our goal is 0.95. Chosen by us: six devices, two of them "
          "100 or 10 times\nslower (the speedup grows with that), 1 MB of model, 125 MB/s, and a "
          "target loss of logistic regression instead of accuracy.\nSSGD is our all-reduce. There "
          "is no ASGD here: traffic is compared with every engine there is, which is not the "
          "paper's\ncomparison.",
      .rows = {},
      .notes =
          "speedup, samples and traffic (per second) over all-reduce's; computing time as a "
          "share, the least among the slow and\namong the fast devices."};
  for (const double slower : {100.0, 10.0}) AddDevices(slower, seed, updates, &paper.rows);
  return {paper};
}

}  // namespace prd::sim
