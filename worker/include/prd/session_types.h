// What a Session takes and gives (prd/session.h): its options, a step, what the step did.
#ifndef PRD_SESSION_TYPES_H_
#define PRD_SESSION_TYPES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace prd {

// In capitals: the environment variable that Session::OptionsFromEnvironment reads.
struct SessionOptions {
  // "tcp://HOST:PORT" or "ipc:///PATH". Empty: the ipc socket of this user's daemon, or else that
  // of this host's, /run/prd/workers (`listen` in config/prd.toml says which the first is).
  // PRD_CONTROLLER.
  std::string controller;
  std::string job;  // PRD_JOB; required
  int rank = -1;    // -1: the controller gives the lowest free rank
  // Workers that the launcher started, for a job whose config has no `workers`. 0: not known.
  int world_size = 0;
  // The address of this host at which workers on other hosts reach this one. Empty: the address
  // that routes to the controller; if that is a loopback one by number or as localhost, no other
  // host is reached, and workers use ipc alone; if by the name of this host, the address of the
  // default route. Workers of one job on one host use ipc, and run as one user.
  // PRD_ADDRESS.
  std::string address;
  // The ports at which this worker listens for peers on other hosts, "FIRST-LAST": for firewalls.
  // Each worker of a host takes one. Empty: any free port. PRD_MESH_PORTS.
  std::string mesh_ports;
  // What peers on other hosts dial instead of where this worker listens: HOST or HOST:PORT, where
  // addresses are translated on the way. PRD_ANNOUNCE_ADDRESS.
  std::string announce_address;
  // How long a call goes on without word from the controller, or without being admitted by it,
  // before the call returns kUnavailable. 0: for ever. PRD_TIMEOUT_MS. While the controller
  // answers, other workers are waited for without a limit: for groups, and in Finish.
  union {
    std::chrono::milliseconds timeout{60'000};
    [[deprecated("use timeout")]] std::chrono::milliseconds patience;
  };
  // How long Attach waits for the job's start: for the other workers, or for its turn to copy a
  // replica. Then kUnavailable, which says who is missing. 0: as `timeout`. PRD_START_TIMEOUT_MS.
  std::chrono::milliseconds start_timeout{0};
  // How long a peer may be silent and leave questions unanswered, before a reduction or a copy that
  // needs it fails. 0: the job's lease_ms. PRD_REDUCE_TIMEOUT_MS.
  std::chrono::milliseconds reduce_timeout{0};
  // NCCL communicators that this worker keeps at most, 1 or more. PRD_MAX_COMMUNICATORS.
  int max_communicators = 64;
  // The rows `outbox`, `inbox` and `base` of a replica on a GPU are in pinned host memory. So the
  // GPU has room for a larger model, and groups that reduce such a row go through host memory, not
  // over NCCL. May differ between workers. worker/README.md, "Memory", has which engines have such
  // rows. PRD_ROWS_ON_HOST=1.
  bool rows_on_host = false;
  // Which start of the training program this is: workers of two launches are never in one run, so
  // that the rest of a job that was started again does not join the new one. Empty: not told.
  // PRD_LAUNCH, or what the launcher gives (worker/README.md).
  std::string launch;
  // The job is done with so many steps, or samples, of all workers together (StepResult::done). 0:
  // no goal. Counts where the config gives none; the job's first worker says. PRD_GOAL_STEPS,
  // PRD_GOAL_SAMPLES.
  std::int64_t goal_steps = 0;
  std::int64_t goal_samples = 0;
  // Samples of one step of all workers together (Session::share). 0: not told. Counts where the
  // config gives none; the job's first worker says. PRD_BATCH.
  std::int64_t batch = 0;
  // The most samples that this worker computes at once, for want of memory. 0: any number.
  // PRD_MAX_SHARE.
  std::int64_t max_share = 0;
  // The training loop goes on with a step that is `partial` (StepResult).
  bool accumulates = false;
  // To find misuse, slowly: each call looks whether the parameters were written since the call
  // before, or given back, and whether `apply` changes them. PRD_CHECK_TENSORS=1.
  bool check_tensors = false;
  // Gets a line, without its end, when a call waits: after 5 s, 15 s, then every minute, for whom
  // and why. At most 20 lines a minute. Null: "prd: " and the line go to stderr. On the session's
  // thread or the caller's; must not call the session.
  std::function<void(const std::string&)> log;
  // CURVE keys (Z85; blanks around them do not count), for a controller that is not on loopback.
  // All empty: no encryption. PRD_CURVE_SERVER_KEY; PRD_CURVE_SECRET_KEY_FILE, a file that its
  // owner alone may read (prdctl keygen makes it), or else, over tcp or with a server key,
  // prd-secret-key in systemd's $CREDENTIALS_DIRECTORY. The public key follows from the secret one,
  // and may be empty. PRD_CURVE_PUBLIC_KEY and PRD_CURVE_SECRET_KEY are the keys themselves; other
  // processes of this user can read the environment.
  std::string curve_server_key, curve_public_key, curve_secret_key;
};

// Samples of a step's batch, which is the batch of all workers together: those from `first` on, as
// many as `samples`.
struct BatchShare {
  std::int64_t step = 0;     // whose batch: from 1, as StepResult::iteration counts
  std::int64_t first = 0;    // counted from 0 within the batch
  std::int64_t samples = 0;  // 0: the job has no batch
  std::int64_t batch = 0;    // samples of all workers; 0: the job has no batch
};

struct StepInput {
  // In this step's batch, at most 2^31; 0: not told, or as share() says. Counted by progress(), and
  // by engines that weigh unequal batches; which ones those are: worker/README.md.
  std::int64_t samples = 0;
  // The caller cut the step short (Interrupted). Its gradients do not count, and `apply` does not
  // run for them. Step returns at once, unless the engine needs this worker all the same.
  bool discard = false;
  std::optional<void*> stream = std::nullopt;  // of this step's work, if it is not the replica's
};

// What a step did. What each field means under each engine: worker/README.md.
struct StepResult {
  std::int64_t steps = 0;       // this worker's own so far, this one included if not discarded
  bool done = false;            // the job's goal is reached: the loop may end, and Finish
  std::int64_t iteration = 0;   // the replica's position in the job, in the engine's unit
  std::uint64_t group = 0;      // the newest group whose result was applied; 0: none
  std::vector<int> members;     // of the group: ranks in ring order, this worker's included
  std::vector<double> weights;  // of the members
  int attempts = 0;             // groups tried; all but the last were called off or failed
  // Another replica has replaced this one: a peer's, which had the result of a group that failed
  // here; or, after the controller had lost this worker or in Resume, a peer's or a new common
  // start; or the average of all, with which the job goes on under another engine; or a newer one,
  // because the others went on without this step: routine under some engines.
  bool adopted = false;
  bool included = true;                  // the applied results include this step's own work
  std::int64_t rounds = 0;               // results that this step applied: 0, 1 or more
  std::uint32_t local_steps = 0;         // since the last result, where a round spans several steps
  std::uint64_t reduced_bytes = 0;       // of the tensors reduced
  std::uint64_t sent_bytes = 0;          // to peers
  std::chrono::nanoseconds computed{0};  // since the last Step or Attach returned
  std::chrono::nanoseconds waited{0};    // for other workers
  std::chrono::nanoseconds reduced{0};   // in reductions, failed ones included
  std::string reason;                    // why the controller formed the group
  // Nothing was applied, and the step goes on: share() says which samples of it are still to be
  // computed. The next Step takes gradients that are the mean over all samples of the step so far,
  // weighted by how many each pass had, and `samples` of its own pass. Only with
  // SessionOptions::accumulates: where a share does not fit into max_share, and where another
  // worker was lost that had a share of this step.
  bool partial = false;
};

// How this worker's successful groups were reduced. If most are `staged` although NCCL is expected:
// a member's replica is in host memory, NCCL is missing or older than 2.28, or communicators are
// still being made or fail (NCCL_DEBUG=WARN tells why).
struct GroupTransports {
  std::uint64_t collective = 0;  // NCCL: an all-reduce on a communicator of just the members
  std::uint64_t exchange = 0;    // NCCL: sends and receives on a communicator with more members
  std::uint64_t staged = 0;      // through host memory
};
using GroupWays [[deprecated("use GroupTransports")]] = GroupTransports;

// Bytes that the library holds for a replica beside the caller's tensors, and the most it has held
// at once, in host memory (of a device's replica: pinned) and on the device. `use` is "all", or
// what they are for: worker/README.md, Memory. Not counted are the queues of connections, a
// device's 32 MiB through which host memory is copied, and what CUDA and NCCL take for themselves.
struct MemoryHeld {
  std::string use;
  std::int64_t host = 0;
  std::int64_t host_peak = 0;
  std::int64_t device = 0;
  std::int64_t device_peak = 0;
};

// How far the whole job is, as far as this worker has been told: by at most a heartbeat too little
// (heartbeat_ms in the config, 500 ms).
struct Progress {
  std::int64_t steps = 0;    // of all workers, those that have gone included. Never falls
  std::int64_t samples = 0;  // the same
  int workers = 0;           // that are there now, this one included
  std::int64_t goal_steps = 0, goal_samples = 0;  // 0: none
  bool done = false;                              // the goal is reached
  std::int64_t own_steps = 0, own_samples = 0;    // of this worker, to the newest Step
};

struct FinishOptions {
  // False: leaves at once. The parameters stay as they are, and have no part in the final average.
  bool wait = true;
};

}  // namespace prd

#endif  // PRD_SESSION_TYPES_H_
