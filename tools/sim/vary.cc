#include "tools/sim/vary.h"

#include <algorithm>

#include "common/base/prng.h"
#include "engines/draw.h"

namespace prd::sim {
namespace {

// Keeps what is drawn here apart from what the run itself draws.
constexpr std::uint64_t kOwnSequence = 0x7661727900000000u;

int Between(Prng* prng, int from, int to) {
  return from + static_cast<int>(prng->Below(static_cast<std::uint64_t>(to - from + 1)));
}

// `drawn`, or the next number of workers that the options allow.
int AllowedWorkers(const OneEngine& only, int drawn) {
  for (int i = 0; i < kMaxVaried; ++i) {
    const int workers = (drawn - 1 + i) % kMaxVaried + 1;
    if (!only.as_given || Validate(only.engine, workers).ok()) return workers;
  }
  return drawn;
}

bool Switches(const FaultsPart& faults) {
  return faults.switches_per_s > 0 || faults.switch_at_ms > 0;
}

// Every other job whose engine can divides a batch: as the config says, or its workers.
void VaryBatch(std::uint64_t seed, Workload* workload) {
  Prng prng(seed ^ kOwnSequence ^ 0xba7cu);
  const bool can = MakeEngine(workload->job.engine)->batches() != Engine::Batches::kNone;
  if (!can && !Switches(workload->faults)) return;
  if (prng.Below(2) == 0) return;
  ClusterPart& cluster = workload->cluster;
  const std::int64_t batch = Between(&prng, kMaxVaried, 300);
  (prng.Below(2) == 0 ? workload->job.batch : cluster.batch) = batch;
  if (prng.Below(3) == 0) workload->job.batch_multiple = Between(&prng, 2, 8);
  if (prng.Below(2) == 0) workload->job.rebalance_min = 0.3 * prng.Unit();
  if (prng.Below(3) > 0) cluster.accumulates = prng.Below(2) == 0 ? 1 : prng.Unit();
  if (prng.Below(3) == 0) {
    // A step takes three passes at most where all workers share alike.
    const std::int64_t least = batch / (3 * cluster.workers) + 1;
    cluster.max_share =
        std::max<std::int64_t>(least, Between(&prng, 1, static_cast<int>(batch / 2)));
    cluster.limited = prng.Below(2) == 0 ? 1 : prng.Unit();
  }
  if (prng.Below(3) == 0) cluster.lead = Between(&prng, 1, 4);
  if (prng.Below(2) == 0) workload->compute.fixed_part = prng.Unit();
  workload->compute.mean_ms /= 2;  // where some have gone, the shares of the others are larger
}

}  // namespace

Workload Vary(const Workload& base, std::uint64_t seed, const std::optional<OneEngine>& only) {
  Prng prng(seed ^ kOwnSequence);
  Workload workload = base;
  workload.cluster.workers = Between(&prng, 1, kMaxVaried);
  if (only) {
    workload.cluster.workers = AllowedWorkers(*only, static_cast<int>(workload.cluster.workers));
  }
  workload.cluster.workers_per_host = Between(&prng, 1, 4);
  workload.cluster.steps = Between(&prng, 5, 25);
  workload.compute.model = static_cast<ComputePart::Model>(prng.Below(4));
  workload.compute.spread = 0.4 * prng.Unit();
  workload.compute.slow_workers = Between(&prng, 0, static_cast<int>(workload.cluster.workers) / 2);
  workload.compute.slow_factor = 1 + 5 * prng.Unit();
  if (prng.Below(4) == 0) {
    workload.compute.shared_workers = Between(&prng, 1, static_cast<int>(workload.cluster.workers));
    workload.compute.contention = prng.Unit();
  }
  if (prng.Below(2) == 0) workload.compute.poll_ms = 10 * prng.Unit();
  if (prng.Below(4) == 0) {
    workload.compute.inject = static_cast<ComputePart::Inject>(prng.Below(3));
    workload.compute.inject_min_ms = 20 * prng.Unit();
    workload.compute.inject_max_ms = workload.compute.inject_min_ms + 60 * prng.Unit();
  }
  workload.controller.snapshot_every = Between(&prng, 5, 200);
  if (prng.Below(3) == 0) workload.controller.service_us = 2000 * prng.Unit();
  workload.reduce.bytes = 1e7 * prng.Unit();
  if (base.job.goal.known()) {
    Prng goals(seed ^ kOwnSequence ^ 0x60a1u);
    const auto all = workload.cluster.workers * workload.cluster.steps;
    workload.job.goal = {
        .steps = 1 + static_cast<std::int64_t>(goals.Below(static_cast<std::uint64_t>(all)))};
  }
  workload.job.workers = 0;
  if (prng.Below(4) == 0) {  // the others join a running job
    workload.job.workers = Between(&prng, 1, static_cast<int>(workload.cluster.workers));
    if (only) workload.job.workers = AllowedWorkers(*only, workload.job.workers);
    if (workload.job.workers > workload.cluster.workers) workload.job.workers = 0;
  }
  const auto workers = static_cast<int>(workload.cluster.workers);
  if (only && only->as_given) {
    workload.job.engine = only->engine;
    VaryBatch(seed, &workload);
    return workload;
  }
  Prng options(seed ^ kOwnSequence ^ 0xe9u);
  const std::vector<EngineOptions> all = AllEngines();
  const EngineOptions engine = only ? only->engine : all[options.Below(all.size())];
  workload.job.engine = Draw(engine, &options, workers, workload.job.workers);
  VaryBatch(seed, &workload);
  return workload;
}

}  // namespace prd::sim
