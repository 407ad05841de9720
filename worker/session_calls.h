// The calls of a session, on the caller's thread. A call begins, and goes on until it wants
// something of the caller: that `apply` is run, or that an answer of the background thread is
// waited for. So one mechanism has two faces: prd::Session, whose calls block and run `apply`
// themselves (session.cc), and the C interface, whose caller does both (c_interface.cc).
#ifndef PRD_WORKER_SESSION_CALLS_H_
#define PRD_WORKER_SESSION_CALLS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "prd/session.h"
#include "worker/any_thread_calls.h"
#include "worker/background.h"
#include "worker/call_in_progress.h"
#include "worker/compute_time.h"
#include "worker/core/step_procedure.h"
#include "worker/device/device_memory.h"
#include "worker/entrance.h"
#include "worker/task.h"
#include "worker/tensor_watch.h"

namespace prd {

class SessionCalls {
 public:
  // Checks the options and starts the background thread.
  static Result<std::unique_ptr<SessionCalls>> Create(SessionOptions options);
  // Leaves the job, unless that is over. A call in progress is given up.
  ~SessionCalls();
  SessionCalls(const SessionCalls&) = delete;
  SessionCalls& operator=(const SessionCalls&) = delete;

  AnyThreadCalls& any_thread() { return any_thread_; }

  // The calls below are made inside entrance().Enter.
  Entrance& entrance() { return entrance_; }
  bool forked() const { return entrance_.forked(); }

  // ---- inside entrance().Enter ----

  // The calls of prd::Session. Nothing happens before Begin.
  Task<Status> Attach(Replica replica);
  Task<Status> SetGradients(std::vector<Tensor> gradients);
  Task<Status> Step(StepInput input);
  Task<Status> Pause();
  Task<Status> Resume();
  Task<Status> Average(std::vector<Tensor> into);
  Task<Status> Mean(std::vector<double> values);
  Task<Status> Finish(FinishOptions options);
  Task<Status> Leave(std::string reason);

  // The call in progress. A worker whose `apply` fails leaves the job.
  CallInProgress& call() { return call_; }
  // Gives up the call in progress for this one. `name`: of it. Its error, if it is over at once.
  Status BeginLeave(const char* name, std::string reason);
  const StepResult& result() const { return result_; }
  const std::vector<double>& mean() const { return mean_; }  // of the newest Mean that ended well

  void GiveToCaller();
  const std::function<void()>& apply() const { return replica_.apply; }

 private:
  SessionCalls(SessionOptions options, std::unique_ptr<Background> background)
      : options_(std::move(options)), background_(std::move(background)) {}

  void GiveUpCall();
  Welcome welcome() const { return background_->view().welcome(); }
  Status Ready() const;
  Status HasLeft() const;
  Status ReadyToTrain() const;
  Status CheckUse(const Welcome& welcome) const;
  Task<Status> JoinJob(Replica replica);
  enum class Leaving { kByItself, kFailed, kNonfinite };
  Task<Status> LeaveJob(std::string reason, Leaving why = Leaving::kByItself);
  Task<CallDone> Drive(Background::Request request, bool may_be_early = false);
  Task<bool> Run(StepProcedure* procedure);
  Task<bool> RunApply(Iteration iteration);
  Task<Status> LeaveAsApplyFailed();

  // The step.
  struct Looked {
    Status status;  // not ok: the worker has left for that
    bool nonfinite = false;
  };
  Task<Looked> LookForNonfinite(Welcome welcome, bool discard);
  void SayIfNotWeighed(const Welcome& welcome, std::int64_t samples);
  void SayMemory(const Welcome& welcome);
  Task<Status> Settle();
  void SettleSoon();
  void SetEarly(std::optional<StepOutcome> said);
  StepResult Describe(const StepOutcome& outcome) const;

  // A call of the session, between what the caller has enqueued before it on this stream and what
  // it enqueues after it.
  class InOrder {
   public:
    InOrder(SessionCalls* calls, void* stream, bool step = false) : calls_(calls) {
      if (calls_->device_ != nullptr) calls_->device_->SetCallerStream(stream);
      calls_->TakeFromCaller(step);
    }
    ~InOrder() {
      calls_->NoteParameters();
      calls_->GiveToCaller();
    }
    InOrder(const InOrder&) = delete;
    InOrder& operator=(const InOrder&) = delete;

   private:
    SessionCalls* calls_;
  };
  // No call may become a part of a CUDA graph.
  Status CheckNotCaptured(void* stream) const {
    return device_ == nullptr ? Status::Ok() : device_->CheckNotCaptured(stream);
  }
  Status CheckWritten();
  void NoteParameters();
  void TakeFromCaller(bool step_begins);
  Status WaitForCaller();

  const SessionOptions options_;
  std::unique_ptr<Background> background_;
  Replica replica_;
  DeviceMemory* device_ = nullptr;  // the store's, if the replica is on one
  std::optional<TensorWatch> watch_;
  Entrance entrance_;
  AnyThreadCalls any_thread_{&options_, &entrance_, background_.get()};

  CallInProgress call_{background_.get()};
  StepResult result_;

  Status attach_;  // what the last one gave
  bool joining_ = false;
  bool paused_ = false;
  bool mean_resumes_ = false;  // it pauses for a Mean that is to be called again
  std::vector<double> given_, mean_;
  bool said_samples_ = false;
  bool said_nonfinite_ = false;
  bool over_ = false;
  std::string failed_;       // what made the session leave the job, if not the caller
  std::int64_t looked_ = 0;  // steps that might be looked at for values that are not finite
  ComputeTime computed_;
  // The last step returned before its reduction was through: what it said. And what came of it
  // besides, for the next step to tell.
  std::optional<StepOutcome> early_;
  StepOutcome settled_;
  std::uint64_t exchanged_ = 0;  // bytes, up to then
};

}  // namespace prd

#endif  // PRD_WORKER_SESSION_CALLS_H_
