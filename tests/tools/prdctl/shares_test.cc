// What prdctl shows of a job whose batch is divided among its workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "engines/all_reduce/options.h"
#include "tests/tools/prdctl/printed.h"
#include "tools/prdctl/replay.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobSpec Balanced() {
  JobSpec spec;
  spec.name = "mnist";
  spec.workers = 3;
  spec.engine = AllReduceOptions{};
  spec.batch = 96;
  spec.text = JobSpecToToml(spec);
  return spec;
}

// Rank 2 is four times slower than the others.
RealRun SlowOne(int steps) { return {.step_ns = {10 * kMs, 10 * kMs, 40 * kMs}, .steps = steps}; }

std::int64_t ShareIn(const Json& workers, std::size_t rank) {
  return workers["workers"][rank]["share"].get<std::int64_t>();
}

TEST(SharesTest, WorkersShowTheirSharesAndExplainSaysWhy) {
  RealRun plan = SlowOne(100);
  plan.until_ms = 600;
  MemorySource source = SourceOf(MakeRun(1, Balanced(), plan));
  const Json workers = Printed([&](auto& c) { return ShowWorkers(source, "", c); });
  ASSERT_EQ(workers["workers"].size(), 3u);
  EXPECT_EQ(ShareIn(workers, 0) + ShareIn(workers, 1) + ShareIn(workers, 2), 96);
  EXPECT_NEAR(static_cast<double>(ShareIn(workers, 0)), 96 * 4.0 / 9, 2);
  EXPECT_NEAR(static_cast<double>(ShareIn(workers, 2)), 96 * 1.0 / 9, 2);
  for (const Json& worker : workers["workers"]) {
    EXPECT_NEAR(worker["share_expected_ns"].get<double>(), 13.3e6, 2e6);
  }
  const std::string text = Text([&](auto& c) { return ShowWorkers(source, "", c); });
  EXPECT_THAT(text, HasSubstr(" SHARE "));
  EXPECT_THAT(text, HasSubstr(" EXPECTED "));
  const std::string share = std::to_string(ShareIn(workers, 2));
  EXPECT_THAT(Text([&](auto& c) { return Explain(source, "", 2, c); }),
              HasSubstr("; its share is " + share + " of 96 samples, as decided "));
}

TEST(SharesTest, EachChangeIsListedWithItsReason) {
  MemorySource source = SourceOf(MakeRun(1, Balanced(), SlowOne(30)));
  const Json all = Printed([&](auto& c) { return ShowShares(source, "", 0, false, c); });
  ASSERT_GE(all["changes"].size(), 2u);
  for (const Json& change : all["changes"]) {
    EXPECT_EQ(change["batch"], 96);
    EXPECT_EQ(change["more"], false);  // nobody makes up for workers that all finish
    EXPECT_NE(change["reason"], "");
  }
  const std::string text = Text([&](auto& c) { return ShowShares(source, "", 0, false, c); });
  EXPECT_THAT(text, HasSubstr("0: 32, 1: 32, 2: 32"));
  EXPECT_THAT(text, HasSubstr("2: 32 > "));
  EXPECT_THAT(text, HasSubstr(all["changes"][1]["reason"].get<std::string>()));
  const Json last = Printed([&](auto& c) { return ShowShares(source, "", 1, false, c); });
  ASSERT_EQ(last["changes"].size(), 1u);
  EXPECT_EQ(last["changes"][0], all["changes"].back());
}

TEST(SharesTest, FollowingEndsWithTheRun) {
  MemorySource source = SourceOf(MakeRun(1, Balanced(), SlowOne(30)));
  EXPECT_THAT(Text([&](auto& c) { return ShowShares(source, "", 0, true, c); }),
              Not(HasSubstr("2: 32 > ")));  // files do not change
  source.Run({});
  EXPECT_THAT(Text([&](auto& c) { return ShowShares(source, "", 0, true, c); }),
              HasSubstr("2: 32 > "));
}

TEST(SharesTest, AJobWithoutABatchHasNoShares) {
  RealRun plan = SlowOne(100);
  plan.until_ms = 300;
  MemorySource source = SourceOf(MakeRun(1, PReduceSpec(3), plan));
  EXPECT_EQ(Text([&](auto& c) { return ShowShares(source, "", 20, false, c); }),
            "the job has no batch: each worker chooses its own\n");
  const Json workers = Printed([&](auto& c) { return ShowWorkers(source, "", c); });
  EXPECT_TRUE(workers["workers"][0]["share"].is_null());
  EXPECT_THAT(Text([&](auto& c) { return ShowWorkers(source, "", c); }), Not(HasSubstr("SHARE")));
  EXPECT_THAT(Text([&](auto& c) { return Explain(source, "", 0, c); }), Not(HasSubstr("share")));
}

TEST(SharesTest, AReplayDecidesTheSame) {
  RealRun plan = SlowOne(60);
  plan.dies = 1;
  plan.dies_ms = 300;
  plan.until_ms = 900;
  std::uint64_t hash = 0;
  Snapshot half;
  const auto records = MakeRun(1, Balanced(), plan, &hash, &half);
  MemorySource source = SourceOf(records);
  const Json replayed = Printed([&](auto& c) { return Replay(source, "1", c); });
  EXPECT_EQ(replayed["not_recorded"], 0);
  source.Save(1, half);
  Replayer replayer;
  ASSERT_TRUE(ReplayToPresent(source, 1, &replayer, nullptr).ok());
  EXPECT_EQ(replayer.run()->StateHash(), hash);
}

}  // namespace
}  // namespace prd::ctl
