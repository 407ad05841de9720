#include "tools/sim/compare.h"

#include <algorithm>
#include <tuple>

namespace prd::sim {
namespace {

std::string FirstLine(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  if (line.ends_with(':')) line.pop_back();
  return line;
}

// Where groups tell no bytes: of the whole run, its start and its end included.
double BytesPerStep(const RunResult& run) {
  Work work = run.stats.throughput.Done();
  if (work.bytes == 0) {
    work = {.bytes = run.bytes};
    for (const WorkerStats& worker : run.stats.workers) work.steps += worker.steps;
  }
  return work.steps > 0 ? static_cast<double>(work.bytes) / static_cast<double>(work.steps) : 0;
}

Compared CompareOne(Workload workload, const EngineOptions& engine, std::uint64_t first_seed,
                    std::uint64_t seeds) {
  workload.job.engine = engine;
  Compared row{.engine = engine};
  row.pace = SlowestSetsPace(engine, static_cast<int>(workload.cluster.workers));
  const bool target = workload.training.target_loss > 0;
  const auto share = 1.0 / static_cast<double>(seeds);
  while (row.runs < seeds) {
    const std::uint64_t seed = first_seed + row.runs;
    RunResult run = Simulate(workload, {.seed = seed, .stop_at_target = target});
    ++row.runs;
    if (run.target) {
      ++row.reached;
      row.time_to_target_s += static_cast<double>(run.target->at.ns) / 1e9;
      row.updates_to_target += static_cast<double>(run.target->updates);
    }
    double idle = 0;
    for (const WorkerStats& worker : run.stats.workers) {
      idle += worker.IdleShare() / static_cast<double>(run.stats.workers.size());
    }
    row.updates_per_s += share * run.updates_per_s;
    if (run.bound_updates_per_s > 0) {
      row.bound_share += share * run.updates_per_s / run.bound_updates_per_s;
    }
    const Throughput& throughput = run.stats.throughput;
    if (throughput.Seconds() > 0) {
      const auto steps = static_cast<double>(throughput.Done().steps);
      row.steps_per_s += share * steps / throughput.Seconds();
    }
    row.idle_share += share * idle;
    row.staleness += share * run.stats.staleness.Mean();
    row.gap += share * run.stats.gap.Mean();
    row.bytes_per_step += share * BytesPerStep(run);
    if (!run.curve.empty()) row.loss = row.loss.value_or(0) + share * run.curve.back().loss;
    if (run.rho) row.rho = row.rho.value_or(0) + share * *run.rho;
    if (seed == first_seed) row.curve = std::move(run.curve);
    if (!run.invariant.empty()) {
      row.broken.push_back({.seed = seed, .invariant = run.invariant, .violation = run.violation});
    }
  }
  if (row.reached > 0) {
    row.time_to_target_s /= static_cast<double>(row.reached);
    row.updates_to_target /= static_cast<double>(row.reached);
  }
  return row;
}

}  // namespace

std::vector<Compared> Compare(const Workload& workload, const std::vector<EngineOptions>& engines,
                              std::uint64_t first_seed, std::uint64_t seeds) {
  std::vector<Compared> rows;
  for (const EngineOptions& engine : engines) {
    rows.push_back(CompareOne(workload, engine, first_seed, seeds));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Compared& a, const Compared& b) {
    return std::tuple(b.reached, a.reached > 0 ? a.time_to_target_s : -a.steps_per_s) <
           std::tuple(a.reached, b.reached > 0 ? b.time_to_target_s : -b.steps_per_s);
  });
  return rows;
}

std::string TextTable(const std::vector<Compared>& rows) {
  std::vector<std::vector<std::string>> cells = {{"engine", "to_target_s", "updates", "reached",
                                                  "updates/s", "of_bound", "steps/s", "idle",
                                                  "stale", "gap", "rho", "MB/step", "loss"}};
  for (const Compared& row : rows) {
    const bool met = row.reached > 0;
    cells.push_back({EngineText(row.engine), met ? Fixed(row.time_to_target_s, 3) : "-",
                     met ? Fixed(row.updates_to_target, 0) : "-",
                     std::to_string(row.reached) + "/" + std::to_string(row.runs),
                     Fixed(row.updates_per_s, 2), Fixed(row.bound_share, 3),
                     Fixed(row.steps_per_s, 1), Fixed(100 * row.idle_share, 1) + "%",
                     Fixed(row.staleness, 2), Fixed(row.gap, 1), row.rho ? Fixed(*row.rho, 3) : "-",
                     Fixed(row.bytes_per_step / 1e6, 2), row.loss ? Fixed(*row.loss, 5) : "-"});
  }
  std::string text = Table(cells);
  for (const Compared& row : rows) {
    if (row.pace.empty()) continue;
    text +=
        "one slow worker sets the pace of all: " + EngineText(row.engine) + ": " + row.pace + "\n";
  }
  for (const Compared& row : rows) {
    for (const BrokenRun& run : row.broken) {
      text += "BROKEN " + EngineText(row.engine) + ", seed " + std::to_string(run.seed) + ": " +
              FirstLine(run.violation) + "\n";
    }
  }
  return text;
}

Json JsonTable(const std::vector<Compared>& rows) {
  Json json = Json::array();
  for (const Compared& row : rows) {
    const bool met = row.reached > 0;
    json.push_back({{"engine", EngineText(row.engine)},
                    {"runs", row.runs},
                    {"reached_target", row.reached},
                    {"time_to_target_s", met ? Json(row.time_to_target_s) : Json(nullptr)},
                    {"updates_to_target", met ? Json(row.updates_to_target) : Json(nullptr)},
                    {"updates_per_s", row.updates_per_s},
                    {"bound_share", row.bound_share},
                    {"steps_per_s", row.steps_per_s},
                    {"idle_share", row.idle_share},
                    {"staleness", row.staleness},
                    {"iteration_gap", row.gap},
                    {"rho", row.rho ? Json(*row.rho) : Json(nullptr)},
                    {"bytes_per_step", row.bytes_per_step},
                    {"loss", row.loss ? Json(*row.loss) : Json(nullptr)},
                    {"slowest_sets_pace", row.pace.empty() ? Json(nullptr) : Json(row.pace)},
                    {"broken", Json::array()}});
    for (const BrokenRun& run : row.broken) {
      json.back()["broken"].push_back(
          {{"seed", run.seed}, {"invariant", run.invariant}, {"violation", run.violation}});
    }
  }
  return json;
}

}  // namespace prd::sim
