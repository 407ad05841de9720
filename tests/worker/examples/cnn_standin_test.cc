// The CNN's training with replicas on the stand-in for CUDA and NCCL (tests/standin): whole workers
// under a controller. It proves nothing about GPUs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engines/registry.h"
#include "tests/worker/examples/run_workers.h"
#include "tests/worker/examples/temp_dir.h"
#include "worker/examples/cnn_kernels.h"
#include "worker/examples/snapshot.h"

namespace example::cnn_standin_test {
namespace {

const std::string kProgram = PRD_BIN_DIR "/prd-train-standin";

// What comes before the program on a stand-in that runs, of what may run next, what a seed says.
std::string OnStandIn(int seed) {
  return "env PRD_CUDA_MODULE=" PRD_BIN_DIR "/libprd_standin_cnn_module.so PRD_STANDIN_SEED=" +
         std::to_string(seed) + " " + kProgram + " --device cuda:0";
}

struct Trained {
  std::vector<Worker> workers;
  std::vector<std::vector<float>> models;  // at the end, of each worker
};

Trained Train(const prd::EngineOptions& engine, const std::vector<std::string>& commands,
              const std::string& options) {
  const TempDir dir;
  std::vector<std::string> whole = commands;
  for (std::string& command : whole) command += " --snapshot-dir " + dir.path() + options;
  Trained trained{RunWorkers(engine, whole), {}};
  for (const SnapshotFile& file : ListSnapshots(dir.path())) {
    const std::optional<Snapshot> snapshot = ReadSnapshot(file.path, cnn::kParameters);
    if (snapshot && snapshot->header.final != 0) trained.models.push_back(snapshot->parameters);
  }
  return trained;
}

void ExpectTrained(const Trained& trained, std::size_t steps) {
  ASSERT_EQ(trained.models.size(), trained.workers.size());
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(trained.workers, steps));
  for (const std::vector<float>& model : trained.models) EXPECT_EQ(model, trained.models[0]);
}

// Which way its groups went, a worker tells in its log, and who has a device, also its user.
void ExpectGroupsToldOf(const std::vector<Worker>& workers, std::size_t steps, bool device) {
  for (const Worker& worker : workers) {
    const nlohmann::json& groups = worker.log[steps + 1]["groups"];
    const std::size_t over_nccl =
        groups["collective"].get<std::size_t>() + groups["exchange"].get<std::size_t>();
    EXPECT_GE(over_nccl + groups["staged"].get<std::size_t>(), steps) << groups;
    if (device) {
      ASSERT_EQ(worker.output.size(), 1U);
      EXPECT_EQ(worker.output[0]["device"], "cuda:0");
      EXPECT_EQ(worker.output[0]["groups"], groups);
    } else {
      EXPECT_EQ(worker.output.size(), 0U);
      EXPECT_EQ(over_nccl, 0U) << groups;
    }
  }
}

// Two workers' sums have one order only: bits tell of anything that ran too early or too late.
TEST(CnnStandInTest, OnTheStandInStepsEndWithTheBitsOfTheProcessor) {
  const std::string options = " --batch 8 --steps 25 --lr 0.1 --momentum 0.9";
  for (const prd::EngineOptions& engine :
       {prd::EngineOptions(prd::AllReduceOptions{}),
        prd::EngineOptions(prd::PReduceOptions{.group_size = 2})}) {
    const std::string on_host = kProgram + " --device cpu";
    const Trained expected = Train(engine, {on_host, on_host}, options);
    ASSERT_NO_FATAL_FAILURE(ExpectTrained(expected, 25)) << prd::EngineName(engine);
    ExpectGroupsToldOf(expected.workers, 25, false);
    for (int seed = 1; seed <= 2; ++seed) {
      const Trained trained = Train(engine, {OnStandIn(seed), OnStandIn(seed + 10)}, options);
      ASSERT_NO_FATAL_FAILURE(ExpectTrained(trained, 25)) << prd::EngineName(engine);
      ExpectGroupsToldOf(trained.workers, 25, true);
      EXPECT_EQ(trained.models[0], expected.models[0]) << prd::EngineName(engine) << seed;
    }
  }
}

// All workers' losses in these steps, on average: one batch's says little.
double MeanLoss(const Trained& trained, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (const Worker& worker : trained.workers) {
    for (std::size_t step = begin; step < end; ++step)
      sum += worker.log[step]["loss"].get<double>();
  }
  return sum / static_cast<double>(trained.workers.size() * (end - begin));
}

TEST(CnnStandInTest, TrainsWithGroupsOfTheStandInAndTheProcessor) {
  const std::vector<std::string> workers = {OnStandIn(3), kProgram + " --device cpu", OnStandIn(4)};
  const std::string options = " --batch 16 --steps 60 --lr 0.05";
  const Trained groups = Train(prd::PReduceOptions{.group_size = 2}, workers, options);
  ASSERT_NO_FATAL_FAILURE(ExpectTrained(groups, 60));
  EXPECT_LT(MeanLoss(groups, 41, 61), MeanLoss(groups, 11, 31));
  // How stale its gradients are, and so what they teach, is the machine's doing.
  const Trained rounds = Train(prd::EagerOptions{}, workers, options);
  ASSERT_NO_FATAL_FAILURE(ExpectTrained(rounds, 60));
}

}  // namespace
}  // namespace example::cnn_standin_test
