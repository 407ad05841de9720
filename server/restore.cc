#include "server/restore.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/io/log.h"
#include "config/config.h"
#include "engines/replay.h"

namespace prd {
namespace {

Result<JobSpec> SpecOf(const RocksHistory& history, RunId run) {
  const Result<std::vector<Record>> first = history.Read(run, 0, 1);
  if (!first.ok()) return first.status();
  const auto* started = first->empty() ? nullptr : std::get_if<RunStarted>(&first->front().body);
  if (started == nullptr) {
    return Status(Code::kDataLoss, "run " + std::to_string(run) + " does not begin with its spec");
  }
  return JobSpecFromToml(started->spec);
}

// Reads runs back one after the other, in pieces.
class Reader {
 public:
  Reader(const RocksHistory& history, const RestoreWatch& watch, std::size_t piece_bytes,
         const std::vector<RunInfo>& runs)
      : history_(history), watch_(watch), piece_bytes_(piece_bytes) {
    for (const RunInfo& info : runs) all_ += info.ended ? 0 : info.records;
  }

  Result<StoredRun> Read(const RunInfo& info) {
    Result<StoredRun> run = ReadNewest(info);
    before_ += info.records;
    return run;
  }

  // The watch's error, after which nothing is read.
  const Status& stopped() const { return stopped_; }

 private:
  Result<StoredRun> ReadNewest(const RunInfo& info) {
    Result<JobSpec> spec = SpecOf(history_, info.run);
    if (!spec.ok()) return spec.status();
    const Result<Snapshot> snapshot = history_.ReadSnapshot(info.run);
    if (snapshot.ok() && !snapshot->state.empty()) {
      Result<StoredRun> run = ReadFrom(info, *spec, *snapshot);
      if (run.ok() || !stopped_.ok()) return run;
      const std::string why = "its snapshot cannot be used (" + run.status().message() + ")";
      if (info.first > 0) {
        return Status(run.status().code(), why + ", and its records before " +
                                               std::to_string(info.first) +
                                               " were removed (retain_bytes)");
      }
      spdlog::warn("run {}: {}; replaying all its {} records", info.run, why, info.records);
    }
    return ReadFrom(info, std::move(*spec), {});
  }

  Result<StoredRun> ReadFrom(const RunInfo& info, JobSpec spec, const Snapshot& snapshot) {
    StoredRun run(info.run, std::move(spec));
    PRD_RETURN_IF_ERROR(run.Load(snapshot.state, snapshot.index));
    for (;;) {
      const std::uint64_t read = std::min(before_ + run.next(), all_);
      stopped_ = watch_({.run = info.run,
                         .job = info.job,
                         .read = run.next(),
                         .records = info.records,
                         .percent = static_cast<int>(all_ == 0 ? 100 : read * 100 / all_)});
      PRD_RETURN_IF_ERROR(stopped_);
      const Result<std::vector<Record>> records = history_.Read(info.run, run.next(), piece_bytes_);
      if (!records.ok()) return records.status();
      if (records->empty()) return run;
      PRD_RETURN_IF_ERROR(run.Add(*records));
    }
  }

  const RocksHistory& history_;
  const RestoreWatch& watch_;
  const std::size_t piece_bytes_;
  std::uint64_t all_ = 0;     // records of the runs to read
  std::uint64_t before_ = 0;  // of those that were read
  Status stopped_;
};

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

Result<RestoreSummary> RestoreRuns(const std::function<Instant()>& now, RocksHistory* history,
                                   Controller* controller, const RestoreWatch& watch,
                                   std::size_t piece_bytes) {
  const Result<std::vector<RunInfo>> runs = history->ListRuns();
  if (!runs.ok()) return runs.status();
  // All are read before the first one's leases begin.
  Reader reader(*history, watch, piece_bytes, *runs);
  std::map<RunId, Result<StoredRun>> read;
  for (const RunInfo& info : *runs) {
    if (info.ended) continue;
    read.emplace(info.run, reader.Read(info));
    PRD_RETURN_IF_ERROR(reader.stopped());
  }
  RestoreSummary summary;
  for (const RunInfo& info : *runs) {
    if (info.ended) {
      controller->RememberEnded(info.run, info.job, info.identity, info.finished);
      continue;
    }
    Result<StoredRun>& run = read.at(info.run);
    const Status status = run.ok() ? controller->Restore(now(), std::move(*run)) : run.status();
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
