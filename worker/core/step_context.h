// What a StepProtocol sees of its session, and does to it. SessionFlow implements it.
#ifndef PRD_WORKER_CORE_STEP_CONTEXT_H_
#define PRD_WORKER_CORE_STEP_CONTEXT_H_

#include <cstddef>
#include <string>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/plan.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/background_group.h"
#include "worker/core/call_slot.h"
#include "worker/core/call_work.h"
#include "worker/core/controller_link.h"
#include "worker/core/step_state.h"

namespace prd {

struct SessionParts;

class StepContext {
 public:
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  // ---- facts, which the session alone changes ----

  const Instant& now;          // of the input at work
  const ControllerLink& link;  // this worker's incarnation and rank, the plan
  const CallSlot& call;        // when the call in progress began, whether all are cancelled
  const Standing& standing;
  Aim aim() const;                  // of the call in progress
  std::size_t max_members() const;  // of a group

  const Plan& plan() const { return link.welcome().plan; }
  bool is_member() const { return link.is_member(); }
  bool trains() const { return is_member() && standing.has_replica; }
  // The call in progress ends training, for now or for good, once nothing is left to do.
  bool Ends() const { return aim() == Aim::kPause || aim() == Aim::kFinish; }
  // This worker takes part in the group, but what it waits for is another one (DrawnAhead).
  bool Passive(const Group& group) const;
  bool Contributes(const Group& group) const;  // this worker, with a weight

  // ---- parts that a step protocol works with ----

  StepState& step;
  CallWork& work;
  BackgroundGroup& beside;

  // ---- what it does ----

  // Tells the controller.
  virtual void Push(WorkerBody body, Actions* out) = 0;
  // Tells the controller that a replica, or a round's result, is not copied.
  void RefuseCopy(const std::string& why, Actions* out);
  // Sends `step.ready`, with what has been trained.
  virtual void SayReady(Actions* out) = 0;
  // Whether more of the step in progress is to be computed than was when it was whole. The call has
  // ended for it then. REQUIRES: the step is not signalled.
  virtual bool EndsPartial(Actions* out) = 0;
  // Tells the controller that the call in progress Ends, if nothing is left to do.
  virtual void SayEnd(Actions* out) = 0;

  // Begins the group or copy that waits, if it may begin.
  virtual void BeginHeld(Actions* out) = 0;
  // Begins a group: for the call in progress, or beside it. `gain` as in StartReduce.
  virtual void Begin(Group group, Actions* out) = 0;
  virtual void BeginBeside(Group group, Iteration gain, bool contributes, Actions* out) = 0;
  // The group of the call in progress is through: reports it, if such groups are reported.
  virtual void Report(Outcome outcome, const std::string& detail, Actions* out) = 0;

  // The step in progress has ended; `copied`: with the replica of a peer, or a new common start.
  virtual void StepDone(bool copied, Actions* out) = 0;
  // The replica is the job's, all of it: the call in progress ends, or goes on, if it waited for
  // that. False: it did not.
  virtual bool EndJoin(Actions* out) = 0;
  // Ends the call in progress, if the session is over or cancelled. False: it is not.
  virtual bool EndsCall(Actions* out) = 0;
  // The session can do nothing more.
  virtual void Over(Status status, Actions* out) = 0;

 protected:
  explicit StepContext(SessionParts& parts);
  ~StepContext() = default;

 private:
  const SessionParts& parts_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_STEP_CONTEXT_H_
