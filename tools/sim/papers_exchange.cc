#include "tools/sim/papers_exchange.h"

#include <algorithm>

#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

constexpr double kStepMs = 3430;

Workload HopWorkload(const std::string& slowdown) {
  Workload workload;
  workload.name = "hop";
  workload.cluster.workers = 16;
  workload.cluster.workers_per_host = 4;
  workload.cluster.steps = 0;
  workload.compute.model = ComputePart::Model::kNormal;
  workload.compute.mean_ms = kStepMs;
  workload.compute.spread = 0.05;
  if (slowdown == "random") {
    workload.compute.hiccup_probability = 1.0 / 16;
    workload.compute.hiccup_factor = 6;
  } else if (slowdown == "one") {
    workload.compute.slow_workers = 1;
    workload.compute.slow_factor = 4;
  }
  workload.reduce.bytes = 37e6;
  workload.reduce.bandwidth_mb_per_s = 125;
  workload.job.name = "sim";
  workload.job.lease_ms = 20000;
  workload.job.heartbeat_ms = 5000;
  return workload;
}

EngineOptions HopEngine(const std::string& graph, const std::string& engine) {
  const std::string more = engine == "standard" ? "" : "," + engine;
  return ParseEngine("hop:graph=" + graph + more).value();
}

// All but the first, which is the one that may be slowed down for good.
double StepsPerSecond(const RunResult& run) {
  double steps = 0;
  for (std::size_t i = 1; i < run.stats.workers.size(); ++i) {
    steps += static_cast<double>(run.stats.workers[i].steps);
  }
  const auto others = static_cast<double>(run.stats.workers.size() - 1);
  return run.seconds > 0 ? steps / others / run.seconds : 0;
}

PaperHop RunHop(const std::string& graph, const std::string& slowdown, const std::string& engine,
                double paper, std::uint64_t seed, std::int64_t updates) {
  PaperHop row{.graph = graph, .slowdown = slowdown, .engine = engine, .paper = paper};
  Workload workload = HopWorkload(slowdown);
  workload.job.engine = HopEngine(graph, engine);
  workload.cluster.seconds = kStepMs / 1e3 * static_cast<double>(updates);
  row.steps_per_s = StepsPerSecond(Simulate(workload, {.seed = seed}));
  if (slowdown != "one") return row;
  workload.cluster.seconds = 100'000;
  workload.training = {.objective = TrainingPart::Objective::kLogistic,
                       .learning_rate = 0.2,
                       .batch = 8,
                       .target_loss = 0.02,
                       .evaluate_ms = 10'000};
  const RunResult run = Simulate(workload, {.seed = seed, .stop_at_target = true});
  if (run.target) row.target_s = static_cast<double>(run.target->at.ns) / 1e9;
  return row;
}

PaperSsp RunSsp(std::int64_t staleness, std::uint64_t seed, std::int64_t updates) {
  Workload workload;
  workload.name = "ssp";
  workload.cluster.workers = 8;
  workload.cluster.steps = 0;
  workload.cluster.seconds = 0.1 * static_cast<double>(updates);
  workload.compute.mean_ms = 100;
  workload.compute.slow_workers = 1;
  workload.compute.slow_factor = 5;
  workload.job.name = "sim";
  workload.job.engine = ParseEngine("ssp:staleness=" + std::to_string(staleness)).value();
  const RunResult run = Simulate(workload, {.seed = seed});
  PaperSsp row{.staleness = staleness};
  row.fast_steps_per_s = StepsPerSecond(run);
  const std::int64_t slow = run.stats.workers[0].steps;
  row.slow_steps_per_s = run.seconds > 0 ? static_cast<double>(slow) / run.seconds : 0;
  for (const WorkerStats& worker : run.stats.workers) {
    row.ahead = std::max(row.ahead, worker.steps - slow);
  }
  row.most_stale = static_cast<std::int64_t>(run.stats.staleness.counts().size()) - 1;
  return row;
}

const PaperHop* Find(const std::vector<PaperHop>& rows, const std::string& graph,
                     const std::string& slowdown) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const PaperHop& of) {
    return of.graph == graph && of.slowdown == slowdown && of.engine == "standard";
  });
  return row == rows.end() ? nullptr : &*row;
}

std::string Shown(double value) { return value > 0 ? Fixed(value, 2) : "-"; }

}  // namespace

double PaperHop::Speedup(const std::vector<PaperHop>& rows) const {
  const PaperHop* base = Find(rows, graph, slowdown);
  return base != nullptr && base->steps_per_s > 0 ? steps_per_s / base->steps_per_s : 0;
}

double PaperHop::TargetSpeedup(const std::vector<PaperHop>& rows) const {
  const PaperHop* base = Find(rows, graph, slowdown);
  return base != nullptr && target_s > 0 ? base->target_s / target_s : 0;
}

double PaperHop::Slowdown(const std::vector<PaperHop>& rows) const {
  const PaperHop* base = Find(rows, graph, "none");
  return base != nullptr && steps_per_s > 0 ? base->steps_per_s / steps_per_s : 0;
}

ExchangePapers RunExchangePapers(std::uint64_t seed, std::int64_t updates) {
  ExchangePapers papers;
  const auto add = [&](const char* graph, const char* slowdown, const char* engine, double paper) {
    papers.hop.push_back(RunHop(graph, slowdown, engine, paper, seed, updates));
  };
  for (const char* graph : {"ring", "ring-based", "double-ring"}) {
    add(graph, "none", "standard", 0);
    add(graph, "random", "standard", 0);
    const bool figure = graph == std::string("ring-based");
    add(graph, "random", "backups=1,max_iteration_gap=10", figure ? 1.81 : 0);
    add(graph, "random", "staleness=5,max_iteration_gap=10", 0);
  }
  add("ring-based", "one", "standard", 3.9);
  add("ring-based", "one", "backups=1", 0);
  add("ring-based", "one", "backups=1,max_jump=2", 0);
  add("ring-based", "one", "backups=1,max_jump=10", 1.1);
  for (const std::int64_t staleness : {0, 3, 10}) {
    papers.ssp.push_back(RunSsp(staleness, seed, updates));
  }
  return papers;
}

std::string TextExchangePapers(const ExchangePapers& papers) {
  std::string text =
      "\nHop (Luo et al., ASPLOS 2019), section 7.3: 16 workers, each slowed 6 times with "
      "probability 1/16 per iteration (random),\nor one of them 4 times (one). The paper: 1.81 "
      "times "
      "the iterations per second with a backup worker, with a staleness of 5\nsimilar; iterations "
      "3.9 times as long beside one slow worker, 1.1 times where it skips up to 10, and less than "
      "half the time\nto converge. Chosen by us: how much steps vary, the learning task and its "
      "target (papers_exchange.h).\n\n";
  std::vector<std::vector<std::string>> rows = {{"graph", "slowdown", "engine", "steps/s",
                                                 "speedup", "iteration", "paper", "target_s",
                                                 "speedup"}};
  for (const PaperHop& row : papers.hop) {
    rows.push_back({row.graph, row.slowdown, row.engine, Fixed(row.steps_per_s, 4),
                    Shown(row.Speedup(papers.hop)), Shown(row.Slowdown(papers.hop)),
                    Shown(row.paper), row.target_s > 0 ? Fixed(row.target_s, 0) : "-",
                    Shown(row.TargetSpeedup(papers.hop))});
  }
  text +=
      Table(rows) +
      "speedup over standard with the same slowdown; iteration: how long one takes, over "
      "standard without.\n\nSSP (Ho et al., NIPS 2013), 8 workers, one 5 times slower: the fast "
      "ones run free until the bound, then at its pace.\n\n";
  rows = {{"staleness", "fast steps/s", "slow steps/s", "steps ahead", "most stale read"}};
  for (const PaperSsp& row : papers.ssp) {
    rows.push_back({std::to_string(row.staleness), Fixed(row.fast_steps_per_s, 3),
                    Fixed(row.slow_steps_per_s, 3), std::to_string(row.ahead),
                    std::to_string(row.most_stale)});
  }
  return text + Table(rows);
}

Json JsonExchangePapers(const ExchangePapers& papers) {
  Json json = {{"hop", Json::array()}, {"ssp", Json::array()}};
  for (const PaperHop& row : papers.hop) {
    json["hop"].push_back({{"graph", row.graph},
                           {"slowdown", row.slowdown},
                           {"engine", row.engine},
                           {"paper", row.paper},
                           {"steps_per_s", row.steps_per_s},
                           {"speedup", row.Speedup(papers.hop)},
                           {"iteration", row.Slowdown(papers.hop)},
                           {"time_to_target_s", row.target_s},
                           {"target_speedup", row.TargetSpeedup(papers.hop)}});
  }
  for (const PaperSsp& row : papers.ssp) {
    json["ssp"].push_back({{"staleness", row.staleness},
                           {"fast_steps_per_s", row.fast_steps_per_s},
                           {"slow_steps_per_s", row.slow_steps_per_s},
                           {"steps_ahead", row.ahead},
                           {"most_stale_read", row.most_stale}});
  }
  return json;
}

}  // namespace prd::sim
