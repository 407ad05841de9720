#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "common/base/static_schedule.h"
#include "tools/prdctl/commands_exchange.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/sync.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

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
    PRD_RETURN_IF_ERROR(PrintInTurn(source, info, console));
    PrintGraph(*meter, console);
  } else {
    PRD_RETURN_IF_ERROR(PrintInTurn(source, info, console, "// "));
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
  PRD_RETURN_IF_ERROR(PrintInTurn(source, info, console));
  console.out << "rho " << Number(1 - gap->of_weights, 4) << "\nspectral gap "
              << Number(gap->of_weights, 4) << " of the weights of " << gap->workers << " workers"
              << (gap->symmetric ? "" : ", by the moduli of eigenvalues") << "\nspectral gap "
              << Number(gap->of_walk, 4)
              << " as Hop (Figure 21) counts it: of equal weights, without self-loops, by signed "
                 "eigenvalues\n";
  return Status::Ok();
}

}  // namespace

Status ShowGraph(HistorySource& source, const std::string& run, std::size_t last, bool table,
                 const Console& console) {
  const Result<RunInfo> of = FindRun(source, run);
  if (!of.ok()) return of.status();
  const Result<Plan> plan = PlanOf(source, *of);
  if (!plan.ok()) return plan.status();
  if (!TrainsInGroups(*plan)) return ShowExchange(source, *of, table, console);
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
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console, table ? "" : "// "));
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
  const Result<Plan> plan = PlanOf(source, *of);
  if (!plan.ok()) return plan.status();
  if (HasNeighbours(*plan)) return ShowGraphGap(source, *of, console);
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
  PRD_RETURN_IF_ERROR(PrintInTurn(source, *info, console));
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
  Result<std::vector<RunInfo>> runs = FindRunsInTurn(source, run);
  if (!runs.ok()) return runs.status();
  const auto failed = [&] {
    return Status(Code::kInternal, file + ": cannot be written: " + std::strerror(errno));
  };
  // A file is there under its name once it is whole. A device or a pipe takes what comes; behind a
  // link the file is replaced, not the link.
  std::error_code none;
  const std::filesystem::file_status is = std::filesystem::status(file, none);
  const bool in_place = std::filesystem::exists(is) && !std::filesystem::is_regular_file(is);
  const std::string whole =
      std::filesystem::is_regular_file(is) ? std::filesystem::canonical(file, none).string() : file;
  const std::string unfinished = in_place ? file : whole + ".part";
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
  Status status;
  for (std::size_t i = 0; i < runs->size() && status.ok() && out->good(); ++i) {
    status = ForEachRecord(
        source, (*runs)[i].run, 0,
        [&](const Record& record) {
          exporter->Add(record);
          return out->good() && !(console.stop && console.stop());
        },
        file.empty());
  }
  if (status.ok() && console.stop && console.stop()) {
    status = Status(Code::kCancelled, "ended by a signal");
  }
  if (status.ok()) exporter->Finish();
  if (file.empty()) return status;
  to_file.close();
  if (status.ok() && !to_file) status = failed();
  if (in_place) return status;
  if (status.ok() && std::rename(unfinished.c_str(), whole.c_str()) != 0) status = failed();
  if (!status.ok()) std::remove(unfinished.c_str());
  return status;
}

}  // namespace prd::ctl
