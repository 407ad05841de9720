// The worker library of prd. A training program links it and gives it one model replica.
//
// A Session is one worker of a job. It keeps the worker's replica consistent with the replicas of
// the other workers. The controller's config names the engine that decides how; the training loop
// is the same under every engine:
//
//   auto session = prd::Session::FromEnvironment();     // Result<Session>
//   if (!session.ok()) return Fail(session.status());   // prints status.ToString(), gives 1
//   prd::Replica replica;
//   replica.parameters = {{weights.data(), weights.size(), prd::DType::kF32}};
//   replica.gradients = {{gradients.data(), gradients.size(), prd::DType::kF32}};
//   replica.apply = [&] { optimizer.Step(); };
//   const prd::Status attached = session->Attach(std::move(replica));
//   if (!attached.ok()) return Fail(attached);          // the parameters are the job's now
//   for (bool done = false; !done;) {
//     ComputeGradients();
//     const auto step = session->Step({.samples = batch});   // runs `apply`, and synchronises
//     if (!step.ok()) return Fail(step.status());
//     done = step->done || step->steps == max_steps;
//   }
//   const prd::Status finished = session->Finish();     // all replicas become their average
//   if (!finished.ok()) return Fail(finished);
//
// Threads: one thread at a time calls a Session, except where a call says "any thread". A call from
// a second thread, from `apply`, or in a forked child returns kFailedPrecondition and changes
// nothing. Each Session runs a background thread. It reads the parameters at any time and writes
// them only inside Attach, Step, Finish, Pause, Resume and Mean. The caller reads the parameters at
// any time and writes them only before Attach or inside `apply`. The Session reads and writes state
// (Replica::state) inside its calls alone; the caller may at any other time, and inside `apply`.
// Waiting is done in the kernel, never by spinning.
//
// Gradients: Step overwrites them where gradients are reduced. What is done to them before Step
// concerns this worker's own (its batch's norm, say); what `apply` finds there is what came of all.
//
// Errors: kUnavailable may pass, and the call may be made again. kInvalidArgument and
// kFailedPrecondition are for the caller to correct. Any other error ends the session: every later
// Step and Finish returns an error, too.
//
// Clocks: StepResult::steps counts this worker's own steps, and progress() those of the whole job.
// Both mean the same under every engine, and go on over a lost connection and over a restart from a
// checkpoint (Replica::trained). Schedules, epochs and the end of training go by them, not by
// `iteration`, which is a position in the engine's own unit. When a running job is switched to
// another engine, `steps` and progress() go on as ever; `iteration` goes on from where it was, and
// counts what the new engine counts.
//
// More, in prd's sources: worker/README.md has tables of what a step means under each engine, of
// memory, and of errors with the state of the parameters. worker/device/README.md is about GPUs.
#ifndef PRD_SESSION_H_
#define PRD_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prd/replica.h"
#include "prd/status.h"

#if defined(__GNUC__)
#define PRD_EXPORT __attribute__((visibility("default")))
#else
#define PRD_EXPORT
#endif

namespace prd {

// In capitals: the environment variable that Session::OptionsFromEnvironment reads.
struct SessionOptions {
  // "tcp://HOST:PORT" or "ipc:///PATH". Empty: the ipc socket of this user's daemon, or else that
  // of this host's, /run/prd/workers (`listen` in config/prd.toml says which the first is).
  // PRD_CONTROLLER.
  std::string controller;
  std::string job;     // PRD_JOB; required
  int rank = -1;       // -1: the controller gives the lowest free rank
  int world_size = 0;  // workers that the launcher started; 0: the job's config says
  // The address of this host at which workers on other hosts reach this one. Empty: the address
  // that routes to the controller; if the controller is on this host, no other host is reached, and
  // workers use ipc alone. Workers of one job on one host use ipc, and run as one user.
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
  // Which start of the training program this is: workers of two launches are never in one run, so
  // that the rest of a job that was started again does not join the new one. Empty: not told.
  // PRD_LAUNCH, or what the launcher gives (worker/README.md).
  std::string launch;
  // The job is done with so many steps, or samples, of all workers together (StepResult::done). 0:
  // no goal. Counts where the config gives none; the job's first worker says. PRD_GOAL_STEPS,
  // PRD_GOAL_SAMPLES.
  std::int64_t goal_steps = 0;
  std::int64_t goal_samples = 0;
  // To find misuse, slowly: each call looks whether the parameters were written since the call
  // before, or given back, and whether `apply` changes them. PRD_CHECK_TENSORS=1.
  bool check_tensors = false;
  // Gets a line, without its end, when a call waits: after 5 s, 15 s, then every minute, for whom
  // and why. At most 20 lines a minute. Null: "prd: " and the line go to stderr. On the session's
  // thread or the caller's; must not call the session.
  std::function<void(const std::string&)> log;
  // CURVE keys (Z85), for a controller that is not on loopback. Empty: no encryption.
  // PRD_CURVE_SERVER_KEY; PRD_CURVE_SECRET_KEY_FILE, a file that its owner alone may read (prdctl
  // keygen makes it), or else prd-secret-key in systemd's $CREDENTIALS_DIRECTORY. The public key
  // follows from the secret one. PRD_CURVE_PUBLIC_KEY and PRD_CURVE_SECRET_KEY are the keys
  // themselves; other processes of this user can read the environment.
  std::string curve_server_key, curve_public_key, curve_secret_key;
};

struct StepInput {
  // In this step's batch; 0: not told. Counted by progress(), and by engines that weigh unequal
  // batches; which ones those are: worker/README.md.
  std::int64_t samples = 0;
  // The caller cut the step short (Interrupted). Its gradients do not count, and `apply` does not
  // run for them. Step returns at once, unless the engine needs this worker all the same.
  bool discard = false;
  std::optional<void*> stream;  // of this step's work, if it is not the replica's
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

class PRD_EXPORT Session {
 public:
  // Options from PRD_* variables; job, rank and world size also from those of torchrun, Slurm, Open
  // MPI or MPICH. kInvalidArgument names a variable that does not parse. Does not connect yet.
  static Result<SessionOptions> OptionsFromEnvironment();
  static Result<Session> FromEnvironment();
  // Listens for peers and starts the background thread. kInvalidArgument: an option is wrong.
  static Result<Session> Create(SessionOptions options);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();  // leaves without the final average, unless Finish has succeeded

  // Joins the job. Blocks until all workers of the job are there; then the parameters are a copy of
  // the lowest rank's. In a job that runs already they are a copy of a peer's. kUnavailable
  // at once: the replica's device cannot be used. If the controller refuses the worker, the code is
  // the controller's. Unless it was cancelled, Attach may be called again, with any replica.
  Status Attach(Replica replica);

  // Gives the replica its gradients, or others: as Replica::gradients. Between any two calls after
  // Attach; before the next Step where that says that they are missing, because the job has begun
  // anew with another engine (kFailedPrecondition).
  Status SetGradients(std::vector<Tensor> gradients);

  // One training step: runs `apply`, and synchronises as the engine wants. Blocks until the engine
  // lets this worker go on. A reduction that fails leaves the parameters as they were, and another
  // one is tried. After kUnavailable the next Step goes on. The time between two Steps counts as
  // computing: where the loop does something else for long, Pause.
  Result<StepResult> Step(StepInput input = {});

  // Whether the step being computed is better cut short: its result would not be used, or other
  // workers wait. A training loop may ask between layers, stop, and call Step with `discard`. A
  // loop that never asks stays correct. Costs a load. Any thread.
  bool Interrupted() const;

  // How far the job is. Any thread.
  Progress progress() const;

  // How many steps a job of equal workers would have made: the steps of progress(), by workers();
  // for schedules that count steps. 0 before Attach. Any thread.
  double clock() const;

  // The job is done, for all workers, as if its goal were reached: for early stopping. Does not
  // wait; Step says `done` once the controller knows, with the last group under engines whose
  // workers stop together. `reason` is for people who watch the job. Of several calls, of any
  // workers, the first counts; after the goal it does nothing. kFailedPrecondition: before Attach,
  // or the controller is of an older version. Any thread.
  Status Stop(const std::string& reason);

  // Tells the loss of a batch, for people who watch the job (`prdctl serve`); training does not use
  // it. On a GPU: whenever the loop reads one back. The worker's next report carries the mean of
  // the losses told since its last one. Losses that are not finite, or told before Attach, are
  // ignored. Takes a lock. Any thread.
  void TellLoss(double loss);

  // Between these two, the others go on as if this worker were not there, and wait for it in Finish
  // alone: to evaluate, or to save, is no slow step. Pause ends what this worker has begun, as
  // Finish does. Resume replaces the parameters by a peer's if the others have gone on with equal
  // replicas, and by the shards' where parameters are in shards (the next StepResult is `adopted`).
  // Errors as Step's. PauseScope calls both.
  Status Pause();
  Status Resume();

  // The average of all live workers' parameters, to evaluate or save it while training goes on.
  // `into`: tensors as the parameters are, in host memory or on the replica's device; with those of
  // the averaged state after them, or without. Copies one
  // replica after another; who fails meanwhile is left out, and named on the log. Under engines
  // whose replicas are equal, parameters are this worker's own. The replica is not changed. Errors
  // as Step's.
  Status Average(const std::vector<Tensor>& into);

  // The mean of 1 to 64 numbers over the workers, element by element: for metrics, or to decide
  // alike. Each k-th call of each is one round: it blocks until every live worker that trains or
  // pauses has called it, and all get the same bits. Who finishes, leaves or is lost meanwhile is
  // not waited for, and its numbers do not count; who joins takes part from the round that is open.
  // Any value is allowed, NaN too. Meanwhile this worker pauses: the others train on, and the
  // parameters may be replaced as in Resume. In a pause it stays paused; if the job has lost this
  // worker it joins again first, and the parameters are replaced then.
  // kInvalidArgument: others have given another count of numbers; this worker has given none then.
  // kFailedPrecondition: the controller is of an older version. After kUnavailable the session is
  // paused: Mean may be called again, as the same call, or Resume. Else errors as Step's.
  Result<std::vector<double>> Mean(const std::vector<double>& values);

  // Ends training. Blocks until all live workers have called it; then the parameters are the final
  // average, in which replicas that others have left behind do not count (worker/README.md). Call
  // it when all workers stop; where only this one does, do not wait, or Leave. Errors as Step's.
  Status Finish(FinishOptions options = {});

  // Leaves the job without the average, while the others go on. Takes up to a second; works after
  // Cancel. Only the destructor may follow.
  Status Leave(const std::string& reason);

  // Leaves the job at the next boundary: for SIGTERM (prd/leave_on_signal.h), or a spot notice. The
  // step that is computed, or in progress, ends as it would and counts; what this worker owes is
  // reduced, and no group fails for it. Then it has left, as one that an operator drains: that Step
  // returns kAborted, as does every later call but Leave. The parameters are those after the step.
  //   in Attach, before the job has begun for this worker: it leaves at once; after: with its end
  //   in a pause: at once, and Resume returns kAborted; in Resume: with its end
  //   in Finish: at once, unless the final average has begun; then Finish goes on
  //   before Attach: Attach returns kAborted. After Finish or Leave: nothing happens
  // `grace`: it leaves after that even if no boundary has come; a group that it is in may fail. 0:
  // no limit. Of `reason` the first 127 bytes count, and of several calls the first. Any thread;
  // safe in a signal handler while the session exists.
  void LeaveSoon(const char* reason,
                 std::chrono::milliseconds grace = std::chrono::milliseconds(0));

  // The call in progress, and every later one but Leave, returns kCancelled soon. Any thread; safe
  // in a signal handler while the session exists.
  void Cancel();

  int rank() const;     // -1 before Attach
  int workers() const;  // that the job started with; 0 before Attach
  std::int64_t iteration() const;
  std::string engine() const;                // human-readable; empty before Attach
  bool needs_gradients() const;              // the job reduces them, or looks at them
  GroupTransports group_transports() const;  // since the session began. Any thread
  [[deprecated("use group_transports()")]] GroupTransports group_ways() const;

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  void Drop();
  std::unique_ptr<Impl> impl_;
};

// Pauses a session for a scope. The session outlives it.
class PauseScope {
 public:
  explicit PauseScope(Session& session) : session_(session), status_(session.Pause()) {}
  ~PauseScope() { (void)Resume().ok(); }
  PauseScope(const PauseScope&) = delete;
  PauseScope& operator=(const PauseScope&) = delete;

  const Status& status() const { return status_; }  // of Pause
  // At the scope's end at the latest; to see its error, before.
  Status Resume() {
    if (!status_.ok() || std::exchange(resumed_, true)) return status_;
    return session_.Resume();
  }

 private:
  Session& session_;
  Status status_;
  bool resumed_ = false;
};

}  // namespace prd

#endif  // PRD_SESSION_H_
