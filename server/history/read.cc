#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "common/io/codec.h"
#include "server/history/keys.h"
#include "server/history/rocks_history.h"

namespace prd {
namespace {

Status Damaged(RunId run, std::uint64_t index, const std::string& what) {
  return Status(Code::kDataLoss,
                "run " + std::to_string(run) + ", record " + std::to_string(index) + ": " + what);
}

Status NoRun(RunId run) {
  return Status(Code::kNotFound, "run " + std::to_string(run) + " is not in the history");
}

Status Removed(RunId run, std::uint64_t first) {
  return Status(Code::kNotFound, "run " + std::to_string(run) + ": records 1 to " +
                                     std::to_string(first - 1) +
                                     " were removed, because the history had more bytes than it "
                                     "may (retain_bytes); the oldest one after them is " +
                                     std::to_string(first));
}

}  // namespace

std::optional<std::uint64_t> RocksHistory::LastIndex(RunId run) const {
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator({}, families_[history::kRecords].get()));
  it->SeekForPrev(history::RecordsEnd(run));
  if (!it->Valid() || history::BigEndianAt(it->key().ToStringView(), 0) != run) return std::nullopt;
  return history::BigEndianAt(it->key().ToStringView(), 8);
}

// RunInfo::first; nullopt: there is no such run.
std::optional<std::uint64_t> RocksHistory::FirstOf(RunId run) const {
  const std::shared_lock lock(mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return std::nullopt;
  return known->second.info.first;
}

// As far as it is known without reading: `records` is 0 where it is not. Under the lock.
RunInfo RocksHistory::InfoOf(const Known& known) const {
  RunInfo info = known.info;
  if (info.ended) return info;
  info.ended = known.aside;
  if (known.aside) info.end = "set aside: it could not be restored (see the log)";
  const auto next = next_index_.find(info.run);
  if (next != next_index_.end()) info.records = next->second;
  return info;
}

std::vector<RunInfo> RocksHistory::ListRuns(RunId before, std::size_t most) const {
  std::vector<RunInfo> page;
  {
    const std::shared_lock lock(mutex_);
    for (auto it = runs_.lower_bound(before); it != runs_.begin() && page.size() < most;) {
      page.push_back(InfoOf((--it)->second));
    }
  }
  for (RunInfo& info : page) {
    if (info.records > 0) continue;
    if (const std::optional<std::uint64_t> last = LastIndex(info.run)) info.records = *last + 1;
  }
  return page;
}

std::vector<RunInfo> RocksHistory::ListLiveRuns(RunId before, std::size_t most) const {
  std::vector<RunInfo> page;
  const std::shared_lock lock(mutex_);
  for (auto it = next_index_.lower_bound(before);
       it != next_index_.begin() && page.size() < most;) {
    const auto known = runs_.find((--it)->first);
    if (known != runs_.end() && !known->second.aside) page.push_back(InfoOf(known->second));
  }
  return page;
}

Result<std::vector<RunInfo>> RocksHistory::ListRuns() const {
  constexpr auto kAll = std::numeric_limits<std::size_t>::max();
  std::vector<RunInfo> runs = ListRuns(std::numeric_limits<RunId>::max(), kAll);
  std::reverse(runs.begin(), runs.end());
  return runs;
}

std::optional<std::string> RocksHistory::JobOf(RunId run) const {
  const std::shared_lock lock(mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return std::nullopt;
  return known->second.info.job;
}

Result<std::vector<Record>> RocksHistory::Read(RunId run, std::uint64_t from,
                                               std::size_t max_bytes) const {
  if (!Has(run)) return NoRun(run);
  const std::string end = history::RecordsEnd(run);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &bound;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator(options, families_[history::kRecords].get()));
  std::vector<Record> records;
  std::size_t bytes = 0;
  std::uint64_t expected = from;
  for (it->Seek(history::RecordKey(run, from)); it->Valid(); it->Next(), ++expected) {
    const std::optional<std::uint64_t> index = history::BigEndianAt(it->key().ToStringView(), 8);
    if (index != expected) {
      const std::uint64_t first = FirstOf(run).value_or(0);
      if (expected > 1 && expected < first) return Removed(run, first);
      if (expected == 1 && index == first) expected = first;
    }
    if (index != expected) {
      return Damaged(run, expected,
                     "missing; the next one is " + std::to_string(index.value_or(0)));
    }
    bytes += it->value().size();
    if (!records.empty() && bytes > max_bytes) break;
    Result<Record> record = DecodeRecord(it->value().ToStringView());
    if (!record.ok()) return Damaged(run, expected, record.status().message());
    if (record->run != run || record->index != expected) {
      return Damaged(run, expected,
                     "holds record " + std::to_string(record->index) + " of run " +
                         std::to_string(record->run));
    }
    records.push_back(std::move(*record));
  }
  // It may have been removed before the iterator was made.
  if (records.empty() && !Has(run)) return NoRun(run);
  if (it->status().IsCorruption()) return Damaged(run, expected, it->status().ToString());
  if (!it->status().ok()) return Fail(it->status(), "run " + std::to_string(run));
  return records;
}

Result<Snapshot> RocksHistory::ReadSnapshot(RunId run) const {
  if (!Has(run)) return NoRun(run);
  std::string value;
  const rocksdb::Status status =
      db_->Get({}, families_[history::kSnapshots].get(), history::RunKey(run), &value);
  Snapshot snapshot;
  if (status.IsNotFound()) return snapshot;
  if (!status.ok()) return Fail(status, "the snapshot of run " + std::to_string(run));
  if (value.size() <= sizeof snapshot.index) {
    return Status(Code::kDataLoss, "the snapshot of run " + std::to_string(run) + " is cut short");
  }
  std::memcpy(&snapshot.index, value.data(), sizeof snapshot.index);
  snapshot.state = value.substr(sizeof snapshot.index);
  return snapshot;
}

Result<std::optional<Instant>> RocksHistory::LastNow(RunId run) const {
  const std::optional<std::uint64_t> last = LastIndex(run);
  if (!last) return std::optional<Instant>();
  const Result<std::vector<Record>> records = Read(run, *last, 1);
  if (!records.ok()) return records.status();
  if (records->empty()) return std::optional<Instant>();
  return std::optional<Instant>(records->back().now);
}

std::optional<std::uint64_t> RocksHistory::NextIndex(RunId run) const {
  const std::shared_lock lock(mutex_);
  const auto it = next_index_.find(run);
  if (it == next_index_.end()) return std::nullopt;
  return it->second;
}

}  // namespace prd
