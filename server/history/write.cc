#include <rocksdb/convenience.h>

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

rocksdb::Slice ToSlice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

void RocksHistory::PutRun(const RunInfo& info) {
  batch_.Put(families_[history::kRuns].get(), history::RunKey(info.run), EncodeRun(info));
}

Status RocksHistory::Append(std::span<const Record> records) {
  batch_.Clear();
  std::map<RunId, RunInfo> changed;
  std::string key;
  // The entry of a run, to be changed with this batch.
  const auto entry = [&](RunId run) -> RunInfo& {
    const auto known = runs_.find(run);
    const RunInfo before = known == runs_.end() ? RunInfo{.run = run} : known->second.info;
    return changed.try_emplace(run, before).first->second;
  };
  for (const Record& record : records) {
    key.clear();
    history::AppendBigEndian(record.run, &key);
    history::AppendBigEndian(record.index, &key);
    EncodeTo(record, &value_);
    batch_.Put(families_[history::kRecords].get(), key, value_);
    if (const auto* started = std::get_if<RunStarted>(&record.body)) {
      changed[record.run] = {.run = record.run,
                             .job = started->job,
                             .engine = started->engine,
                             .started_wall_ns = started->wall_ns,
                             .identity = started->identity.high,
                             .former = started->former.run};
    } else if (std::holds_alternative<WorkerJoined>(record.body)) {
      const auto known = runs_.find(record.run);
      if (known == runs_.end() || !known->second.info.begun) entry(record.run).begun = true;
    } else if (const auto* acted = std::get_if<OperatorActed>(&record.body)) {
      // As Job::OnAct has it.
      if (acted->verb == OperatorVerb::kPause) {
        entry(record.run).paused = true;
      } else if (acted->verb == OperatorVerb::kResume || acted->verb == OperatorVerb::kEnd) {
        entry(record.run).paused = false;
      }
    } else if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
      RunInfo& info = entry(record.run);
      info.ended = true;
      info.paused = false;
      info.finished = ended->finished;
      info.end = ended->reason;
      info.next = ended->next;
      info.records = record.index + 1;
    }
  }
  for (const auto& [run, info] : changed) PutRun(info);
  PRD_RETURN_IF_ERROR(Commit(&batch_));

  {
    const std::unique_lock lock(mutex_);
    for (const Record& record : records) next_index_[record.run] = record.index + 1;
    for (const auto& [run, info] : changed) {
      if (info.ended) next_index_.erase(run);
      runs_[run].info = info;
    }
  }
  for (const auto& [run, info] : changed) {
    last_run_ = std::max(last_run_, run);
    if (!info.ended) continue;
    ended_[info.job].push_back(run);
    Trim(info.job);
  }
  return Status::Ok();
}

Status RocksHistory::SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) {
  std::string value(sizeof index, '\0');
  std::memcpy(value.data(), &index, sizeof index);
  value += state;
  batch_.Clear();
  batch_.Put(families_[history::kSnapshots].get(), history::RunKey(run), value);
  return Commit(&batch_);
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
  if (!known->second.info.ended) ended_[known->second.info.job].push_back(run);
  return Status::Ok();
}

// Removes the oldest ended runs of a job over the limit. What fails is tried at the next end of a
// run, or at the next start.
void RocksHistory::Trim(const std::string& job) {
  std::deque<RunId>& ended = ended_[job];
  while (ended.size() > static_cast<std::size_t>(std::max<std::int64_t>(1, options_.retain_runs))) {
    const RunId run = ended.front();
    const std::string begin = history::RecordKey(run, 0);
    const std::string end = history::RecordsEnd(run);
    batch_.Clear();
    batch_.DeleteRange(families_[history::kRecords].get(), begin, end);
    batch_.Delete(families_[history::kRuns].get(), history::RunKey(run));
    batch_.Delete(families_[history::kSnapshots].get(), history::RunKey(run));
    batch_.Delete(history::AsideKey(run));
    if (!Commit(&batch_).ok()) return;
    // Whole files of it go at once; the rest goes as the database tidies up.
    const rocksdb::Slice first = ToSlice(begin);
    const rocksdb::Slice last = ToSlice(end);
    (void)rocksdb::DeleteFilesInRange(db_.get(), families_[history::kRecords].get(), &first, &last);
    ended.pop_front();
    const std::unique_lock lock(mutex_);
    runs_.erase(run);
  }
}

}  // namespace prd
