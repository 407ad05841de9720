#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "engines/words.h"
#include "tools/prdctl/commands.h"
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
    }
    console.out << Dump({{"run", ToJson(*info)},
                         {"median_step_ns", report.median_step_ns},
                         {"waited_for_members_ns", report.waited_ns},
                         {"waited_for_controller_ns", report.controller_ns},
                         {"workers", std::move(workers)}})
                << '\n';
    return Status::Ok();
  }
  Table table({{"RANK", Align::kRight},
               {"FACTOR", Align::kRight},
               {"STEP", Align::kRight},
               {"SLOWEST", Align::kRight},
               {"STEPS", Align::kRight},
               {"WAITED", Align::kRight},
               {"COST OTHERS", Align::kRight},
               {""}});
  std::vector<Rank> slow;
  for (const WorkerPace& w : report.workers) {
    if (w.factor >= slow_factor) slow.push_back(w.rank);
    table.Add({std::to_string(w.rank), Number(w.factor, 2) + "x", words::Duration(w.median_step_ns),
               words::Duration(w.slowest_step_ns), std::to_string(w.steps),
               words::Duration(w.waited_ns), words::Duration(w.cost_ns),
               w.factor >= slow_factor ? "slow" : " "});
  }
  table.Print(console.out);
  console.out << "slow (" << Number(slow_factor, 1) << "x the median step of "
              << words::Duration(report.median_step_ns) << ", or more): " << words::Ranks(slow)
              << "\nworkers waited " << words::Duration(report.waited_ns)
              << " for one another in all, and " << words::Duration(report.controller_ns)
              << " for the controller\n";
  return Status::Ok();
}

Status ShowGraph(HistorySource& source, const std::string& run, std::size_t last,
                 const Console& console) {
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
                         {"edges", std::move(edges)}})
                << '\n';
    return Status::Ok();
  }
  console.out << ToDot(meter, info->job + ", run " + std::to_string(info->run) + ", " +
                                  std::to_string(meter.groups()) + " groups");
  return Status::Ok();
}

Status ShowSpectralGap(HistorySource& source, const std::string& run, std::size_t last,
                       const Console& console) {
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
                         {"symmetric", gap->symmetric}})
                << '\n';
    return Status::Ok();
  }
  console.out << "rho " << Number(gap->rho, 4) << "\nspectral gap " << Number(1 - gap->rho, 4)
              << "\nover " << gap->groups << " groups of " << gap->workers << " workers"
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
