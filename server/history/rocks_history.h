// The history on disk: RocksDB in the daemon's state directory. The one class that knows the
// layout of the files; prdctl opens those of a stopped daemon through it.
//
// Column families (integers in keys are 8 bytes, big-endian, so that runs and records are in
// order):
//   default    "format" -> version of this layout; "aside/" run -> why the run was set aside
//   records    run index -> schemas/history.capnp Record
//   runs       run -> its RunInfo, written with its first records, as a worker trains in it for the
//              first time, as an operator pauses or resumes it, and with its last record
//   snapshots  run -> index (8 bytes, little-endian), then the state before that record
//
// Errors. kDataLoss: records are damaged or missing; the message names run and index, but for what
// Open finds: its files are damaged, apart from the end of the last write.
// kResourceExhausted: the disk has no room, as Open may find, too; nothing was changed, and the
// same call works when there is room again. kUnavailable: another failure of the disk; broken() is
// then true, and this object writes no more, but acknowledged records are there for the next one.
// kAlreadyExists: another process has the directory open.
//
// Thread safety: one thread writes: it alone calls what is not const. JobOf, ListRuns,
// ListLiveRuns, NextIndex, Read, ReadSnapshot and LastNow may run in any thread, beside the writer
// and each other. A run that is removed meanwhile is kNotFound.
#ifndef PRD_SERVER_HISTORY_ROCKS_HISTORY_H_
#define PRD_SERVER_HISTORY_ROCKS_HISTORY_H_

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/admin.h"
#include "common/base/history.h"
#include "engines/ports.h"
#include "prd/status.h"
#include "server/history/files.h"
#include "server/history/retention.h"
#include "server/history/sweeper.h"

namespace prd {

class RocksHistory final : public History {
 public:
  struct Options {
    bool sync = false;       // Append returns when the records are on the disk
    history::Bounds bounds;  // ended runs over these are removed
    // Free bytes that are left for RocksDB's own writes; an eighth of the disk if that is less.
    std::uint64_t reserve_bytes = 64 << 20;
  };

  // Opens for writing; makes the directory (not its parents) if it is not there. One that others
  // may enter is refused.
  static Result<std::unique_ptr<RocksHistory>> Open(const std::string& dir, Options options);
  // Opens the directory's present content, also beside a running daemon. Later records are not
  // seen. kNotFound when there is no history.
  static Result<std::unique_ptr<RocksHistory>> OpenReadOnly(const std::string& dir);
  ~RocksHistory() override;

  Status Append(std::span<const Record> records) override;
  Status SaveSnapshot(RunId run, std::uint64_t index, std::string_view state) override;

  // All runs, oldest first. A run that was set aside counts as ended.
  Result<std::vector<RunInfo>> ListRuns() const;
  // A page of them: runs with numbers below `before`, the newest first, `most` at most. Its cost
  // grows with the page and not with the number of runs.
  std::vector<RunInfo> ListRuns(RunId before, std::size_t most) const;
  // The same, of the runs that go on.
  std::vector<RunInfo> ListLiveRuns(RunId before, std::size_t most) const;
  // The run's job; nullopt: no such run.
  std::optional<std::string> JobOf(RunId run) const;
  // Records from an index on, in order, as many whole ones as fit max_bytes but at least one if
  // there is one. Empty: none yet. kNotFound: no such run, or the record was removed. Of a run of
  // which some were (RunInfo::first), record 0 is followed by the oldest that there is.
  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::size_t max_bytes) const;
  // The newest; an empty state when there is none. kNotFound: no such run.
  Result<Snapshot> ReadSnapshot(RunId run) const;
  // The `now` of the run's newest record; nullopt if it has none.
  Result<std::optional<Instant>> LastNow(RunId run) const;

  // Marks a run that cannot be restored: its records stay, and it is never continued.
  Status SetAside(RunId run, const std::string& reason);

  // The highest run there is or was since Open; kNoRun if none. For the writer's thread.
  RunId last_run() const { return last_run_; }
  // The index of a run's next record, if records of the run were appended since Open and the run
  // has not ended; otherwise nullopt.
  std::optional<std::uint64_t> NextIndex(RunId run) const;

  // A write failed half-way.
  bool broken() const { return broken_; }

  void set_reserve_bytes(std::uint64_t bytes) { options_.reserve_bytes = bytes; }

  // Other bounds from now on.
  void SetBounds(history::Bounds bounds) { retention_.SetBounds(std::move(bounds)); }
  // Removes what is over the bounds: so many ended runs, or the older records of so many runs that
  // go on, at most. Append does so, too, as runs end and grow; what is left over by both goes at
  // their next call.
  void Trim(std::size_t most);
  // Removes these runs, of which those that go on and those that are not there stay as they are.
  // How many went.
  Result<std::size_t> Prune(std::span<const RunId> runs);

  // Gives back the disk that removed runs took, and waits for that. It happens by itself, too.
  void Sweep() { sweeper_->Flush(); }
  struct Trimmed {
    std::uint64_t runs = 0;     // ended ones, since Open
    std::uint64_t running = 0;  // times that older records of one that goes on went
    std::string last;           // "run 7 of job mnist: why"
  };
  const Trimmed& trimmed() const { return trimmed_; }
  // For the writer's thread, as the two above.
  const history::Retention& retention() const { return retention_; }

 private:
  struct Mark {  // where a snapshot was taken
    std::uint64_t index = 0;
    std::uint64_t bytes = 0;  // of all that was recorded before it
  };
  struct Known {  // a run's entry in `runs`
    RunInfo info;
    bool aside = false;
    std::uint64_t snapshot_bytes = 0;  // these four since Open
    Mark newest;
    Mark older;
    std::uint64_t trimmed_bytes = 0;
  };

  RocksHistory(std::string dir, Options options, bool read_only);
  Status OpenDb();
  Status CheckFormat();
  Status CheckSpace(std::size_t bytes);
  Status Commit(rocksdb::WriteBatch* batch);
  Status Write(rocksdb::WriteBatch* batch, bool sync);
  Status NoteRuns();
  std::set<RunId> RunsAside() const;
  std::uint64_t EstimateBytes(RunId run) const;
  Status Fail(const rocksdb::Status& status, const std::string& what) const;
  bool Has(RunId run) const { return FirstOf(run).has_value(); }
  std::optional<std::uint64_t> FirstOf(RunId run) const;
  RunInfo InfoOf(const Known& known) const;
  std::optional<std::uint64_t> LastIndex(RunId run) const;
  RunInfo& Changed(RunId run);
  std::string OwnerOf(RunId run) const;
  void Change(const Record& record);
  void PutRun(const RunInfo& info);
  void NoteWritten(std::span<const Record> records);
  bool RemoveRun(RunId run);
  bool TrimRun(RunId run);
  void NoteMark(std::uint64_t index, Known* known);

  const std::string dir_;
  Options options_;
  const bool read_only_;
  std::shared_ptr<history::PatientFiles> files_;  // null when reading
  std::unique_ptr<rocksdb::Env> environment_;     // of them
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<std::unique_ptr<rocksdb::ColumnFamilyHandle>> families_;
  bool broken_ = false;

  // The writer changes these two under the lock, and reads them without. It is never held while
  // RocksDB reads or writes.
  mutable std::shared_mutex mutex_;
  std::map<RunId, Known> runs_;
  std::map<RunId, std::uint64_t> next_index_;  // of runs that are going

  history::Retention retention_;
  Trimmed trimmed_;
  std::uint64_t unchecked_bytes_ = 0;  // appended since the last Trim
  RunId last_run_ = kNoRun;

  // For one Append.
  rocksdb::WriteBatch batch_;
  std::string value_;
  std::map<RunId, RunInfo> changed_;                     // entries that it changes
  std::vector<std::pair<RunId, std::uint64_t>> growth_;  // in bytes

  std::unique_ptr<history::Sweeper> sweeper_;  // goes before the files do; null when reading
};

}  // namespace prd

#endif  // PRD_SERVER_HISTORY_ROCKS_HISTORY_H_
