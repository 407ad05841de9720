// A workload: what is simulated, as data. One or more TOML files, each of which may set any of the
// tables; later files win, so that faults compose with workloads. Units are in the keys.
//
// A number drawn "with spread s" has standard deviation s times its mean.
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
  std::int64_t steps = 40;  // local steps until a worker finishes; 0 = until seconds are over
  double seconds = 600;     // virtual time after which the run stops, whatever it does
  bool cut = false;  // no key: `seconds` says how much is wanted, and not by when all must finish
  double start_spread_ms = 10;  // workers start within this time
  std::int64_t samples = 32;    // per step; all-reduce may weigh by it
  // Jobs that divide a batch (job.batch, or what workers tell in `batch`): samples of one pass of a
  // worker at most (0: any number), of a share of the workers, `limited`; of how many workers the
  // training loop adds up the gradients of several passes; and for how many steps to come a
  // worker's loader has drawn samples, at most. The seed says for whom what of it holds.
  std::int64_t batch = 0;
  std::int64_t max_share = 0;
  double limited = 1;
  double accumulates = 0;
  std::int64_t lead = 0;
  // The probability that a pause of up to pause_ms follows a step; and that an average of all
  // replicas (Session::Average) follows a step or a pause, which costs pauses no more time.
  double pauses = 0;
  double pause_ms = 3000;
  double averages = 0;
};

// [compute]: how long a local step takes.
struct ComputePart {
  enum class Model : std::uint8_t { kConstant, kNormal, kLogNormal, kPareto };
  Model model = Model::kConstant;
  double mean_ms = 20;
  double spread = 0;              // of normal and lognormal
  double tail = 3;                // pareto: its shape, > 1; the smaller, the longer the tail
  std::int64_t slow_workers = 0;  // the first ones: deterministic stragglers
  double slow_factor = 1;
  double slow_from_ms = 0;  // they are slow from then on,
  double slow_to_ms = 0;    // until then; 0: to the end
  // In jobs that divide a batch, a pass over n samples takes fixed_part + (1 - fixed_part) n /
  // cluster.samples of what a step takes else.
  double fixed_part = 0;
  double hiccup_probability = 0;  // of a step to take hiccup_factor times as long
  double hiccup_factor = 1;
  // The first shared_workers compute on one device, each of the others on its own. While k of them
  // compute at once, each takes 1 + (k - 1) * contention times as long: 1 = the device does the
  // work of one, 0 = it has room for all.
  std::int64_t shared_workers = 0;
  double contention = 1;
  // Delays on top of the steps, as of the example trainer's --inject: `one`, at every step one
  // worker of all, drawn at random, by inject_max_ms; `shifted`, all, linearly from inject_min_ms
  // to inject_max_ms, and who is delayed by how much moves on by one worker after each step. Each
  // worker looks at its own count of steps.
  enum class Inject : std::uint8_t { kNone, kOne, kShifted };
  Inject inject = Inject::kNone;
  double inject_min_ms = 0;
  double inject_max_ms = 0;
  // How often a step looks whether it is to be cut short (Session::Interrupted); 0 = never.
  double poll_ms = 0;
  // Further devices of this many workers each, for those who are not on the first; 1 = their own.
  std::int64_t workers_per_device = 1;
};

// [network]: control messages, each way. Those of one worker keep their order, as on a connection,
// but for the slow ones.
struct NetworkPart {
  double delay_us = 100;
  double jitter_us = 50;        // uniform on top
  double slow_probability = 0;  // of a message to take slow_ms more: it is overtaken
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
  double latency_us = 50;              // between hosts
  double bandwidth_mb_per_s = 1000;    // 1 MB = 1e6 bytes
  double host_bandwidth_mb_per_s = 0;  // of a card, each way; 0: bandwidth_mb_per_s
  double local_latency_us = 20;        // within a host
  double local_bandwidth_mb_per_s = 4000;
};

// [faults]: probabilities of what goes wrong until `until_ms`; nothing new does afterwards, so that
// everybody must then go on (law no-hang in laws.h) and come to an end.
struct FaultsPart {
  double until_ms = 0;
  double loss = 0;  // of a control message
  double duplicate = 0;
  double partitions_per_s = 0;  // per worker: cut off from the controller for up to partition_ms
  double partition_ms = 500;
  double reduce_fails = 0;  // of a member in a group
  double fetch_fails = 0;
  double worker_dies = 0;    // per step; killed, and comes back within return_ms
  double worker_leaves = 0;  // per step; says Leave, and comes back as another process
  double worker_stops = 0;   // per step; cancels the call of the step, then the same
  // Per step: it gets notice that it is to leave, within 100 ms (Session::LeaveSoon), every other
  // time with a grace of up to 200 ms; then the same.
  double notices = 0;
  double return_ms = 2000;
  double late = 0;  // of a worker to start up to late_ms after the others
  double late_ms = 2000;
  double append_fails = 0;  // of a write to the history
  double controller_dies_per_s = 0;
  double controller_away_ms = 300;
  double torn = 0;  // of a write to end in the controller's death, half on disk
  // The probability, at a death of the controller, that its history comes back without the last
  // batches of records, up to forget_batches; empty; or as it was up to old_copy_ms before.
  double forget = 0;
  std::int64_t forget_batches = 20;
  double wipe = 0;
  double old_copy = 0;
  double old_copy_ms = 1000;
  // A process stands still for 1 to freeze_leases leases, then takes all that has come meanwhile.
  double controller_freezes_per_s = 0;
  double worker_freezes_per_s = 0;  // per worker
  double freeze_leases = 30;
  // Per worker: its link to another one loses everything for up to link_cut_ms; of these links a
  // share, one_way, in one direction alone.
  double link_cuts_per_s = 0;
  double link_cut_ms = 2000;
  double one_way = 0;
  // Per worker: for up to slow_link_ms, what goes over its link to another one takes up to as much
  // longer.
  double slow_links_per_s = 0;
  double slow_link_ms = 1500;
  // Per worker: its connection to the controller ends, and another one is made within
  // connection_break_ms. Of the connections that end so, and of those whose process ends, a share
  // is known to the controller (`ends_told`); the others seem alive, as where a host has lost its
  // power.
  double connection_breaks_per_s = 0;
  double connection_break_ms = 400;
  double ends_told = 0;
  double clock_steps_per_s = 0;  // the controller's wall clock jumps by up to clock_step_ms
  double clock_step_ms = 3'600'000;
  // Where all replicas are to be equal: of a step to change its worker's replica by itself; and
  // whether what workers keep beside their parameters (Replica::state) is not copied with them, as
  // if users had not told of it. 1: so it is.
  double flips = 0;
  std::int64_t state_not_told = 0;
  // The launcher kills its workers and starts them anew as another launch. So many of those of the
  // launch before survive (`remains`), and go on until they are told that they are of no use.
  double launcher_restarts_per_s = 0;
  double remains = 0.3;
  // Per worker: a peer that knows all of it but its token sends a message in its name.
  double forgeries_per_s = 0;
  // An operator evicts a worker, or drains a host: its workers come back as new processes within
  // return_ms. Or pauses the job for up to operator_pause_ms, or ends it.
  double evictions_per_s = 0;
  double drains_per_s = 0;
  double operator_pauses_per_s = 0;
  double operator_pause_ms = 1500;
  double operator_ends_per_s = 0;
  // An operator switches the job to any engine, with any options; or, at switch_at_ms, to this one.
  double switches_per_s = 0;
  double switch_at_ms = 0;  // 0: never
  std::string switch_to;    // as prdsim's --engine
};

// [controller]
struct ControllerPart {
  double service_us = 0;             // per message; messages that come meanwhile are one batch
  std::int64_t snapshot_every = 97;  // records
  std::int64_t keep_records = 1;  // 0: records are checked and forgotten; no crash can be survived
};

// [training]: a small real objective held by every worker.
struct TrainingPart {
  enum class Objective : std::uint8_t { kNone, kQuadratic, kLogistic };
  Objective objective = Objective::kNone;
  std::int64_t dimensions = 20;
  double learning_rate = 0.05;
  double noise = 0.5;            // quadratic: of a gradient's entries
  double skew = 0;               // 0: all shards alike; 1: as different as they get
  std::int64_t examples = 2000;  // logistic: in all
  std::int64_t batch = 16;       // logistic: per step
  double target_loss = 0;        // above the least loss there is; 0: none
  double evaluate_ms = 50;       // between two evaluations of the mean model
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

// Every key with its default and what is allowed.
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
