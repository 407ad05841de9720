// What SessionCore and its StepProtocol both keep: how far the replica is, the signal to the
// controller, and the step in progress; and what the controller and this worker have told each
// other in this incarnation.
#ifndef PRD_WORKER_CORE_STEP_STATE_H_
#define PRD_WORKER_CORE_STEP_STATE_H_

#include <cstdint>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/core/actions.h"

namespace prd {

struct StepState {
  Iteration iteration = 0;  // of the replica
  Iteration in_inbox = 0;   // of these, rounds that came with a copied replica and are not applied

  Ready ready;  // the last one, for signalling again
  // Nothing has answered it; with AveragesInBackground, its group has not succeeded yet.
  bool ready_waiting = false;
  Instant ready_at;
  Instant idle_at;  // the step in progress waits for a group since then

  StepOutcome outcome;   // of the step in progress, so far
  bool discard = false;  // its local work was cut short
};

// What the call in progress wants of training.
enum class Aim : std::uint8_t {
  kNone,    // nothing: no call, or one beside training
  kJoin,    // the job's replica, to train with it
  kStep,    // a step
  kPause,   // to train no more, for now, once nothing is left to do
  kFinish,  // the same, for good, or in this run; and the final average
  kLeave,
};

// Step protocols only read it.
struct Standing {
  bool has_replica = false;  // the common start, or a peer's model
  bool said_finish = false;
  bool said_leave = false;       // of LeaveSoon; not answered
  bool said_resume = false;      // not answered
  bool final_announced = false;  // the last group is the final average
  bool final_done = false;       // the final average is in the replica, and no run follows
  bool ends_run = false;         // another run follows this one (EndRun)
  bool paused = false;           // said Pause; until Resumed, or until it says Hello anew
  GroupId last_group = kNoGroup;

  bool said_end() const { return said_finish || said_leave; }
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_STEP_STATE_H_
