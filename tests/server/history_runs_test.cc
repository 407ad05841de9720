// Which runs the history lists and keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "tests/server/history_records.h"
#include "tests/server/scratch_dir.h"

namespace prd {
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
  const HistoryPtr history = OpenOrDie(dir / "state", {.retain_runs = 3});
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

}  // namespace
}  // namespace prd
