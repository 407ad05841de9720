// A Session is one worker of a training job: it keeps this program's model replica consistent with
// the replicas of the other workers. The controller's config names the engine that decides how; the
// training loop is the same under every engine:
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
// another engine, `steps` and progress() go on as ever, and `iteration` in the new one's unit.
//
// More, in prd's sources: worker/README.md has tables of what a step means under each engine, of
// memory, and of errors with the state of the parameters. worker/device/README.md is about GPUs.
#ifndef PRD_SESSION_H_
#define PRD_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prd/replica.h"
#include "prd/session_types.h"
#include "prd/status.h"

#if defined(__GNUC__)
#define PRD_EXPORT __attribute__((visibility("default")))
#else
#define PRD_EXPORT
#endif

namespace prd {

class PRD_EXPORT Session {
 public:
  // Options from PRD_* variables; job, rank and world size also from those of torchrun, Slurm, Open
  // MPI or MPICH. kInvalidArgument names a variable that does not parse. Does not connect yet.
  static Result<SessionOptions> OptionsFromEnvironment();
  static Result<Session> FromEnvironment();
  // Listens for peers and starts the background thread. kInvalidArgument: an option is wrong.
  static Result<Session> Create(SessionOptions options);

  Session(Session&&) noexcept;  // what was moved from may be assigned to, or destroyed
  Session& operator=(Session&&) noexcept;
  ~Session();  // leaves without the final average, unless Finish has succeeded

  // Joins the job. Blocks until all workers of the job are there; then the parameters are a copy of
  // the lowest rank's. In a job that runs already they are a copy of a peer's; after an error they
  // and state may be so in part, and its message says it. kUnavailable at once: the replica's
  // device cannot be used. A refusal has the controller's code. It may be called again, unless the
  // session is cancelled, or has left because the job's engine needs gradients that are not there.
  Status Attach(Replica replica);

  // Gives the replica its gradients, or others: as Replica::gradients. Between any two calls after
  // Attach; before the next Step where that says that they are missing, because the job has begun
  // anew with another engine (kFailedPrecondition).
  Status SetGradients(std::vector<Tensor> gradients);

  // One training step: runs `apply`, and synchronises as the engine wants. Blocks until the engine
  // lets this worker go on. Another reduction is tried after one that fails (p-reduce and prague
  // may have averaged some parameters by then). After kUnavailable the next Step goes on. The time
  // between two Steps counts as computing: where the loop does something else for long, Pause.
  Result<StepResult> Step(StepInput input = {});

  // Whether the step being computed is better cut short: its result would not be used, or other
  // workers wait. A training loop may ask between layers, stop, and call Step with `discard`. A
  // loop that never asks stays correct. Costs a load. Any thread.
  bool Interrupted() const;

  // How far the job is. Any thread.
  Progress progress() const;

  // Which samples to compute next, in a job with a batch (SessionOptions::batch): the own share.
  // `ahead`: of a step that far after the next one, for loaders that draw early. Any thread.
  BatchShare share(int ahead = 0) const;

  // How many steps a job of equal workers would have made, for schedules: the steps of progress()
  // by workers(); with a batch, its samples by the batch. 0 before Attach. Any thread.
  double clock() const;

  // The job is done, for all workers, as if its goal were reached: for early stopping. Does not
  // wait; Step says `done` once the controller knows, with the last group under engines whose
  // workers stop together. `reason` is for people who watch the job, 256 bytes of it. Of several
  // calls, of any workers, the first counts; after the goal it does nothing. kFailedPrecondition:
  // before Attach, or the controller is of an older version. Any thread.
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

  // Leaves the job without the average, while the others go on, and tells them 256 bytes of
  // `reason`. Takes up to a second; works after Cancel. Only the destructor may follow.
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

  // The call in progress, and later ones that wait for others: kCancelled soon. Threads: LeaveSoon.
  void Cancel();

  int rank() const;     // -1 before Attach
  int workers() const;  // that the job started with; 0 before Attach
  std::int64_t iteration() const;
  std::string engine() const;                // human-readable; empty before Attach
  bool needs_gradients() const;              // the job reduces or looks at them
  GroupTransports group_transports() const;  // since the session began. Any thread
  [[deprecated("use group_transports()")]] GroupTransports group_ways() const;
  std::vector<MemoryHeld> memory() const;  // "all" first, then each use so far. Any thread

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
