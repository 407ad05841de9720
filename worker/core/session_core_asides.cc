// SessionCore: what a training loop does beside training: pauses, averages of all replicas, and
// going on in another run.
#include <algorithm>
#include <utility>

#include "worker/core/session_core.h"

namespace prd {

// ---- pauses ----

void SessionCore::Pause(Instant now, Actions* out) {
  now_ = now;
  BeginCall(Call::kPause);
  End(out);
}

void SessionCore::Resume(Instant now, Actions* out) {
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
void SessionCore::EndResume(Actions* out) {
  const bool here = has_replica_ && !paused_ && work_ == Work::kNone && !held_;
  if (call_ == Call::kResume && here) Done(Status::Ok(), out);
}

void SessionCore::OnResumed(Actions* out) {
  if (!std::exchange(said_resume_, false)) return;
  paused_ = false;
  if (call_ == Call::kResume && has_replica_ && !stepping().OnResumed(out)) return;
  EndResume(out);
}

// ---- another run ----

// From the end of the step in progress on; at once, if that has ended in the run before.
void SessionCore::OnEndRun(Actions* out) {
  ends_run_ = true;
  if (call_ == Call::kSwitch) End(out);
}

// ---- the end of the job, said by this worker ----

void SessionCore::Stop(Instant now, std::string reason, Actions* out) {
  now_ = now;
  if (stop_) return;
  stop_ = std::move(reason);
  if (is_member()) SayStop(out);
}

void SessionCore::SayStop(Actions* out) {
  if (stop_ && welcome_.job_calls && !progress_.done) Push(StopJob{.reason = *stop_}, out);
}

// ---- an average of all, beside training ----

void SessionCore::Average(Instant now, bool with_state, Actions* out) {
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

void SessionCore::FailCall(Status status, Actions* out) {
  if (std::exchange(copies_, false)) out->push_back(CancelCopyForAverage{});
  average_from_.clear();
  Done(std::move(status), out);
}

void SessionCore::OnMembers(const Members& members, Actions* out) {
  if (call_ != Call::kAverage || copies_) return;
  average_from_.clear();
  for (const GroupMember& member : members.members) {
    if (member.incarnation != incarnation_) average_from_.push_back(member);
  }
  std::reverse(average_from_.begin(), average_from_.end());
  CopyNextForAverage(out);
}

void SessionCore::CopyNextForAverage(Actions* out) {
  copies_ = !average_from_.empty();
  if (!copies_) return Done(Status::Ok(), out);
  out->push_back(CopyForAverage{.source = average_from_.back()});
}

void SessionCore::OnCopiedForAverage(Instant now, const Status& status, Actions* out) {
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
