#include "tools/prdctl/replay.h"

#include <utility>
#include <vector>

#include "config/config.h"

namespace prd::ctl {
namespace {

Status NotABeginning(const Record& first, const std::string& what) {
  return Status(Code::kDataLoss, "run " + std::to_string(first.run) + ", record " +
                                     std::to_string(first.index) + ": " + what);
}

}  // namespace

Status Replayer::MakeJob(const Record& first) {
  const auto* started = std::get_if<RunStarted>(&first.body);
  if (started == nullptr || first.index != 0) {
    return NotABeginning(first, "a run begins with a RunStarted record of index 0");
  }
  Result<JobSpec> spec = JobSpecFromToml(started->spec);
  if (!spec.ok()) return NotABeginning(first, spec.status().message());
  run_ = std::make_unique<Run>(first.run, std::move(spec).value());
  replay_ = std::make_unique<prd::Replay>(run_.get());
  return Status::Ok();
}

Status Replayer::Load(const Record& first, const Snapshot& snapshot) {
  PRD_RETURN_IF_ERROR(MakeJob(first));
  PRD_RETURN_IF_ERROR(run_->Load(snapshot.state));
  if (run_->next_index() != snapshot.index) {
    return NotABeginning(
        first, "the snapshot is not of the state before record " + std::to_string(snapshot.index));
  }
  return Status::Ok();
}

Status Replayer::Add(const Record& record) {
  if (!run_) PRD_RETURN_IF_ERROR(MakeJob(record));
  if (run_->next_index() == 1 && record.index > 1) {
    return NotABeginning(record,
                         "the records before it were removed (retain_bytes), so its "
                         "controller cannot be followed from its beginning");
  }
  return replay_->Add(record);
}

namespace {

using Seen = std::function<void(const Record&)>;

Status ReplayFrom(HistorySource& source, RunId run, std::uint64_t from, Replayer* replayer,
                  const Seen& seen) {
  Status wrong;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run, from, [&](const Record& record) {
    wrong = replayer->Add(record);
    if (wrong.ok() && seen) seen(record);
    return wrong.ok();
  }));
  if (wrong.ok() && replayer->run() == nullptr) {
    return Status(Code::kDataLoss, "run " + std::to_string(run) + " has no records");
  }
  return wrong;
}

}  // namespace

Status ReplayAll(HistorySource& source, const RunInfo& run, Replayer* replayer, const Seen& seen) {
  if (run.first == 0) return ReplayFrom(source, run.run, 0, replayer, seen);
  Result<std::vector<Record>> first = source.Read(run.run, 0, 1, 0);
  if (!first.ok()) return first.status();
  if (seen && !first->empty()) seen(first->front());
  return ReplayToPresent(source, run.run, replayer, seen);
}

Status ReplayToPresent(HistorySource& source, RunId run, Replayer* replayer, const Seen& seen) {
  Result<Snapshot> snapshot = source.NewestSnapshot(run);
  if (!snapshot.ok()) return snapshot.status();
  Status unread;
  if (!snapshot->state.empty()) {
    Result<std::vector<Record>> first = source.Read(run, 0, 1, 0);
    if (!first.ok()) return first.status();
    // A snapshot of another version of prd cannot be read; the records say the same, if they are
    // all there.
    Replayer loaded;
    if (!first->empty()) unread = loaded.Load(first->front(), *snapshot);
    if (!first->empty() && unread.ok()) {
      PRD_RETURN_IF_ERROR(ReplayFrom(source, run, snapshot->index, &loaded, seen));
      *replayer = std::move(loaded);
      return Status::Ok();
    }
  }
  const Status status = ReplayFrom(source, run, 0, replayer, seen);
  if (status.ok() || unread.ok()) return status;
  return Status(status.code(), status.message() + "; nor from its snapshot: " + unread.message());
}

}  // namespace prd::ctl
