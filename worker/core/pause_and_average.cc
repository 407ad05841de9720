// SessionFlow: what a training loop does beside training: pauses, averages of all replicas, and the
// step into another run.
#include <algorithm>
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {

// ---- pauses ----

void SessionFlow::Pause(Instant now, Actions* out) {
  now_ = now;
  BeginCall(Call::kPause);
  End(out);
}

void SessionFlow::Resume(Instant now, Actions* out) {
  now_ = now;
  BeginCall(Call::kResume);
  if (EndsCall(out) || said_leave_) return;
  if (is_member() && paused_) {
    if (!std::exchange(said_resume_, true)) Push(prd::Resume{}, out);
    return BeginHeld(out);
  }
  paused_ = false;
  OnTime(now, out);  // a Hello may have waited for this
  EndResume(out);
}

// Whatever had to come first has come.
void SessionFlow::EndResume(Actions* out) {
  if (call_ == Call::kMean) return ContinueMean(out);
  const bool here = has_replica_ && !paused_ && work_.idle() && !work_.holds();
  if (call_ == Call::kResume && here) Done(Status::Ok(), out);
}

void SessionFlow::OnResumed(Actions* out) {
  if (!std::exchange(said_resume_, false)) return;
  paused_ = false;
  const bool resumes = call_ == Call::kResume || call_ == Call::kMean;
  if (resumes && has_replica_ && !protocol_->OnResumed(out)) return;
  EndResume(out);
}

// ---- another run ----

// From the end of the step in progress on; at once, if that has ended in the run before.
void SessionFlow::OnEndRun(Actions* out) {
  ends_run_ = true;
  if (call_ == Call::kSwitch) End(out);
}

// ---- the end of the job, said by this worker ----

void SessionFlow::Stop(Instant now, std::string reason, Actions* out) {
  now_ = now;
  if (departure_.Stop(std::move(reason)) && is_member()) SayStop(out);
}

void SessionFlow::SayStop(Actions* out) {
  const auto& reason = departure_.stop();
  if (reason && welcome_.job_calls && !progress().done) Push(StopJob{.reason = *reason}, out);
}

// ---- the mean of numbers ----

void SessionFlow::Mean(Instant now, std::vector<double> values, bool resumes, Actions* out) {
  now_ = now;
  BeginCall(Call::kMean);
  mean_.Begin(incarnation_, std::move(values), resumes);
  discard_ = false;
  if (!paused_) protocol_->OnFinish();
  UpdateInterrupt(out);
  if (EndsCall(out) || said_leave_) return;
  if (!is_member()) {
    paused_ = false;
    OnTime(now, out);  // a Hello may have waited for this
    return;
  }
  ContinueMean(out);
}

// Joins, where the job has lost this worker; pauses; gives its numbers; resumes.
void SessionFlow::ContinueMean(Actions* out) {
  if (call_ != Call::kMean || !trains() || !work_.idle()) return;
  if (work_.holds() && !protocol_->HoldsAhead()) return BeginHeld(out);
  if (MeanPauses()) return protocol_->Continue(out);
  if (!mean_.answered()) {
    if (auto numbers = mean_.Give()) Push(std::move(*numbers), out);
    return;
  }
  if (paused_ && mean_.resumes()) {
    if (!std::exchange(said_resume_, true)) Push(prd::Resume{}, out);
    return;
  }
  Done(mean_.End(), out);
}

// ---- an average of all, beside training ----

void SessionFlow::Average(Instant now, bool with_state, Actions* out) {
  now_ = now;
  BeginCall(Call::kAverage);
  if (EndsCall(out)) return;
  if (!trains()) {
    return FailCall(Status(Code::kUnavailable,
                           "the job has lost this worker, which joins it again with its next "
                           "Step"),
                    out);
  }
  if (ReplicasAreEqual(plan()) && !TrainsInRounds(plan()) &&
      !(with_state && NeedsGradients(plan()))) {
    return Done(Status::Ok(), out);
  }
  Push(AskMembers{}, out);
}

void SessionFlow::FailCall(Status status, Actions* out) {
  average_.Cancel(out);
  Done(std::move(status), out);
}

void SessionFlow::OnMembers(const Members& members, Actions* out) {
  if (call_ != Call::kAverage || average_.running()) return;
  average_.Begin(members.members, incarnation_);
  CopyNextForAverage(out);
}

void SessionFlow::CopyNextForAverage(Actions* out) {
  if (!average_.Next(out)) Done(Status::Ok(), out);
}

void SessionFlow::OnCopiedForAverage(Instant now, const Status& status, Actions* out) {
  now_ = now;
  if (!average_.running()) return;
  average_.OnCopied(status, out);
  CopyNextForAverage(out);
}

}  // namespace prd
