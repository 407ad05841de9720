#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/io/codec.h"
#include "server/history/keys.h"
#include "server/history/rocks_history.h"

namespace prd {
namespace {

// A run's entry is a list of one, in the admin protocol's form: that schema evolves with care.
std::string EncodeRun(const RunInfo& info) { return Encode(AdminReply(RunList{{info}})); }

constexpr std::uint64_t kEntryBytes = 512;  // what a run's entry counts for
// Bounds are looked at as a run ends, and after so many bytes. Then so many runs more than have
// ended are removed at once, 20 us each, for the workers wait meanwhile.
constexpr std::uint64_t kCheckEveryBytes = 1 << 20;
constexpr std::size_t kTrimMore = 8;

}  // namespace

void RocksHistory::PutRun(const RunInfo& info) {
  batch_.Put(families_[history::kRuns].get(), history::RunKey(info.run), EncodeRun(info));
}

// The entry of a run, to be changed with this batch.
RunInfo& RocksHistory::Changed(RunId run) {
  const auto known = runs_.find(run);
  const RunInfo before = known == runs_.end() ? RunInfo{.run = run} : known->second.info;
  return changed_.try_emplace(run, before).first->second;
}

std::string RocksHistory::OwnerOf(RunId run) const {
  const auto changed = changed_.find(run);
  if (changed != changed_.end()) return changed->second.owner;
  const auto known = runs_.find(run);
  return known == runs_.end() ? std::string() : known->second.info.owner;
}

// What a record changes of its run's entry.
void RocksHistory::Change(const Record& record) {
  if (const auto* started = std::get_if<RunStarted>(&record.body)) {
    changed_[record.run] = {.run = record.run,
                            .job = started->job,
                            .engine = started->engine,
                            .started_wall_ns = started->wall_ns,
                            .identity = started->identity.high,
                            .former = started->former.run};
    if (started->former.known()) changed_[record.run].owner = OwnerOf(started->former.run);
  } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
    // A run begins with the Hello of the worker for which it does.
    if (record.index != 1) return;
    if (const auto* hello = std::get_if<Hello>(&from->envelope.body)) {
      Changed(record.run).owner = hello->identity;
    }
  } else if (std::holds_alternative<WorkerJoined>(record.body)) {
    const auto known = runs_.find(record.run);
    if (known == runs_.end() || !known->second.info.begun) Changed(record.run).begun = true;
  } else if (const auto* acted = std::get_if<OperatorActed>(&record.body)) {
    // As Run::OnAct has it.
    if (acted->verb == OperatorVerb::kPause) {
      Changed(record.run).paused = true;
    } else if (acted->verb == OperatorVerb::kResume || acted->verb == OperatorVerb::kEnd) {
      Changed(record.run).paused = false;
    }
  } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
    RunInfo& info = Changed(record.run);
    info.ended = true;
    info.paused = false;
    info.finished = ended->finished;
    info.end = ended->reason;
    info.next = ended->next;
    info.records = record.index + 1;
  }
}

Status RocksHistory::Append(std::span<const Record> records) {
  batch_.Clear();
  changed_.clear();
  growth_.clear();
  std::string key;
  for (const Record& record : records) {
    key.clear();
    history::AppendBigEndian(record.run, &key);
    history::AppendBigEndian(record.index, &key);
    EncodeTo(record, &value_);
    batch_.Put(families_[history::kRecords].get(), key, value_);
    if (growth_.empty() || growth_.back().first != record.run) growth_.emplace_back(record.run, 0);
    growth_.back().second += key.size() + value_.size();
    if (record.index == 0) growth_.back().second += kEntryBytes;
    Change(record);
  }
  for (auto& [run, info] : changed_) {
    if (info.ended) {
      info.bytes = retention_.BytesOf(run);
      for (const auto& [of, bytes] : growth_) info.bytes += of == run ? bytes : 0;
    }
    PutRun(info);
  }
  PRD_RETURN_IF_ERROR(Commit(&batch_));
  NoteWritten(records);
  return Status::Ok();
}

// What of the bookkeeping follows what was written.
void RocksHistory::NoteWritten(std::span<const Record> records) {
  {
    const std::unique_lock lock(mutex_);
    for (const Record& record : records) next_index_[record.run] = record.index + 1;
    for (const auto& [run, info] : changed_) {
      if (info.ended) next_index_.erase(run);
      runs_[run].info = info;
    }
  }
  for (const auto& [run, info] : changed_) {
    last_run_ = std::max(last_run_, run);
    if (!retention_.Has(run)) retention_.Begin(run, info.job, info.owner, 0);
    retention_.Own(run, info.owner);
  }
  for (const auto& [run, bytes] : growth_) {
    retention_.Grow(run, bytes);
    unchecked_bytes_ += bytes;
  }
  std::size_t ended = 0;
  for (const auto& [run, info] : changed_) {
    if (!info.ended) continue;
    retention_.End(run);
    ++ended;
  }
  if (ended > 0 || unchecked_bytes_ >= kCheckEveryBytes) Trim(ended + kTrimMore);
}

Status RocksHistory::SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) {
  std::string value(sizeof index, '\0');
  std::memcpy(value.data(), &index, sizeof index);
  value += state;
  batch_.Clear();
  batch_.Put(families_[history::kSnapshots].get(), history::RunKey(run), value);
  PRD_RETURN_IF_ERROR(Commit(&batch_));
  const auto known = runs_.find(run);
  if (known == runs_.end()) return Status::Ok();
  NoteMark(index, &known->second);
  const std::uint64_t before = std::exchange(known->second.snapshot_bytes, value.size());
  if (value.size() >= before) {
    retention_.Grow(run, value.size() - before);
  } else {
    retention_.Shrink(run, before - value.size());
  }
  return Status::Ok();
}

// What is behind the last snapshot but one can go, so that there is as much before the newest one
// as a restart ever reads.
void RocksHistory::NoteMark(std::uint64_t index, Known* known) {
  const RunId run = known->info.run;
  const Mark before = std::exchange(
      known->newest, {.index = index, .bytes = known->trimmed_bytes + retention_.BytesOf(run)});
  known->older = before;
  if (before.index > std::max<std::uint64_t>(1, known->info.first)) {
    retention_.MayTrim(run, before.bytes - known->trimmed_bytes);
  }
}

Status RocksHistory::SetAside(RunId run, const std::string& reason) {
  batch_.Clear();
  batch_.Put(history::AsideKey(run), reason);
  PRD_RETURN_IF_ERROR(Commit(&batch_));
  const auto known = runs_.find(run);
  if (known == runs_.end() || known->second.aside) return Status::Ok();
  {
    const std::unique_lock lock(mutex_);
    known->second.aside = true;
    next_index_.erase(run);
  }
  retention_.End(run);
  return Status::Ok();
}

// What fails is tried again at the next call.
void RocksHistory::Trim(std::size_t most) {
  unchecked_bytes_ = 0;
  if (broken_ || read_only_) return;
  for (; most > 0; --most) {
    const std::optional<history::Retention::Verdict> next = retention_.Next();
    if (!next) return;
    const std::string job = runs_[next->run].info.job;
    if (!(next->whole ? RemoveRun(next->run) : TrimRun(next->run))) return;
    ++(next->whole ? trimmed_.runs : trimmed_.running);
    trimmed_.last = "run " + std::to_string(next->run) + " of job " + job + ": " + next->reason;
  }
}

Result<std::size_t> RocksHistory::Prune(std::span<const RunId> runs) {
  std::size_t removed = 0;
  for (const RunId run : runs) {
    if (broken_ || read_only_) break;
    const auto known = runs_.find(run);
    if (known == runs_.end() || (!known->second.info.ended && !known->second.aside)) continue;
    if (!RemoveRun(run)) break;
    ++removed;
  }
  if (!broken_) return removed;
  return Status(Code::kUnavailable, "the history in " + dir_ + " could not be written");
}

// False: the disk failed. A full disk takes this, too: it comes out of what is left for RocksDB,
// and makes room.
bool RocksHistory::RemoveRun(RunId run) {
  batch_.Clear();
  batch_.DeleteRange(families_[history::kRecords].get(), history::RecordKey(run, 0),
                     history::RecordsEnd(run));
  batch_.Delete(families_[history::kRuns].get(), history::RunKey(run));
  batch_.Delete(families_[history::kSnapshots].get(), history::RunKey(run));
  batch_.Delete(history::AsideKey(run));
  // A reader that finds no records looks whether the run is still there: so it goes first.
  std::map<RunId, Known>::node_type entry;
  {
    const std::unique_lock lock(mutex_);
    entry = runs_.extract(run);
  }
  if (!Write(&batch_, false).ok()) {
    const std::unique_lock lock(mutex_);
    runs_.insert(std::move(entry));
    return false;
  }
  sweeper_->Note(run, retention_.BytesOf(run), true);
  retention_.Remove(run);
  return true;
}

// Removes what may go of a run that goes on. Record 0 stays: it says what the run is.
bool RocksHistory::TrimRun(RunId run) {
  Known& known = runs_[run];
  const std::uint64_t bytes = known.older.bytes - known.trimmed_bytes;
  RunInfo info = known.info;
  info.first = known.older.index;
  batch_.Clear();
  PutRun(info);
  batch_.DeleteRange(families_[history::kRecords].get(), history::RecordKey(run, 1),
                     history::RecordKey(run, info.first));
  // A reader that finds a hole looks whether its records were removed: so that is told first.
  const auto tell = [&](std::uint64_t first) {
    const std::unique_lock lock(mutex_);
    return std::exchange(known.info.first, first);
  };
  const std::uint64_t before = tell(info.first);
  if (!Write(&batch_, false).ok()) {
    (void)tell(before);
    return false;
  }
  sweeper_->Note(run, bytes, false);
  known.trimmed_bytes += bytes;
  retention_.Shrink(run, bytes);
  retention_.MayTrim(run, 0);
  return true;
}

}  // namespace prd
