#include "tools/prdctl/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/prdctl/printed.h"

namespace prd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kDay = 86'400 * kSecond;

std::vector<RunInfo> FiveRuns() {
  std::vector<RunInfo> runs;
  for (RunId run = 1; run <= 5; ++run) {
    runs.push_back({.run = run,
                    .job = run == 2 ? "other" : "mnist",
                    .engine = "p-reduce",
                    .started_wall_ns = static_cast<std::int64_t>(run) * kDay,
                    .ended = run != 4,
                    .bytes = 100 * run});
  }
  return runs;
}

std::vector<RunId> Pruned(const PruneQuery& query) {
  std::vector<RunId> numbers;
  for (const RunInfo& run : ToPrune(FiveRuns(), query)) numbers.push_back(run.run);
  return numbers;
}

TEST(Prune, EndedRunsOfAJobOrBeforeADateButTheNewest) {
  EXPECT_THAT(Pruned({.job = "mnist"}), ElementsAre(1, 3, 5));
  EXPECT_THAT(Pruned({.job = "mnist", .keep = 1}), ElementsAre(1, 3));
  EXPECT_THAT(Pruned({.keep = 1}), ElementsAre(1, 3));
  EXPECT_THAT(Pruned({.wall_ns = 3 * kDay}), ElementsAre(1, 2));
  EXPECT_THAT(Pruned({.job = "mnist", .wall_ns = 6 * kDay, .keep = 2}), ElementsAre(1));
  EXPECT_THAT(Pruned({.keep = 3}), IsEmpty());
}

TEST(Prune, DatesAreInUtc) {
  EXPECT_EQ(*ParseDate("1970-01-02"), kDay);
  EXPECT_EQ(*ParseDate("1970-01-02 01:02"), kDay + 3720 * kSecond);
  EXPECT_EQ(*ParseDate("1970-01-02 01:02:03"), kDay + 3723 * kSecond);
  for (const char* wrong : {"", "yesterday", "1970-13-01", "1970-01-02 25:00", "1970-01-02 x",
                            "26-11-29", "2026-02-31"}) {
    EXPECT_EQ(ParseDate(wrong).status().code(), Code::kInvalidArgument) << wrong;
  }
}

class Prunable final : public HistorySource {
 public:
  Result<std::vector<RunInfo>> Runs() override { return FiveRuns(); }
  Result<std::vector<Record>> Read(RunId, std::uint64_t, std::uint32_t, std::uint32_t) override {
    return std::vector<Record>();
  }
  Result<Snapshot> NewestSnapshot(RunId) override { return Snapshot(); }
  Result<DaemonStatus> Daemon() override { return Status(Code::kFailedPrecondition, "files"); }
  Result<std::string> Prune(const std::vector<RunId>& runs) override {
    gone = runs;
    return std::string("done");
  }
  std::vector<RunId> gone;
};

TEST(Prune, ADryRunSaysWhatWouldGo) {
  Prunable source;
  const auto print = [&](const PruneQuery& query) {
    return Text([&](const Console& console) { return PruneRuns(source, query, console); });
  };
  EXPECT_THAT(print({.keep = 1, .dry_run = true}),
              HasSubstr("2 runs would be removed, 400 bytes before compression"));
  EXPECT_THAT(source.gone, IsEmpty());
  EXPECT_THAT(print({.keep = 1}), HasSubstr("2 runs removed, 400 bytes"));
  EXPECT_THAT(source.gone, ElementsAre(1, 3));
  EXPECT_THAT(print({.job = "nobody"}), HasSubstr("the history has no run of job nobody"));
}

}  // namespace
}  // namespace prd::ctl
