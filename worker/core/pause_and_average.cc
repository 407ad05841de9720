// SessionFlow: the ends of Resume, Mean and Average.
#include <utility>

#include "worker/core/session_flow.h"

namespace prd {

// Ends Resume, or continues Mean, if nothing has to come first any more.
void SessionFlow::EndResume(Actions* out) {
  if (p_.call.is(Call::kMean)) return ContinueMean(out);
  const bool here =
      p_.standing.has_replica && !p_.standing.paused && p_.work.idle() && !p_.work.holds();
  if (p_.call.is(Call::kResume) && here) Done(Status::Ok(), out);
}

// Mean, step by step: joins, if the job has lost this worker; pauses; gives its numbers; resumes.
void SessionFlow::ContinueMean(Actions* out) {
  if (!p_.call.is(Call::kMean) || !trains() || !p_.work.idle()) return;
  if (p_.work.holds() && !protocol_->HoldsAhead()) return BeginHeld(out);
  if (aim() == Aim::kPause) return protocol_->Continue(out);
  if (!p_.mean.answered()) {
    if (auto numbers = p_.mean.Give()) Push(std::move(*numbers), out);
    return;
  }
  if (p_.standing.paused && p_.mean.resumes()) {
    if (!std::exchange(p_.standing.said_resume, true)) Push(prd::Resume{}, out);
    return;
  }
  Done(p_.mean.End(), out);
}

void SessionFlow::ContinueAverage(Actions* out) {
  if (!p_.average.Next(out)) Done(Status::Ok(), out);
}

}  // namespace prd
