// What a step does, waits for and ends with, under one plan. SessionFlow makes one at Welcome. It
// has all the state that its plan alone needs. Not thread safe; pure, as the core is.
//
// One class per kind of plan:
//   GroupProtocol      a step says Ready, and ends with the group that answers
//   OverlapProtocol    models are averaged in groups that are drawn ahead, by a schedule, or run in
//                      the background: steps and groups are not one to one
//   RoundProtocol      gradients are reduced in rounds beside the training loop
//   NeighbourProtocol  updates of the neighbours on a graph
//   StoreProtocol      shards of the parameters
#ifndef PRD_WORKER_CORE_STEP_PROTOCOL_H_
#define PRD_WORKER_CORE_STEP_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/core/actions.h"
#include "worker/core/step_context.h"

namespace prd {

class StepProtocol {
 public:
  explicit StepProtocol(StepContext& ctx) : ctx_(ctx) {}
  virtual ~StepProtocol() = default;
  StepProtocol(const StepProtocol&) = delete;
  StepProtocol& operator=(const StepProtocol&) = delete;

  // ---- the worker's life ----

  // A new incarnation begins. What was said to the controller, and what it said, is void. The
  // replica and the step in progress remain.
  virtual void OnHello() {}
  // The replica is the job's, from the common start or, if `copied`, from a peer. False: the call
  // in progress does not end with that.
  virtual bool OnReplica(bool copied, Actions* out);
  // The worker trains again, after a pause, with the replica that it has now. False: the call in
  // progress does not end with that.
  virtual bool OnResumed(Actions*) { return true; }
  // A copy of a peer's replica, or a common start, has been ordered, and voids the signal that
  // stands.
  virtual void OnCopyOrdered() {}
  // All members have averaged their parameters, for a round to come.
  virtual void OnAveraged() {}

  // ---- calls ----

  // A step has come; it begins with StartStep, unless the session is over or cancelled. `taken` as
  // in SessionCore::Step.
  virtual void OnStep(const Ready& ready, std::int64_t taken);
  virtual void StartStep(Actions* out) = 0;
  virtual void OnFinish() {}
  // The step in progress ends successfully. Completes its outcome.
  virtual void OnStepEnds();
  // The call in progress ends, one way or another.
  virtual void OnCallEnds(Actions*) {}
  // Does what can be done now, for the call in progress and beside it. Called whenever something
  // has changed. A second call in a row does nothing.
  virtual void Continue(Actions* out) = 0;
  // The same, after a group or a copy has failed: signals again what has no answer.
  virtual void SignalAgain(Actions* out) { Continue(out); }
  // The final average waits, because results are added, or shards read, first.
  virtual bool DelaysFinal(Actions*) { return false; }
  // The step in progress is better cut short: others wait for this worker.
  virtual bool IsAwaited() const { return false; }

  // ---- groups ----

  // What is wrong with a group that trains, or with an average for a round; or empty.
  virtual std::string Check(const Group&) const { return {}; }
  // True: this takes the group on. False: the core begins it once the caller is in a step.
  virtual bool OnGroup(const Group&, Actions*) { return false; }
  // The group held for the call in progress has been announced ahead: it waits for a step that
  // synchronises.
  virtual bool HoldsAhead() const { return false; }
  // A step may end as soon as its group's end is for the device alone to decide.
  virtual bool EndsWithReduction() const { return false; }
  // The call's kTrain group is through, and not reported.
  virtual void OnTrained(Outcome outcome, const std::string& detail, Actions* out) = 0;
  // The group beside the call (StepContext::beside) is through, and not reported.
  virtual void OnBesideThrough(Outcome, const std::string&, Actions*) {}
  // The caller has applied, or added the inbox.
  virtual void OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) = 0;
  // Others have the result of a round that failed here; and what became of copying it.
  virtual void OnAdoptResult(const Adopt& adopt, Actions* out);
  virtual void OnResultFetched(const Status&, Actions*) {}
  // Groups up to this id are over, begun or not.
  virtual GroupId called_off() const { return kNoGroup; }

  // ---- messages ----

  // The controller has acknowledged something.
  virtual void OnAcked(Actions*) {}
  // QueryReply, Schedule, Neighbourhood, Placement, Opened.
  virtual void OnMessage(const ControllerBody& body, Actions* out);
  // exchange.h
  virtual void OnNote(Incarnation, const PeerMessage&, Actions*) {}
  virtual void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out);
  virtual void OnPulled(Ticket, const Status&, const ShardHeader&, Actions*) {}
  virtual void OnTime(Actions*) {}
  virtual std::optional<Instant> NextDeadline() const { return std::nullopt; }

 protected:
  StepContext& ctx() { return ctx_; }
  const StepContext& ctx() const { return ctx_; }
  // Counts the step. True if it is one that signals.
  bool Synchronises();

 private:
  StepContext& ctx_;
  std::uint32_t since_signal_ = 0;  // steps since the last one that signalled
};

std::unique_ptr<StepProtocol> MakeStepProtocol(const Plan& plan, StepContext& ctx);

}  // namespace prd

#endif  // PRD_WORKER_CORE_STEP_PROTOCOL_H_
