// What the commands print, as JSON, from histories that a real job wrote.
#include "tools/prdctl/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <utility>

#include "tests/tools/prdctl/printed.h"
#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CommandsTest, FollowGoesOnUntilTheRunEnds) {
  const auto records = MakeRun(1, PReduceSpec(2), {.step_ns = {10 * kMs, 11 * kMs}, .steps = 5});
  MemorySource source;
  source.Add(InfoOf(records), records);
  std::ostringstream out;
  GroupsQuery query{.filter = {}, .since = std::nullopt, .last = 2, .follow = true};
  // Files do not change: nothing to follow.
  EXPECT_EQ(ShowGroups(source, "", query, {.out = out, .json = true, .stop = nullptr}).code(),
            Code::kFailedPrecondition);
  source.Run({});
  ASSERT_TRUE(ShowGroups(source, "", query, {.out = out, .json = true, .stop = nullptr}).ok());
  std::istringstream lines(out.str());
  std::vector<std::string> events;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    events.push_back(json["event"].get<std::string>() + " " + json["kind"].get<std::string>());
  }
  EXPECT_THAT(events,
              testing::ElementsAre("formed train", "ended train", "formed final", "ended final"));
}

// Its daemon is started again: what was asked of the one before has no answer.
class RestartedSource final : public MemorySource {
 public:
  Result<std::vector<Record>> Read(RunId run, std::uint64_t from, std::uint32_t max_bytes,
                                   std::uint32_t wait_ms) override {
    if (wait_ms > 0 && !std::exchange(away, true)) {
      return Status(Code::kUnavailable, "no daemon answers");
    }
    if (wait_ms == 0 && from >= 20) return std::vector<Record>();  // there so far
    return MemorySource::Read(run, from, max_bytes, wait_ms);
  }
  Result<DaemonStatus> Daemon() override {
    if (away && gone) return Status(Code::kUnavailable, "no daemon answers");
    return DaemonStatus{};
  }
  bool gone = false;
  bool away = false;
};

TEST(CommandsTest, FollowGoesOnWithADaemonThatWasStartedAgain) {
  const auto records = MakeRun(1, PReduceSpec(2), {.step_ns = {10 * kMs, 11 * kMs}, .steps = 50});
  const GroupsQuery query{.filter = {}, .since = std::nullopt, .last = 2, .follow = true};
  for (const bool gone : {false, true}) {
    RestartedSource source;
    source.Add(InfoOf(records), records);
    source.gone = gone;
    std::ostringstream out;
    EXPECT_EQ(ShowGroups(source, "", query, {.out = out, .json = true, .stop = nullptr}).code(),
              gone ? Code::kUnavailable : Code::kOk);
    EXPECT_EQ(out.str().find("\"kind\":\"final\"") != std::string::npos, !gone) << out.str();
  }
}

class Operated final : public MemorySource {
 public:
  Result<std::string> Act(const prd::Act& act) override { return act.job; }
};

TEST(CommandsTest, AWordThatMeansTwoJobsMeansNone) {
  Operated source;
  source.Add({.run = 3, .job = "mnist", .ended = false}, {});
  source.Add({.run = 4, .job = "3", .ended = false}, {});
  source.Add({.run = 5, .job = "5", .ended = false}, {});
  source.Add({.run = 6, .job = "7", .ended = true}, {});
  source.Add({.run = 7, .job = "other", .ended = false}, {});
  std::ostringstream out;
  const Console console{.out = out, .json = false, .stop = nullptr};
  const Status two = Operate(source, "3", {.verb = OperatorVerb::kPause}, console);
  EXPECT_EQ(two.code(), Code::kInvalidArgument);
  EXPECT_THAT(two.message(), HasSubstr("\"3\" is a run of job mnist, and the name of another job"));
  for (const char* run : {"4", "5", "7", "mnist"}) {
    EXPECT_TRUE(Operate(source, run, {.verb = OperatorVerb::kPause}, console).ok()) << run;
  }
  EXPECT_EQ(out.str(), "3\n5\nother\nmnist\n");
}

TEST(CommandsTest, JobsShowsTheNewestAndWhatGoesOn) {
  MemorySource source;
  for (RunId run = 1; run <= 300; ++run) {
    source.Add({.run = run, .job = "job-" + std::to_string(run), .ended = run != 7}, {});
  }
  const std::string some = Text([&](auto& c) { return ShowJobs(source, false, false, c); });
  EXPECT_THAT(some, HasSubstr("(older runs that have ended are left out: --all shows them)\n"));
  EXPECT_THAT(some, HasSubstr(" job-7 "));
  EXPECT_THAT(some, HasSubstr(" job-101 "));
  EXPECT_THAT(some, HasSubstr(" job-300 "));
  EXPECT_THAT(some, Not(HasSubstr(" job-100 ")));
  const std::string all = Text([&](auto& c) { return ShowJobs(source, false, true, c); });
  EXPECT_THAT(all, HasSubstr(" job-1 "));
  EXPECT_THAT(all, Not(HasSubstr("--all")));
  EXPECT_EQ(Printed([&](auto& c) { return ShowJobs(source, false, false, c); })["runs"].size(),
            300u);
}

// Rank 0 waits for two others, of which one was refused.
TEST(CommandsTest, ExplainNamesWhoWasRefused) {
  const JobSpec spec = PReduceSpec(3);
  prd::Run run(1, spec);
  RunOutput out;
  run.Start({kSecond}, 0, {5, 6}, {}, &out);
  const Hello hello{.job = spec.name, .rank = 0, .host = "h", .endpoints = {"tcp://x:1"}};
  run.Step({2 * kSecond}, FromWorker{{.incarnation = 7, .seq = 1, .body = hello}}, &out);
  const HelloRefused refused{.rank = 2, .host_name = "node", .pid = 9, .reason = "wrong model"};
  run.Step({3 * kSecond}, refused, &out);
  MemorySource source;
  RunInfo info = InfoOf(out.records);
  info.begun = false;
  source.Add(info, out.records);
  EXPECT_THAT(Text([&](auto& c) { return ShowJobs(source, false, false, c); }),
              HasSubstr("starting"));
  const std::string line = "refused 0 ns ago: rank 2 (pid 9 on node): wrong model\n";
  const std::string all = Text([&](auto& c) { return Explain(source, "", std::nullopt, c); });
  EXPECT_THAT(all,
              HasSubstr("missing: ranks 1, 2; refused: rank 2 (pid 9 on node): wrong model\n"));
  EXPECT_THAT(all, HasSubstr(line));
  EXPECT_EQ(Text([&](auto& c) { return Explain(source, "", 2, c); }), line);
  EXPECT_THAT(Text([&](auto& c) { return Explain(source, "", 0, c); }),
              testing::Not(HasSubstr(line)));
  const Json json = Printed([&](auto& c) { return Explain(source, "", std::nullopt, c); });
  ASSERT_EQ(json["refused"].size(), 1u);
  EXPECT_EQ(json["refused"][0]["rank"], 2);
  EXPECT_EQ(json["refused"][0]["code"], "invalid argument");
}

// Whoever waits then waits for the daemon.
TEST(CommandsTest, AStalledHistoryIsSaidFirst) {
  MemorySource source;
  const std::vector<Record> records = MakeRun(
      1, PReduceSpec(3), {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 99, .until_ms = 500});
  source.Add(InfoOf(records), records);
  const auto jobs = [&](auto& c) { return ShowJobs(source, false, false, c); };
  const auto explain = [&](auto& c) { return Explain(source, "", std::nullopt, c); };
  const auto explain_one = [&](auto& c) { return Explain(source, "", 1, c); };
  source.Run({.now = records.back().now});
  EXPECT_THAT(Text(jobs) + Text(explain) + Text(explain_one), testing::Not(HasSubstr("stalled")));
  EXPECT_TRUE(Printed(explain)["stalled"].is_null());
  source.Run({.now = records.back().now, .stalled_ns = 5 * kSecond, .stalled = "no room"});
  const std::string line = "the daemon's history has been stalled for 5.0 s (no room): ";
  EXPECT_THAT(Text(jobs), StartsWith(line));
  EXPECT_THAT(Text(explain), StartsWith(line));
  EXPECT_THAT(Text(explain_one), StartsWith(line));
  EXPECT_EQ(Printed(explain)["stalled"]["for_ns"], 5 * kSecond);
  EXPECT_EQ(Printed(jobs)["stalled"]["reason"], "no room");
}

// Job a went through runs 2, 4 and 5; another job's run 3 is between them.
TEST(CommandsTest, RunsOfAJobThatWasSwitchedAreInTurn) {
  MemorySource source;
  source.Add({.run = 1, .job = "a", .engine = "hop", .ended = true, .end = "done"}, {});
  source.Add({.run = 2, .job = "a", .engine = "hop", .ended = true, .end = "goes on", .next = 4},
             {});
  source.Add({.run = 3, .job = "b", .engine = "ssp"}, {});
  source.Add({.run = 4, .job = "a", .engine = "ssp", .ended = true, .former = 2, .next = 5}, {});
  source.Add({.run = 5, .job = "a", .engine = "eager", .former = 4}, {});
  const auto found = [&](const std::string& words) {
    std::vector<RunId> ids;
    const std::vector<RunInfo> runs = FindRunsInTurn(source, words).value();
    for (const RunInfo& run : runs) ids.push_back(run.run);
    return ids;
  };
  using testing::ElementsAre;
  EXPECT_THAT(found("a"), ElementsAre(2, 4, 5));
  EXPECT_THAT(found(""), ElementsAre(2, 4, 5));
  EXPECT_THAT(found("4"), ElementsAre(4));
  EXPECT_THAT(found("b"), ElementsAre(3));
  const auto text = [&](const std::string& words) {
    return InTurnText(source, FindRun(source, words).value()).value();
  };
  EXPECT_EQ(text("1"), "");
  EXPECT_EQ(text("3"), "");
  EXPECT_EQ(text("4"),
            "job a in turn: run 2 (hop), run 4 (ssp), run 5 (eager); this is run 4, and the others "
            "are shown by their numbers");
  // Runs that the history keeps no longer are left out, and nothing goes in circles.
  const std::vector<RunInfo> left{{.run = 7, .job = "a", .former = 6, .next = 7}};
  EXPECT_EQ(RunsInTurn(left, left[0]).size(), 1u);
}

TEST(CommandsTest, OfManyRunsTheFirstAndTheNewestAreNamed) {
  MemorySource source;
  for (RunId run = 1; run <= 12; ++run) {
    source.Add({.run = run,
                .job = "a",
                .engine = "e",
                .ended = true,
                .former = run - 1,
                .next = run < 12 ? run + 1 : kNoRun},
               {});
  }
  const std::string text = InTurnText(source, FindRun(source, "12").value()).value();
  EXPECT_THAT(text, HasSubstr("in turn: run 1 (e), 4 more runs, run 6 (e), run 7 (e)"));
  EXPECT_THAT(text, HasSubstr("run 12 (e); this is run 12"));
}

TEST(CommandsTest, GroupsAndTheirFilters) {
  RealRun plan{.step_ns = {10 * kMs, 11 * kMs, 12 * kMs},
               .steps = 30,
               .reduce_ns = 5 * kMs,
               .dies = kNoRank};
  // Rank 1 dies in the middle of a group.
  for (const Record& record : MakeRun(4, PReduceSpec(3), plan)) {
    const auto* formed = std::get_if<GroupFormed>(&record.body);
    if (formed == nullptr || formed->id < 10) continue;
    if (formed->members[0].rank != 1 && formed->members[1].rank != 1) continue;
    plan.dies = 1;
    plan.dies_ms = (record.now.ns - kSecond) / kMs + 2;
    break;
  }
  ASSERT_EQ(plan.dies, 1);
  const auto records = MakeRun(4, PReduceSpec(3), plan);
  MemorySource source;
  source.Add(InfoOf(records), records);
  const auto groups = [&](GroupsQuery query) {
    return Printed([&](const Console& c) { return ShowGroups(source, "4", query, c); })["groups"];
  };
  EXPECT_EQ(groups({}).size(), 20u);
  const Json all = groups({.last = 0});
  EXPECT_EQ(all.front()["kind"], "initial");
  EXPECT_EQ(all.back()["kind"], "final");
  for (const Json& group : groups({.filter = {.rank = 1}, .last = 0})) {
    EXPECT_LE(group["formed_s"].get<double>(), static_cast<double>(plan.dies_ms) / 1e3);
  }
  for (const Json& group : groups({.filter = {}, .since = 50 * kMs, .last = 0})) {
    EXPECT_GE(group["formed_s"].get<double>(),
              Seconds(records.back().now - records.front().now) - 0.0501);
  }
  const Json failed = groups({.filter = {.failed = true}, .last = 0});
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(failed[0]["failure"].get<std::string>(), HasSubstr("rank 1 is gone"));

  const auto id = failed[0]["group"].get<GroupId>();
  const Json one = Printed([&](const Console& c) { return ShowGroup(source, "mnist", id, c); });
  EXPECT_EQ(one["group"], failed[0]);
  std::ostringstream out;
  EXPECT_THAT(ShowGroup(source, "", 10'000, {.out = out}).message(),
              HasSubstr("group: found 10000, in run 4 there are 1 to "));
  EXPECT_THAT(
      Explain(source, "", 7, {.out = out}).message(),
      HasSubstr("rank: found 7, in run 4 of mnist (p-reduce, finished) there are ranks 0, 1, 2"));
}

TEST(FindRunTest, ByNumberNameOrNewest) {
  MemorySource source;
  EXPECT_EQ(FindRun(source, "").status().code(), Code::kNotFound);
  source.Add({.run = 3, .job = "a"}, {});
  source.Add({.run = 5, .job = "b"}, {});
  source.Add({.run = 6, .job = "a"}, {});
  source.Add({.run = 8, .job = "5x"}, {});
  EXPECT_EQ(FindRun(source, "")->run, 8u);
  EXPECT_EQ(FindRun(source, "3")->run, 3u);
  EXPECT_EQ(FindRun(source, "a")->run, 6u);
  EXPECT_EQ(FindRun(source, "5x")->run, 8u);
  EXPECT_EQ(FindRun(source, "7").status().message(),
            "run: found \"7\", there are runs 3, 5 to 6, 8 of the jobs 5x, a, b");
  for (RunId run = 10; run < 50; run += 2) source.Add({.run = run, .job = "a"}, {});
  EXPECT_EQ(FindRun(source, "7").status().message(),
            "run: found \"7\", there are runs 3, 5 to 6, 8, 10, 12, 14, 16, 18, 20, 22, ..., 48 of "
            "the jobs 5x, a, b");
}

TEST(CommandsTest, LinksThatAreBrokenAreNamed) {
  RealRun plan{.step_ns = {10 * kMs, 13 * kMs, 12 * kMs, 11 * kMs}, .steps = 1000};
  plan.until_ms = 300;
  MemorySource whole;
  auto records = MakeRun(1, PReduceSpec(4), plan);
  whole.Add(InfoOf(records), records);
  EXPECT_TRUE(Printed([&](const Console& c) { return ShowLinks(whole, "", c); })["links"].empty());
  std::ostringstream out;
  ASSERT_TRUE(ShowLinks(whole, "", {.out = out}).ok());
  EXPECT_THAT(out.str(), HasSubstr("no link between workers is known to be broken"));

  plan.parted = 1;
  plan.from = 2;
  records = MakeRun(1, PReduceSpec(4), plan);
  MemorySource source;
  source.Add(InfoOf(records), records);
  const Json links = Printed([&](const Console& c) { return ShowLinks(source, "", c); })["links"];
  ASSERT_EQ(links.size(), 1u);
  EXPECT_EQ(links[0]["a"], 1);
  EXPECT_EQ(links[0]["b"], 2);
  EXPECT_EQ(links[0]["asked_by"], 1);
  EXPECT_GT(links[0]["broken_ns"].get<DurationNs>(), 0);
  for (const char* end : {"a_endpoints", "b_endpoints"}) {
    EXPECT_EQ(links[0][end], Json::array({"ipc:///x", "tcp://x:1"}));
  }
  EXPECT_THAT(links[0]["reason"].get<std::string>(), HasSubstr("rank 1 did not reach rank 2"));
  out.str("");
  ASSERT_TRUE(ShowLinks(source, "", {.out = out}).ok());
  EXPECT_THAT(out.str(), HasSubstr("BROKEN FOR"));
  EXPECT_THAT(out.str(), HasSubstr("  tcp://x:1  tcp://x:1  rank 1 did not reach rank 2"));
  out.str("");
  ASSERT_TRUE(Explain(source, "", 2, {.out = out}).ok());
  EXPECT_THAT(out.str(), HasSubstr("the link between ranks 1 and 2 is broken for"));
  // One group was lost to it, and the two are in no other.
  int failed = 0;
  int together = 0;
  for (const Record& record : records) {
    const auto* ended = std::get_if<GroupEnded>(&record.body);
    failed += ended != nullptr && !ended->ok ? 1 : 0;
    const auto* formed = std::get_if<GroupFormed>(&record.body);
    if (formed == nullptr || formed->kind != GroupKind::kTrain) continue;
    int of = 0;
    for (const GroupShare& share : formed->members)
      of += share.rank == 1 || share.rank == 2 ? 1 : 0;
    together += of == 2 ? 1 : 0;
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(together, 1);
}

}  // namespace
}  // namespace prd::ctl
