#include "tools/sim/vary.h"

#include <algorithm>

#include "common/base/prng.h"
#include "engines/p_reduce/p_reduce.h"

namespace prd::sim {
namespace {

// Keeps what is drawn here apart from what the run itself draws.
constexpr std::uint64_t kOwnSequence = 0x7661727900000000u;

int Between(Prng* prng, int from, int to) {
  return from + static_cast<int>(prng->Below(static_cast<std::uint64_t>(to - from + 1)));
}

PReduceOptions DrawPReduce(Prng* prng, int workers) {
  PReduceOptions options;
  options.group_size = Between(prng, 2, 5);
  options.weights = static_cast<PReduceOptions::Weights>(prng->Below(2));
  options.missing = static_cast<PReduceOptions::Missing>(prng->Below(3));
  options.alpha = 0.25 * static_cast<double>(prng->Below(4));
  if (prng->Below(2) == 0) {
    const auto least = static_cast<int>(SmallestWindow(workers, options.group_size));
    options.history_window = Between(prng, least, 3 * least);
  }
  if (prng->Below(3) == 0) options.max_wait_ms = Between(prng, 5, 100);
  options.overlap = prng->Below(2) == 0;
  options.overlap_steps = Between(prng, 1, 5);
  return options;
}

EagerOptions DrawEager(Prng* prng, int workers) {
  EagerOptions options;
  options.quorum = Between(prng, 0, workers + 1);
  options.seed = Between(prng, 0, 1000);
  options.max_stale_rounds = prng->Below(3) == 0 ? 0 : Between(prng, 1, 8);
  options.sync_every = prng->Below(3) == 0 ? 0 : Between(prng, 1, 12);
  options.missed = static_cast<EagerOptions::Missed>(prng->Below(2));
  return options;
}

EsyncOptions DrawEsync(Prng* prng) {
  EsyncOptions options;
  options.mode = static_cast<EsyncOptions::Mode>(prng->Below(2));
  options.margin_ms = Between(prng, 0, 5);
  options.global_lr = 0.25 * static_cast<double>(1 + prng->Below(4));
  options.stall_factor = prng->Below(3) == 0 ? 0 : Between(prng, 2, 10);
  return options;
}

PragueOptions DrawPrague(Prng* prng) {
  PragueOptions options;
  options.generator = static_cast<PragueOptions::Generator>(prng->Below(3));
  options.group_size = Between(prng, 2, 5);
  options.section_length = prng->Below(3) == 0 ? Between(prng, 2, 4) : 1;
  options.slowdown_threshold = Between(prng, 1, 10);
  options.inter_intra = prng->Below(3) != 0;
  options.request_ahead = prng->Below(2) == 0;
  options.workers_per_host = prng->Below(2) == 0 ? 0 : Between(prng, 1, 5);
  options.overlap = prng->Below(2) == 0;
  options.overlap_steps = Between(prng, 1, 5);
  options.seed = Between(prng, 0, 1000);
  return options;
}

AdPsgdOptions DrawAdPsgd(Prng* prng, int workers) {
  AdPsgdOptions options;
  const auto kind = prng->Below(3);
  if (kind == 0) options.graph.kind = Graph::Kind::kRing;
  if (kind == 1 && workers > 1) {  // a tree, and some edges more
    options.graph.kind = Graph::Kind::kEdges;
    for (Rank rank = 1; rank < workers; ++rank) {
      options.graph.edges.push_back({Between(prng, 0, rank - 1), rank});
    }
    for (int more = Between(prng, 0, 3); more > 0 && workers > 2; --more) {
      const Rank a = Between(prng, 0, workers - 2);
      const Graph::Edge edge = {a, Between(prng, a + 1, workers - 1)};
      if (std::find(options.graph.edges.begin(), options.graph.edges.end(), edge) ==
          options.graph.edges.end()) {
        options.graph.edges.push_back(edge);
      }
    }
  }
  options.section_length = prng->Below(3) == 0 ? Between(prng, 2, 4) : 1;
  options.overlap = prng->Below(2) == 0;
  options.overlap_steps = Between(prng, 1, 5);
  options.seed = Between(prng, 0, 1000);
  return options;
}

// Directed: each to those who follow it on the ring by some steps, which 1 is among. Else a tree,
// and some edges more.
void DrawEdges(Prng* prng, int workers, bool directed, std::vector<Graph::Edge>* edges) {
  const auto add = [&](Rank a, Rank b) {
    const Graph::Edge edge = {a, b};
    if (a != b && std::find(edges->begin(), edges->end(), edge) == edges->end()) {
      edges->push_back(edge);
    }
  };
  if (directed) {
    const int second = prng->Below(2) == 0 ? 1 : Between(prng, 1, workers - 1);
    for (Rank rank = 0; rank < workers; ++rank) {
      add(rank, (rank + 1) % workers);
      add(rank, (rank + second) % workers);
    }
    return;
  }
  for (Rank rank = 1; rank < workers; ++rank) add(Between(prng, 0, rank - 1), rank);
  for (int more = Between(prng, 0, 5); more > 0 && workers > 2; --more) {
    const Rank a = Between(prng, 0, workers - 2);
    add(a, Between(prng, a + 1, workers - 1));
  }
}

HopOptions DrawHop(Prng* prng, int workers) {
  HopOptions options;
  const auto kind = prng->Below(7);
  constexpr Graph::Kind kKinds[] = {Graph::Kind::kRing, Graph::Kind::kRingBased,
                                    Graph::Kind::kDoubleRing, Graph::Kind::kHierarchical,
                                    Graph::Kind::kComplete};
  if (kind < 5) {
    options.graph.kind = kKinds[kind];
  } else if (workers > 1) {
    options.graph.kind = Graph::Kind::kEdges;
    options.directed = kind == 5;
    DrawEdges(prng, workers, options.directed, &options.graph.edges);
  }
  options.workers_per_host = prng->Below(2) == 0 ? 0 : Between(prng, 1, 4);
  options.max_iteration_gap = prng->Below(5) == 0 ? 0 : Between(prng, 1, 6);
  options.order = static_cast<HopOptions::Order>(prng->Below(2));
  if (prng->Below(2) == 0) options.staleness = Between(prng, 1, 5);
  if (options.max_iteration_gap > 0) {
    if (prng->Below(2) == 0) options.backups = Between(prng, 1, 2);
    if (prng->Below(2) == 0) options.max_jump = Between(prng, 2, 10);
    options.skip_behind = Between(prng, 1, 4);
  }
  if (!Validate(options, workers).ok()) options.backups = 0;
  return options;
}

SspOptions DrawSsp(Prng* prng, int workers) {
  SspOptions options;
  options.staleness = Between(prng, -1, 5);
  if (prng->Below(3) == 0) options.staleness = 0;
  options.learning_rate = static_cast<SspOptions::LearningRate>(prng->Below(2));
  options.replicas = Between(prng, 0, 2);
  options.shards = prng->Below(2) == 0 ? 0 : Between(prng, 1, 2 * workers);
  return options;
}

// `drawn`, or the next number of workers that the options allow.
int AllowedWorkers(const OneEngine& only, int drawn) {
  for (int i = 0; i < kMostVaried; ++i) {
    const int workers = (drawn - 1 + i) % kMostVaried + 1;
    if (!only.as_given || Validate(only.engine, workers).ok()) return workers;
  }
  return drawn;
}

}  // namespace

EngineOptions DrawEngine(std::uint64_t seed, std::int64_t workers,
                         const std::optional<OneEngine>& only) {
  Prng prng(seed ^ kOwnSequence ^ 0xe9u);
  const std::vector<EngineOptions> all = AllEngines();
  EngineOptions engine = all[prng.Below(all.size())];
  if (only) engine = only->engine;
  if (only && only->as_given) return engine;
  const auto n = static_cast<int>(workers);
  if (std::holds_alternative<PReduceOptions>(engine)) {
    engine = DrawPReduce(&prng, n);
  } else if (std::holds_alternative<EagerOptions>(engine)) {
    engine = DrawEager(&prng, n);
  } else if (auto* all_reduce = std::get_if<AllReduceOptions>(&engine)) {
    all_reduce->weights = static_cast<AllReduceOptions::Weights>(prng.Below(2));
  } else if (auto* backup = std::get_if<BackupOptions>(&engine)) {
    backup->backups = Between(&prng, 0, n - 1);
  }
  if (std::holds_alternative<EsyncOptions>(engine)) engine = DrawEsync(&prng);
  if (std::holds_alternative<PragueOptions>(engine)) engine = DrawPrague(&prng);
  if (std::holds_alternative<AdPsgdOptions>(engine)) engine = DrawAdPsgd(&prng, n);
  if (std::holds_alternative<HopOptions>(engine)) engine = DrawHop(&prng, n);
  if (std::holds_alternative<SspOptions>(engine)) engine = DrawSsp(&prng, n);
  return engine;
}

Workload Vary(const Workload& base, std::uint64_t seed, const std::optional<OneEngine>& only) {
  Prng prng(seed ^ kOwnSequence);
  Workload workload = base;
  workload.cluster.workers = Between(&prng, 1, kMostVaried);
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
  workload.job.engine = DrawEngine(seed, workload.cluster.workers, only);
  workload.job.workers = 0;
  if (prng.Below(4) == 0) {  // the others join a running job
    workload.job.workers = Between(&prng, 1, static_cast<int>(workload.cluster.workers));
    if (only && only->as_given) {
      workload.job.workers = AllowedWorkers(*only, workload.job.workers);
      if (workload.job.workers > workload.cluster.workers) workload.job.workers = 0;
    } else if (auto* backup = std::get_if<BackupOptions>(&workload.job.engine)) {
      backup->backups = std::min(backup->backups, workload.job.workers - 1);
    } else if (auto* hop = std::get_if<HopOptions>(&workload.job.engine)) {
      if (!Validate(*hop, workload.job.workers).ok()) hop->backups = 0;
      if (!Validate(*hop, workload.job.workers).ok()) workload.job.workers = 0;
    }
  }
  return workload;
}

}  // namespace prd::sim
