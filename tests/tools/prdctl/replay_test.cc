// Histories that a real job wrote are replayed; damaged ones are found out.
#include "tools/prdctl/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/sync.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;

TEST(ReplayTest, AWholeRunLeadsToTheSameState) {
  std::uint64_t hash = 0;
  const auto records =
      MakeRun(3, PReduceSpec(3), {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 20}, &hash);
  ASSERT_TRUE(std::holds_alternative<RunEnded>(records.back().body));
  MemorySource source;
  source.Add(InfoOf(records), records);
  Replayer replayer;
  const Status status = ReplayAll(source, InfoOf(records), &replayer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(replayer.run()->StateHash(), hash);
  EXPECT_EQ(replayer.inputs() + replayer.decisions(), records.size());
  EXPECT_EQ(replayer.open(), 0u);
}

TEST(ReplayTest, ASnapshotSavesReadingAndLeadsToTheSameState) {
  std::uint64_t hash = 0;
  Snapshot half;
  const auto records = MakeRun(
      1, PReduceSpec(3), {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 100, .until_ms = 900},
      &hash, &half);
  ASSERT_FALSE(half.state.empty());
  MemorySource source;
  source.Add(InfoOf(records), records);
  source.Save(1, half);
  Replayer replayer;
  std::size_t seen = 0;
  const Status status = ReplayToPresent(source, 1, &replayer, [&](const Record&) { ++seen; });
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(replayer.run()->StateHash(), hash);
  EXPECT_EQ(seen, records.size() - half.index);
  EXPECT_LT(source.read(), records.size());
  // A snapshot that cannot be read costs time only.
  source.Save(1, {.index = half.index, .state = "not a snapshot"});
  Replayer again;
  ASSERT_TRUE(ReplayToPresent(source, 1, &again, nullptr).ok());
  EXPECT_EQ(again.run()->StateHash(), hash);
}

TEST(ReplayTest, FindsEveryKindOfDamage) {
  const auto good =
      MakeRun(1, PReduceSpec(3), {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 6});
  const auto replay = [](std::vector<Record> records) {
    MemorySource source;
    source.Add(InfoOf(records), records);
    Replayer replayer;
    return ReplayAll(source, {.run = 1}, &replayer);
  };
  ASSERT_TRUE(replay(good).ok());
  // Any record missing, doubled or from another time: the replay notices, and never crashes.
  for (std::size_t i = 1; i + 1 < good.size(); ++i) {
    SCOPED_TRACE(i);
    auto hole = good;
    hole.erase(hole.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(replay(hole).code(), Code::kDataLoss);
    for (std::size_t k = i; k < hole.size(); ++k) hole[k].index = k;  // a hole well hidden
    EXPECT_EQ(replay(hole).code(), Code::kDataLoss);
    auto early = good;
    early[i + 1].now = Instant{0};
    EXPECT_EQ(replay(early).code(), Code::kDataLoss);
    auto wrong = good;
    wrong[i + 1].body = LeaseExpired{.rank = 1000, .incarnation = 1};
    EXPECT_EQ(replay(wrong).code(), Code::kDataLoss);
  }
  auto other = good;
  for (Record& record : other) {
    if (auto* formed = std::get_if<GroupFormed>(&record.body)) formed->reason += "!";
  }
  EXPECT_THAT(replay(other).message(), HasSubstr("the replay decides otherwise"));
  auto unreadable = good;
  std::get<RunStarted>(unreadable[0].body).spec = "[job";
  EXPECT_THAT(replay(unreadable).message(), HasSubstr("run 1, record 0: job spec:1"));
}

TEST(PresentTest, SaysWhoIsThereAndWhyTheyWait) {
  // Ranks 0 and 1 end quickly and wait for rank 2, which computes.
  const auto records = MakeRun(
      1, PReduceSpec(3), {.step_ns = {10 * kMs, 10 * kMs, 500 * kMs}, .steps = 5, .until_ms = 300});
  MemorySource source;
  source.Add(InfoOf(records), records);
  source.Run({.now = records.back().now + 2 * kSecond,
              .counters = {},
              .silences = {{.run = 1, .rank = 1, .silent_ns = 70 * kMs}}});
  const Result<Present> present = LoadPresent(source, InfoOf(records));
  ASSERT_TRUE(present.ok()) << present.status().ToString();
  ASSERT_EQ(present->workers.size(), 3u);
  EXPECT_EQ(present->workers[0].state, "finishing");
  EXPECT_THAT(present->workers[0].why, HasSubstr("waiting for rank 2"));
  EXPECT_EQ(present->workers[0].step_ns, 10 * kMs);
  EXPECT_EQ(present->workers[0].host_name, "host0");
  EXPECT_EQ(present->workers[1].heard_ns, 70 * kMs);
  EXPECT_EQ(present->workers[2].state, "computing");
  EXPECT_EQ(present->workers[2].pid, 102u);
}

TEST(PresentTest, RemembersWhoIsGone) {
  const auto records =
      MakeRun(1, PReduceSpec(3),
              {.step_ns = {10 * kMs, 11 * kMs, 12 * kMs}, .steps = 30, .dies = 1, .dies_ms = 100});
  ASSERT_TRUE(std::holds_alternative<RunEnded>(records.back().body));
  MemorySource source;
  source.Add(InfoOf(records), records);
  const Present present = LoadPresent(source, InfoOf(records)).value();
  ASSERT_EQ(present.workers.size(), 3u);
  EXPECT_EQ(present.workers[0].state, "finished");
  EXPECT_EQ(present.workers[1].state, "lost");
  EXPECT_FALSE(present.workers[1].here);
  EXPECT_THAT(present.workers[1].why, HasSubstr("its lease of 2000 ms ran out"));
  EXPECT_GE(present.workers[0].iteration, 30);
}

TEST(RealRunTest, TheSlowWorkerIsFound) {
  const auto records = MakeRun(
      1, PReduceSpec(4),
      {.step_ns = {10 * kMs, 10 * kMs, 11 * kMs, 50 * kMs}, .steps = 200, .until_ms = 2000});
  PaceMeter pace;
  SyncMeter sync(0);
  for (const Record& record : records) {
    pace.Add(record);
    sync.Add(record);
  }
  const PaceReport report = pace.Report();
  EXPECT_EQ(report.workers[0].rank, 3);
  EXPECT_GT(report.workers[0].factor, 4);
  EXPECT_LT(report.workers[1].factor, 1.2);
  EXPECT_LT(sync.Gap()->rho, 1);
  EXPECT_EQ(sync.Gap()->workers, 4u);
}

}  // namespace
}  // namespace prd::ctl
