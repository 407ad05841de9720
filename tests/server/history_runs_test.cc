// Which runs the history lists and keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.h"
#include "server/history/disk_use.h"
#include "tests/server/history_records.h"
#include "tests/server/scratch_dir.h"

namespace prd::history_runs_test {
namespace {

constexpr RunId kNewest = std::numeric_limits<RunId>::max();

std::vector<RunId> Numbers(const std::vector<RunInfo>& runs) {
  std::vector<RunId> numbers;
  for (const RunInfo& info : runs) numbers.push_back(info.run);
  return numbers;
}

TEST(HistoryRuns, AreListedInPagesTheNewestFirst) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  EXPECT_TRUE(history->ListRuns(kNewest, 10).empty());
  for (const RunId run : {1, 2, 4, 7, 8}) {
    ASSERT_TRUE(history->Append(Whole(run, "mnist")).ok());
  }
  ASSERT_TRUE(history->Append(RunOf(9, "other", 6)).ok());
  for (int opening = 0; opening < 2; ++opening) {
    using Runs = std::vector<RunId>;
    EXPECT_EQ(Numbers(history->ListRuns(kNewest, 2)), (Runs{9, 8}));
    EXPECT_EQ(Numbers(history->ListRuns(8, 3)), (Runs{7, 4, 2}));
    EXPECT_EQ(Numbers(history->ListRuns(5, 1)), (Runs{4}));
    EXPECT_EQ(Numbers(history->ListRuns(2, 9)), (Runs{1}));
    EXPECT_TRUE(history->ListRuns(1, 9).empty());
    EXPECT_TRUE(history->ListRuns(kNewest, 0).empty());
    EXPECT_EQ(history->ListRuns(kNewest, 1).front().records, 6u);
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

// Two threads list and read while the writer begins, ends and removes runs.
TEST(HistoryRuns, AreReadBesideTheWriter) {
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state", {.bounds = {.runs_per_job = 3}});
  std::atomic<bool> ended = false;
  std::atomic<int> passes = 0;
  const auto read = [&] {
    do {
      RunId before = kNewest;
      for (const RunInfo& info : history->ListRuns(kNewest, 5)) {
        EXPECT_LT(info.run, before);
        before = info.run;
        const auto records = history->Read(info.run, 0, 1 << 20);
        const bool removed = records.status().code() == Code::kNotFound;
        EXPECT_TRUE(records.ok() || removed) << records.status().ToString();
        if (records.ok()) {
          EXPECT_GE(records->size(), info.records);
        }
        EXPECT_EQ(history->JobOf(info.run).value_or("mnist"), "mnist");
        EXPECT_GE(history->NextIndex(info.run).value_or(2), 1u);
      }
      ++passes;
    } while (!ended);
  };
  std::thread first(read);
  std::thread second(read);
  for (RunId run = 1; run <= 300 || passes < 20; ++run) {
    for (const Record& record : Whole(run, "mnist")) {
      ASSERT_TRUE(history->Append(std::vector{record}).ok());
    }
  }
  ended = true;
  first.join();
  second.join();
  EXPECT_EQ(history->ListRuns(kNewest, 9).size(), 3u);
}

TEST(HistoryRuns, HaveTheOwnerWhoseWorkerBeganThem) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(WholeOf("alice", 1, "mnist")).ok());
  for (const Record& record : WholeOf("bob", 2, "mnist")) {  // in several batches
    ASSERT_TRUE(history->Append(std::vector{record}).ok());
  }
  // Another identity's worker comes later.
  Record later = WholeOf("eve", 3, "mnist")[1];
  later.index = 2;
  ASSERT_TRUE(history->Append(RunOf(3, "mnist", 2)).ok());
  ASSERT_TRUE(history->Append(std::vector{later}).ok());
  // A run that continues another one, also where that one was removed.
  Record next = Started(4, "mnist");
  std::get<RunStarted>(next.body).former.run = 2;
  ASSERT_TRUE(history->Append(std::vector{next}).ok());
  next = Started(5, "mnist");
  std::get<RunStarted>(next.body).former.run = 99;
  ASSERT_TRUE(history->Append(std::vector{next}).ok());
  for (int opening = 0; opening < 2; ++opening) {
    std::vector<std::string> owners;
    const auto runs = history->ListRuns();
    for (const RunInfo& info : *runs) owners.push_back(info.owner);
    EXPECT_EQ(owners, (std::vector<std::string>{"alice", "bob", "", "bob", ""}));
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

TEST(HistoryRuns, HaveBytesThatAreKnownAfterARestart) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 1000)).ok());
  ASSERT_TRUE(history->SaveSnapshot(1, 500, std::string(50'000, 's')).ok());
  ASSERT_TRUE(history->SaveSnapshot(1, 900, std::string(20'000, 's')).ok());
  const std::uint64_t before = history->retention().BytesOf(1);
  EXPECT_GT(before, 20'000u + 1000 * 16);
  ASSERT_TRUE(history->Append(std::vector{Ended(1, 1000)}).ok());
  const std::uint64_t after = history->ListRuns()->front().bytes;
  EXPECT_GT(after, before);
  EXPECT_LT(after, before + 1000);
  ASSERT_TRUE(history->Append(RunOf(2, "mnist", 1000)).ok());
  history.reset();
  history = OpenOrDie(dir / "state");
  EXPECT_EQ(history->ListRuns()->front().bytes, after);
  EXPECT_EQ(history->retention().BytesOf(1), after);
  EXPECT_GT(history->retention().BytesOf(2), 0u);  // of one that goes on RocksDB tells
}

// One tenant's names push out neither another's runs nor more than its own.
TEST(HistoryRuns, OfManyNamesTheOldestOfWhoHasMostGo) {
  const ScratchDir dir;
  const RocksHistory::Options options{.bounds = {.runs = 20}};
  HistoryPtr history = OpenOrDie(dir / "state", options);
  for (RunId run = 1; run <= 5; ++run) {
    ASSERT_TRUE(history->Append(WholeOf("alice", run, "a" + std::to_string(run))).ok());
  }
  for (RunId run = 100; run < 200; ++run) {
    ASSERT_TRUE(history->Append(WholeOf("eve", run, "e" + std::to_string(run))).ok());
    ASSERT_LE(history->ListRuns()->size(), 20u);
  }
  for (int opening = 0; opening < 2; ++opening) {
    std::vector<RunId> kept = Numbers(history->ListRuns(kNewest, 100));
    std::vector<RunId> expected;
    for (RunId run = 199; run >= 185; --run) expected.push_back(run);
    for (RunId run = 5; run >= 1; --run) expected.push_back(run);
    EXPECT_EQ(kept, expected);
    history.reset();
    history = OpenOrDie(dir / "state", options);
  }
  history->SetBounds({.runs = 6});  // counts from the next call on, a few at a time
  history->Trim(10);
  EXPECT_EQ(history->ListRuns(kNewest, 100).size(), 10u);
  ASSERT_TRUE(history->Append(WholeOf("eve", 200, "e")).ok());
  EXPECT_EQ(Numbers(history->ListRuns(kNewest, 100)), (std::vector<RunId>{200, 199, 198, 5, 4, 3}));
  EXPECT_EQ(history->trimmed().runs, 15u);
  EXPECT_THAT(history->trimmed().last, ::testing::HasSubstr("retain_runs_in_all"));
}

TEST(HistoryRuns, AreRemovedWhereAnOperatorSaysSo) {
  const ScratchDir dir;
  HistoryPtr history = OpenOrDie(dir / "state");
  for (const RunId run : {1, 2, 3}) ASSERT_TRUE(history->Append(Whole(run, "mnist")).ok());
  ASSERT_TRUE(history->Append(RunOf(4, "mnist", 3)).ok());
  const std::vector<RunId> gone{1, 3, 4, 99};  // one goes on, one is not there
  EXPECT_EQ(history->Prune(gone).value(), 2u);
  for (int opening = 0; opening < 2; ++opening) {
    EXPECT_EQ(Numbers(history->ListRuns(kNewest, 9)), (std::vector<RunId>{4, 2}));
    EXPECT_EQ(history->Read(1, 0, 1000).status().code(), Code::kNotFound);
    history.reset();
    history = OpenOrDie(dir / "state");
  }
}

TEST(HistoryRuns, OneThatNeverEndsIsTrimmedBehindItsLastSnapshotButOne) {
  const ScratchDir dir;
  const RocksHistory::Options options{.bounds = {.bytes = 300'000}};
  HistoryPtr history = OpenOrDie(dir / "state", options);
  ASSERT_TRUE(history->Append(RunOf(1, "mnist", 1)).ok());
  std::uint64_t most = 0;
  std::uint64_t index = 1;
  for (; index < 20'000; ++index) {
    ASSERT_TRUE(history->Append(std::vector{Signal(1, index)}).ok());
    if (index % 500 != 0) continue;
    ASSERT_TRUE(history->SaveSnapshot(1, index + 1, "state").ok());
    history->Trim(1);
    most = std::max(most, history->retention().total().bytes);
  }
  const std::uint64_t first = history->ListRuns()->front().first;
  EXPECT_GT(first, 15'000u);
  EXPECT_LT(first, 19'501u);
  EXPECT_LT(most, 500'000u);
  for (int opening = 0; opening < 2; ++opening) {
    EXPECT_EQ(history->ListRuns()->front().first, first);
    EXPECT_EQ(history->ListRuns()->front().records, index);
    const auto all = history->Read(1, 0, 100 << 20);
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    EXPECT_EQ(all->size(), 1 + index - first);
    EXPECT_EQ((*all)[1].index, first);
    EXPECT_EQ(history->Read(1, 1, 0)->front().index, first);
    EXPECT_EQ(history->Read(1, first, 0)->front().index, first);
    const Status gone = history->Read(1, first - 1, 1).status();
    EXPECT_EQ(gone.code(), Code::kNotFound);
    EXPECT_THAT(gone.message(),
                ::testing::HasSubstr("the oldest one after them is " + std::to_string(first)));
    EXPECT_EQ(history->ReadSnapshot(1)->index, 19'501u);
    history.reset();
    history = OpenOrDie(dir / "state", options);
  }
}

std::uint64_t DiskOf(const ScratchDir& dir) { return DiskUseOf(dir / "state").bytes; }

// Bytes that compression makes no less of. Runs of two owners alternate, so that no file of RocksDB
// has those of one of them alone.
TEST(HistoryRuns, TheDiskFollowsTheBytes) {
  constexpr std::uint64_t kCap = 16 << 20;
  const ScratchDir dir;
  const HistoryPtr history = OpenOrDie(dir / "state");
  Prng prng(1);
  for (RunId run = 1; run <= 200; ++run) {
    std::vector<Record> records =
        WholeOf(run % 2 == 0 ? "alice" : "eve", run, "j" + std::to_string(run));
    std::string text(300'000, ' ');
    for (char& c : text) c = static_cast<char>('0' + prng.Below(64));
    std::get<Hello>(std::get<FromWorker>(records[1].body).envelope.body).launch = text;
    ASSERT_TRUE(history->Append(records).ok());
  }
  history->SetBounds({.bytes = kCap, .owners = {{"eve", {.runs = 2}}}});
  history->Trim(1000);
  EXPECT_LE(history->retention().total().bytes, kCap);
  EXPECT_GE(history->retention().total().bytes, kCap - 400'000);
  EXPECT_GT(DiskOf(dir), 2 * kCap);
  history->Sweep();
  EXPECT_LE(DiskOf(dir), kCap + kCap / 10);
}

}  // namespace
}  // namespace prd::history_runs_test
