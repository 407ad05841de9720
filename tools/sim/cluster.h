// A whole job in virtual time: the production controller and engines, the library's session cores,
// a network, a data plane, and faults, from one seed. The same workload and seed give the same run.
//
// Faults happen until the workload says so (the safety phase); then everybody must go on, and come
// to an end (the liveness phase): laws.h, no-hang. And at the end:
//   live            no call of the library has failed, but that of a worker whose run the others
//                   finished without it: such a process ends, and comes again as a new one
//   replicas-agree  all who finish a run together end with the same replica; who has the final
//                   average and is lost to the controller, or removed by an operator, before it can
//                   say so may end with an earlier one, and so may who has left when the controller
//                   forgets that it was there
#ifndef PRD_TOOLS_SIM_CLUSTER_H_
#define PRD_TOOLS_SIM_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/history.h"
#include "tools/sim/mutation.h"
#include "tools/sim/plane.h"
#include "tools/sim/stats.h"
#include "tools/sim/workload.h"

namespace prd::sim {

struct RunOptions {
  std::uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
  bool keep_slices = false;  // for a timeline
  std::size_t slice_limit = 200'000;
  bool stop_at_target = false;                        // once the target loss is reached
  std::uint64_t max_events = 0;                       // 0: no limit
  std::function<void(const std::string&)> trace;      // gets a line per event and record, if set
  std::function<void(const Record&)> on_record = {};  // gets what becomes durable, if set
  MakePlane plane = {};                               // in place of the model of a data plane
};

struct RunResult {
  // What was broken, if anything: the invariant's name, the whole sentence, and what happened last.
  std::string invariant;
  std::string violation;
  std::vector<std::string> last_events;

  bool all_finished = false;
  std::int64_t unfinished = 0;  // workers, at the end
  double seconds = 0;           // virtual
  std::uint64_t events = 0;
  std::uint64_t messages = 0;
  std::uint64_t records = 0;
  std::uint64_t restarts = 0;  // of the controller
  std::uint64_t bytes = 0;     // between workers
  std::uint64_t hash = 0;      // of the history and of all replicas at the end

  double updates_per_s = 0;
  // (sum over workers of 1 / mean step) / mean group size: what no grouping can exceed as long as
  // nobody shares a device.
  double bound_updates_per_s = 0;
  std::optional<double> rho;
  std::vector<LossPoint> curve;
  std::optional<LossPoint> target;  // when the target loss was first met
  Stats stats{1, false, 0};
};

RunResult Simulate(const Workload& workload, const RunOptions& options);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_CLUSTER_H_
