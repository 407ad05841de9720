// The worker library: what a training binary links and calls. The training loop never knows which
// consistency engine runs; the controller's config decides that.
//
//   auto session = prd::Session::FromEnvironment();       // Result<Session>
//   if (!session.ok()) { ... session.status().ToString() ... }
//   prd::Replica replica;
//   replica.parameters = {{weights.data(), weights.size(), prd::DType::kF32}};
//   replica.gradients  = {{grads.data(), grads.size(), prd::DType::kF32}};
//   replica.apply = [&] { optimizer.step(); };
//   session->Attach(std::move(replica));                   // the job's common start is copied in
//   while (training) {
//     compute gradients;                                   // may ask session->Interrupted()
//     auto step = session->Step({.samples = batch});       // applies, and reduces with a group
//   }
//   session->Finish();                                     // all replicas become their average
//
// Threads: a Session is used by one thread at a time. It runs one background thread of its own,
// which keeps the lease alive while the caller computes and serves the replica to late workers; it
// reads parameters at any time and writes them only inside Attach, Step and Finish. The caller may
// read parameters at any time and writes them, if at all, only inside `apply` or before Attach.
// Waiting is done in the kernel, never by spinning.
//
// Devices: a replica may be in the memory of a CUDA device (Replica::device), one per session. Its
// groups are then reduced between devices, by NCCL, once a communicator of their members is there,
// and through host memory as long as it is not, or where a member has no device: the job goes on
// either way. Calls are ordered with the caller's stream (Replica::stream) by events, on the
// device: what a call does comes after what was enqueued there before it, and before what is
// enqueued there after it. Step waits, without spinning, until the stream has got to where it is at
// the call (`apply` of engines that average models included), for the engine is to hear of a step
// when it is done; other calls do not wait for the device. A step whose group's average goes
// straight into the parameters (p-reduce without overlap) returns as soon as that is enqueued on
// the device: its result says what will be, and the stream waits. If it fails after that, nothing
// was changed, and the next call begins by making it good with another group, before `apply`:
// StepResult's attempts, adopted, sent_bytes and reduced of that call tell of it. Where `apply`
// follows the reduction (all-reduce, backup), or groups are reduced through host memory, Step
// returns when that is done: `apply` must not run on a sum that may yet fail. `apply` may enqueue
// its work on that stream and return. cudaStreamPerThread names another stream on another thread:
// give a real one. No call may be captured into a CUDA graph; a graph that was captured before may
// be launched between calls and in `apply`. The device is never synchronised or reset. A device
// that fails (out of memory, any error of CUDA) ends the session: the job goes on without it, and
// the call in progress, and every later one, returns why. The CUDA part is a module,
// libprd_cuda.so, loaded from beside this library when a device is first named, or from what
// PRD_CUDA_MODULE names; NCCL is libnccl.so.2 as the system finds it, or what
// PRD_NCCL_LIBRARY names, 2.28 or newer, with its own NCCL_* environment. Some host threads of the
// CUDA part may run besides: up to three, and one for each communicator while it ends. Set
// CUDA_MODULE_LOADING=EAGER: a kernel that is loaded when it is first launched waits for what runs
// on the device, a reduction whose other member is gone included, and holds up the thread that
// would abort that.
//
// Memory: besides the replica, a session holds one row of bytes as large as its parameters, where
// results wait until they are whole. Engines that reduce while the caller computes (eager, ad-psgd;
// p-reduce and prague with overlap) or average after several local steps (esync) hold two more:
// what this worker gives, and what it gets at its next step or the model at the round's start. hop
// holds one for each update that is queued, so many of each neighbour as its iteration gap or
// staleness lets there be, and one for each of its own that a neighbour has yet to get. ssp holds
// two, what it read last and its last update, and its part of the shards and of their copies.
// Others hold none; but for the initial model, where p-reduce is set to mix it in. Of a replica on
// a device these rows are there, but for what hop queues and ssp's shards, deltas and copies, which
// are in pinned host memory; and so are two rows more, from the first group on that is reduced
// through host memory. A group that goes over a communicator of more
// members than its own needs up to two rows more on the device.
#ifndef PRD_SESSION_H_
#define PRD_SESSION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prd/status.h"

#if defined(__GNUC__)
#define PRD_EXPORT __attribute__((visibility("default")))
#else
#define PRD_EXPORT
#endif

namespace prd {

enum class DType : std::uint8_t { kF32 = 0, kF64 = 1, kF16 = 2, kBF16 = 3 };

// Bytes of one element: 4, 8, 2, 2. 0 for what is no DType.
constexpr std::size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kF16:
    case DType::kBF16:
      return 2;
  }
  return 0;
}

// A contiguous array of `count` elements in the memory of the replica's device. The memory is the
// caller's and must stay where it is until the Session is destroyed. Aligned to its element size.
struct Tensor {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kF32;
};

// One model replica. Number, order, sizes and dtypes must be equal on all workers of a job.
struct Replica {
  // Where all tensors are: "" or "cpu": host memory; "cuda:N" (or "cuda", for the first): the
  // memory of that device, as cudaMalloc gives it. Workers of one job may differ in this.
  std::string device;
  // A cudaStream_t, if the device is one: on which `apply` and the caller's own work are enqueued.
  // Null: the default stream. Session orders itself after what is there at each call, and what is
  // enqueued there after a call comes after what the call does; it never synchronises the device.
  void* stream = nullptr;
  std::vector<Tensor> parameters;
  // Same number, sizes and dtypes as the parameters, or empty: then an engine that reduces
  // gradients is refused at Attach.
  std::vector<Tensor> gradients;
  // Applies the gradients to the parameters: the local optimiser step. Called by Step, and by
  // Finish where rounds are left to apply, on the thread that calls them. What it throws leaves
  // that call after the controller was told that this worker leaves. Under engines whose rounds go
  // on while workers compute (eager), one `apply` may stand for several rounds: the gradients are
  // then the sum of theirs, unless the engine is set to keep the newest alone. While it runs, the
  // background thread may have to wait for it: an `apply` takes a small part of lease_ms.
  std::function<void()> apply;
};

struct SessionOptions {
  std::string controller = "tcp://127.0.0.1:5775";  // PRD_CONTROLLER
  std::string job;                                  // PRD_JOB; required
  int rank = -1;                                    // -1: the controller gives the lowest free rank
  int world_size = 0;  // workers the launcher started; 0: the job's config says
  // Where this worker's mesh listens for other hosts: an address of this host, or empty for the one
  // that routes to the controller. PRD_ADDRESS. On one host, ipc is used besides.
  std::string address;
  // How long Attach, and a step whose controller is away, keep trying before they return
  // kUnavailable. 0 = for ever. PRD_PATIENCE_MS.
  std::chrono::milliseconds patience{60'000};
  // A member that has sent nothing for this long during a reduction fails it.
  // PRD_REDUCE_TIMEOUT_MS.
  std::chrono::milliseconds reduce_timeout{10'000};
  // NCCL communicators that a replica on a device keeps at most, 1 or more: each takes some
  // hundred MB of its memory. Groups beyond that go another way. Workers may differ in it.
  // PRD_MAX_COMMUNICATORS.
  int max_communicators = 64;
  // CURVE keys (Z85), for a controller that is not on loopback. PRD_CURVE_SERVER_KEY,
  // PRD_CURVE_PUBLIC_KEY, PRD_CURVE_SECRET_KEY. Empty: no encryption.
  std::string curve_server_key, curve_public_key, curve_secret_key;
};

struct StepInput {
  std::int64_t samples = 0;  // in this step's batch; 0 = not told. Lets unequal batches be weighted
  // The step was cut short because Interrupted() said so: its gradients are not to be used, and
  // `apply` is not called for them. Returns at once where nothing is to be done without them
  // (StepResult::rounds is then 0).
  bool discard = false;
  // The stream on which this step's work is, if it is another one than the replica's.
  std::optional<void*> stream;
};

// What a step did. hop and ssp have no groups, and so no members, weights and reason, but for the
// common start and the final average. Under engines that average models beside the training loop
// (ad-psgd; p-reduce and prague with overlap) a group takes the replica as it is when the group
// runs, and the difference that the average makes waits until the next step, which adds it after
// `apply`: the parameters change in this session's calls only. Such a step tells of the averages
// that it added, which may be none or several, and not of the group that it asked for, unless it
// waited for that.
struct StepResult {
  // The replica's count of local optimiser steps now; of rounds, where the engine's rounds go on
  // while workers compute (eager) or span several local steps (esync). p-reduce's groups may move
  // it on (with overlap, when their average is added); prague and ad-psgd leave it to each worker.
  // hop: the iteration that this step entered, beyond the next one where it skips. ssp: the clock.
  std::int64_t iteration = 0;
  std::uint64_t group = 0;      // the group reduced with; the newest of those whose result is added
  std::vector<int> members;     // ranks, in ring order; this worker's own included
  std::vector<double> weights;  // as members
  int attempts = 0;             // groups tried; those before the last were called off, or failed
  // The replica was replaced: by that of a peer which had the result of a group that failed here,
  // or, after the controller had lost this worker, as if it had just joined. `group` is then the
  // last one tried, 0 if none.
  bool adopted = false;
  // `rounds`: reductions whose results this step gave to the replica. 1, or 0 where the step ended
  // without a group; more, where they go on while this worker computes or others ask for them
  // (eager, prague, ad-psgd, overlap). `included`: rounds > 0; under eager, whether this step's own
  // gradient is in them (if not, it is in a later one). hop: 1, but for a step that averaged with
  // nobody. ssp: 1, and `included` unless the step was discarded, or only ended one that had
  // failed.
  bool included = true;
  std::int64_t rounds = 0;
  // Engines that average after several local steps (esync): how many this worker has made since the
  // last average, this one included; 0 once it has taken part.
  std::uint32_t local_steps = 0;
  std::uint64_t reduced_bytes = 0;       // of the tensors reduced
  std::uint64_t sent_bytes = 0;          // to peers
  std::chrono::nanoseconds computed{0};  // since the last Step or Attach returned
  // For a group to form; where groups run beside the training loop, until this step might end. hop:
  // for updates, and for leave to enter the next iteration. ssp: all of the step.
  std::chrono::nanoseconds waited{0};
  // In reductions, failed ones included; where they run beside the training loop, since the last
  // step.
  std::chrono::nanoseconds reduced{0};
  std::string reason;  // the controller's, for this group
};

// Which way groups went that this worker was in: those that succeeded, the common start and the
// final average included. Who expects NCCL and finds most of them staged has members whose replica
// is in host memory, no NCCL of 2.28 or newer, or communicators that are still being made, or fail:
// NCCL_DEBUG=WARN tells why.
struct GroupWays {
  std::uint64_t collective = 0;  // NCCL: an all-reduce on a communicator of the members
  std::uint64_t exchange = 0;    // NCCL: sends and receives on one that has more members
  std::uint64_t staged = 0;      // through host memory; where the replica is there, all of them
};

class PRD_EXPORT Session {
 public:
  // Options from the environment: PRD_* (above); rank and world size from PRD_RANK and
  // PRD_WORLD_SIZE, or torchrun's (RANK, WORLD_SIZE), Slurm's (SLURM_PROCID, SLURM_NTASKS), Open
  // MPI's (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE) or MPICH's (PMI_RANK, PMI_SIZE), in this
  // order. The job's name: PRD_JOB, or TORCHELASTIC_RUN_ID, or SLURM_JOB_NAME. A value that does
  // not parse is an error that names the variable. Does not connect yet.
  static Result<SessionOptions> OptionsFromEnvironment();
  static Result<Session> FromEnvironment();

  // Binds the mesh and starts the background thread. kInvalidArgument for options that cannot be
  // right.
  static Result<Session> Create(SessionOptions options);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  // Leaves without the final average if Finish was not called.
  ~Session();

  // Joins the job and fills the parameters: with the common start (the lowest rank's parameters)
  // once all workers of the job are there, or with those of a running peer. Blocks. Errors:
  // kInvalidArgument, kNotFound or kResourceExhausted (the replica or the options are wrong, or the
  // controller refused, and says why), kUnavailable (no answer, or a rank that stays taken, for
  // longer than patience; or, at once, the replica's device cannot be used: the message says what
  // is missing; may be tried again, also with another replica), kCancelled; of a device that fails
  // besides kResourceExhausted and kInternal.
  Status Attach(Replica replica);

  // One training step, as the job's engine wants it (header comment). Blocks until a group has
  // reduced with this worker; with overlap only when the group asked for some steps ago is not
  // through, and not at all in steps that the engine is set not to synchronise (section_length);
  // hop: until it has the updates it needs and may enter the next iteration; ssp: until its own
  // update is stored, the slowest worker is near enough, and all shards are read. A
  // reduction that fails leaves parameters as they were and is tried again with another group (that
  // of a static schedule is left out). Errors: kUnavailable (controller away for longer than
  // patience; the next Step goes on), kAborted (the job is over or refused this worker),
  // kCancelled, the failure of the replica's device (header comment); the parameters are then those
  // after this worker's own local step, if the engine averages models, unchanged if it reduces
  // gradients, and as far as the step came under hop and ssp, where the next one ends it.
  Result<StepResult> Step(StepInput input = {});

  // True when the step in progress is better cut short, because its result would not be used or
  // others wait: the engine has moved on (backup), or gathers its round (esync). A training loop
  // may ask between layers, stop computing, and call Step with `discard`; one that never asks
  // completes its step, and all stays correct. Costs a load; any thread.
  bool Interrupted() const;

  // Ends training: blocks until what this worker has asked for is through, and all live workers
  // have called it or are gone; then all have the average of their replicas. Errors as Step's;
  // after kUnavailable it may be called again.
  Status Finish();

  // Leaves at once, without the average; others go on. Waits for the controller's word up to a
  // second; nothing but the destructor may follow. Also works after Cancel.
  Status Leave(const std::string& reason);

  // Makes the blocking call in progress, and every later one but Leave, return kCancelled soon.
  // Safe from any thread and from a signal handler, while the session exists.
  void Cancel();

  int rank() const;     // -1 before Attach
  int workers() const;  // that the job started with; 0 before Attach
  std::int64_t iteration() const;
  std::string engine() const;  // its name, for people; empty before Attach
  // Since the session began. The group of a step that returned before it was through is counted
  // once it is. Any thread.
  GroupWays group_ways() const;

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prd

#endif  // PRD_SESSION_H_
