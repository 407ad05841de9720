#include "tools/sim/report.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace prd::sim {
namespace {

bool Numeric(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.+-% ") == std::string::npos;
}

void AddHistogram(const std::string& title, const Histogram& histogram, std::string* text) {
  if (histogram.total() == 0) return;
  *text += title + ": mean " + Fixed(histogram.Mean(), 2) + ", median " +
           std::to_string(histogram.Quantile(0.5)) + ", 99% at most " +
           std::to_string(histogram.Quantile(0.99)) + "\n";
  std::size_t shown = 0;
  for (std::size_t value = 0; value < histogram.counts().size() && shown < 12; ++value) {
    const std::uint64_t count = histogram.counts()[value];
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(histogram.total());
    char line[96];
    std::snprintf(line, sizeof line, "  %6zu  %5.1f%%  ", value, 100 * share);
    *text += line + std::string(static_cast<std::size_t>(share * 50 + 0.5), '#') + "\n";
    ++shown;
  }
}

std::string PaceWords(const Workload& workload) {
  return SlowestSetsPace(workload.job.engine, static_cast<int>(workload.cluster.workers));
}

Json ToJson(const Histogram& histogram) {
  return {{"mean", histogram.Mean()},
          {"median", histogram.Quantile(0.5)},
          {"p99", histogram.Quantile(0.99)},
          {"counts", histogram.counts()}};
}

}  // namespace

std::string Fixed(double value, int places) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

std::string Bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return Fixed(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (Numeric(row[i]) ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string TextReport(const Workload& workload, const RunResult& run, bool costed) {
  const Stats& stats = run.stats;
  const auto told = [&](const std::string& cell) { return costed ? cell : "-"; };
  std::string text;
  text += "engine            " + EngineText(workload.job.engine) + "\n";
  text += "workers           " + std::to_string(workload.cluster.workers) + "\n";
  const std::string pace = PaceWords(workload);
  if (!pace.empty()) text += "warning           " + pace + "\n";
  text += "virtual time      " + Fixed(run.seconds, 3) + " s, " + std::to_string(run.events) +
          " events, " + std::to_string(run.records) + " records\n";
  text += "updates/s         " + told(Fixed(run.updates_per_s, 3));
  if (costed && run.bound_updates_per_s > 0) {
    text += ", " + Fixed(run.updates_per_s / run.bound_updates_per_s, 3) + " of the bound " +
            Fixed(run.bound_updates_per_s, 3);
  }
  text += "\ngroups            " + std::to_string(stats.groups) + " formed, " +
          std::to_string(stats.failed_groups) + " failed\n";
  text += "moved             " + told(Bytes(static_cast<double>(run.bytes))) +
          " between workers, " + std::to_string(run.messages) + " control messages\n";
  std::int64_t skipped = 0;
  for (const WorkerStats& worker : stats.workers) skipped += worker.skipped;
  if (stats.dropped + stats.suppressed + static_cast<std::uint64_t>(skipped) > 0) {
    text += "neighbours        " + std::to_string(stats.dropped) + " updates dropped, " +
            std::to_string(stats.suppressed) + " not sent, " + std::to_string(skipped) +
            " iterations skipped\n";
  }
  if (run.rho) {
    text += "spectral gap      " + Fixed(1 - *run.rho, 4) + " (rho " + Fixed(*run.rho, 4) + ")\n";
  }
  if (run.restarts + stats.expired + stats.adoptions > 0) {
    text += "faults            " + std::to_string(run.restarts) + " controller restarts, " +
            std::to_string(stats.expired) + " leases run out, " + std::to_string(stats.adoptions) +
            " models copied\n";
  }
  if (!run.curve.empty()) {
    text += "loss              " + Fixed(run.curve.back().loss, 6) + " after " +
            std::to_string(run.curve.back().updates) + " updates\n";
  }
  if (run.target) {
    text += "target loss       after " + Fixed(static_cast<double>(run.target->at.ns) / 1e9, 3) +
            " s and " + std::to_string(run.target->updates) + " updates\n";
  }
  AddHistogram(stats.groups > 0 ? "staleness of members" : "staleness", stats.staleness, &text);
  AddHistogram("contributors of rounds", stats.contributors, &text);
  AddHistogram("iteration gap between all workers", stats.gap, &text);
  std::vector<std::vector<std::string>> rows = {
      {"worker", "steps", "computed_s", "waited_s", "reduced_s", "idle"}};
  for (std::size_t i = 0; i < stats.workers.size() && i < 32; ++i) {
    const WorkerStats& worker = stats.workers[i];
    rows.push_back({std::to_string(i), std::to_string(worker.steps),
                    Fixed(static_cast<double>(worker.computed) / 1e9, 3),
                    told(Fixed(static_cast<double>(worker.waited) / 1e9, 3)),
                    told(Fixed(static_cast<double>(worker.reduced) / 1e9, 3)),
                    told(Fixed(100 * worker.IdleShare(), 1) + "%")});
  }
  text += Table(rows);
  if (stats.workers.size() > 32) {
    text += "... and " + std::to_string(stats.workers.size() - 32) + " more\n";
  }
  const ClusterPart& cluster = workload.cluster;
  if (cluster.cut && cluster.steps > 0 && !run.all_finished && run.invariant.empty()) {
    char limit[32];
    std::snprintf(limit, sizeof limit, "%.10g", cluster.seconds);
    text += std::to_string(run.unfinished) + " of " + std::to_string(cluster.workers) +
            " workers had not finished by " + limit + " s\n";
  }
  return text;
}

Json JsonReport(const Workload& workload, const RunResult& run, bool costed) {
  const auto told = [&](const Json& value) { return costed ? value : Json(nullptr); };
  const std::string pace = PaceWords(workload);
  Json json = {
      {"workload", workload.name},
      {"engine", EngineText(workload.job.engine)},
      {"workers", workload.cluster.workers},
      {"slowest_sets_pace", pace.empty() ? Json(nullptr) : Json(pace)},
      {"unfinished_workers", workload.cluster.steps > 0 ? Json(run.unfinished) : Json(nullptr)},
      {"seconds", run.seconds},
      {"events", run.events},
      {"records", run.records},
      {"updates_per_s", told(run.updates_per_s)},
      {"bound_updates_per_s", told(run.bound_updates_per_s)},
      {"groups", run.stats.groups},
      {"failed_groups", run.stats.failed_groups},
      {"bytes", told(run.bytes)},
      {"updates_dropped", run.stats.dropped},
      {"updates_not_sent", run.stats.suppressed},
      {"control_messages", run.messages},
      {"controller_restarts", run.restarts},
      {"leases_expired", run.stats.expired},
      {"models_copied", run.stats.adoptions},
      {"rho", run.rho ? Json(*run.rho) : Json(nullptr)},
      {"staleness", ToJson(run.stats.staleness)},
      {"contributors", ToJson(run.stats.contributors)},
      {"iteration_gap", ToJson(run.stats.gap)},
      {"hash", run.hash}};
  json["time_to_target_s"] =
      run.target ? Json(static_cast<double>(run.target->at.ns) / 1e9) : Json(nullptr);
  json["updates_to_target"] = run.target ? Json(run.target->updates) : Json(nullptr);
  json["idle_share"] = Json::array();
  for (const WorkerStats& worker : run.stats.workers) {
    json["idle_share"].push_back(told(worker.IdleShare()));
  }
  json["loss"] = Json::array();
  for (const LossPoint& point : run.curve) {
    json["loss"].push_back({{"s", static_cast<double>(point.at.ns) / 1e9},
                            {"updates", point.updates},
                            {"loss", point.loss}});
  }
  if (!run.invariant.empty()) {
    json["invariant"] = run.invariant;
    json["violation"] = run.violation;
  }
  return json;
}

}  // namespace prd::sim
