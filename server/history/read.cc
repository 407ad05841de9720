#include <cstring>
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

}  // namespace

std::optional<std::uint64_t> RocksHistory::LastIndex(RunId run) const {
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator({}, families_[history::kRecords].get()));
  it->SeekForPrev(history::RecordsEnd(run));
  if (!it->Valid() || history::BigEndianAt(it->key().ToStringView(), 0) != run) return std::nullopt;
  return history::BigEndianAt(it->key().ToStringView(), 8);
}

Result<std::vector<RunInfo>> RocksHistory::ListRuns() const {
  std::vector<RunInfo> list;
  list.reserve(runs_.size());
  for (const auto& [run, known] : runs_) {
    list.push_back(known.info);
    if (known.info.ended) continue;
    list.back().ended = known.aside;
    if (known.aside) list.back().end = "set aside: it could not be restored (see the log)";
    const auto next = next_index_.find(run);
    if (next != next_index_.end()) {
      list.back().records = next->second;
    } else if (const std::optional<std::uint64_t> last = LastIndex(run)) {
      list.back().records = *last + 1;
    }
  }
  return list;
}

std::optional<std::string> RocksHistory::JobOf(RunId run) const {
  const auto known = runs_.find(run);
  if (known == runs_.end()) return std::nullopt;
  return known->second.info.job;
}

Result<std::vector<Record>> RocksHistory::Read(RunId run, std::uint64_t from,
                                               std::size_t max_bytes) const {
  if (!runs_.contains(run)) return NoRun(run);
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
  if (it->status().IsCorruption()) return Damaged(run, expected, it->status().ToString());
  if (!it->status().ok()) return Fail(it->status(), "run " + std::to_string(run));
  return records;
}

Result<Snapshot> RocksHistory::ReadSnapshot(RunId run) const {
  if (!runs_.contains(run)) return NoRun(run);
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
  return std::optional<Instant>(records->back().now);
}

std::optional<std::uint64_t> RocksHistory::NextIndex(RunId run) const {
  const auto it = next_index_.find(run);
  if (it == next_index_.end()) return std::nullopt;
  return it->second;
}

}  // namespace prd
