// Opening, closing, and the one way to write.
#include <rocksdb/convenience.h>
#include <rocksdb/options.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/table.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "common/io/codec.h"
#include "common/io/file_access.h"
#include "server/history/keys.h"
#include "server/history/rocks_history.h"

namespace prd {
namespace {

using history::kFamilies;

rocksdb::CompressionType Compression() {
  const auto supported = rocksdb::GetSupportedCompressions();
  const bool lz4 =
      std::find(supported.begin(), supported.end(), rocksdb::kLZ4Compression) != supported.end();
  return lz4 ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
}

int OpenFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 8, 16, 256));
}

// Files of so many bytes are there twice for a while, as they are written anew.
std::uint64_t RewriteBytes(std::uint64_t bytes) {
  return std::clamp<std::uint64_t>(bytes / 32, 16 << 20, 256 << 20);
}

rocksdb::DBOptions DbOptions(bool read_only, std::uint64_t bytes) {
  rocksdb::DBOptions options;
  options.create_if_missing = !read_only;
  options.create_missing_column_families = !read_only;
  // A reader keeps every file open, so that it can go on when the daemon removes one.
  options.max_open_files = read_only ? -1 : OpenFiles();
  options.max_background_jobs = 4;  // a sweep beside what RocksDB does by itself
  // What a start has to read, and a part of what may be on the disk.
  options.max_total_wal_size = std::clamp<std::uint64_t>(bytes / 32, 4 << 20, 64 << 20);
  options.avoid_flush_during_shutdown = true;  // the log has it all
  options.keep_log_file_num = 2;
  options.max_log_file_size = 4 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // The last record of a log may be cut, as by a kill. Any other damage is an error.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  // One thread writes.
  options.allow_concurrent_memtable_write = false;
  options.enable_write_thread_adaptive_yield = false;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions(std::uint64_t bytes) {
  rocksdb::ColumnFamilyOptions options;
  options.compression = Compression();
  options.write_buffer_size = std::clamp<std::uint64_t>(bytes / 64, 1 << 20, 16 << 20);
  options.max_compaction_bytes = RewriteBytes(bytes);
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 16 << 10;  // records are read in long rows
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// What RocksDB writes as it opens: a manifest, a log. Where there is no room for these, it aborts.
constexpr std::uint64_t kRoomToOpen = 1 << 20;

// `reserve` bytes, or an eighth of the disk if that is less, and `bytes` must be free.
Status CheckRoom(const std::string& dir, std::uint64_t reserve, std::uint64_t bytes) {
  struct statvfs info {};
  if (::statvfs(dir.c_str(), &info) != 0) return Status::Ok();  // the write will tell
  const std::uint64_t total = std::uint64_t{info.f_blocks} * info.f_frsize;
  const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
  const std::uint64_t needed = std::min(reserve, total / 8) + bytes;
  if (free >= needed) return Status::Ok();
  return Status(Code::kResourceExhausted,
                "no room for the history in " + dir + ": " + std::to_string(free >> 10) +
                    " KiB are free, " + std::to_string((needed + 1023) >> 10) + " KiB needed");
}

Status MakeDir(const std::string& dir) {
  if (::mkdir(dir.c_str(), 0700) == 0) return Status::Ok();
  // It holds what shows workers to be those of a run.
  if (errno == EEXIST) return CheckPrivateFolder("state_dir", dir);
  const std::string why = std::strerror(errno);
  const Code code = errno == ENOENT ? Code::kNotFound : Code::kUnavailable;
  return Status(code, "state_dir " + dir + " cannot be made: " + why +
                          (code == Code::kNotFound ? " (its parent must be there)" : ""));
}

}  // namespace

RocksHistory::RocksHistory(std::string dir, Options options, bool read_only)
    : dir_(std::move(dir)),
      options_(std::move(options)),
      read_only_(read_only),
      retention_(options_.bounds) {}

RocksHistory::~RocksHistory() {
  sweeper_.reset();
  if (!broken_) {
    families_.clear();
    return;
  }
  // Closing a log that could not be written is a failed assertion in RocksDB. Left open, what was
  // acknowledged is in it as after a kill.
  for (auto& family : families_) (void)family.release();
  (void)db_.release();
  (void)environment_.release();
}

Result<std::unique_ptr<RocksHistory>> RocksHistory::Open(const std::string& dir, Options options) {
  PRD_RETURN_IF_ERROR(MakeDir(dir));
  std::unique_ptr<RocksHistory> history(new RocksHistory(dir, std::move(options), false));
  PRD_RETURN_IF_ERROR(history->OpenDb());
  PRD_RETURN_IF_ERROR(history->CheckFormat());
  PRD_RETURN_IF_ERROR(history->NoteRuns());
  const std::uint64_t bytes = history->options_.bounds.bytes;
  history->sweeper_ = std::make_unique<history::Sweeper>(
      history->db_.get(), history->families_[history::kRecords].get(),
      std::vector{history->families_[history::kDefault].get(),
                  history->families_[history::kRuns].get(),
                  history->families_[history::kSnapshots].get()},
      history::Sweeper::Options{.every_bytes = std::max<std::uint64_t>(bytes / 32, 1 << 20),
                                .free_bytes = 2 * RewriteBytes(bytes)});
  history->Trim(std::numeric_limits<std::size_t>::max());
  return history;
}

Result<std::unique_ptr<RocksHistory>> RocksHistory::OpenReadOnly(const std::string& dir) {
  if (::access((dir + "/CURRENT").c_str(), F_OK) != 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                  "no history of prd in " + dir + ": " + std::strerror(errno));
  }
  std::unique_ptr<RocksHistory> history(new RocksHistory(dir, Options{}, true));
  PRD_RETURN_IF_ERROR(history->OpenDb());
  PRD_RETURN_IF_ERROR(history->CheckFormat());
  PRD_RETURN_IF_ERROR(history->NoteRuns());
  return history;
}

Status RocksHistory::OpenDb() {
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const char* name : kFamilies)
    descriptors.emplace_back(name, FamilyOptions(options_.bounds.bytes));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  // RocksDB counts in each thread, even the keys that it compares. Nobody reads that.
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  rocksdb::DB* db = nullptr;
  rocksdb::DBOptions options = DbOptions(read_only_, options_.bounds.bytes);
  if (!read_only_) {
    PRD_RETURN_IF_ERROR(CheckRoom(dir_, 0, kRoomToOpen));
    files_ = std::make_shared<history::PatientFiles>();
    environment_ = rocksdb::NewCompositeEnv(files_);
    options.env = environment_.get();
  }
  const rocksdb::Status status =
      read_only_ ? rocksdb::DB::OpenForReadOnly(options, dir_, descriptors, &handles, &db)
                 : rocksdb::DB::Open(options, dir_, descriptors, &handles, &db);
  if (!status.ok()) {
    if (status.IsIOError() && status.ToString().find("/LOCK") != std::string::npos) {
      return Status(
          Code::kAlreadyExists,
          "state_dir " + dir_ + " is in use by another prd, or not writable: " + status.ToString());
    }
    if (status.IsCorruption()) {
      return Fail(status, "the history in state_dir " + dir_ +
                              " is damaged (put a copy of the folder back, or move it away, and "
                              "prd begins a new history)");
    }
    return Fail(status, "state_dir " + dir_ + " cannot be opened");
  }
  db_.reset(db);
  for (rocksdb::ColumnFamilyHandle* handle : handles) families_.emplace_back(handle);
  return Status::Ok();
}

Status RocksHistory::CheckFormat() {
  std::string format;
  const rocksdb::Slice key(history::kFormatKey.data(), history::kFormatKey.size());
  const rocksdb::Status status = db_->Get({}, key, &format);
  if (status.IsNotFound() && !read_only_) {
    batch_.Clear();
    batch_.Put(key, rocksdb::Slice(history::kFormat.data(), history::kFormat.size()));
    return Commit(&batch_);
  }
  if (!status.ok()) return Fail(status, "the history in " + dir_ + " cannot be read");
  if (format == history::kFormat) return Status::Ok();
  return Status(Code::kFailedPrecondition, "the history in " + dir_ + " has format " + format +
                                               "; this version of prd reads and writes format " +
                                               std::string(history::kFormat));
}

Status RocksHistory::Commit(rocksdb::WriteBatch* batch) {
  PRD_RETURN_IF_ERROR(CheckSpace(batch->GetDataSize()));
  return Write(batch, options_.sync);
}

Status RocksHistory::Write(rocksdb::WriteBatch* batch, bool sync) {
  rocksdb::WriteOptions options;
  options.sync = sync;
  const rocksdb::Status status = db_->Write(options, batch);
  if (status.ok()) return Status::Ok();
  broken_ = true;
  return Status(Code::kUnavailable,
                "the history in " + dir_ + " could not be written: " + status.ToString());
}

// After a write that failed half-way RocksDB takes no more until it is opened anew. So a full disk
// is noticed before, with room left for what RocksDB writes by itself.
Status RocksHistory::CheckSpace(std::size_t bytes) {
  if (read_only_) {
    return Status(Code::kFailedPrecondition, "the history in " + dir_ + " is open for reading");
  }
  if (broken_) {
    return Status(Code::kDataLoss, "the history in " + dir_ + " has to be opened anew");
  }
  if (!files_->Ready()) {
    return Status(Code::kResourceExhausted,
                  "no descriptors are left to open files of the history in " + dir_ +
                      " (LimitNOFILE, ulimit -n)");
  }
  return CheckRoom(dir_, options_.reserve_bytes, bytes);
}

Status RocksHistory::Fail(const rocksdb::Status& status, const std::string& what) const {
  const std::string text = what + ": " + status.ToString();
  if (status.IsCorruption()) return Status(Code::kDataLoss, text);
  if (status.IsNoSpace()) return Status(Code::kResourceExhausted, text);
  return Status(Code::kUnavailable, text);
}

// ---- what there is ----

std::set<RunId> RocksHistory::RunsAside() const {
  std::set<RunId> runs;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}));
  const rocksdb::Slice prefix(history::kAsidePrefix.data(), history::kAsidePrefix.size());
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const auto run = history::BigEndianAt(it->key().ToStringView(), prefix.size());
    if (run) runs.insert(*run);
  }
  return runs;
}

// For a run that goes on, or that a prd recorded which did not count.
std::uint64_t RocksHistory::EstimateBytes(RunId run) const {
  const std::string begin = history::RecordKey(run, 0);
  const std::string end = history::RecordsEnd(run);
  const rocksdb::Range range(begin, end);
  rocksdb::SizeApproximationOptions options;
  options.include_memtables = true;
  std::uint64_t bytes = 0;
  (void)db_->GetApproximateSizes(options, families_[history::kRecords].get(), &range, 1, &bytes);
  return bytes;
}

Status RocksHistory::NoteRuns() {
  const std::set<RunId> aside = RunsAside();
  const std::unique_ptr<rocksdb::Iterator> it(
      db_->NewIterator({}, families_[history::kRuns].get()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const Result<AdminReply> decoded = DecodeAdminReply(it->value().ToStringView());
    const auto* list = decoded.ok() ? std::get_if<RunList>(&*decoded) : nullptr;
    const std::optional<std::uint64_t> run = history::BigEndianAt(it->key().ToStringView(), 0);
    if (!run) continue;
    // One run's damage is no reason to refuse all others.
    Known known{.info = {.run = *run, .job = "(damaged)"}, .aside = true};
    if (list != nullptr && list->runs.size() == 1 && list->runs[0].run == *run) {
      known = {.info = list->runs[0], .aside = aside.contains(*run)};
    }
    const bool counted = known.info.ended && known.info.bytes > 0;
    retention_.Begin(*run, known.info.job, known.info.owner,
                     counted ? known.info.bytes : EstimateBytes(*run));
    if (known.info.ended || known.aside) {
      retention_.End(*run);
    } else if (const std::optional<std::uint64_t> last = LastIndex(*run)) {
      next_index_[*run] = *last + 1;
    }
    last_run_ = std::max(last_run_, *run);
    runs_[*run] = std::move(known);
  }
  if (!it->status().ok()) return Fail(it->status(), "the runs in " + dir_ + " cannot be read");
  return Status::Ok();
}

}  // namespace prd
