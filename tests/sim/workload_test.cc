#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/vary.h"

namespace prd::sim {
namespace {

using testing::HasSubstr;

TEST(Workload, LaterTextsWinAndLeaveTheRest) {
  Workload workload;
  ASSERT_TRUE(ReadWorkload("[cluster]\nworkers = 5\nsteps = 7\n", "a", &workload).ok());
  ASSERT_TRUE(ReadWorkload("[cluster]\nsteps = 9\n[faults]\nloss = 0.5\n", "b", &workload).ok());
  EXPECT_EQ(workload.cluster.workers, 5);
  EXPECT_EQ(workload.cluster.steps, 9);
  EXPECT_EQ(workload.faults.loss, 0.5);
}

TEST(Workload, ErrorsNameFileLineKeyAndWhatIsAllowed) {
  Workload workload;
  const Status status = ReadWorkload(
      "[cluster]\nworkers = 0\n[faults]\nlos = 0.1\nreduce_fails = 1.5\n", "w.toml", &workload);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("w.toml:2: cluster.workers: found 0"));
  EXPECT_THAT(status.message(), HasSubstr("w.toml:4: faults.los: unknown key"));
  EXPECT_THAT(status.message(), HasSubstr("did you mean \"loss\"?"));
  EXPECT_THAT(status.message(), HasSubstr("w.toml:5: faults.reduce_fails: found 1.5"));
  EXPECT_FALSE(ReadWorkload("[cluster\n", "w.toml", &workload).ok());
  EXPECT_EQ(LoadWorkload("/nonexistent/w.toml", &workload).code(), Code::kNotFound);
}

TEST(Workload, AnEngineToSwitchToIsNamedAsItWasFound) {
  const auto read = [](const std::string& engine) {
    Workload workload;
    return ReadWorkload("[faults]\nswitch_to = \"" + engine + "\"\n", "w.toml", &workload)
        .message();
  };
  EXPECT_EQ(read("p-reduce:group_size=2"), "");
  EXPECT_THAT(read("nope"), HasSubstr("w.toml:2: faults.switch_to: found \"nope\" (a text), "
                                      "allowed is NAME or NAME:KEY=VALUE,..., with a NAME of "));
  EXPECT_THAT(read("p-reduce:group_size=1"), HasSubstr("group_size: found 1"));
  EXPECT_THAT(WorkloadReference(), testing::Not(HasSubstr("found")));
}

TEST(Workload, RulesOverSeveralKeys) {
  Workload workload;
  workload.job.workers = 9;
  EXPECT_THAT(CheckWorkload(workload).message(), HasSubstr("job.workers: found 9"));
  workload = {};
  workload.controller.keep_records = 0;
  workload.faults.torn = 0.1;
  EXPECT_THAT(CheckWorkload(workload).message(), HasSubstr("controller.keep_records"));
  workload = {};
  workload.compute.slow_workers = 9;
  EXPECT_THAT(CheckWorkload(workload).message(), HasSubstr("compute.slow_workers: found 9"));
  workload = {};
  workload.job.engine = PReduceOptions{.group_size = 2, .history_window = 3};
  EXPECT_THAT(CheckWorkload(workload).message(), HasSubstr("history_window: found 3"));
}

TEST(Workload, EnginesAsTexts) {
  const auto engine = ParseEngine("p-reduce:group_size=5,weights=dynamic,alpha=0.25");
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const auto& options = engine->Get<PReduceOptions>();
  EXPECT_EQ(options.group_size, 5);
  EXPECT_EQ(options.weights, PReduceOptions::Weights::kDynamic);
  EXPECT_EQ(options.alpha, 0.25);
  EXPECT_EQ(EngineText(*engine), "p-reduce:group_size=5,weights=dynamic,alpha=0.25");
  EXPECT_EQ(EngineText(PReduceOptions{}), "p-reduce");
  EXPECT_EQ(EngineText(AllReduceOptions{}), "all-reduce");
  EXPECT_FALSE(ParseEngine("p-reduce:group_size=1").ok());
  EXPECT_FALSE(ParseEngine("p-reduce:grop_size=3").ok());
  EXPECT_FALSE(ParseEngine("no-such-engine").ok());
  EXPECT_FALSE(ParseEngine("p-reduce:group_size").ok());
}

TEST(Workload, EveryKeySaysWhatItMeans) {
  std::istringstream lines(WorkloadReference());
  std::string key;
  std::string help;
  while (std::getline(lines, key)) {
    EXPECT_TRUE(std::getline(lines, help) && help.starts_with("    ")) << key;
  }
}

TEST(Workload, WarnsOfLinksThatNobodyUses) {
  const std::string bandwidth = "[reduce]\nbandwidth_mb_per_s = 125.0\n";
  EXPECT_THAT(WorkloadWarning(FromText(bandwidth)),
              HasSubstr("reduce.bandwidth_mb_per_s is of links between hosts"));
  EXPECT_EQ(WorkloadWarning(FromText("[cluster]\nworkers_per_host = 7\n" + bandwidth)), "");
  EXPECT_EQ(WorkloadWarning(FromText("[reduce]\nlocal_latency_us = 5.0\n")), "");
}

TEST(Workload, EveryWorkloadOfTheTreeLoads) {
  EXPECT_GE(FaultWorkloads().size(), 8u);
  for (const char* name :
       {"straggler", "training", "thousand", "hundred_thousand", "eager_hyperplane",
        "eager_shifted", "eager_microbenchmark", "esync_devices"}) {
    EXPECT_EQ(Loaded(std::string("workloads/") + name + ".toml").name, name);
  }
}

TEST(Workload, WhatSeedsDrawIsValidAndDiffers) {
  std::set<std::string> engines;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Workload workload = Vary({}, seed);
    const Status status = CheckWorkload(workload);
    EXPECT_TRUE(status.ok()) << "seed " << seed << ": " << status.ToString();
    const std::string text = EngineText(workload.job.engine);
    engines.insert(text);
    const auto again = ParseEngine(text);
    ASSERT_TRUE(again.ok()) << text << ": " << again.status().ToString();
    EXPECT_EQ(*again, workload.job.engine) << text;
  }
  EXPECT_GT(engines.size(), 100u);
}

}  // namespace
}  // namespace prd::sim
