// The worker library of prd. A training program links it and gives it one model replica.
//
// A Session is one worker of a job. It keeps the worker's replica consistent with the replicas of
// the other workers. The controller's config names the engine that decides how; the training loop
// is the same under every engine:
//
//   auto session = prd::Session::FromEnvironment();       // Result<Session>
//   if (!session.ok()) { ... session.status().ToString() ... }
//   prd::Replica replica;
//   replica.parameters = {{weights.data(), weights.size(), prd::DType::kF32}};
//   replica.gradients  = {{grads.data(), grads.size(), prd::DType::kF32}};
//   replica.apply = [&] { optimizer.step(); };
//   session->Attach(std::move(replica));                  // the parameters become the job's
//   while (training) {
//     compute gradients;
//     auto step = session->Step({.samples = batch});      // runs `apply`, and synchronises
//   }
//   session->Finish();                                    // all replicas become their average
//
// Threads: one thread at a time calls a Session, except where a call says "any thread". Each
// Session runs a background thread. It reads the parameters at any time and writes them only inside
// Attach, Step and Finish. The caller reads the parameters at any time and writes them only before
// Attach or inside `apply`. The Session reads and writes state (Replica::state) inside its calls
// alone; the caller may at any other time, and inside `apply`. Waiting is done in the kernel, never
// by spinning.
//
// Errors: kUnavailable may pass, and the call may be made again. kInvalidArgument and
// kFailedPrecondition are for the caller to correct. Any other error of Step or Finish ends the
// session: every later Step and Finish returns an error, too.
//
// More, in prd's sources: worker/README.md has tables of what a step means under each engine, of
// memory, and of errors with the state of the parameters. worker/device/README.md is about GPUs.
#ifndef PRD_SESSION_H_
#define PRD_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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
  std::string controller = "tcp://127.0.0.1:5775";  // PRD_CONTROLLER
  std::string job;                                  // PRD_JOB; required
  int rank = -1;                                    // -1: the controller gives the lowest free rank
  int world_size = 0;  // workers that the launcher started; 0: the job's config says
  // The address of this host at which workers on other hosts reach this one. Empty: the address
  // that routes to the controller. Workers on one host also use ipc. PRD_ADDRESS.
  std::string address;
  // How long Attach, Step and Finish wait for a controller that does not answer or admit them, and
  // for the job's start, before they return kUnavailable. 0: for ever. PRD_TIMEOUT_MS.
  union {
    std::chrono::milliseconds timeout{60'000};
    [[deprecated("use timeout")]] std::chrono::milliseconds patience;
  };
  // How long a peer may be silent and leave questions unanswered, before a reduction or a copy that
  // needs it fails. 0: the job's lease_ms. PRD_REDUCE_TIMEOUT_MS.
  std::chrono::milliseconds reduce_timeout{0};
  // NCCL communicators that this worker keeps at most, 1 or more. PRD_MAX_COMMUNICATORS.
  int max_communicators = 64;
  // CURVE keys (Z85), for a controller that is not on loopback. Empty: no encryption.
  // PRD_CURVE_SERVER_KEY, PRD_CURVE_PUBLIC_KEY, PRD_CURVE_SECRET_KEY.
  std::string curve_server_key, curve_public_key, curve_secret_key;
};

struct StepInput {
  std::int64_t samples = 0;  // in this step's batch, to weight unequal batches; 0: not told
  // The caller cut the step short (Interrupted). Its gradients do not count, and `apply` does not
  // run for them. Step returns at once, unless the engine needs this worker all the same.
  bool discard = false;
  std::optional<void*> stream;  // of this step's work, if it is not the replica's
};

// What a step did. What each field means under each engine: worker/README.md.
struct StepResult {
  std::int64_t iteration = 0;       // the replica's position in the job, in the engine's unit
  std::uint64_t group = 0;          // the newest group whose result was applied; 0: none
  std::vector<int> members;         // of the group: ranks in ring order, this worker's included
  std::vector<double> weights;      // of the members
  int attempts = 0;                 // groups tried; all but the last were called off or failed
  bool adopted = false;             // a peer's replica, or a new common start, replaced the replica
  bool included = true;             // the applied results include this step's own work
  std::int64_t rounds = 0;          // results that this step applied: 0, 1 or more
  std::uint32_t local_steps = 0;    // since the last result, where a round spans several steps
  std::uint64_t reduced_bytes = 0;  // of the tensors reduced
  std::uint64_t sent_bytes = 0;     // to peers
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

  // One training step: runs `apply`, and synchronises as the engine wants. Blocks until the engine
  // lets this worker go on. A reduction that fails leaves the parameters as they were, and another
  // one is tried. After kUnavailable the next Step goes on.
  Result<StepResult> Step(StepInput input = {});

  // Whether the step being computed is better cut short: its result would not be used, or other
  // workers wait. A training loop may ask between layers, stop, and call Step with `discard`. A
  // loop that never asks stays correct. Costs a load. Any thread.
  bool Interrupted() const;

  // Ends training. Blocks until all live workers have called it; then the parameters are the
  // average of their replicas. Errors as Step's.
  Status Finish();

  // Leaves the job without the average, while the others go on. Takes up to a second; works after
  // Cancel. Only the destructor may follow.
  Status Leave(const std::string& reason);

  // The call in progress, and every later one but Leave, returns kCancelled soon. Any thread; safe
  // in a signal handler while the session exists.
  void Cancel();

  int rank() const;     // -1 before Attach
  int workers() const;  // that the job started with; 0 before Attach
  std::int64_t iteration() const;
  std::string engine() const;                // human-readable; empty before Attach
  GroupTransports group_transports() const;  // since the session began. Any thread
  [[deprecated("use group_transports()")]] GroupTransports group_ways() const;

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prd

#endif  // PRD_SESSION_H_
