#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "common/base/static_schedule.h"
#include "engines/words.h"
#include "tools/prdctl/commands_exchange.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/stragglers.h"
#include "tools/prdctl/sync.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

// Gives all records of the run that is meant to `meter`.
template <typename Meter>
Result<RunInfo> Measure(HistorySource& source, const std::string& run, Meter& meter) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, info->run, 0, [&](const Record& record) {
    meter.Add(record);
    return true;
  }));
  return info;
}

// What the run's engine does to slow workers, and so which columns there are.
enum class Beside { kNothing, kGradients, kUpdates, kLocalSteps, kGroups, kNeighbours, kShards };

Beside BesideOf(const RunInfo& run) {
  if (run.engine == "eager") return Beside::kGradients;
  if (run.engine == "backup") return Beside::kUpdates;
  if (run.engine == "prague" || run.engine == "ad-psgd") return Beside::kGroups;
  if (run.engine == "hop") return Beside::kNeighbours;
  if (run.engine == "ssp") return Beside::kShards;
  return run.engine == "esync" ? Beside::kLocalSteps : Beside::kNothing;
}

std::string Of(std::uint64_t part, std::uint64_t other) {
  return std::to_string(part) + " of " + std::to_string(part + other);
}

std::string Dropped(const WorkerPace& w) {
  if (w.dropped == 0) return "0";
  return std::to_string(w.dropped) + " (" + Number(100 * w.dropped_share, 1) + "%)";
}

std::string LocalSteps(const WorkerPace& w) {
  if (w.most_local_steps == 0) return "";
  return Number(w.mean_local_steps, 1) + " (" + std::to_string(w.fewest_local_steps) + "-" +
         std::to_string(w.most_local_steps) + ")";
}

std::vector<std::string> Titles(Beside beside) {
  switch (beside) {
    case Beside::kNothing:
      return {};
    case Beside::kGradients:
      return {"PASSED OVER", "IN A ROW", "GRADIENTS LOST"};
    case Beside::kUpdates:
      return {"ROUNDS WITHOUT", "IN A ROW", "DROPPED"};
    case Beside::kLocalSteps:
      return {"LOCAL STEPS", "ROUNDS WITHOUT", "DROPPED"};
    case Beside::kGroups:
      return {"OWN GROUPS", "PASSIVE"};
    case Beside::kNeighbours:
      return {"JUMPS", "SKIPPED", "UPDATES DROPPED", "SUPPRESSED"};
    case Beside::kShards:
      return {"CLOCKS AHEAD"};
  }
  return {};
}

std::vector<std::string> Cells(Beside beside, const WorkerPace& w) {
  const std::string without = Of(w.rounds_without, w.rounds_in);
  switch (beside) {
    case Beside::kNothing:
      return {};
    case Beside::kGradients:
      return {without, std::to_string(w.longest_without), std::to_string(w.gradients_lost)};
    case Beside::kUpdates:
      return {without, std::to_string(w.longest_without), Dropped(w)};
    case Beside::kLocalSteps:
      return {LocalSteps(w), without, Dropped(w)};
    case Beside::kGroups:
      return {std::to_string(w.own_groups), std::to_string(w.passive_groups)};
    case Beside::kNeighbours:
      return {std::to_string(w.exchange.jumps), std::to_string(w.exchange.skipped),
              std::to_string(w.exchange.dropped), std::to_string(w.exchange.suppressed)};
    case Beside::kShards:
      return {Shares(w.exchange.ahead)};
  }
  return {};
}

void AddBeside(Beside beside, const WorkerPace& w, Instant start, Json* json) {
  if (beside == Beside::kNothing) return;
  if (beside == Beside::kGroups) {
    (*json)["own_groups"] = w.own_groups;
    (*json)["passive_groups"] = w.passive_groups;
    return;
  }
  if (beside == Beside::kNeighbours || beside == Beside::kShards) {
    (*json)["ahead"] = Json::object();
    for (const auto& [ahead, count] : w.exchange.ahead) {
      (*json)["ahead"][std::to_string(ahead)] = count;
    }
    if (beside == Beside::kShards) return;
    (*json)["jumps"] = w.exchange.jumps;
    (*json)["skipped_iterations"] = w.exchange.skipped;
    (*json)["dropped_updates"] = w.exchange.dropped;
    (*json)["suppressed_updates"] = w.exchange.suppressed;
    return;
  }
  (*json)["rounds_in"] = w.rounds_in;
  (*json)["rounds_without"] = w.rounds_without;
  (*json)["longest_without"] = w.longest_without;
  if (beside == Beside::kGradients) {
    (*json)["gradients_lost"] = w.gradients_lost;
    return;
  }
  (*json)["dropped"] = w.dropped;
  (*json)["dropped_share"] = w.dropped_share;
  if (w.dropped > 0) {
    (*json)["last_dropped_s"] = Seconds(w.last_dropped - start);
    (*json)["dropped_because"] = w.dropped_because;
  }
  if (beside != Beside::kLocalSteps) return;
  (*json)["local_steps_mean"] = w.mean_local_steps;
  (*json)["local_steps_min"] = w.fewest_local_steps;
  (*json)["local_steps_max"] = w.most_local_steps;
}

void PrintDrops(const PaceReport& report, const Console& console) {
  for (const WorkerPace& w : report.workers) {
    if (w.dropped == 0) continue;
    console.out << "rank " << w.rank << " lost an update at "
                << Number(Seconds(w.last_dropped - report.start), 3)
                << " s, its last: " << Harmless(w.dropped_because) << '\n';
  }
}

// What the figures do not mean, by the way the workers go about their steps.
void PrintPlan(const Plan& plan, const Console& console) {
  if (StepsPerSignal(plan) > 1) {
    console.out << "only every " << StepsPerSignal(plan)
                << "th step of a worker signals: those are counted\n";
  }
  if (!AveragesInBackground(plan)) return;
  if (RunAhead(plan) > 0) {
    console.out << "overlap: to wait did not stop the training loops, which go on for up to "
                << RunAhead(plan) << (RunAhead(plan) == 1 ? " step" : " steps")
                << " while a signal waits: WAITED is how long signals stood\n";
  } else {
    console.out
        << "groups start at once on all members, whatever these do: nobody waits for them\n";
  }
}

// Steps are not told where workers draw their groups themselves.
bool NothingTold(const PaceReport& report) {
  return FollowsSchedule(report.plan) && report.train_groups == 0;
}

void PrintPaces(const RunInfo& info, const PaceReport& report, double slow_factor,
                const Console& console) {
  const Beside beside = BesideOf(info);
  std::vector<Table::Column> columns;
  for (const char* title :
       {"RANK", "FACTOR", "STEP", "SLOWEST", "STEPS", "WAITED", "COST OTHERS"}) {
    columns.push_back({title, Align::kRight});
  }
  for (std::string& title : Titles(beside)) columns.push_back({std::move(title), Align::kRight});
  columns.push_back({""});
  Table table(std::move(columns));
  std::vector<Rank> slow;
  for (const WorkerPace& w : report.workers) {
    if (w.factor >= slow_factor) slow.push_back(w.rank);
    std::vector<std::string> cells = {std::to_string(w.rank),
                                      Number(w.factor, 2) + "x",
                                      words::Duration(w.median_step_ns),
                                      words::Duration(w.slowest_step_ns),
                                      std::to_string(w.steps),
                                      words::Duration(w.waited_ns),
                                      words::Duration(w.cost_ns)};
    for (std::string& cell : Cells(beside, w)) cells.push_back(std::move(cell));
    cells.emplace_back(w.factor >= slow_factor ? "slow" : " ");
    table.Add(std::move(cells));
  }
  table.Print(console.out);
  console.out << "slow (" << Number(slow_factor, 1) << "x the median step of "
              << words::Duration(report.median_step_ns) << ", or more): " << words::Ranks(slow)
              << "\nworkers waited " << words::Duration(report.waited_ns)
              << " for one another in all, "
              << (report.round_ns > 0
                      ? words::Duration(report.round_ns) + " for the round before to end, "
                      : std::string());
  if (Exchanges(report.plan)) {
    console.out << words::Duration(report.moving_ns)
                << (HasNeighbours(report.plan)
                        ? " for updates that were sent to get there and be averaged"
                        : " for updates to be stored")
                << ", and " << words::Duration(report.controller_ns) << " for the controller\n";
  } else if (DrawnAhead(report.plan)) {
    console.out << "and " << words::Duration(report.queued_ns)
                << " for groups before theirs that shared a member (" << report.conflicts << " of "
                << report.train_groups << " groups in conflict)\n";
  } else {
    console.out << "and " << words::Duration(report.controller_ns) << " for the controller\n";
  }
  PrintPlan(report.plan, console);
  PrintDrops(report, console);
}

// `graph` where no groups train.
Status ShowExchange(HistorySource& source, const RunInfo& info, bool table,
                    const Console& console) {
  const Result<ExchangeMeter> meter = MeasureExchange(source, info);
  if (!meter.ok()) return meter.status();
  if (console.json) {
    Json json = GraphJson(*meter);
    json["run"] = ToJson(info);
    console.out << Dump(json) << '\n';
  } else if (table) {
    PrintGraph(*meter, console);
  } else {
    console.out << GraphDot(*meter, info.job + ", run " + std::to_string(info.run));
  }
  return Status::Ok();
}

Status ShowGraphGap(HistorySource& source, const RunInfo& info, const Console& console) {
  const Result<ExchangeMeter> meter = MeasureExchange(source, info);
  if (!meter.ok()) return meter.status();
  const Result<GraphGap> gap = GapOf(meter->graph());
  if (!gap.ok()) return gap.status();
  if (console.json) {
    console.out << Dump({{"run", ToJson(info)},
                         {"rho", 1 - gap->of_weights},
                         {"spectral_gap", gap->of_weights},
                         {"walk_gap", gap->of_walk},
                         {"workers", gap->workers},
                         {"symmetric", gap->symmetric}})
                << '\n';
    return Status::Ok();
  }
  console.out << "rho " << Number(1 - gap->of_weights, 4) << "\nspectral gap "
              << Number(gap->of_weights, 4) << " of the weights of " << gap->workers << " workers"
              << (gap->symmetric ? "" : ", by the moduli of eigenvalues") << "\nspectral gap "
              << Number(gap->of_walk, 4)
              << " as Hop (Figure 21) counts it: of equal weights, without self-loops, by signed "
                 "eigenvalues\n";
  return Status::Ok();
}

}  // namespace

Status ShowStragglers(HistorySource& source, const std::string& run, double slow_factor,
                      const Console& console) {
  PaceMeter meter;
  Result<RunInfo> info = Measure(source, run, meter);
  if (!info.ok()) return info.status();
  const PaceReport report = meter.Report();
  if (console.json) {
    Json workers = Json::array();
    for (const WorkerPace& w : report.workers) {
      workers.push_back({{"rank", w.rank},
                         {"slow", w.factor >= slow_factor},
                         {"factor", w.factor},
                         {"steps", w.steps},
                         {"median_step_ns", w.median_step_ns},
                         {"slowest_step_ns", w.slowest_step_ns},
                         {"computed_ns", w.computed_ns},
                         {"waited_ns", w.waited_ns},
                         {"reduced_ns", w.reduced_ns},
                         {"cost_others_ns", w.cost_ns}});
      AddBeside(BesideOf(*info), w, report.start, &workers.back());
    }
    console.out << Dump({{"run", ToJson(*info)},
                         {"median_step_ns", report.median_step_ns},
                         {"waited_for_members_ns", report.waited_ns},
                         {"waited_for_rounds_ns", report.round_ns},
                         {"waited_for_groups_ns", report.queued_ns},
                         {"waited_for_controller_ns", report.controller_ns},
                         {"moving_ns", report.moving_ns},
                         {"rounds", report.rounds},
                         {"train_groups", report.train_groups},
                         {"conflicts", report.conflicts},
                         {"run_ahead", RunAhead(report.plan)},
                         {"scheduled", FollowsSchedule(report.plan)},
                         {"workers", std::move(workers)}})
                << '\n';
    return Status::Ok();
  }
  if (NothingTold(report)) {
    console.out << "nothing to tell: workers draw their groups themselves, by a schedule (prdctl "
                   "groups), and report neither steps nor waits to the controller\n";
    return Status::Ok();
  }
  PrintPaces(*info, report, slow_factor, console);
  return Status::Ok();
}

Status ShowGraph(HistorySource& source, const std::string& run, std::size_t last, bool table,
                 const Console& console) {
  const Result<RunInfo> of = FindRun(source, run);
  if (!of.ok()) return of.status();
  if (of->engine == "hop" || of->engine == "ssp") return ShowExchange(source, *of, table, console);
  SyncMeter meter(last);
  Result<RunInfo> info = Measure(source, run, meter);
  if (!info.ok()) return info.status();
  if (console.json) {
    Json edges = Json::array();
    for (const auto& [pair, count] : meter.Pairs()) {
      edges.push_back({{"a", pair.first}, {"b", pair.second}, {"groups", count}});
    }
    console.out << Dump({{"run", ToJson(*info)},
                         {"groups", meter.groups()},
                         {"workers", meter.Workers()},
                         {"rounds", meter.rounds()},
                         {"scheduled", meter.schedule() != nullptr},
                         {"edges", std::move(edges)}})
                << '\n';
    return Status::Ok();
  }
  const std::string what =
      (meter.schedule() != nullptr ? "static schedule: edges are phases (of " +
                                         std::to_string(kStaticPhases) + ") in which a pair meets"
                                   : std::to_string(meter.groups()) + " groups") +
      (meter.rounds() ? ": edges join contributors" : "");
  const std::string title = info->job + ", run " + std::to_string(info->run) + ", " + what;
  if (!table) {
    console.out << ToDot(meter, title);
    return Status::Ok();
  }
  console.out << Harmless(title) << '\n';
  Table pairs({{"A", Align::kRight}, {"B", Align::kRight}, {"TIMES", Align::kRight}});
  for (const auto& [pair, count] : meter.Pairs()) {
    pairs.Add({std::to_string(pair.first), std::to_string(pair.second), std::to_string(count)});
  }
  pairs.Print(console.out);
  return Status::Ok();
}

Status ShowSpectralGap(HistorySource& source, const std::string& run, std::size_t last,
                       const Console& console) {
  const Result<RunInfo> of = FindRun(source, run);
  if (!of.ok()) return of.status();
  if (of->engine == "hop") return ShowGraphGap(source, *of, console);
  SyncMeter meter(last);
  Result<RunInfo> info = Measure(source, run, meter);
  if (!info.ok()) return info.status();
  const Result<SpectralGap> gap = meter.Gap();
  if (!gap.ok()) return gap.status();
  if (console.json) {
    console.out << Dump({{"run", ToJson(*info)},
                         {"rho", gap->rho},
                         {"spectral_gap", 1 - gap->rho},
                         {"groups", gap->groups},
                         {"workers", gap->workers},
                         {"scheduled", meter.schedule() != nullptr},
                         {"symmetric", gap->symmetric}})
                << '\n';
    return Status::Ok();
  }
  console.out << "rho " << Number(gap->rho, 4) << "\nspectral gap " << Number(1 - gap->rho, 4)
              << (meter.schedule() != nullptr
                      ? "\nof the static schedule: the mean over a slot of each of its " +
                            std::to_string(kStaticPhases) + " phases, "
                      : "\nover ")
              << gap->groups << " groups of " << gap->workers << " workers"
              << (gap->symmetric ? "" : "; weights are unequal, so by the moduli of eigenvalues")
              << '\n';
  return Status::Ok();
}

Status Export(HistorySource& source, const std::string& run, ExportFormat format,
              const std::string& file, const Console& console) {
  Result<RunInfo> info = FindRun(source, run);
  if (!info.ok()) return info.status();
  const auto failed = [&] {
    return Status(Code::kInternal, file + ": cannot be written: " + std::strerror(errno));
  };
  const std::string unfinished = file + ".part";
  std::ofstream to_file;
  errno = 0;
  if (!file.empty()) {
    to_file.open(unfinished, std::ios::binary | std::ios::trunc);
    if (!to_file) return failed();
  }
  std::ostream* out = file.empty() ? &console.out : &to_file;
  std::unique_ptr<Exporter> exporter;
  if (format == ExportFormat::kJsonLines) exporter = std::make_unique<JsonLinesExporter>(out);
  if (format == ExportFormat::kCsv) exporter = std::make_unique<CsvExporter>(out);
  if (format == ExportFormat::kTrace) exporter = std::make_unique<TraceExporter>(out);
  Status status = ForEachRecord(source, info->run, 0, [&](const Record& record) {
    exporter->Add(record);
    return out->good();
  });
  if (status.ok()) exporter->Finish();
  if (file.empty()) return status;
  to_file.close();
  if (status.ok() && !to_file) status = failed();
  if (status.ok() && std::rename(unfinished.c_str(), file.c_str()) != 0) status = failed();
  if (!status.ok()) std::remove(unfinished.c_str());
  return status;
}

}  // namespace prd::ctl
