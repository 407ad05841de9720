// Engines of rounds (eager, backup, esync): what prdctl tells of runs whose answer is known, and of
// runs that the simulator made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "config/config.h"
#include "engines/registry.h"
#include "tests/tools/prdctl/printed.h"
#include "tests/tools/prdctl/simulated.h"
#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/sync.h"

namespace prd::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<Record>& RunOf(const EngineOptions& engine) {
  static std::map<std::string, std::vector<Record>> runs;
  std::vector<Record>& records = runs[std::string(EngineName(engine))];
  if (records.empty()) records = Simulated(engine);
  return records;
}

const WorkerPace& PaceAt(const PaceReport& report, Rank rank) {
  for (const WorkerPace& worker : report.workers) {
    if (worker.rank == rank) return worker;
  }
  ADD_FAILURE() << "no rank " << rank;
  return report.workers.front();
}

PaceReport PaceIn(const std::vector<Record>& records) {
  PaceMeter meter;
  for (const Record& record : records) meter.Add(record);
  return meter.Report();
}

// ---- histories written by hand ----

// Rank 2 gives to the last of three rounds only, whose result it must take from rank 1.
Story Rounds() {
  Story story(1, "eager");
  story.Join(0).Join(1).Join(2);
  GroupId group = 0;
  for (Iteration round = 1; round <= 3; ++round) {
    const bool last = round == 3;
    story.At(10 * round);
    story.Say(0, Ready{.iteration = round, .step_ns = 10 * kMs, .gradients = 1});
    story.Say(1, Ready{.iteration = round, .step_ns = 10 * kMs, .gradients = 1});
    story.Form({{0, 1. / 3}, {1, 1. / 3}, {2, last ? 1. / 3 : 0}}, GroupKind::kRound, round);
    ++group;
    story.At(10 * round + 2).Report(0, group, 0, 2).Report(1, group, 0, 2);
    story.Report(2, group, 0, 2, last ? Outcome::kFailed : Outcome::kOk);
    if (last) {
      story.Write(AdoptOrdered{.rank = 2, .source = 1, .result = group});
      story.At(34).Say(2, Adopted{.ok = true, .iteration = round, .included = 1});
    }
    story.End(group);
  }
  return story;
}

TEST(RoundsTest, PassedOverAndLostGradientsAreCounted) {
  Story story = Rounds();
  story.Write(WorkerLeft{.rank = 1, .why = LeftReason::kFinished, .gradients = 1});
  story.Write(WorkerLeft{.rank = 2, .why = LeftReason::kLost, .gradients = 2});
  const PaceReport report = PaceIn(story.records());
  EXPECT_EQ(report.rounds, 3u);
  EXPECT_EQ(PaceAt(report, 0).rounds_in, 3u);
  EXPECT_EQ(PaceAt(report, 0).rounds_without, 0u);
  EXPECT_EQ(PaceAt(report, 0).steps, 3u);
  EXPECT_EQ(PaceAt(report, 2).rounds_in, 1u);
  EXPECT_EQ(PaceAt(report, 2).rounds_without, 2u);
  EXPECT_EQ(PaceAt(report, 2).longest_without, 2u);
  EXPECT_EQ(PaceAt(report, 2).gradients_lost, 2u);
  EXPECT_EQ(PaceAt(report, 1).gradients_lost, 0u);  // it is still there, and may give it to a round
  MemorySource source = SourceOf(story.records());
  EXPECT_THAT(Text([&](const Console& c) { return ShowStragglers(source, "", 1.5, c); }),
              HasSubstr("PASSED OVER"));
}

TEST(RoundsTest, GroupsTellContributorsPassiveMembersAndFetchedResults) {
  const Story story = Rounds();
  MemorySource source = SourceOf(story.records());
  const std::string groups = Text([&](const Console& c) { return ShowGroups(source, "", {}, c); });
  EXPECT_THAT(groups, HasSubstr("2 of 3 contribute: 0 1"));
  EXPECT_THAT(groups, HasSubstr("3 of 3 contribute: 0 1 2"));
  EXPECT_THAT(Text([&](const Console& c) { return ShowGroup(source, "", 1, c); }),
              HasSubstr("passive"));
  const std::string last = Text([&](const Console& c) { return ShowGroup(source, "", 3, c); });
  EXPECT_THAT(last, HasSubstr("round 3, 3 of 3 contribute"));
  EXPECT_THAT(last, HasSubstr("ok, result fetched from rank 1"));
  const Json json = Printed([&](const Console& c) { return ShowGroup(source, "", 3, c); })["group"];
  EXPECT_EQ(json["members"][2]["fetched_from"], 1);
  EXPECT_EQ(json["members"][2]["included"], 1);
}

TEST(RoundsTest, ARoundThatLostAMemberIsPartial) {
  Story story(1, "eager");
  story.Join(0).Join(1);
  story.Form({{0, .5}, {1, .5}}, GroupKind::kRound, 1).Report(0, 1, 0, 2);
  story.Write(WorkerLeft{.rank = 1, .why = LeftReason::kLost}).End(1, false);
  RunView view;
  std::string state;
  for (const Record& record : story.records()) {
    if (const auto ended = view.Apply(record).ended) state = ended->State();
  }
  EXPECT_EQ(state, "partial");
  EXPECT_EQ(PaceIn(story.records()).rounds, 1u);
}

TEST(RoundsTest, GraphJoinsContributorsAndThereIsNoGap) {
  SyncMeter meter(0);
  const Story story = Rounds();
  for (const Record& record : story.records()) meter.Add(record);
  EXPECT_EQ(meter.Pairs().at({0, 1}), 3u);
  EXPECT_EQ(meter.Pairs().at({0, 2}), 1u);
  EXPECT_EQ(meter.Gap().status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(meter.Gap().status().message(), HasSubstr("mix no models"));
  for (const EngineOptions& engine :
       {EngineOptions(BackupOptions{}), EngineOptions(EsyncOptions{})}) {
    SyncMeter other(0);
    for (const Record& record : RunOf(engine)) other.Add(record);
    EXPECT_THAT(other.Gap().status().message(), HasSubstr("reach everybody"));
  }
  SyncMeter together(0);  // the same reduction, and nobody is left out
  for (const Record& record : RunOf(AllReduceOptions{})) together.Add(record);
  EXPECT_NEAR(together.Gap()->rho, 0, 1e-12);
}

TEST(RoundsTest, DropsAreCountedWithTheirShareAndReason) {
  Story story(1, "backup");
  story.Join(0).Join(1).Join(2);
  story.At(10).Signal(0, 1, 10).Signal(1, 1, 10).Form({{0, .5}, {1, .5}}).Report(0, 1, 0, 1);
  story.Report(1, 1, 0, 1).End(1);
  story.Write(UpdateDropped{.rank = 2, .iteration = 0, .reason = "late by 3 ms"});
  story.At(20).Signal(2, 2, 9).Signal(0, 2, 9).Form({{0, .5}, {2, .5}}).Report(0, 2, 0, 1);
  story.Report(2, 2, 0, 1).End(2);
  const WorkerPace worker = PaceAt(PaceIn(story.records()), 2);
  EXPECT_EQ(worker.dropped, 1u);
  EXPECT_EQ(worker.dropped_because, "late by 3 ms");
  EXPECT_NEAR(worker.dropped_share, 0.5, 1e-12);
  EXPECT_EQ(worker.rounds_without, 1u);
  MemorySource source = SourceOf(story.records());
  const auto show = [&](const Console& c) { return ShowStragglers(source, "", 1.5, c); };
  EXPECT_THAT(Text(show), HasSubstr("1 (50.0%)"));
  EXPECT_THAT(Text(show), HasSubstr("rank 2 lost an update at 0.010 s, its last: late by 3 ms"));
}

// ---- columns ----

TEST(ColumnsTest, ATableHasThoseThatARowHasAValueFor) {
  const std::vector<Record>& late = RunOf(BackupOptions{});
  const std::vector<Record>& together = RunOf(AllReduceOptions{});
  MemorySource source = SourceOf(late), other = SourceOf(together);
  const std::string with = Text([&](auto& c) { return ShowStragglers(source, "", 1.5, c); });
  EXPECT_THAT(with, HasSubstr("PASSED OVER  IN A ROW"));
  EXPECT_THAT(with, Not(HasSubstr("JUMPS")));
  const std::string without = Text([&](auto& c) { return ShowStragglers(other, "", 1.5, c); });
  EXPECT_THAT(without, HasSubstr("COST OTHERS\n"));
}

TEST(ColumnsTest, JsonHasThemAll) {
  std::set<std::string> keys;
  for (const EngineOptions& engine :
       {EngineOptions(AllReduceOptions{}), EngineOptions(BackupOptions{}),
        EngineOptions(SspOptions{})}) {
    MemorySource source = SourceOf(RunOf(engine));
    std::set<std::string> found;
    for (const auto& show :
         {ShowWorkers, +[](HistorySource&of, const std::string&run, const Console&c) {
            return ShowStragglers(of, run, 1.5, c);
          }}) {
      const Json json = Printed([&](const Console& c) { return show(source, "", c); });
      for (const auto& [key, value] : json["workers"][0].items()) found.insert(key);
    }
    if (keys.empty()) keys = found;
    EXPECT_EQ(found, keys);
  }
  for (const char* key : {"rounds_without", "jumps", "shards_owned", "last_dropped_s"}) {
    EXPECT_TRUE(keys.contains(key)) << key;
  }
}

// ---- runs of the simulator ----

class EngineRuns : public testing::TestWithParam<EngineOptions> {};

TEST_P(EngineRuns, ReplayLeadsToTheRecordedDecisions) {
  for (const bool faults : {false, true}) {
    const std::vector<Record> records = Simulated(GetParam(), faults);
    ASSERT_TRUE(std::holds_alternative<RunEnded>(records.back().body));
    MemorySource source = SourceOf(records);
    Replayer replayer;
    const Status status = ReplayAll(source, InfoOf(records), &replayer);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(replayer.open(), 0u);
    Replayer again;
    ASSERT_TRUE(ReplayAll(source, InfoOf(records), &again).ok());
    EXPECT_EQ(again.run()->StateHash(), replayer.run()->StateHash());
  }
}

// Every command at every moment of a run.
TEST_P(EngineRuns, WorkersAreExplainedAtAnyMoment) {
  const std::vector<Record>& all = RunOf(GetParam());
  std::set<std::string> states;
  for (std::size_t end = all.size() / 3; end < 2 * all.size() / 3; end += 7) {
    const std::vector<Record> some(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(end));
    MemorySource source = SourceOf(some);
    const Result<Present> present = LoadPresent(source, InfoOf(some));
    ASSERT_TRUE(present.ok()) << present.status().ToString();
    for (const WorkerRow& worker : present->workers) {
      states.insert(worker.state);
      EXPECT_FALSE(worker.why.empty());
      if (worker.owed > 0) {
        EXPECT_THAT(worker.detail, HasSubstr("owes "));
      }
    }
  }
  EXPECT_TRUE(states.contains("computing"));
}

// No worker's slices overlap on their own track, and each track has a name.
TEST_P(EngineRuns, TraceTracksDoNotOverlap) {
  std::ostringstream out;
  TraceExporter exporter(&out);
  for (const Record& record : RunOf(GetParam())) exporter.Add(record);
  exporter.Finish();
  const Json trace = Json::parse(out.str());
  std::map<int, double> busy;
  std::map<int, std::string> names;
  std::map<std::string, int> instants;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"].get<int>()] = event["args"]["name"];
    if (event["ph"] == "i") ++instants[event["name"].get<std::string>()];
    if (event["ph"] != "X") continue;
    double& until = busy[event["tid"].get<int>()];
    EXPECT_GE(event["ts"].get<double>(), until - 1e-3);
    until = event["ts"].get<double>() + event["dur"].get<double>();
  }
  for (const auto& [thread, until] : busy) EXPECT_TRUE(names.contains(thread)) << thread;
  const bool eager = GetParam().As<EagerOptions>() != nullptr;
  EXPECT_EQ(busy.size(), eager ? 8u : 4u);
  if (GetParam().As<BackupOptions>() != nullptr) {
    EXPECT_GT(instants["dropped"], 0);
  }
  if (GetParam().As<EsyncOptions>() != nullptr) {
    EXPECT_GT(instants["query: ready"], 0);
  }
}

TEST_P(EngineRuns, TheSlowWorkerIsFound) {
  const PaceReport report = PaceIn(RunOf(GetParam()));
  const WorkerPace& slow = report.workers.front();
  EXPECT_EQ(slow.rank, 0);
  EXPECT_NEAR(slow.factor, 5, 0.5);
  EXPECT_GT(report.rounds, 0u);
  if (GetParam().As<EagerOptions>() != nullptr) {
    EXPECT_GT(slow.rounds_without, 0u);
  }
  if (GetParam().As<BackupOptions>() != nullptr) {
    EXPECT_GT(slow.dropped, 0u);
  }
  if (GetParam().As<EsyncOptions>() == nullptr) return;
  EXPECT_EQ(slow.most_local_steps, 1u);
  EXPECT_GT(PaceAt(report, 1).mean_local_steps, 3);
}

INSTANTIATE_TEST_SUITE_P(All, EngineRuns,
                         testing::Values(EagerOptions{}, BackupOptions{}, EsyncOptions{}),
                         [](const auto& engine) { return std::string(EngineName(engine.param)); });

}  // namespace
}  // namespace prd::ctl
