// Groups that form ahead (prague, ad-psgd), overlap and static schedules: what prdctl tells of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "config/config.h"
#include "engines/registry.h"
#include "tests/tools/prdctl/printed.h"
#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/sync.h"

namespace prd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

JobSpec SpecOf(const EngineOptions& engine, int workers = 4) {
  JobSpec spec;
  spec.name = "mnist";
  spec.workers = workers;
  spec.engine = engine;
  spec.text = JobSpecToToml(spec);
  return spec;
}

PragueOptions Random(bool ahead = false) {
  return {.generator = PragueOptions::Generator::kRandom, .group_size = 2, .request_ahead = ahead};
}
PragueOptions Static() { return {.generator = PragueOptions::Generator::kStatic}; }

Story StoryOf(const EngineOptions& engine) {
  return Story(1, std::string(EngineName(engine)), SpecOf(engine).text);
}

// A job whose workers signal when they are told to, and do at once all that a group asks of them
// once their training loops wait.
class Toy {
 public:
  Toy(const JobSpec& spec, int workers) : run_(1, spec), workers_(workers) {
    RunOutput out;
    run_.Start(now_, 1'700'000'000 * kSecond, {}, {}, &out);
    Take(out);
    for (Rank rank = 0; rank < workers; ++rank) {
      Say(rank, Hello{.job = "mnist",
                      .rank = rank,
                      .host = rank < workers / 2 ? "a" : "b",
                      .host_name = "h",
                      .endpoints = {"ipc:///x"},
                      .model_bytes = 8,
                      .model_hash = 5});
    }
    Reduce();
  }

  // A step of so long has ended.
  void Signal(Rank rank, std::int64_t step_ms) {
    now_ = now_ + step_ms * kMs;
    there_.insert(rank);
    Say(rank, Ready{.iteration = ++iteration_[rank], .step_ns = step_ms * kMs});
    Reduce();
  }
  bool Deadline() {
    if (!run_.NextDeadline()) return false;
    now_ = std::max(now_, *run_.NextDeadline());
    Step(DeadlineReached{});
    return true;
  }
  bool There(Rank rank) const { return there_.contains(rank); }
  const prd::Run& run() const { return run_; }
  const std::vector<Record>& records() const { return records_; }

 private:
  void Say(Rank rank, WorkerBody body) {
    const WorkerEnvelope envelope{.run = std::holds_alternative<Hello>(body) ? kNoRun : RunId{1},
                                  .rank = rank,
                                  .incarnation = 100 + static_cast<Incarnation>(rank),
                                  .seq = ++seq_[rank],
                                  .body = std::move(body)};
    ASSERT_EQ(run_.Admit(envelope).verdict, Admission::Verdict::kStep);
    Step(FromWorker{envelope});
  }
  void Step(const Input& input) {
    RunOutput out;
    run_.Step(now_, input, &out);
    Take(out);
  }
  void Take(const RunOutput& out) {
    records_.insert(records_.end(), out.records.begin(), out.records.end());
    for (const RunOutput::Outgoing& send : out.sends) {
      if (std::holds_alternative<QueryReply>(send.envelope.body)) there_.erase(send.rank);
    }
  }
  // Ends every group whose members are all there.
  void Reduce() {
    for (bool more = true; more;) {
      more = false;
      for (const auto& [id, group] : run_.groups()) {
        bool all = true;
        for (const GroupShare& share : group.members) {
          all = all && (group.kind != GroupKind::kTrain || There(share.rank));
        }
        if (!all) continue;
        now_ = now_ + kMs;
        const GroupId ends = id;
        for (const GroupShare& share : std::vector<GroupShare>(group.members)) {
          if (!share.passive) there_.erase(share.rank);
          Say(share.rank, Finished{.group = ends, .detail = {}, .reduce_ns = kMs, .bytes = 8});
        }
        more = true;
        break;
      }
    }
  }

  prd::Run run_;
  const int workers_;
  Instant now_{kSecond};
  std::set<Rank> there_;
  std::map<Rank, Seq> seq_;
  std::map<Rank, Iteration> iteration_;
  std::vector<Record> records_;
};

Json GroupsOf(const Toy& toy) {
  MemorySource source = SourceOf(toy.records());
  return Printed([&](const Console& c) { return ShowGroups(source, "", {.last = 0}, c); });
}

std::map<std::string, int> StatesOf(const Json& groups) {
  std::map<std::string, int> states;
  for (const Json& group : groups["groups"]) ++states[group["state"].get<std::string>()];
  return states;
}

// ---- groups, as the controller's state has them ----

TEST(AheadTest, AGroupWaitsForMembersThatCompute) {
  Toy toy(SpecOf(Random()), 4);
  toy.Signal(0, 20);
  const Json last = GroupsOf(toy)["groups"].back();
  EXPECT_EQ(last["state"], "waits");
  ASSERT_EQ(last["waits_for"].size(), 1u);
  const Rank missing = last["waits_for"][0].get<Rank>();
  EXPECT_NE(missing, 0);
  for (const Json& member : last["members"]) {
    EXPECT_EQ(member["passive"], member["rank"] != 0);
  }
  MemorySource source = SourceOf(toy.records());
  const std::string table = Text([&](const Console& c) { return ShowGroups(source, "", {}, c); });
  EXPECT_THAT(table, HasSubstr("0, passive " + std::to_string(missing)));
  EXPECT_THAT(table,
              HasSubstr("waits for rank " + std::to_string(missing) + " (computes for 20.0 ms)"));
  const std::string why = Text([&](const Console& c) { return Explain(source, "", 0, c); });
  EXPECT_THAT(why, HasSubstr("\n  rank " + std::to_string(missing) + ": computes for 20.0 ms; "));
  const std::string workers = Text([&](const Console& c) { return ShowWorkers(source, "", c); });
  EXPECT_THAT(workers, HasSubstr("waiting (for rank " + std::to_string(missing) + " in group"));
  EXPECT_THAT(workers, HasSubstr(" waits for it)"));
}

TEST(AheadTest, WhatIsDrawnAndNotFormedIsPendingOnceAMemberHasAsked) {
  std::map<std::string, int> seen;
  for (std::int64_t seed = 1; seed < 20; ++seed) {
    PragueOptions options = Random(true);
    options.seed = seed;
    Toy toy(SpecOf(options), 4);
    ASSERT_TRUE(toy.Deadline());
    for (int i = 0; i < 12; ++i) {
      const auto rank = static_cast<Rank>((i * seed) % 4);
      if (!toy.There(rank)) toy.Signal(rank, 5);
      const Json groups = GroupsOf(toy);
      for (const auto& [state, count] : StatesOf(groups)) seen[state] += count;
      std::size_t drawn = 0;
      for (const Json& group : groups["groups"]) {
        if (group["state"] == "pending" || group["state"] == "buffered") ++drawn;
      }
      EXPECT_EQ(drawn, toy.run().engine().DrawnGroups().size());
    }
    std::uint64_t conflicts = 0;
    for (const Record& record : toy.records()) {
      const auto* formed = std::get_if<GroupFormed>(&record.body);
      if (formed != nullptr && formed->conflict) ++conflicts;
    }
    EXPECT_EQ(GroupsOf(toy)["conflicts"], conflicts);
    seen["conflicts"] += static_cast<int>(conflicts);
  }
  for (const char* state : {"waits", "pending", "buffered", "ok", "conflicts"}) {
    EXPECT_GT(seen[state], 0) << state;
  }
}

TEST(AheadTest, EveryCommandWorksAtAnyMoment) {
  for (const EngineOptions& engine : {EngineOptions(Random(true)), EngineOptions(PragueOptions{}),
                                      EngineOptions(AdPsgdOptions{}), EngineOptions(Static())}) {
    Toy toy(SpecOf(engine, 6), 6);
    const bool scheduled = FollowsSchedule(toy.run().engine().plan());
    for (int i = 0; i < 30; ++i) {
      toy.Deadline();
      const auto rank = static_cast<Rank>((7 * i + i / 3) % 6);
      if (!scheduled && !toy.There(rank)) toy.Signal(rank, 3 + rank);
      MemorySource source = SourceOf(toy.records());
      const Result<Present> present = LoadPresent(source, InfoOf(toy.records()));
      ASSERT_TRUE(present.ok()) << present.status().ToString();
      for (const WorkerRow& worker : present->workers) EXPECT_FALSE(worker.why.empty());
      for (const std::string& text :
           {Text([&](const Console& c) { return ShowGroups(source, "", {}, c); }),
            Text([&](const Console& c) { return ShowStragglers(source, "", 1.5, c); }),
            Text([&](const Console& c) { return ShowGraph(source, "", 0, false, c); }),
            Text([&](const Console& c) { return Explain(source, "", 1, c); })}) {
        EXPECT_GT(text.size(), 20u);
        EXPECT_THAT(text, Not(HasSubstr("DATA_LOSS")));
      }
    }
  }
}

// ---- stragglers ----

TEST(AheadTest, AWaitCountsFromTheSignalAndIsOwedToThoseWhoComputeStill) {
  Story story = StoryOf(Random());
  story.Join(0).Join(1).Join(2);
  GroupFormed formed{.id = 1, .members = {}, .reason = "drawn"};
  formed.members = {{.rank = 0, .weight = .5}, {.rank = 1, .weight = .5, .passive = true}};
  // Rank 0 waits from 10 on, is in a group from 14 on, and rank 1 comes at 30.
  story.At(10).Signal(0, 1, 10).At(14).Write(formed);
  story.At(30).Signal(1, 1, 30).At(32).Report(0, 1, 0, 2).Report(1, 1, 0, 2).End(1);
  PaceMeter meter;
  for (const Record& record : story.records()) meter.Add(record);
  const PaceReport report = meter.Report();
  EXPECT_EQ(report.queued_ns, 4 * kMs);
  EXPECT_EQ(report.waited_ns, 16 * kMs);
  EXPECT_EQ(report.controller_ns, 0);
  for (const WorkerPace& worker : report.workers) {
    EXPECT_EQ(worker.waited_ns, worker.rank == 0 ? 20 * kMs : 0) << worker.rank;
    EXPECT_EQ(worker.cost_ns, worker.rank == 1 ? 16 * kMs : 0) << worker.rank;
    EXPECT_EQ(worker.own_groups, worker.rank == 0 ? 1u : 0u);
    EXPECT_EQ(worker.passive_groups, worker.rank == 1 ? 1u : 0u);
  }
}

TEST(AheadTest, OverlapSaysThatWaitsDoNotStopTheLoop) {
  Story story = StoryOf(PReduceOptions{.overlap = true});
  story.Join(0).Join(1).At(10).Signal(0, 1, 10).At(12).Signal(1, 1, 12);
  story.Form({{0, .5}, {1, .5}}).At(13).Report(0, 1, 2, 1).Report(1, 1, 0, 1).End(1);
  MemorySource source = SourceOf(story.records());
  EXPECT_THAT(Text([&](const Console& c) { return ShowStragglers(source, "", 1.5, c); }),
              HasSubstr("overlap: to wait did not stop the training loops"));
}

// ---- the trace ----

TEST(AheadTest, ThePassivePartInterruptsTheWait) {
  Story story = StoryOf(Random());
  story.Join(0).Join(1).Join(2);
  GroupFormed passive{.id = 1, .members = {}}, own{.id = 2, .members = {}, .conflict = true};
  passive.members = {{.rank = 0, .weight = .5, .passive = true}, {.rank = 1, .weight = .5}};
  own.members = {{.rank = 0, .weight = .5}, {.rank = 2, .weight = .5, .passive = true}};
  story.At(8).Signal(1, 1, 8).Write(passive).At(10).Signal(0, 1, 10);
  story.At(13).Report(0, 1, 0, 3).Report(1, 1, 0, 3).End(1).Write(own);
  story.At(20).Signal(2, 1, 20).At(22).Report(0, 2, 0, 9).Report(2, 2, 0, 9).End(2);
  std::ostringstream out;
  TraceExporter exporter(&out);
  for (const Record& record : story.records()) exporter.Add(record);
  exporter.Finish();
  std::vector<std::string> slices;
  const Json trace = Json::parse(out.str());
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != 0) continue;
    std::ostringstream text;
    text << event["name"].get<std::string>() << " " << event["ts"].get<double>() / 1e3 << "+"
         << event["dur"].get<double>() / 1e3;
    slices.push_back(text.str());
  }
  EXPECT_THAT(slices,
              ElementsAre("compute 0+10", "reduce (passive) 10+3", "wait 13+7", "reduce 20+2"));
}

// ---- static ----

TEST(AheadTest, AStaticScheduleIsShownByItsPhases) {
  Toy toy(SpecOf(Static()), 4);  // two hosts of two
  ASSERT_TRUE(toy.Deadline());
  MemorySource source = SourceOf(toy.records());
  const Json json = GroupsOf(toy);
  ASSERT_TRUE(json.contains("schedule"));
  const Json heads = {{0, 2}}, hosts = {{0, 1}, {2, 3}}, seconds = {{1, 3}};
  EXPECT_EQ(json["schedule"]["phases"], Json({heads, hosts, seconds, hosts}));
  const std::string groups = Text([&](const Console& c) { return ShowGroups(source, "", {}, c); });
  EXPECT_THAT(groups, HasSubstr("report none"));
  EXPECT_THAT(groups, HasSubstr("0 1 | 2 3"));
  EXPECT_THAT(Text([&](const Console& c) { return ShowStragglers(source, "", 1.5, c); }),
              HasSubstr("nothing to tell: workers draw their groups themselves"));
  const Json graph = Printed([&](const Console& c) { return ShowGraph(source, "", 0, false, c); });
  EXPECT_EQ(graph["edges"].size(), 4u);
  EXPECT_EQ(graph["edges"][0]["groups"], 2);  // ranks 0 and 1: phases 1 and 3
}

// Mean over the phases of a ring 0-1-3-2: each node keeps 5/8, 1/4 goes to the other of its host
// and 1/8 to the one of the other host: eigenvalues 1, 3/4, 1/2, 1/4.
TEST(AheadTest, TheSpectralGapOfAScheduleIsThatOfItsPhases) {
  Story story = StoryOf(Static());
  for (Rank rank = 0; rank < 4; ++rank) story.Join(rank);
  SyncMeter none(0);
  for (const Record& record : story.records()) none.Add(record);
  EXPECT_EQ(none.Gap().status().code(), Code::kFailedPrecondition);
  story.Write(ScheduleSet{.first = 9, .members = {0, 1, 2, 3}, .hosts = {0, 0, 1, 1}});
  SyncMeter meter(0);
  for (const Record& record : story.records()) meter.Add(record);
  EXPECT_NEAR(meter.Gap().value().rho, 0.75, 1e-12);
  MemorySource source = SourceOf(story.records());
  EXPECT_THAT(Text([&](const Console& c) { return ShowSpectralGap(source, "", 0, c); }),
              HasSubstr("of the static schedule"));
}

// Workers that finish one after the other leave schedules for fewer and fewer.
TEST(AheadTest, OfARunThatHasEndedTheLongestScheduleIsShown) {
  Story story = StoryOf(Static());
  story.Write(ScheduleSet{.first = 9, .members = {0, 1}, .hosts = {0, 0}});
  story.At(90).Write(ScheduleSet{.first = 99, .members = {1}, .hosts = {0}});
  ScheduleTracker tracker;
  for (const Record& record : story.records()) tracker.Add(record);
  EXPECT_EQ(tracker.Shown()->set.first, 99u);
  story.At(95).Write(RunEnded{});
  tracker.Add(story.records().back());
  EXPECT_EQ(tracker.Shown()->set.first, 9u);
}

}  // namespace
}  // namespace prd::ctl
