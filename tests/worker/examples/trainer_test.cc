// The training programs, run as they are.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/examples/run_workers.h"
#include "worker/examples/inject.h"

namespace example::trainer_test {
namespace {

// Runs one prd-train-hyperplane for each rank.
std::vector<Worker> Train(const prd::EngineOptions& engine, int workers,
                          const std::string& options) {
  const std::string command = PRD_BIN_DIR "/prd-train-hyperplane " + options;
  return RunWorkers(engine, std::vector<std::string>(static_cast<std::size_t>(workers), command));
}

TEST(TrainerTest, WritesEveryStepAndTheLossThatAllEndWith) {
  const std::vector<Worker> workers =
      Train(prd::AllReduceOptions{}, 2, "--batch 64 --lr 0.005 --steps 5");
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(workers, 5));
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    const Worker& worker = workers[rank];
    EXPECT_EQ(worker.log[0]["rank"], rank);
    EXPECT_EQ(worker.log[0]["engine"], "all-reduce");
    for (int step = 1; step <= 5; ++step) {
      const nlohmann::json& line = worker.log[static_cast<std::size_t>(step)];
      EXPECT_EQ(line["iteration"], step);
      EXPECT_EQ(line["members"], 2);
      EXPECT_EQ(line["rounds"], 1);
      EXPECT_EQ(line["discarded"], false);
      EXPECT_GT(line["sent_bytes"], 0);
      EXPECT_GT(line["loss"], 0);
    }
    // 8192 / 3 before the first step; these take off a fifteenth or so.
    EXPECT_LT(worker.log[6]["validation_loss"], 2650);
    EXPECT_EQ(worker.log[6]["validation_loss"], workers[0].log[6]["validation_loss"]);
    ASSERT_EQ(worker.output.size(), 1U);
    EXPECT_EQ(worker.output[0]["validation_loss"], worker.log[6]["validation_loss"]);
  }
}

TEST(TrainerTest, TellsOfGroupsHoweverTheyCome) {
  prd::PReduceOptions overlap;
  overlap.overlap = true;
  prd::PragueOptions schedule;
  schedule.generator = prd::PragueOptions::Generator::kStatic;
  for (const prd::EngineOptions& engine :
       {prd::EngineOptions(overlap), prd::EngineOptions(schedule),
        prd::EngineOptions(prd::PragueOptions{}), prd::EngineOptions(prd::AdPsgdOptions{})}) {
    const std::vector<Worker> workers = Train(engine, 3, "--batch 16 --lr 0.005 --steps 12");
    ASSERT_NO_FATAL_FAILURE(ExpectFinished(workers, 12)) << prd::EngineName(engine);
    int rounds = 0;
    for (const Worker& worker : workers) {
      for (int step = 1; step <= 12; ++step) {
        const nlohmann::json& line = worker.log[static_cast<std::size_t>(step)];
        rounds += line["rounds"].get<int>();
        EXPECT_EQ(line["included"], line["rounds"] != 0);
        EXPECT_EQ(line["group"] != 0, line["members"] != 0);
        EXPECT_GE(line["members"], line["rounds"] != 0 ? 1 : 0);
      }
      EXPECT_EQ(worker.log[13]["validation_loss"], workers[0].log[13]["validation_loss"]);
    }
    EXPECT_GT(rounds, 0) << prd::EngineName(engine);
  }
}

TEST(TrainerTest, DelaysWhomThePatternSays) {
  const std::vector<Worker> workers =
      Train(prd::AllReduceOptions{}, 2, "--batch 1 --steps 6 --seed 5 --inject one:20");
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(workers, 6));
  Injection injection;
  ASSERT_EQ(ParseInjection("one:20", &injection), "");
  for (int rank = 0; rank < 2; ++rank) {
    const Worker& worker = workers[static_cast<std::size_t>(rank)];
    for (int step = 0; step < 6; ++step) {
      EXPECT_GE(worker.log[static_cast<std::size_t>(step) + 1]["compute_ns"],
                DelayNs(injection, 5, rank, 2, step, 0));
    }
  }
}

// Two workers, of which the second one gets this signal, and the first one makes all its steps.
std::vector<Worker> TrainUntilSignalled(const std::string& signal) {
  const std::string train = PRD_BIN_DIR "/prd-train-hyperplane --batch 4 --lr 0.00001";
  // The log, which is the last argument, begins once the worker has joined.
  const std::string signalled =
      "sh -c '\"$@\" & pid=$!; for log; do :; done; until [ -s \"$log\" ]; do sleep 0.02; done; "
      "kill -" +
      signal + " $pid; wait $pid' sh " + train;
  return RunWorkers(prd::AllReduceOptions{}, {train + " --steps 300", signalled});
}

TEST(TrainerTest, SigtermToOneWorkerLeavesAndTheOthersGoOn) {
  const std::vector<Worker> workers = TrainUntilSignalled("TERM");
  EXPECT_EQ(workers[1].exit_code, 0);
  ASSERT_FALSE(workers[1].log.empty());
  EXPECT_FALSE(workers[1].log.back().contains("finished"));
  EXPECT_EQ(workers[0].exit_code, 0);
  EXPECT_EQ(workers[0].log.back()["finished"], true);
}

TEST(TrainerTest, SigintFinishesWithTheAverageOfAll) {
  const std::vector<Worker> workers = TrainUntilSignalled("INT");
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.exit_code, 0);
    ASSERT_FALSE(worker.log.empty());
    EXPECT_EQ(worker.log.back()["finished"], true);
    EXPECT_EQ(worker.log.back()["validation_loss"], workers[0].log.back()["validation_loss"]);
  }
}

// What a worker has computed in each step of its log, all passes together.
std::map<std::int64_t, std::int64_t> SamplesByStep(const Lines& log) {
  std::map<std::int64_t, std::int64_t> samples;
  std::int64_t open = 0;
  for (const nlohmann::json& line : log) {
    if (!line.contains("iteration")) continue;
    open += line["samples"].get<std::int64_t>();
    if (line["partial"] == true) continue;
    samples[line["iteration"].get<std::int64_t>()] = std::exchange(open, 0);
  }
  return samples;
}

// Three workers that divide a batch learn what one worker learns from it, however they divide it.
TEST(TrainerTest, TheStepIsTheSameWhoeverComputesWhichSamples) {
  const std::string train = PRD_BIN_DIR "/prd-train-hyperplane --lr 0.005 --steps 30 ";
  const auto run = [](const std::vector<std::string>& commands) {
    return RunWorkers(prd::AllReduceOptions{}, commands);
  };
  const std::string batch = "env PRD_BATCH=96 ";
  const std::vector<Worker> alone = run({batch + train});
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(alone, 30));
  const double loss = alone[0].log.back()["validation_loss"].get<double>();
  const std::string paced = train + "--batch 32 --step-ms 8 --slow 2:4";
  const std::string limited = batch + "PRD_MAX_SHARE=20 " + paced;
  for (const std::string& command : {batch + paced, limited}) {
    const std::vector<Worker> workers = run({command, command, command});
    std::map<std::int64_t, std::int64_t> sums;
    for (const Worker& worker : workers) {
      ASSERT_EQ(worker.exit_code, 0);
      for (const auto& [step, samples] : SamplesByStep(worker.log)) sums[step] += samples;
      EXPECT_NEAR(worker.log.back()["validation_loss"].get<double>(), loss, 1e-3 * loss);
    }
    EXPECT_EQ(sums.size(), 30U);
    for (const auto& [step, samples] : sums) EXPECT_EQ(samples, 96) << step;
    // The slow worker comes to have less than the others.
    EXPECT_LT(SamplesByStep(workers[2].log).rbegin()->second,
              SamplesByStep(workers[0].log).rbegin()->second);
  }
}

TEST(TrainerTest, SaysWhatIsWrong) {
  const std::string line =
      FirstError("env -u PRD_JOB PRD_RANK=0 " PRD_BIN_DIR "/prd-train-hyperplane");
  EXPECT_EQ(line.rfind("prd-train-hyperplane: ", 0), 0U) << line;
}

}  // namespace
}  // namespace example::trainer_test
