#include "server/history/sweeper.h"

#include <rocksdb/convenience.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "server/history/keys.h"

namespace prd::history {

Sweeper::Sweeper(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* records,
                 std::vector<rocksdb::ColumnFamilyHandle*> entries, Options options)
    : db_(db), records_(records), entries_(std::move(entries)), options_(options), thread_([this] {
        Loop();
      }) {}

Sweeper::~Sweeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Sweeper::Note(RunId run, std::uint64_t bytes, bool whole) {
  const std::lock_guard lock(mutex_);
  if (whole) gone_.insert(run);
  first_ = first_ == kNoRun ? run : std::min(first_, run);
  last_ = std::max(last_, run);
  bytes_ += bytes;
  if (bytes_ >= options_.every_bytes) changed_.notify_all();
}

void Sweeper::Flush() {
  std::unique_lock lock(mutex_);
  wanted_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return stopping_ || (!wanted_ && !sweeping_); });
}

void Sweeper::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!wanted_ && bytes_ < options_.every_bytes) {
      changed_.wait(lock);
      continue;
    }
    wanted_ = false;
    bytes_ = 0;
    const std::set<RunId> gone = std::exchange(gone_, {});
    const RunId first = std::exchange(first_, kNoRun);
    const RunId last = std::exchange(last_, kNoRun);
    if (first != kNoRun) {
      sweeping_ = true;
      lock.unlock();
      Sweep(gone, first, last);
      lock.lock();
      sweeping_ = false;
    }
    changed_.notify_all();
  }
}

// First whole files go, which costs nothing; what is left in files that hold others' records, too,
// goes as these are written anew. A failure leaves the space for the next sweep, or for RocksDB.
void Sweeper::Sweep(const std::set<RunId>& gone, RunId first, RunId last) {
  // Only over runs that are known to be gone: a number between two of them may be of a run that is
  // to begin.
  std::vector<std::pair<std::string, std::string>> keys;
  for (auto it = gone.begin(); it != gone.end();) {
    const RunId begin = *it;
    RunId end = begin;
    while (++it != gone.end() && *it == end + 1) end = *it;
    keys.emplace_back(RecordKey(begin, 0), RecordsEnd(end));
  }
  std::vector<rocksdb::RangePtr> ranges;
  std::vector<std::pair<rocksdb::Slice, rocksdb::Slice>> slices(keys.begin(), keys.end());
  for (const auto& [begin, end] : slices) ranges.emplace_back(&begin, &end);
  (void)rocksdb::DeleteFilesInRanges(db_, records_, ranges.data(), ranges.size());
  // One of those files may have had the mark by which records in another one are removed.
  rocksdb::WriteBatch marks;
  for (const auto& [from, to] : slices) marks.DeleteRange(records_, from, to);
  if (!slices.empty() && !db_->Write({}, &marks).ok()) return;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(db_->GetName(), error);
  if (!error && space.available < options_.free_bytes) return;
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  options.canceled = &stopping_;
  const std::string begin = RecordKey(first, 0);
  const std::string end = RecordsEnd(last);
  const rocksdb::Slice from(begin);
  const rocksdb::Slice to(end);
  (void)db_->CompactRange(options, records_, &from, &to);
  // The log is kept as long as any family has not written what stands in it.
  for (rocksdb::ColumnFamilyHandle* entries : entries_) {
    (void)db_->CompactRange(options, entries, nullptr, nullptr);
  }
}

}  // namespace prd::history
