// What the parts of a session mean for each other: how calls go on and end, and what runs on the
// data plane for them and beside them. SessionCore and ControllerInbox bring the inputs.
#ifndef PRD_WORKER_CORE_SESSION_FLOW_H_
#define PRD_WORKER_CORE_SESSION_FLOW_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/session_parts.h"
#include "worker/core/step_context.h"
#include "worker/core/step_protocol.h"

namespace prd {

class SessionFlow final : public StepContext {
 public:
  explicit SessionFlow(SessionParts& parts);

  // The protocol of the newest Welcome's plan.
  StepProtocol& protocol() { return *protocol_; }
  void SetPlan(const Plan& plan);

  // ---- to the controller ----

  void Push(WorkerBody body, Actions* out) override;
  // Begins a new incarnation, as soon as there is a number for one. It brings the replica as it is
  // once `apply` has run, if it runs now. Results in the inbox are given up.
  void SayHello(Actions* out);
  void SayReady(Actions* out) override;
  bool EndsPartial(Actions* out) override;
  void SayEnd(Actions* out) override;
  void SayStop(Actions* out);
  // What has been trained, where no Ready has told it.
  void TellTrained(Actions* out);

  // ---- calls and their end ----

  void BeginCall(Call kind);
  // The call in progress ends with this, or with what must come before it may end.
  void Done(Status status, Actions* out);
  bool EndsCall(Actions* out) override;
  void FailCall(Status status, Actions* out);
  void StepDone(bool copied, Actions* out) override;
  // The step in progress is not whole yet: the caller computes more of it.
  void StepPartial(Actions* out);
  // The controller orders samples besides the share, or another share.
  void OnShare(const SetShare& share, Actions* out);
  // The step in progress has ended, and is the last of this run.
  void EndRunAfterStep(Actions* out);
  // What Finish and Pause do, and other calls that end training.
  void End(Actions* out);
  void EndResume(Actions* out);
  bool EndJoin(Actions* out) override;
  void ContinueMean(Actions* out);
  void ContinueAverage(Actions* out);
  void Over(Status status, Actions* out) override;
  void LeaveNow(const Status& why, bool failed, Actions* out);
  // LeaveSoon: leaves now if no boundary is to come, or not soon: nobody has admitted this worker,
  // the job has not begun for it, it pauses, or it waits in Finish.
  void LeaveIfIdle(Actions* out);
  // The step in progress is better cut short: its replica is about to be replaced, or others wait.
  void UpdateInterrupt(Actions* out);
  std::optional<StepOutcome> HandedOver(GroupId group);  // as SessionCore's

  // ---- the data plane, for the call in progress ----

  // The replica is the job's; `copied`: from a peer.
  void HasReplica(bool copied, Actions* out);
  // The controller gives this worker a replica, and so has dropped the worker's signal.
  void ExpectReplica(Actions* out);
  // The caller must be in a call in which parameters may be written.
  void BeginHeld(Actions* out) override;
  void Begin(Group group, Actions* out) override;
  void Report(Outcome outcome, const std::string& detail, Actions* out) override;
  void GiveUpWork(const std::string& why, Actions* out);
  // Calls off what runs, beside the call too. Tells nobody.
  void DropWork(Actions* out);
  // A group that was announced ahead will not be begun.
  void FailHeld(const std::string& why, Actions* out);

  // ---- the data plane, beside the call ----

  void BeginBeside(Group group, Iteration gain, bool contributes, Actions* out) override;
  // The group is through.
  void EndBeside(Outcome outcome, const std::string& detail, Actions* out,
                 std::uint64_t sent_bytes = 0);
  void CancelBeside(const std::string& why, Actions* out);

  // ---- time ----

  void OnTime(Actions* out);
  std::optional<Instant> NextDeadline() const;

 private:
  // TellTrained, where the controller answers.
  void TellTrainedSoon(Actions* out);
  void SayLeave(Actions* out);
  // A Hello says what replica this worker has: not while that changes, nor while it pauses.
  bool MaySayHello() const { return !p_.standing.paused && !p_.work.applies(); }
  // The step that ends now is the last that the goal needs. Workers that end a step with one result
  // stop with the same one.
  bool IsDone() const;
  // This worker is in the run that follows.
  void EndSwitch(Actions* out);

  SessionParts& p_;
  std::unique_ptr<StepProtocol> protocol_;
  StepOutcome ended_step_;  // kSwitch: what the step did, and when it had
  Instant ended_at_;
  bool handed_over_ = false;  // of the step in progress, an outcome (HandedOver)
  bool interrupt_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_FLOW_H_
