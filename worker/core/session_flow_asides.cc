// SessionFlow: what a training loop does beside training: pauses, averages of all replicas, and
// going on in another run.
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
  const bool here = has_replica_ && !paused_ && work_ == Work::kNone && !held_;
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
  if (stop_) return;
  stop_ = std::move(reason);
  if (is_member()) SayStop(out);
}

void SessionFlow::SayStop(Actions* out) {
  if (stop_ && welcome_.job_calls && !progress().done) Push(StopJob{.reason = *stop_}, out);
}

// ---- the mean of numbers ----

void SessionFlow::Mean(Instant now, std::vector<double> values, bool resumes, Actions* out) {
  now_ = now;
  BeginCall(Call::kMean);
  if (mean_.call == 0) {
    mean_.call = std::max<std::uint64_t>(incarnation_ + next_mean_++, 1);
    mean_.answered = false;
    mean_.wrong.clear();
  }
  if (!mean_.answered) mean_.values = std::move(values);
  mean_.resumes = resumes;
  mean_.given = false;
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
  if (call_ != Call::kMean || !trains() || work_ != Work::kNone) return;
  if (held_ && !protocol_->HoldsAhead()) return BeginHeld(out);
  if (MeanPauses()) return protocol_->Continue(out);
  if (!mean_.answered) {
    if (!std::exchange(mean_.given, true)) {
      Push(GiveNumbers{.call = mean_.call, .values = mean_.values}, out);
    }
    return;
  }
  if (paused_ && mean_.resumes) {
    if (!std::exchange(said_resume_, true)) Push(prd::Resume{}, out);
    return;
  }
  mean_.call = 0;
  numbers_ = mean_.values;
  Done(mean_.wrong.empty() ? Status::Ok() : Status(Code::kInvalidArgument, mean_.wrong), out);
}

void SessionFlow::OnNumbersMean(const NumbersMean& mean) {
  if (mean.call != mean_.call || mean.call == 0) return;
  mean_.answered = true;
  mean_.values = mean.values;
  mean_.wrong = mean.wrong;
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
  if (std::exchange(copies_, false)) out->push_back(CancelCopyForAverage{});
  average_from_.clear();
  Done(std::move(status), out);
}

void SessionFlow::OnMembers(const Members& members, Actions* out) {
  if (call_ != Call::kAverage || copies_) return;
  average_from_.clear();
  for (const GroupMember& member : members.members) {
    if (member.incarnation != incarnation_) average_from_.push_back(member);
  }
  std::reverse(average_from_.begin(), average_from_.end());
  CopyNextForAverage(out);
}

void SessionFlow::CopyNextForAverage(Actions* out) {
  copies_ = !average_from_.empty();
  if (!copies_) return Done(Status::Ok(), out);
  out->push_back(CopyForAverage{.source = average_from_.back()});
}

void SessionFlow::OnCopiedForAverage(Instant now, const Status& status, Actions* out) {
  now_ = now;
  if (!copies_) return;
  if (!status.ok()) {
    out->push_back(LogLine{"Average leaves out rank " + std::to_string(average_from_.back().rank) +
                           ": " + status.message()});
  }
  average_from_.pop_back();
  CopyNextForAverage(out);
}

}  // namespace prd
