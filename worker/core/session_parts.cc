#include "worker/core/session_parts.h"

namespace prd {

Aim SessionParts::aim() const {
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
