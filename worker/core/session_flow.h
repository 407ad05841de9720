// The session behind SessionCore: what its parts mean for each other.
#ifndef PRD_WORKER_CORE_SESSION_FLOW_H_
#define PRD_WORKER_CORE_SESSION_FLOW_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/average_copies.h"
#include "worker/core/background_group.h"
#include "worker/core/call_slot.h"
#include "worker/core/call_work.h"
#include "worker/core/controller_link.h"
#include "worker/core/departure.h"
#include "worker/core/mean_call.h"
#include "worker/core/session_core.h"
#include "worker/core/step_protocol.h"
#include "worker/core/step_state.h"
#include "worker/core/trained_report.h"
#include "worker/core/unreachable_peers.h"

namespace prd {

class SessionFlow {
 public:
  SessionFlow();
  SessionFlow(const SessionFlow&) = delete;  // step protocols point to it
  SessionFlow& operator=(const SessionFlow&) = delete;

  bool wants_incarnation() const { return link_.wants_incarnation(); }
  void GiveIncarnation(Incarnation incarnation) { link_.GiveIncarnation(incarnation); }

  // ---- user calls ----

  void Attach(Instant now, SessionCore::Options options, Actions* out);
  void Step(Instant now, const Ready& ready, bool discard, std::int64_t taken, Actions* out);
  void Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
               std::uint64_t digest = 0);
  void Finish(Instant now, Actions* out);
  void Pause(Instant now, Actions* out);
  void Resume(Instant now, Actions* out);
  void Average(Instant now, bool with_state, Actions* out);
  void Mean(Instant now, std::vector<double> values, bool resumes, Actions* out);
  void HasGradientsNow() { options_.hello.gradients = HasGradients::kHere; }
  void NoteNonfinite() { report_.NoteNonfinite(); }
  void NoteLosses(const Losses& losses) { report_.NoteLosses(losses); }
  void Leave(Instant now, const std::string& reason, Actions* out);
  void LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out);
  void Stop(Instant now, std::string reason, Actions* out);
  void Cancel(Instant now, Actions* out);
  void Fail(Instant now, const Status& why, Actions* out);

  // ---- events ----
  void OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out);
  void OnConnected(Instant now, Actions* out);
  void OnReduced(Instant now, GroupId group, const Status& status, std::uint64_t sent_bytes,
                 Actions* out, std::vector<Rank> unreachable = {}, std::uint64_t digest = 0);
  void OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out,
                 Iteration in_inbox = 0);
  void OnCopiedForAverage(Instant now, const Status& status, Actions* out);
  void OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  void OnRequest(Instant now, Incarnation from, Request request, const PeerItem& parcel,
                 Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out);
  void OnOutOfReach(Instant now, Rank rank, Actions* out);
  void OnProbed(Instant now, Rank rank, Incarnation incarnation, Actions* out);
  void OnNoConnection(const std::string& why) { link_.OnNoConnection(why); }
  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;

  std::optional<StepOutcome> HandedOver(GroupId group);

  bool in_call() const { return call_.in_progress(); }
  Incarnation incarnation() const { return link_.incarnation(); }
  Iteration iteration() const { return step_.iteration; }
  // Local steps and samples of this worker, over all incarnations; and the job's, as far as told,
  // which never fall.
  const Trained& own() const { return report_.own(); }
  const JobProgress& progress() const { return report_.progress(); }
  bool paused() const { return standing_.paused; }
  // From the newest Welcome; rank kNoRank before the first.
  const Welcome& welcome() const { return link_.welcome(); }
  // FollowsSchedule: groups up to this id are over, begun or not.
  GroupId called_off() const { return protocol_->called_off(); }

  void SayHello(Actions* out);
  void Push(WorkerBody body, Actions* out);
  std::optional<Instant> TimeoutEnds() const;
  void TimedOut(Actions* out);
  std::optional<Instant> GraceEnds() const;

  // Calls and their end.
  void BeginCall(Call call);
  void End(Actions* out);
  void Done(Status status, Actions* out);
  void EndRunAfterStep(Actions* out);
  void EndSwitch(Actions* out);
  void StepDone(bool copied, Actions* out);
  void Over(Status status, Actions* out);
  bool EndsCall(Actions* out);
  void SayReady(Actions* out);
  void SayEnd(Actions* out);
  void SayLeave(Actions* out);
  void LeaveIfIdle(Actions* out);
  void EndResume(Actions* out);
  bool EndJoin(Actions* out);
  void ContinueMean(Actions* out);
  void FailCall(Status status, Actions* out);
  void CopyNextForAverage(Actions* out);
  bool IsDone() const;
  void TellTrained(Actions* out);
  void SayStop(Actions* out);
  void TellTrainedSoon(Actions* out);
  void UpdateInterrupt(Actions* out);

  // The data plane's work for the call in progress, and beside it.
  void BeginHeld(Actions* out);
  void Begin(Group group, Actions* out);
  void Report(Outcome outcome, const std::string& detail, Actions* out);
  void GiveUpWork(const std::string& why, Actions* out);
  void DropWork(Actions* out);
  void FailHeld(const std::string& why, Actions* out);
  void ExpectReplica(Actions* out);
  void BeginBeside(Group group, Iteration gain, bool contributes, Actions* out);
  void EndBeside(Outcome outcome, const std::string& detail, Actions* out,
                 std::uint64_t sent_bytes = 0);
  bool AbortBeside(const Abort& abort, Actions* out);
  void CancelBeside(const std::string& why, Actions* out);
  void RefuseCopy(const std::string& why, Actions* out);
  void HasReplica(bool copied, Actions* out);
  Reduced WhatReduces(GroupKind kind) const;

  // Messages.
  void Receive(const ControllerEnvelope& envelope, Actions* out);
  void OnWelcome(const Welcome& welcome, Actions* out);
  static void HearAnnounced(const ControllerBody& body, Actions* out);
  void OnMembers(const Members& members, Actions* out);
  void OnResumed(Actions* out);
  void OnEndRun(Actions* out);
  void OnAdopt(const Adopt& adopt, Actions* out);
  void OnGroup(const Group& group, Actions* out);
  void OnAbort(const Abort& abort, Actions* out);
  void OnReleased(const Released& released, Actions* out);
  void OnRefused(const Refused& refused, Actions* out);
  std::string CheckGroup(const Group& group);

  const Plan& plan() const { return welcome().plan; }
  bool is_member() const { return link_.is_member(); }
  // A Hello says what replica this worker has: not while that changes, nor while it pauses.
  bool MaySayHello() const { return !standing_.paused && !work_.applies(); }
  bool trains() const { return is_member() && standing_.has_replica; }
  bool Passive(const Group& group) const;
  // What the call in progress wants of training.
  Aim aim() const;
  // The call in progress ends training, for now or for good, once nothing is left to do.
  bool Ends() const { return aim() == Aim::kPause || aim() == Aim::kFinish; }

  // What the call in progress waits for, in words, and when the next line says so.
  std::string WaitsFor() const;
  std::optional<Instant> LineAt() const;
  void SayLine(Actions* out);

  SessionCore::Options options_;
  ControllerLink link_;
  StepState step_;
  TrainedReport report_;
  std::unique_ptr<StepProtocol> protocol_;  // of the newest Welcome's plan

  Standing standing_;

  // What runs on the data plane, and what waits until the user is in a call.
  CallWork work_;
  UnreachablePeers unreachable_;
  bool probes_ = false;  // the newest ProbePeers had targets

  BackgroundGroup beside_;

  Departure departure_;
  MeanCall mean_;
  AverageCopies average_;

  CallSlot call_;
  StepOutcome ended_step_;  // kSwitch: what the step did, and when it had
  Instant ended_at_;
  bool handed_over_ = false;  // of the step in progress, an outcome (HandedOver)
  bool interrupt_ = false;

  Instant now_;  // of the input at work
  Instant leave_by_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_FLOW_H_
