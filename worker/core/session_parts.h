// The parts of a session. Each guards its own data; SessionFlow says what they mean for each other.
#ifndef PRD_WORKER_CORE_SESSION_PARTS_H_
#define PRD_WORKER_CORE_SESSION_PARTS_H_

#include <algorithm>

#include "common/base/time.h"
#include "worker/core/average_copies.h"
#include "worker/core/background_group.h"
#include "worker/core/call_slot.h"
#include "worker/core/call_work.h"
#include "worker/core/controller_link.h"
#include "worker/core/departure.h"
#include "worker/core/mean_call.h"
#include "worker/core/session_core.h"
#include "worker/core/step_shares.h"
#include "worker/core/step_state.h"
#include "worker/core/trained_report.h"
#include "worker/core/unreachable_peers.h"

namespace prd {

struct SessionParts {
  // What the call in progress wants of training.
  Aim aim() const;

  SessionCore::Options options;
  Instant now;  // of the input at work
  // Time never goes back: what came before KeepLease may be handled after it.
  Instant Reach(Instant at) { return now = std::max(now, at); }

  ControllerLink link;
  Standing standing;
  TrainedReport report;
  StepShares shares;
  UnreachablePeers unreachable;

  CallSlot call;
  StepState step;
  MeanCall mean;
  AverageCopies average;
  Departure departure;

  CallWork work;
  BackgroundGroup beside;
};

inline Aim SessionParts::aim() const {
  switch (call.kind()) {
    case Call::kNone:
    case Call::kAverage:
      return Aim::kNone;
    case Call::kAttach:
    case Call::kResume:
      return Aim::kJoin;
    case Call::kStep:
      return Aim::kStep;
    case Call::kFinish:
      return Aim::kFinish;
    case Call::kSwitch:
      return standing.ends_run ? Aim::kFinish : Aim::kJoin;
    case Call::kPause:
      return Aim::kPause;
    case Call::kMean:  // pauses, and resumes once it is answered
      if (standing.paused) return Aim::kNone;
      return mean.answered() && mean.resumes() ? Aim::kJoin : Aim::kPause;
    case Call::kLeave:
      return Aim::kLeave;
  }
  return Aim::kNone;
}

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_PARTS_H_
