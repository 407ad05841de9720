#include "tools/prdctl/watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/lanes.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

constexpr int kStepsEach = 5;

std::vector<Record> TwoWorkers(RunId run) {
  return MakeRun(run, PReduceSpec(2), {.step_ns = {10 * kMs, 11 * kMs}, .steps = kStepsEach});
}

TEST(WatchTest, RunsFollowEachOtherAsOneJob) {
  JobWatch watch;
  std::vector<RunInfo> infos;
  std::size_t all = 0;
  Instant start, ended;
  for (const RunId run : {3, 5}) {
    std::vector<Record> records = TwoWorkers(run);
    if (run == 5) {  // begins as the one before ends
      const DurationNs later = ended - records.front().now;
      for (Record& record : records) record.now = record.now + later;
    } else {
      start = records.front().now;
    }
    infos.push_back(InfoOf(records));
    for (const Record& record : records) ASSERT_TRUE(watch.Add(record).ok()) << record.index;
    all += records.size();
    EXPECT_EQ(watch.run(), run);
    EXPECT_EQ(watch.records(), records.size());
    EXPECT_EQ(watch.all_records(), all);
    EXPECT_TRUE(watch.ended());
    ended = records.back().now;
  }
  const Json json = watch.Summary(infos, nullptr);
  EXPECT_EQ(json["read"], all);
  EXPECT_EQ(json["runs"], Json({3, 5}));
  EXPECT_EQ(json["now_s"], Seconds(ended - start));
  ASSERT_EQ(json["switches"].size(), 1u);
  EXPECT_EQ(json["switches"][0]["run"], 5);
  EXPECT_EQ(json["switches"][0]["from"], "p-reduce");
  std::uint64_t steps = 0;
  for (const Json& worker : json["pace"]["workers"]) steps += worker["steps"].get<std::uint64_t>();
  EXPECT_EQ(steps, 2u * 2 * kStepsEach);
  // Both have groups from 1 on.
  const Json groups = watch.Groups(1e9, std::nullopt)["groups"];
  for (std::size_t i = 1; i < groups.size(); ++i) {
    EXPECT_LT(groups[i]["key"].get<GroupId>(), groups[i - 1]["key"].get<GroupId>());
  }
  EXPECT_EQ(groups.front()["run"], 5);
  EXPECT_EQ(groups.back()["run"], 3);
  EXPECT_EQ(groups.back()["group"], 1);
}

// The page says so where the worker's line ends.
TEST(WatchTest, WhyAWorkerIsGoneIsTold) {
  Story story(3, "p-reduce");
  story.Join(0).Join(1).Signal(0, 1, 10);
  story.At(50).Write(
      WorkerLeft{.rank = 1, .why = LeftReason::kLost, .reason = "its process ended"});
  story.At(90).Join(1);
  Lanes lanes;
  for (const Record& record : story.records()) lanes.Follow(record);
  EXPECT_EQ(lanes.lanes().at(0).there.size(), 1u);
  const auto& there = lanes.lanes().at(1).there;
  ASSERT_EQ(there.size(), 2u);
  EXPECT_EQ(there[0].left, story.records()[4].now);
  EXPECT_EQ(there[0].why, "its process ended");
  EXPECT_FALSE(there[1].left.has_value());
  EXPECT_EQ(there[1].why, "");
}

TEST(WatchTest, ARunThatIsDamagedHidesNoneAfterIt) {
  JobWatch watch;
  const std::vector<Record> first = TwoWorkers(3), second = TwoWorkers(5);
  for (std::size_t i = 0; i < 10; ++i) ASSERT_TRUE(watch.Add(first[i]).ok());
  EXPECT_EQ(watch.Add(first[11]).code(), Code::kDataLoss);
  EXPECT_EQ(watch.Add(second[0]).code(), Code::kDataLoss);
  watch.GiveUp();
  for (const Record& record : second) ASSERT_TRUE(watch.Add(record).ok()) << record.index;
  EXPECT_EQ(watch.run(), 5u);
}

// The mean of a part counts each loss once, however parts are joined.
TEST(WatchTest, LossesAreMeansOverTime) {
  StepSeries series;
  EXPECT_FALSE(series.ToJson().contains("loss"));
  series.Add(0, 1, {.count = 1, .mean = 8});
  series.Add(kSecond / 8, 1, {.count = 3, .mean = 4});
  series.Add(kSecond, 2, {});
  series.Add(kSecond, 0, {.count = 2, .mean = -1.0 / 3});
  Json json = series.ToJson();
  EXPECT_EQ(json["width_s"], 0.25);
  EXPECT_EQ(json["steps"], Json({2, 0, 0, 0, 2}));
  EXPECT_EQ(json["loss"], Json({5, nullptr, nullptr, nullptr, -0.333333}));
  series.Add(static_cast<DurationNs>(StepSeries::kBuckets) * kSecond / 4 * 3, 1, {});
  json = series.ToJson();
  EXPECT_EQ(json["width_s"], 1.0);
  EXPECT_EQ(json["steps"][0], 2);
  EXPECT_EQ(json["steps"][1], 2);
  EXPECT_EQ(json["loss"][0], 5);
  series.Add(static_cast<DurationNs>(StepSeries::kBuckets) * kSecond * 3, 1, {});
  EXPECT_EQ(series.ToJson()["loss"][0], 3.22222);  // 20 - 2/3 over 6
}

}  // namespace
}  // namespace prd::ctl
