// Writes the history of a simulated job as a daemon would: sim_history DIR ENGINE WORKERS STEPS
// [JOB].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "config/config.h"
#include "server/history/rocks_history.h"
#include "tools/sim/cluster.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  prd::sim::Workload workload;
  workload.cluster.workers = std::atoi(argv[3]);
  workload.cluster.steps = std::atoi(argv[4]);
  workload.compute.slow_workers = 1 + workload.cluster.workers / 50;
  workload.compute.slow_factor = 3;
  workload.compute.spread = 0.1;
  workload.job.name = argc > 5 ? argv[5] : "simulated";
  const std::string toml = "[[job]]\nname = \"*\"\nengine = \"" + std::string(argv[2]) + "\"\n";
  const prd::Result<prd::Config> config = prd::ParseConfig(toml, "");
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().message().c_str());
    return 1;
  }
  workload.job.engine = prd::FindJob(*config, "simulated")->engine;
  workload.job.workers = workload.cluster.workers;
  workload.job.max_workers = std::max(workload.job.max_workers, workload.job.workers);
  auto history = prd::RocksHistory::Open(argv[1], {});
  if (!history.ok()) {
    std::fprintf(stderr, "%s\n", history.status().message().c_str());
    return 1;
  }
  bool good = true;
  const prd::sim::RunResult run = prd::sim::Simulate(
      workload, {.seed = 5, .on_record = [&](const prd::Record& record) {
                   prd::Record written = record;
                   if (auto* started = std::get_if<prd::RunStarted>(&written.body)) {
                     prd::JobSpec spec = workload.job;
                     spec.name = started->job = workload.job.name;
                     started->spec = prd::JobSpecToToml(spec);
                   }
                   good = (*history)->Append({&written, 1}).ok() && good;
                 }});
  return good && run.all_finished ? 0 : 1;
}
