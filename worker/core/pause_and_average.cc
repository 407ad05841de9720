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
  if (EndsCall(out) || standing_.said_leave) return;
  if (is_member() && standing_.paused) {
    if (!std::exchange(standing_.said_resume, true)) Push(prd::Resume{}, out);
    return BeginHeld(out);
  }
  standing_.paused = false;
  OnTime(now, out);  // a Hello may have waited for this
  EndResume(out);
}

// Whatever had to come first has come.
void SessionFlow::EndResume(Actions* out) {
  if (call_.is(Call::kMean)) return ContinueMean(out);
  const bool here = standing_.has_replica && !standing_.paused && work_.idle() && !work_.holds();
  if (call_.is(Call::kResume) && here) Done(Status::Ok(), out);
}

void SessionFlow::OnResumed(Actions* out) {
  if (!std::exchange(standing_.said_resume, false)) return;
  standing_.paused = false;
  const bool resumes = call_.is(Call::kResume) || call_.is(Call::kMean);
  if (resumes && standing_.has_replica && !protocol_->OnResumed(out)) return;
  EndResume(out);
}

// ---- another run ----

// From the end of the step in progress on; at once, if that has ended in the run before.
void SessionFlow::OnEndRun(Actions* out) {
  standing_.ends_run = true;
  if (call_.is(Call::kSwitch)) End(out);
}

// ---- the end of the job, said by this worker ----

void SessionFlow::Stop(Instant now, std::string reason, Actions* out) {
  now_ = now;
  if (departure_.Stop(std::move(reason)) && is_member()) SayStop(out);
}

void SessionFlow::SayStop(Actions* out) {
  const auto& reason = departure_.stop();
  if (reason && welcome().job_calls && !progress().done) Push(StopJob{.reason = *reason}, out);
}

// ---- the mean of numbers ----

void SessionFlow::Mean(Instant now, std::vector<double> values, bool resumes, Actions* out) {
  now_ = now;
  BeginCall(Call::kMean);
  mean_.Begin(incarnation(), std::move(values), resumes);
  step_.discard = false;
  if (!standing_.paused) protocol_->OnFinish();
  UpdateInterrupt(out);
  if (EndsCall(out) || standing_.said_leave) return;
  if (!is_member()) {
    standing_.paused = false;
    OnTime(now, out);  // a Hello may have waited for this
    return;
  }
  ContinueMean(out);
}

// Joins, where the job has lost this worker; pauses; gives its numbers; resumes.
void SessionFlow::ContinueMean(Actions* out) {
  if (!call_.is(Call::kMean) || !trains() || !work_.idle()) return;
  if (work_.holds() && !protocol_->HoldsAhead()) return BeginHeld(out);
  if (aim() == Aim::kPause) return protocol_->Continue(out);
  if (!mean_.answered()) {
    if (auto numbers = mean_.Give()) Push(std::move(*numbers), out);
    return;
  }
  if (standing_.paused && mean_.resumes()) {
    if (!std::exchange(standing_.said_resume, true)) Push(prd::Resume{}, out);
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
  if (!call_.is(Call::kAverage) || average_.running()) return;
  average_.Begin(members.members, incarnation());
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
