// Runs that the simulator makes, for tests of prdctl.
#ifndef PRD_TESTS_TOOLS_PRDCTL_SIMULATED_H_
#define PRD_TESTS_TOOLS_PRDCTL_SIMULATED_H_

#include <gtest/gtest.h>

#include <vector>

#include "config/config.h"
#include "tools/sim/cluster.h"

namespace prd::ctl {

// Four workers, the first one five times slower than the others.
inline std::vector<Record> Simulated(const EngineOptions& engine, bool faults = false) {
  sim::Workload workload;
  workload.cluster.workers = 4;
  workload.cluster.steps = 30;
  workload.compute.slow_workers = 1;
  workload.compute.slow_factor = 5;
  workload.job.name = "mnist";
  workload.job.workers = 4;
  workload.job.engine = engine;
  if (faults) {
    workload.faults.until_ms = 400;
    workload.faults.reduce_fails = 0.1;
    workload.faults.worker_dies = 0.02;
  }
  std::vector<Record> records;
  const sim::RunResult run = sim::Simulate(
      workload, {.seed = 5, .on_record = [&](const Record& record) { records.push_back(record); }});
  EXPECT_EQ(run.invariant, "") << run.violation;
  EXPECT_TRUE(run.all_finished);
  auto& started = std::get<RunStarted>(records.front().body);
  JobSpec spec = workload.job;
  spec.name = started.job;
  started.spec = JobSpecToToml(spec);
  return records;
}

}  // namespace prd::ctl

#endif  // PRD_TESTS_TOOLS_PRDCTL_SIMULATED_H_
