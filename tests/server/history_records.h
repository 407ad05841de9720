// Records of runs, and histories of them, for tests.
#ifndef PRD_TESTS_SERVER_HISTORY_RECORDS_H_
#define PRD_TESTS_SERVER_HISTORY_RECORDS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/history/keys.h"
#include "server/history/rocks_history.h"

namespace prd {

using HistoryPtr = std::unique_ptr<RocksHistory>;

inline Record Started(RunId run, const std::string& job) {
  return {.run = run,
          .index = 0,
          .now = {10},
          .body = RunStarted{.job = job,
                             .engine = "p-reduce",
                             .spec = "[job]",
                             .wall_ns = 77,
                             .identity = {run + 1000, 5}}};
}

inline Record Signal(RunId run, std::uint64_t index) {
  return {.run = run,
          .index = index,
          .now = {static_cast<std::int64_t>(10 + index)},
          .body = FromWorker{{.run = run,
                              .rank = 1,
                              .incarnation = 5,
                              .seq = index,
                              .body = Ready{.iteration = static_cast<Iteration>(index)}}}};
}

inline Record Ended(RunId run, std::uint64_t index) {
  return {.run = run,
          .index = index,
          .now = {static_cast<std::int64_t>(10 + index)},
          .body = RunEnded{"the last worker has gone"}};
}

// A worker trains in the run, and then its workers end it.
inline std::vector<Record> Whole(RunId run, const std::string& job) {
  std::vector<Record> all{Started(run, job)};
  all.push_back({.run = run, .index = 1, .now = {11}, .body = WorkerJoined{.rank = 0}});
  all.push_back({.run = run,
                 .index = 2,
                 .now = {12},
                 .body = RunEnded{.reason = "the job is done", .finished = true}});
  return all;
}

// As Whole, of a run that a worker of this identity begins.
inline std::vector<Record> WholeOf(const std::string& owner, RunId run, const std::string& job) {
  std::vector<Record> all = Whole(run, job);
  all.insert(all.begin() + 1, {.run = run, .body = FromWorker{{.body = Hello{.identity = owner}}}});
  for (std::size_t i = 0; i < all.size(); ++i) all[i].index = i;
  return all;
}

// Record 0 starts the run; those after it are signals.
inline std::vector<Record> RunOf(RunId run, const std::string& job, std::uint64_t records) {
  std::vector<Record> all{Started(run, job)};
  for (std::uint64_t i = 1; i < records; ++i) all.push_back(Signal(run, i));
  return all;
}

inline HistoryPtr OpenOrDie(const std::string& dir, RocksHistory::Options options = {}) {
  Result<HistoryPtr> history = RocksHistory::Open(dir, options);
  EXPECT_TRUE(history.ok()) << history.status().ToString();
  return std::move(history).value();
}

// Changes the files behind the history's back.
inline void Tamper(const std::string& dir,
                   const std::function<void(rocksdb::DB&, rocksdb::ColumnFamilyHandle*)>& change) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : history::kFamilies)
    families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open({}, dir, families, &handles, &db).ok());
  change(*db, handles[history::kRecords]);
  for (auto* handle : handles) delete handle;
  delete db;
}

}  // namespace prd

#endif  // PRD_TESTS_SERVER_HISTORY_RECORDS_H_
