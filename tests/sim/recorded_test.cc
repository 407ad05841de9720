// Replays of recorded runs: histories written as prdctl export writes them, from simulated runs
// whose truth is known.
#include "tools/sim/recorded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "config/config.h"
#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"
#include "tools/sim/report.h"

namespace prd::sim {
namespace {

using testing::HasSubstr;

// The kinds of records that matter, in prdctl's words.
struct Exported {
  std::string text;
  JobSpec spec;

  void Add(const Record& record) {
    Json json = {{"run", record.run}, {"index", record.index}, {"now_ns", record.now.ns}};
    if (std::holds_alternative<RunStarted>(record.body)) {
      json["type"] = "run_started";
      json["job"] = "sim";
      json["engine"] = EngineName(spec.engine);
      json["spec"] = JobSpecToToml(spec);
    } else if (const auto* joined = std::get_if<WorkerJoined>(&record.body)) {
      json["type"] = "worker_joined";
      json["rank"] = joined->rank;
    } else if (const auto* left = std::get_if<WorkerLeft>(&record.body)) {
      json["type"] = "worker_left";
      json["why"] = left->why == LeftReason::kFinished ? "finished" : "left";
    } else if (const auto* formed = std::get_if<GroupFormed>(&record.body)) {
      json["type"] = "group_formed";
      json["group"] = formed->id;
      json["kind"] = formed->kind == GroupKind::kTrain ? "train" : "initial";
      json["members"] = Json::array();
      for (const GroupShare& share : formed->members) json["members"].push_back(share.rank);
    } else if (const auto* ended = std::get_if<GroupEnded>(&record.body)) {
      json["type"] = "group_ended";
      json["group"] = ended->id;
      json["ok"] = ended->ok;
    } else if (const auto* shares = std::get_if<SharesSet>(&record.body)) {
      json["type"] = "shares_set";
      json["batch"] = shares->batch;
    } else if (const auto* acted = std::get_if<OperatorActed>(&record.body)) {
      json["type"] = "operator_acted";
      json["verb"] = VerbName(acted->verb);
    } else if (const auto* from = std::get_if<FromWorker>(&record.body)) {
      json["rank"] = from->envelope.rank;
      json["type"] = "other";
      if (const auto* ready = std::get_if<Ready>(&from->envelope.body)) {
        json["type"] = "ready";
        json["step_ns"] = ready->step_ns;
        json["samples"] = ready->samples;
      }
      if (const auto* finished = std::get_if<Finished>(&from->envelope.body)) {
        json["type"] = "finished";
        json["group"] = finished->group;
        json["outcome"] = "ok";
        json["wait_ns"] = finished->wait_ns;
        json["reduce_ns"] = finished->reduce_ns;
        json["bytes"] = finished->bytes;
      }
    } else {
      return;
    }
    text += json.dump() + "\n";
  }
};

struct Truth {
  std::string history;
  double updates_per_s = 0;
};

Truth Simulated(const Workload& workload) {
  Exported exported;
  exported.spec = workload.job;
  const RunResult run =
      Simulate(workload, {.seed = 9, .on_record = [&](const Record& r) { exported.Add(r); }});
  EXPECT_EQ(run.invariant, "") << run.violation;
  return {.history = exported.text, .updates_per_s = run.updates_per_s};
}

Workload Straggler(const EngineOptions& engine) {
  Workload workload = Loaded("workloads/straggler.toml");
  workload.compute.model = ComputePart::Model::kLogNormal;
  workload.compute.spread = 0.2;
  workload.reduce.bytes = 60e6;  // 22 ms among three: enough to be seen
  workload.job.engine = engine;
  return workload;
}

Truth RunAs(const EngineOptions& engine) { return Simulated(Straggler(engine)); }

RecordedRun Read(const std::string& history) {
  std::istringstream in(history);
  Result<RecordedRun> recorded = ReadRecorded(&in, "history");
  EXPECT_TRUE(recorded.ok()) << recorded.status().ToString();
  return std::move(recorded).value();
}

double Predicted(const RecordedRun& recorded, const EngineOptions& engine) {
  const RunResult run = Simulate(AsWorkload(recorded, engine), {.seed = 1});
  EXPECT_EQ(run.invariant, "") << run.violation;
  return run.updates_per_s;
}

TEST(Recorded, PredictsOtherEnginesWithinATenth) {
  const EngineOptions p_reduce = PReduceOptions{};
  const EngineOptions all_reduce = AllReduceOptions{};
  const Truth p = RunAs(p_reduce);
  const Truth a = RunAs(all_reduce);
  EXPECT_NEAR(Predicted(Read(p.history), all_reduce) / a.updates_per_s, 1, 0.1);
  EXPECT_NEAR(Predicted(Read(a.history), p_reduce) / p.updates_per_s, 1, 0.1);
  EXPECT_NEAR(Predicted(Read(p.history), p_reduce) / p.updates_per_s, 1, 0.05);
  EXPECT_NEAR(Predicted(Read(a.history), all_reduce) / a.updates_per_s, 1, 0.05);
}

TEST(Recorded, ReadsWhatTheRunWasLike) {
  const Truth truth = RunAs(PReduceOptions{.group_size = 4});
  const RecordedRun run = Read(truth.history);
  EXPECT_EQ(run.engine, "p-reduce");
  EXPECT_EQ(run.spec.engine.Get<PReduceOptions>().group_size, 4);
  ASSERT_EQ(run.steps.size(), 8u);
  EXPECT_EQ(run.steps[3].size(), 200u);
  EXPECT_NEAR(run.updates_per_s, truth.updates_per_s, 0.01 * truth.updates_per_s);
  EXPECT_NEAR(static_cast<double>(run.round_trip_ns), 250e3, 50e3);
  EXPECT_NEAR(run.bytes, 60e6, 1e6);
}

TEST(Recorded, StepsOfADividedBatchTakeAsLongAsTheirSamples) {
  Workload workload = Loaded("workloads/batch.toml");
  workload.cluster.steps = 100;
  const Truth truth = Simulated(workload);
  const RecordedRun run = Read(truth.history);
  EXPECT_EQ(run.batch, 256);
  EXPECT_EQ(run.samples, 32);
  EXPECT_NEAR(Predicted(run, AllReduceOptions{}) / truth.updates_per_s, 1, 0.05);
}

TEST(Recorded, AnOperatorsPausesAreNoTraining) {
  Workload workload = Straggler(AllReduceOptions{});
  const double unpaused = Simulated(workload).updates_per_s;
  workload.faults.until_ms = 60'000;
  workload.faults.operator_pauses_per_s = 0.2;
  workload.faults.operator_pause_ms = 8000;
  const Truth paused = Simulated(workload);
  EXPECT_LT(paused.updates_per_s, 0.9 * unpaused);
  EXPECT_NEAR(Read(paused.history).updates_per_s / unpaused, 1, 0.05);
}

TEST(Recorded, TakesTheFirstRunOfAFileAndNamesTheOthers) {
  const Truth truth = RunAs(PReduceOptions{});
  const RecordedRun run = Read(
      truth.history + "{\"run\":7,\"now_ns\":1,\"type\":\"run_started\",\"engine\":\"hop\"}\n" +
      "{\"run\":7,\"now_ns\":2,\"type\":\"hello\"}\n");
  EXPECT_EQ(run.left_out, (std::map<std::int64_t, std::string>{{7, "hop"}}));
  EXPECT_NEAR(run.updates_per_s, truth.updates_per_s, 0.01 * truth.updates_per_s);
}

TEST(Recorded, RefusesWhatIsNoExport) {
  const auto read = [](const std::string& text) {
    std::istringstream in(text);
    const Result<RecordedRun> run = ReadRecorded(&in, "h");
    EXPECT_FALSE(run.ok());
    return run.status().message();
  };
  EXPECT_THAT(read(""), HasSubstr("no worker has trained"));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":\"x\"}\nnonsense\n"), HasSubstr("h:2: "));
  EXPECT_THAT(read("[]\n"), HasSubstr("h:1: "));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":5}\n"), HasSubstr("h:1: "));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":\"ready\",\"rank\":-3,\"step_ns\":1}\n"),
              HasSubstr("h:1: "));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":\"ready\",\"rank\":2000000000,\"step_ns\":1}"),
              HasSubstr("h:1: "));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":\"run_started\",\"job\":7}\n"),
              HasSubstr("h:1: "));
  EXPECT_THAT(read("{\"run\":1,\"now_ns\":2,\"type\":\"run_started\",\"spec\":\"[\"}\n"),
              HasSubstr("h:1: "));
}

}  // namespace
}  // namespace prd::sim
