// What the daemon's log says of its runs, and how much.
#include "server/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "config/config.h"
#include "engines/p_reduce/options.h"
#include "server/notices.h"
#include "server/recorder.h"

namespace prd::run_log_test {
namespace {

using ::testing::HasSubstr;

constexpr DurationNs kMinute = 60 * kSecond;
constexpr DurationNs kWeek = 7 * 24 * 60 * kMinute;

class NoHistory final : public History {
 public:
  Status Append(std::span<const Record>) override { return Status::Ok(); }
  Status SaveSnapshot(RunId, std::uint64_t, std::string_view) override { return Status::Ok(); }
};

// The default logger writes into a string.
class RunLogTest : public ::testing::Test {
 protected:
  RunLogTest() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    auto logger = std::make_shared<spdlog::logger>("test", sink);
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(logger);
  }
  ~RunLogTest() override { spdlog::set_default_logger(before_); }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::istringstream in(text_.str());
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  void Write(Instant now, RecordBody body) {
    const std::vector<Record> records{{.run = 5, .index = ++index_, .now = now, .body = body}};
    ASSERT_TRUE(recorder_.Append(records).ok());
  }
  void Copy(Instant now) {
    Write(now, AdoptOrdered{.rank = 3, .source = 0, .reason = "others have gone on"});
  }

  std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
  NoHistory history_;
  Recorder recorder_{&history_};
  std::uint64_t index_ = 0;
};

TEST_F(RunLogTest, AWeekOfCopiesIsAFewThousandLines) {
  std::uint64_t copies = 0;
  for (DurationNs at = 0; at < kWeek; at += 5 * kSecond) {
    Copy({at});
    ++copies;
    if (at % kMinute == 0) recorder_.TellLeftOut({at});
  }
  Write({kWeek}, RunEnded{.reason = "the job is done", .finished = true});
  const std::vector<std::string> lines = Lines();
  EXPECT_LT(lines.size(), 2500u);
  // Each copy is either a line or in the number of a line.
  std::uint64_t told = 0;
  for (const std::string& line : lines) {
    if (line.find("run 5: rank 3 copies the model") != std::string::npos) ++told;
    const std::size_t more = line.find(" more copies of models in ");
    if (more != std::string::npos) told += std::stoull(line.substr(line.find(": ") + 2));
  }
  EXPECT_EQ(told, copies);
  EXPECT_EQ(lines.back(), "info run 5 is finished: the job is done");
}

// In the words of `prdctl jobs`.
TEST_F(RunLogTest, ARunThatItsWorkersLeftIsNotFinished) {
  Write({kSecond}, RunEnded{.reason = "its last worker left", .finished = true});
  EXPECT_EQ(Lines().back(), "info run 5 is left: its last worker left");
  Write({kSecond}, RunEnded{.reason = "it goes on", .finished = true, .next = 6});
  EXPECT_EQ(Lines().back(), "info run 5 is switched: it goes on");
  Write({kSecond}, RunEnded{.reason = "its last worker was lost"});
  EXPECT_EQ(Lines().back(), "info run 5 ended: its last worker was lost");
}

TEST_F(RunLogTest, OnlyARefusalThatFollowsOthersCountsThem) {
  Notices notices;
  notices.TellRefused("j", {.rank = 1, .host_name = "h", .pid = 9, .reason = "because"});
  EXPECT_EQ(
      Lines().back(),
      "warning job j: " + RefusedWorker({.rank = 1, .host_name = "h", .pid = 9}) + " because");
  EXPECT_EQ(MoreSince(2), " (2 more since the last such line)");
}

TEST_F(RunLogTest, WhatIsLeftOutIsTheNumberOfOneLine) {
  for (int i = 0; i < 500; ++i) Copy({kSecond + i * kMillisecond});
  ASSERT_EQ(Lines().size(), static_cast<std::size_t>(LineBudget::kAtOnce));
  EXPECT_EQ(Lines()[0], "info run 5: rank 3 copies the model of rank 0: others have gone on");
  recorder_.TellLeftOut({30 * kSecond});
  EXPECT_EQ(Lines().size(), static_cast<std::size_t>(LineBudget::kAtOnce));
  recorder_.TellLeftOut({kSecond + 20 * kMillisecond + kMinute});
  EXPECT_EQ(Lines().back(),
            "info run 5: 480 more copies of models in 60.0 s, by themselves at level debug");
  // Other kinds of lines are counted for themselves: a loss is seen, however many have joined.
  for (Rank rank = 0; rank < 1000; ++rank) {
    Write({2 * kMinute}, WorkerJoined{.rank = rank, .reason = "common start"});
  }
  Write({2 * kMinute}, WorkerLeft{.rank = 1, .why = LeftReason::kLost, .reason = "its lease"});
  EXPECT_EQ(Lines().back(), "info run 5: rank 1 was lost: its lease");
}

// Whatever goes on and on is told after 1, 2, 5, 10, 30 and then each 60 minutes; after a quiet
// time as if it were new.
TEST_F(RunLogTest, WhatGoesOnIsToldAfterGrowingPauses) {
  std::vector<DurationNs> told;
  const auto go_on = [&](DurationNs from, DurationNs minutes) {
    for (DurationNs at = from; at < from + minutes * kMinute; at += 10 * kSecond) {
      for (int i = 0; i < 10; ++i) Copy({at});
      const std::size_t lines = Lines().size();
      recorder_.TellLeftOut({at});
      if (Lines().size() > lines) told.push_back((at - from) / kMinute);
    }
  };
  go_on(0, 180);
  EXPECT_EQ(told, (std::vector<DurationNs>{1, 3, 8, 18, 49, 109, 169}));
  recorder_.TellLeftOut({240 * kMinute});  // the rest
  told.clear();
  go_on(400 * kMinute, 10);
  EXPECT_EQ(told, (std::vector<DurationNs>{1, 3, 8}));
}

TEST_F(RunLogTest, ARankThatIsNotFiniteIsWarnedOfAfterGrowingPauses) {
  const auto minutes = [&](DurationNs from, DurationNs count) {
    std::vector<DurationNs> told;
    for (DurationNs minute = 0; minute < count; ++minute) {
      const std::size_t lines = Lines().size();
      FromWorker from_worker;
      from_worker.envelope.rank = 1;
      from_worker.envelope.body = Ready{.nonfinite = 3};
      Write({(from + minute) * kMinute}, from_worker);
      if (Lines().size() > lines) told.push_back(minute);
    }
    return told;
  };
  EXPECT_EQ(minutes(1, 180), (std::vector<DurationNs>{0, 1, 3, 8, 18, 48, 108, 168}));
  EXPECT_THAT(Lines().back(), HasSubstr("rank 1 has made 507 steps with values that are not"));
  EXPECT_EQ(minutes(400, 4), (std::vector<DurationNs>{0, 1, 3}));
  Write({500 * kMinute}, RunEnded{.reason = "the job is done", .finished = true});
  EXPECT_EQ(Lines().back(),
            "warning run 5 is finished: the job is done; with steps that were not finite: 552 of "
            "rank 1");
}

TEST_F(RunLogTest, OptionsUnderWhichAllWaitForTheSlowestAreWarnedOfAtTheCommonStart) {
  const auto start = [&](const PReduceOptions& options) {
    const JobSpec spec{.name = "mnist", .engine = options};
    Write({1}, RunStarted{.job = "mnist", .engine = "p-reduce", .spec = JobSpecToToml(spec)});
    Write({2}, GroupFormed{.id = 1, .kind = GroupKind::kInitial, .members = {{0}, {1}, {2}}});
    return Lines().back();
  };
  EXPECT_THAT(start({}), HasSubstr("run 5 of job mnist begins"));
  EXPECT_EQ(start({.group_size = 3}),
            "warning run 5: group_size 3 of 3 workers: every group waits for the slowest worker; "
            "fewer than 3, or 0, does not");
}

TEST_F(RunLogTest, DebugHasAllOfThem) {
  spdlog::set_level(spdlog::level::debug);
  for (int i = 0; i < 500; ++i) Copy({kSecond});
  EXPECT_EQ(Lines().size(), 500u);
}

TEST_F(RunLogTest, WhoIsOnlyToWaitIsNoWarning) {
  Write({1}, HelloRefused{.rank = 2,
                          .host_name = "node",
                          .pid = 7,
                          .code = Code::kInvalidArgument,
                          .reason = "the model differs"});
  EXPECT_EQ(Lines().back(), "warning run 5: rank 2 (pid 7 on node) is refused: the model differs");
  Write({2},
        HelloRefused{.rank = kNoRank, .code = Code::kUnavailable, .reason = "the rank is held"});
  EXPECT_THAT(Lines().back(), HasSubstr("info run 5: a worker (pid 0 on ) is to wait: the rank is "
                                        "held"));
}

}  // namespace
}  // namespace prd::run_log_test
