// A workload: what is simulated, as data. One or more TOML files, each of which may set any of the
// tables; later files win, so that faults compose with workloads. Units are in the keys; what each
// key means is told where workload.cc describes it, for `prdsim keys`.
#ifndef PRD_TOOLS_SIM_WORKLOAD_H_
#define PRD_TOOLS_SIM_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fields.h"
#include "config/engine_text.h"
#include "engines/job_spec.h"
#include "prd/status.h"

namespace prd::sim {

// What `steps` and `seconds` of [cluster] may be; so may --steps and --seconds.
inline constexpr WholeRange kStepsRange{0, 1'000'000'000, "local steps"};
inline constexpr RealRange kSecondsRange{0.001, 1e9};

// [cluster]: the workers and what each is to do.
struct ClusterPart {
  std::int64_t workers = 8;
  std::int64_t workers_per_host = 8;
  std::int64_t steps = 40;
  double seconds = 600;
  bool cut = false;  // no key: `seconds` says how much is wanted, and not by when all must finish
  double start_spread_ms = 10;
  std::int64_t samples = 32;
  std::int64_t batch = 0;
  std::int64_t max_share = 0;
  double limited = 1;
  double accumulates = 0;
  std::int64_t lead = 0;
  double pauses = 0;
  double pause_ms = 3000;
  double averages = 0;
};

// [compute]: how long a local step takes.
struct ComputePart {
  enum class Model : std::uint8_t { kConstant, kNormal, kLogNormal, kPareto };
  Model model = Model::kConstant;
  double mean_ms = 20;
  double spread = 0;
  double tail = 3;
  std::int64_t slow_workers = 0;
  double slow_factor = 1;
  double slow_from_ms = 0;
  double slow_to_ms = 0;
  double fixed_part = 0;
  double hiccup_probability = 0;
  double hiccup_factor = 1;
  std::int64_t shared_workers = 0;
  double contention = 1;
  enum class Inject : std::uint8_t { kNone, kOne, kShifted };
  Inject inject = Inject::kNone;
  double inject_min_ms = 0;
  double inject_max_ms = 0;
  double poll_ms = 0;
  std::int64_t workers_per_device = 1;
};

// [network]: control messages, each way. Those of one worker keep their order, as on a connection,
// but for the slow ones.
struct NetworkPart {
  double delay_us = 100;
  double jitter_us = 50;
  double slow_probability = 0;
  double slow_ms = 0;
};

// [reduce]: a ring among n members, Q of whom contribute (have a weight above 0), costs
//   overhead + ((Q - 1) + (n - 1)) latency + ((Q - 1) / Q + S) bytes / bandwidth
// by the slowest link between neighbours: Q - 1 stages sum a Q-th each, and n - 1 pass the sum on,
// of which the busiest link carries S = (n - 1) / n where all contribute, and else all. With Q = 0
// nothing moves. What is fetched, a model or a result, costs latency + bytes / bandwidth. Between
// hosts, all that a host sends shares its network card, and so does all that it receives (cards.h).
struct ReducePart {
  double bytes = 1e6;
  double overhead_us = 0;
  double latency_us = 50;
  double bandwidth_mb_per_s = 1000;
  double host_bandwidth_mb_per_s = 0;
  double local_latency_us = 20;
  double local_bandwidth_mb_per_s = 4000;
};

// [faults]: probabilities of what goes wrong until `until_ms`; nothing new does afterwards, so that
// everybody must then go on (law no-hang in laws.h) and come to an end. By what goes wrong:
struct WorkerFaults {
  double worker_dies = 0;
  double worker_leaves = 0;
  double worker_stops = 0;
  double notices = 0;
  double return_ms = 2000;
  double late = 0;
  double late_ms = 2000;
  double worker_freezes_per_s = 0;
  double flips = 0;
  std::int64_t state_not_told = 0;
  double launcher_restarts_per_s = 0;
  double remains = 0.3;
};
struct NetworkFaults {
  double loss = 0;
  double duplicate = 0;
  double partitions_per_s = 0;
  double partition_ms = 500;
  double reduce_fails = 0;
  double fetch_fails = 0;
  double link_cuts_per_s = 0;
  double large_cuts_per_s = 0;
  double link_cut_ms = 2000;
  double one_way = 0;
  double slow_links_per_s = 0;
  double slow_link_ms = 1500;
  double connection_breaks_per_s = 0;
  double connection_break_ms = 400;
  double ends_told = 0;
  double forgeries_per_s = 0;
};
struct ControllerFaults {
  double append_fails = 0;
  double controller_dies_per_s = 0;
  double controller_away_ms = 300;
  double torn = 0;
  double forget = 0;
  std::int64_t forget_batches = 20;
  double wipe = 0;
  double old_copy = 0;
  double old_copy_ms = 1000;
  double controller_freezes_per_s = 0;
  double freeze_leases = 30;  // workers' too
  double clock_steps_per_s = 0;
  double clock_step_ms = 3'600'000;
};
struct OperatorFaults {
  double evictions_per_s = 0;
  double drains_per_s = 0;
  double operator_pauses_per_s = 0;
  double operator_pause_ms = 1500;
  double operator_ends_per_s = 0;
  double switches_per_s = 0;
  double switch_at_ms = 0;
  std::string switch_to;
};
struct FaultsPart : WorkerFaults, NetworkFaults, ControllerFaults, OperatorFaults {
  double until_ms = 0;
};

// [controller]
struct ControllerPart {
  double service_us = 0;
  std::int64_t snapshot_every = 97;
  std::int64_t keep_records = 1;
};

// [training]: a small real objective held by every worker.
struct TrainingPart {
  enum class Objective : std::uint8_t { kNone, kQuadratic, kLogistic };
  Objective objective = Objective::kNone;
  std::int64_t dimensions = 20;
  double learning_rate = 0.05;
  double noise = 0.5;
  double skew = 0;
  std::int64_t examples = 2000;
  std::int64_t batch = 16;
  double target_loss = 0;
  double evaluate_ms = 50;
};

struct Workload {
  std::string name;  // of the files, for reports
  ClusterPart cluster;
  ComputePart compute;
  NetworkPart network;
  ReducePart reduce;
  FaultsPart faults;
  ControllerPart controller;
  TrainingPart training;
  // The last key that a file has set of the links between hosts; empty: none.
  std::string between_hosts;
  JobSpec job;  // job.workers 0: all of them make the common start together
  // Recorded step times by worker, ns, used over and over in order; empty: [compute] says.
  std::vector<std::vector<DurationNs>> recorded;
};

// Adds what the text sets. kInvalidArgument names file, line, key, what was found and is allowed.
Status ReadWorkload(std::string_view text, const std::string& file, Workload* workload);
// The same from a file. Bounded in size.
Status LoadWorkload(const std::string& path, Workload* workload);
// What must hold between keys, once all files are read: among it the engine's own rules.
Status CheckWorkload(const Workload& workload);

// What the workload sets that counts for nothing in it; empty: nothing.
std::string WorkloadWarning(const Workload& workload);

// Every key with its default, what is allowed, and what it means.
std::string WorkloadReference();

// 3 * kMillisecond for 3.
inline DurationNs FromMs(double ms) { return static_cast<DurationNs>(ms * kMillisecond); }
// No run takes longer.
inline constexpr DurationNs kForever = 1'000'000'000 * kSecond;
// At most kForever.
inline DurationNs FromUs(double us) {
  return us < 1e-3 * kForever ? static_cast<DurationNs>(us * kMicrosecond) : kForever;
}

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_WORKLOAD_H_
