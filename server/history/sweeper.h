// Gives back the disk that removed records took. RocksDB marks what is removed, and drops it only
// where it rewrites a file for another reason. A thread of its own does that here, so that whoever
// removes does not wait.
#ifndef PRD_SERVER_HISTORY_SWEEPER_H_
#define PRD_SERVER_HISTORY_SWEEPER_H_

#include <rocksdb/db.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "common/base/ids.h"

namespace prd::history {

class Sweeper {
 public:
  struct Options {
    std::uint64_t every_bytes = 0;  // it sweeps once so many have been removed
    std::uint64_t free_bytes = 0;   // of the disk, that rewriting files may need for a while
  };
  // All must outlive it. `entries` have what there is of each run beside its records.
  Sweeper(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* records,
          std::vector<rocksdb::ColumnFamilyHandle*> entries, Options options);
  ~Sweeper();  // ends a sweep half-way

  // So many bytes of this run were removed. `whole`: it is gone, and its number never comes again.
  void Note(RunId run, std::uint64_t bytes, bool whole);

  // Sweeps now, unless there is nothing to sweep, and waits for the end. For tests and tools.
  void Flush();

 private:
  void Loop();
  void Sweep(const std::set<RunId>& gone, RunId first, RunId last);

  rocksdb::DB* db_;
  rocksdb::ColumnFamilyHandle* records_;
  const std::vector<rocksdb::ColumnFamilyHandle*> entries_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t bytes_ = 0;  // these since the last sweep
  std::set<RunId> gone_;     // whole runs
  RunId first_ = kNoRun;     // kNoRun: nothing was removed
  RunId last_ = kNoRun;
  bool wanted_ = false;
  bool sweeping_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace prd::history

#endif  // PRD_SERVER_HISTORY_SWEEPER_H_
