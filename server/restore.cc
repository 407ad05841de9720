#include "server/restore.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/io/log.h"
#include "config/config.h"

namespace prd {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

Result<JobSpec> SpecOf(const RocksHistory& history, RunId run) {
  const Result<std::vector<Record>> first = history.Read(run, 0, 1);
  if (!first.ok()) return first.status();
  const auto* started = first->empty() ? nullptr : std::get_if<RunStarted>(&first->front().body);
  if (started == nullptr) {
    return Status(Code::kDataLoss, "run " + std::to_string(run) + " does not begin with its spec");
  }
  return JobSpecFromToml(started->spec);
}

Status RestoreFrom(Instant now, const RocksHistory& history, RunId run, const JobSpec& spec,
                   const Snapshot& snapshot, Controller* controller) {
  const std::uint64_t from = snapshot.state.empty() ? 0 : snapshot.index;
  const Result<std::vector<Record>> records = history.Read(run, from, kNoLimit);
  if (!records.ok()) return records.status();
  return controller->Restore(now, run, spec, snapshot.state, from, *records);
}

Status RestoreRun(Instant now, const RocksHistory& history, const RunInfo& info,
                  Controller* controller) {
  const RunId run = info.run;
  const Result<JobSpec> spec = SpecOf(history, run);
  if (!spec.ok()) return spec.status();
  const Result<Snapshot> snapshot = history.ReadSnapshot(run);
  if (snapshot.ok() && !snapshot->state.empty()) {
    const Status status = RestoreFrom(now, history, run, *spec, *snapshot, controller);
    if (status.ok()) return status;
    if (info.first > 0) {
      return Status(status.code(), "its snapshot cannot be used (" + status.message() +
                                       "), and its records before " + std::to_string(info.first) +
                                       " were removed (retain_bytes)");
    }
    spdlog::warn("run {}: its snapshot cannot be used ({}); replaying all its {} records", run,
                 status.message(), info.records);
  }
  return RestoreFrom(now, history, run, *spec, {}, controller);
}

}  // namespace

Result<Instant> LastRecordedNow(const RocksHistory& history) {
  const Result<std::vector<RunInfo>> runs = history.ListRuns();
  if (!runs.ok()) return runs.status();
  Instant last;
  for (const RunInfo& info : *runs) {
    if (info.ended) continue;
    const Result<std::optional<Instant>> now = history.LastNow(info.run);
    if (now.ok() && *now) last = std::max(last, **now);
  }
  return last;
}

Result<RestoreSummary> RestoreRuns(Instant now, RocksHistory* history, Controller* controller) {
  const Result<std::vector<RunInfo>> runs = history->ListRuns();
  if (!runs.ok()) return runs.status();
  RestoreSummary summary;
  for (const RunInfo& info : *runs) {
    if (info.ended) {
      controller->RememberEnded(info.run, info.job, info.identity, info.finished);
      continue;
    }
    const Status status = RestoreRun(now, *history, info, controller);
    if (status.ok()) {
      ++summary.restored;
      spdlog::info("run {} of job {} goes on after {} records", info.run, info.job, info.records);
      continue;
    }
    ++summary.set_aside;
    spdlog::error(
        "run {} of job {} cannot be restored and is set aside ({}). Its records stay, and prdctl "
        "shows them; its workers begin a new run as the config says, whatever operators have said "
        "of this one, whose engine was {}",
        info.run, info.job, status.message(), info.engine);
    PRD_RETURN_IF_ERROR(history->SetAside(info.run, status.message()));
  }
  return summary;
}

}  // namespace prd
