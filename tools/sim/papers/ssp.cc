// The bound of stale synchronous parallel (Ho et al., NIPS 2013) with a worker that is 5 times
// slower. The paper has no figures for this setting.
#include <algorithm>

#include "tools/sim/cluster.h"
#include "tools/sim/papers/papers.h"

namespace prd::sim {

std::vector<Paper> SspPapers(std::uint64_t seed, std::int64_t updates) {
  Paper paper{.about =
                  "SSP (Ho et al., NIPS 2013), 8 workers, one 5 times slower: the fast ones "
                  "run free until the bound, then at its pace.",
              .rows = {}};
  for (const std::int64_t staleness : {0, 3, 10}) {
    const std::string s = std::to_string(staleness);
    Workload workload;
    workload.name = "ssp";
    workload.cluster.workers = 8;
    workload.cluster.steps = 0;
    workload.cluster.seconds = 0.1 * static_cast<double>(updates);
    workload.compute.mean_ms = 100;
    workload.compute.slow_workers = 1;
    workload.compute.slow_factor = 5;
    workload.job.name = "sim";
    workload.job.engine = ParseEngine("ssp:staleness=" + s).value();
    const RunResult run = Simulate(workload, {.seed = seed});
    const std::int64_t slow = run.stats.workers[0].steps;
    std::int64_t ahead = 0;  // steps that the fastest has made more than the slow one
    for (const WorkerStats& worker : run.stats.workers) {
      ahead = std::max(ahead, worker.steps - slow);
    }
    const auto add = [&](const char* unit, double ours, int digits) {
      paper.rows.push_back({.engine = "ssp",
                            .figure = "the bound",
                            .setting = "staleness " + s,
                            .unit = unit,
                            .ours = ours,
                            .digits = digits});
    };
    add("fast steps/s", StepsPerSecond(run), 3);
    add("slow steps/s", run.seconds > 0 ? static_cast<double>(slow) / run.seconds : 0, 3);
    add("steps ahead", static_cast<double>(ahead), 0);
    add("most stale read", static_cast<double>(run.stats.staleness.counts().size()) - 1, 0);
  }
  return {paper};
}

}  // namespace prd::sim
