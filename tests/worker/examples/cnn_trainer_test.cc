// prd-train-cuda, run as it is: on the processor, by the loops over the kernels that a GPU has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engines/p_reduce/options.h"
#include "tests/worker/examples/run_workers.h"
#include "tests/worker/examples/temp_dir.h"

namespace example {
namespace {

// One of its workers is libtorch's; the evaluation is, too.
TEST(CnnTrainerTest, LearnsInAJobWithLibtorchsAndTellsTheAccuracyThatItsSnapshotsHave) {
  const TempDir dir;
  const std::string options = " --batch 32 --lr 0.1 --steps 150 --snapshot-dir " + dir.path();
  const std::string cnn = PRD_BIN_DIR "/prd-train-cuda --device cpu --evaluate" + options;
  const std::string torch = PRD_BIN_DIR "/prd-train --model cnn" + options;
  const std::vector<Worker> workers = RunWorkers(prd::PReduceOptions{}, {cnn, torch, cnn});
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(workers, 150));
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.log[1]["discarded"], false);
    EXPECT_LT(worker.log[150]["loss"], worker.log[1]["loss"]);
  }
  ASSERT_EQ(workers[0].output.size(), 1U);
  EXPECT_EQ(workers[2].output.size(), 0U);
  EXPECT_EQ(workers[0].output[0]["rank"], 0);

  const std::string judged = dir.path() + "/judged";
  const std::string evaluate = PRD_BIN_DIR "/prd-evaluate --model cnn --workers 3 --snapshot-dir " +
                               dir.path() + " > " + judged;
  ASSERT_EQ(std::system(evaluate.c_str()), 0);
  const Lines lines = ReadLines(judged);
  ASSERT_GE(lines.size(), 1U);
  EXPECT_EQ(lines.back()["final"], true);
  EXPECT_EQ(lines.back()["live"], 3);
  const double accuracy = workers[0].output[0]["test_accuracy"];
  EXPECT_GT(accuracy, 0.6);
  // Of 10,000 examples: a few answers are a tie but for rounding.
  EXPECT_NEAR(lines.back()["accuracy"], accuracy, 0.0005);
}

TEST(CnnTrainerTest, SaysWhichDeviceIsNotThere) {
  const std::string line =
      FirstError("PRD_JOB=trainer PRD_RANK=0 " PRD_BIN_DIR "/prd-train-cuda --device cuda:99");
  EXPECT_EQ(line.rfind("prd-train-cuda: cuda:99: ", 0), 0U) << line;
}

}  // namespace
}  // namespace example
