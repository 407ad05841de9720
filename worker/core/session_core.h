// The protocol of one worker with the controller, as a state machine: what the background thread of
// a session does, without the thread, the sockets and the clock. The library and the simulator
// drive this same class.
//
// Inputs: the controller's messages, the user's calls, what became of reductions and copies, time.
// Output: a list of actions in order. One user call is in progress at a time; every call ends with
// exactly one CallDone. Not thread safe.
//
// What it guarantees towards the controller: exactly one Finished per group announced, and one
// Adopted per Adopt; no Ready that waits while one is unanswered; one Finish once trained; nothing
// is done twice and nothing is lost (link.h), whatever the network does. A refusal that says "this
// incarnation is over" makes it say Hello as a new one, with the same rank, and go on with the
// replica as it is.
//
// Rounds (GroupKind::kRound) run in a slot of their own beside the call in progress: they start at
// once, whatever the training loop does, `apply` included. The data plane still has one reduction
// and one copy at a time: a worker is in one group at a time, and a controller that announces a
// second one ends the session (kDataLoss), as any group does that cannot be.
//
// Models are averaged (CountsLocalSteps) in four ways, as the Plan says. In each, steps that do not
// synchronise (section_length) end at once, whatever is announced or stands; so do discarded ones.
//   neither ahead nor background: a step says Ready, and ends with the group that answers.
//   background: a step says Ready and ends. Groups run in the slot of the rounds, and their
//     averages wait in the inbox, which the caller's thread adds to the parameters before each
//     step, and on ApplyNow. A signal stands until its group has succeeded; a worker whose group
//     failed signals again by itself, also while its training loop computes. The step with which
//     more than run_ahead have come since a signal, its own included, waits for it; it then adds
//     the inbox, says Ready (but where the signal that stood was its own, or said after it came),
//     and ends. Steps that do not synchronise do not count.
//   ahead: the same signal is never repeated; it ends as Plan says. Without background a group
//     waits until the training loop is in a step that synchronises, which says Ready first, or in
//     Finish; such a step ends once no signal stands.
//   scheduled: each step that synchronises takes the next slot of the newest Schedule, and waits
//     for the first one. Without background it runs that slot's group and ends with it, ok or not.
//     With it, slots run in their order, and a step with which more than run_ahead slots are taken
//     and not over waits. A new Schedule calls off and forgets the slots of the one before; a step
//     that waits takes slot 0 of the new one.
// Neighbours' updates (NeighbourPlan) and shards (StorePlan) go from worker to worker at any
// time, whatever the training loop does (exchange.h); what a step waits for stands in
// session_core_neighbours.cc and session_core_store.cc.
//
// Where models are averaged, Finish adds the inbox and says Finish once no signal stands, its own
// group is through, and no slot is open. It takes part in groups announced ahead before and after
// that; what they leave in the inbox is added before the final average.
#ifndef PRD_WORKER_CORE_SESSION_CORE_H_
#define PRD_WORKER_CORE_SESSION_CORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/base/static_schedule.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/shard_store.h"
#include "worker/core/update_queues.h"

namespace prd {

class SessionCore {
 public:
  struct Options {
    Hello hello;              // but for rank and iteration of later incarnations
    DurationNs patience = 0;  // 0 = for ever
    std::size_t max_members = 4096;
  };

  // Random bits come from outside: whenever wants_incarnation(), give a fresh non-zero one; until
  // then no Hello is said.
  bool wants_incarnation() const { return next_incarnation_ == 0; }
  void GiveIncarnation(Incarnation incarnation) { next_incarnation_ = incarnation; }

  // ---- user calls ----
  // REQUIRES: no call is in progress (but Cancel, Applied).

  // Says Hello; done once the replica is the job's.
  void Attach(Instant now, Options options, Actions* out);
  // Local work is done; done once a group has reduced with this worker, or as the strategy has it.
  // `ready.iteration` as in engine.h for plans of parameters and of gradients; for the others it,
  // and all that concerns gradients and local steps, is set here. Not signalled when an earlier
  // signal is still unanswered. `discard`: the local work was cut short and does not count.
  // `taken`: AveragesInBackground: averages that were added to the parameters just before, with the
  // local step; `ready.iteration` has what they gained.
  void Step(Instant now, const Ready& ready, bool discard, std::int64_t taken, Actions* out);
  // `apply` has run, or the inbox was added, after ApplyNow: the replica is at this iteration, with
  // the results of this many rounds more (TrainsInRounds, AveragesInBackground).
  void Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out);
  void Finish(Instant now, Actions* out);
  // Done when the controller has let go, or after a second. Also instead of Applied, when `apply`
  // failed: the call in progress is then over without a CallDone of its own.
  void Leave(Instant now, const std::string& reason, Actions* out);
  // The call in progress, and every later one but Leave, ends with kCancelled.
  // A round in the background is cancelled too.
  void Cancel(Instant now, Actions* out);
  // The replica is lost, for this reason: leaves at once. The call in progress, and every later one
  // but Leave and Attach, ends with it.
  void Fail(Instant now, const Status& why, Actions* out);

  // ---- events ----
  void OnEnvelope(Instant now, const ControllerEnvelope& envelope, Actions* out);
  // The connection to the controller is there (again).
  void OnConnected(Instant now, Actions* out);
  void OnReduced(Instant now, GroupId group, const Status& status, std::uint64_t sent_bytes,
                 Actions* out);
  void OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out);
  // exchange.h: a note of a peer, its pull, and what became of a pull of this worker's.
  void OnNote(Instant now, Incarnation from, const Note& note, Actions* out);
  void OnRequest(Instant now, Incarnation from, Request request, const Parcel& parcel,
                 Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, const Enclosure& enclosure,
                Actions* out);
  void OnTime(Instant now, Actions* out);
  // When OnTime has something to do at the latest.
  std::optional<Instant> NextDeadline() const;

  // The device will commit the group's result, or not, and OnReduced will tell: what the step in
  // progress will have done if it does; nullopt: the step does not end with that. Of plans whose
  // result goes into the parameters, and no `apply` follows.
  std::optional<StepOutcome> HandedOver(GroupId group);

  bool in_call() const { return call_ != Call::kNone; }
  Incarnation incarnation() const { return incarnation_; }
  Iteration iteration() const { return iteration_; }
  // From the newest Welcome; rank kNoRank before the first.
  const Welcome& welcome() const { return welcome_; }
  // FollowsSchedule: groups up to this id are over, begun or not.
  GroupId called_off() const { return schedule_ ? schedule_->first - 1 : kNoGroup; }

 private:
  enum class Contact : std::uint8_t { kNone, kHello, kMember, kOver };
  enum class Call : std::uint8_t { kNone, kAttach, kStep, kFinish, kLeave };
  enum class Work : std::uint8_t { kNone, kReduce, kApply, kFetch };
  // Who says what becomes of a kReduce: the data plane and this core, or since HandedOver the
  // device alone; kGivenUp: of that the controller has called off.
  enum class Decides : std::uint8_t { kHere, kDevice, kGivenUp };

  // The newest kRound announced here, or the kTrain that runs in the background. kFailed: its
  // result is not here, but others may have it.
  struct Round {
    enum class State : std::uint8_t { kNone, kReduce, kFailed, kFetch };
    State state = State::kNone;
    Group group;
    bool contributed = false;  // the outbox is part of it
    Instant at;
  };

  void SayHello(Instant now, Actions* out);
  void Push(WorkerBody body, Actions* out);
  WorkerEnvelope Envelope(Seq seq, WorkerBody body) const;
  void SendHeartbeat(Instant now, Actions* out);
  void Resend(Instant now, Actions* out);
  void Done(Status status, Actions* out);
  void GiveUpWork(Instant now, const std::string& why, Actions* out);
  void DropWork(Actions* out);
  void Over(Status status, Actions* out);
  void StepDone(bool adopted, Actions* out);

  void Receive(Instant now, const ControllerEnvelope& envelope, Actions* out);
  void OnWelcome(Instant now, const Welcome& welcome, Actions* out);
  void OnHeartbeatAck(Instant now);
  void OnAdopt(Instant now, const Adopt& adopt, Actions* out);
  void OnGroup(Instant now, const Group& group, Actions* out);
  void OnAbort(Instant now, const Abort& abort, Actions* out);
  void OnReleased(const Released& released, Actions* out);
  void OnSchedule(Instant now, const Schedule& schedule, Actions* out);
  void OnReply(Instant now, const QueryReply& reply, Actions* out);
  void OnRefused(Instant now, const Refused& refused, Actions* out);
  std::string CheckGroup(const Group& group) const;
  std::string CheckRound(const Group& group) const;
  void BeginHeld(Instant now, Actions* out);
  void Begin(Instant now, Group group, Actions* out);
  void Report(Instant now, Outcome outcome, const std::string& detail, Actions* out);
  void HasReplica(Instant now, Actions* out);
  void SignalAgain(Instant now, Actions* out);
  void CallOffWork(Instant now, const std::string& why, Actions* out);
  void SayFinish(Actions* out);
  std::optional<Instant> PatienceEnds() const;
  const Plan& plan() const { return welcome_.plan; }
  void SayReady(Instant now, Actions* out);
  void UpdateInterrupt(Actions* out);

  // Rounds in the background (session_core_rounds.cc).
  bool RoundRuns() const;
  bool GaveToRound() const;
  void BeginRound(Instant now, const Group& group, Actions* out);
  void ReportRound(Instant now, Outcome outcome, const std::string& detail, Actions* out);
  std::uint32_t HaveRound();
  void OnRoundReduced(Instant now, const Status& status, Actions* out);
  void OnAdoptResult(Instant now, const Adopt& adopt, Actions* out);
  void OnResultFetched(Instant now, const Status& status, Actions* out);
  bool AbortRound(Instant now, const Abort& abort, Actions* out);
  void CancelRound(Instant now, const std::string& why, Actions* out);
  void Arrive(Instant now, Actions* out);
  void ApplyRounds(Instant now, Actions* out);
  void AppliedRounds();
  void GoOn(Instant now, Actions* out);

  // Groups drawn ahead or in the background (session_core_background.cc).
  bool Passive(const Group& group) const;
  bool Synchronises();
  std::string CheckTrain() const;
  void Took(std::int64_t rounds);
  void ArriveDecoupled(Instant now, Actions* out);
  void Proceed(Instant now, Actions* out);
  void ProceedStep(Instant now, Actions* out);
  void ProceedFinish(Instant now, Actions* out);
  void SignalDecoupled(Instant now, Actions* out);
  bool HoldsAhead() const;
  void FailHeld(const std::string& why, Actions* out);
  void OnTrainGroup(Instant now, const Group& group, Actions* out);
  void BeginBackground(Instant now, Group group, Actions* out);
  void OnTrained(Instant now, Outcome outcome, const std::string& detail, Actions* out);
  void ReportBackground(Instant now, Outcome outcome, const std::string& detail, Actions* out);
  void Through(Instant now, bool ok, bool passive, Actions* out);
  void OnAnswer(Instant now, const QueryReply& reply, Actions* out);
  void AddInbox(Actions* out);
  void Added(Instant now, Iteration iteration, std::int64_t rounds, Actions* out);

  // The static schedule (session_core_schedule.cc).
  std::string CheckSchedule(const Schedule& schedule) const;
  Group SlotGroup(std::uint64_t slot, const StaticMembers& members) const;
  void TakeSlot(Instant now, Actions* out);
  void RunSlots(Instant now, Actions* out);

  // Updates of the neighbours on a graph (session_core_neighbours.cc).
  void ArriveNeighbours(Instant now, Actions* out);
  void ProceedNeighbours(Instant now, Actions* out);
  void PublishDue(Instant now, Actions* out);
  void ReceiveUpdates(Instant now, Actions* out);
  void Enter(Instant now, Actions* out);
  void Mix(Iteration k, Actions* out);
  void BeginUpdates(Instant now, Actions* out);
  std::string CheckNeighbourhood(const Neighbourhood& hood) const;
  void OnNeighbourhood(Instant now, const Neighbourhood& hood, Actions* out);
  void OnEntered(Instant now, const QueryReply& reply, Actions* out);
  void AppliedUpdate(Instant now, Actions* out);

  // Shards of the parameters (session_core_store.cc).
  void ArriveStore(Instant now, Actions* out);
  void ProceedStore(Instant now, Actions* out);
  void OnPlacement(Instant now, const Placement& placement, Actions* out);
  void OnOpened(Instant now, const Opened& opened, Actions* out);
  void OnMayRead(Instant now, const QueryReply& reply, Actions* out);
  bool FinalReadDue(Instant now, Actions* out);
  void HasRead(Instant now, Actions* out);
  void JoinStore(Instant now, Actions* out);
  void GiveUpRead(Actions* out);

  // Local steps (session_core_local_steps.cc).
  void Query(Instant now, Actions* out);
  void QueryDue(Instant now, Actions* out);
  void NewRound();
  void OnQueryReply(Instant now, const QueryReply& reply, Actions* out);

  Options options_;
  Contact contact_ = Contact::kNone;
  Status over_;  // why, in kOver
  bool cancelled_ = false;
  Incarnation next_incarnation_ = 0;
  Incarnation incarnation_ = 0;
  LinkEnd<WorkerBody> link_;
  Welcome welcome_;
  RunId run_ = kNoRun;
  Iteration iteration_ = 0;

  // The controller's view of this incarnation.
  RunId home_run_ = kNoRun;   // the last one that gave a replica; before that, the first one
  bool other_run_ = false;    // this one is not home_run_
  bool has_replica_ = false;  // the common start, or a peer's model
  // A Ready that nothing has answered; with AveragesInBackground, whose group has not succeeded
  // yet.
  bool ready_waiting_ = false;
  bool said_finish_ = false;
  bool final_announced_ = false;  // the last group is the final average
  bool final_done_ = false;       // the final average is in the replica
  Ready ready_;                   // the last one, for signalling again
  Instant ready_at_;
  Instant idle_at_;  // the step in progress waits for a group since then
  GroupId last_group_ = kNoGroup;

  // What runs on the data plane, and what waits until the user is in a call.
  Work work_ = Work::kNone;
  Decides decides_ = Decides::kHere;
  Group group_;  // of kReduce and kApply
  Instant group_at_;
  std::uint64_t group_bytes_ = 0;
  std::optional<std::variant<Group, Adopt>> held_;

  // TrainsInRounds. Rounds are known by their iteration; iteration_ is that of the newest one that
  // `apply` has seen.
  Round round_;
  Iteration newest_ = 0;                // round whose result is here
  bool unapplied_ = false;              // the inbox is not empty, as far as is known here
  std::uint32_t owed_ = 0;              // gradients in the outbox
  Group last_round_;                    // the newest one whose result is here
  StepOutcome since_;                   // attempts, sent_bytes and reduced since the last step
  bool arrival_due_ = false;            // the step in progress has not deposited and signalled yet
  bool deposited_ = false;              // the step in progress has
  std::optional<Iteration> own_round_;  // that its gradient is in

  // CountsLocalSteps.
  std::uint32_t section_ = 0;  // steps since the last one that synchronised
  // DrawnAhead, background, scheduled.
  Ready arrived_;                  // the newest step's
  bool due_ = false;               // the step in progress has yet to signal, or to take its slot
  std::uint64_t outstanding_ = 0;  // steps since the signal that stands; slots taken and not over
  std::int64_t inbox_ = 0;         // averages in the inbox, as far as is known here
  std::int64_t asked_inbox_ = 0;   // the same, when ApplyNow asked to add it
  bool added_ = false;             // the call in progress has added it since the last answer
  std::optional<Schedule> schedule_;
  std::size_t self_ = 0;     // in its members
  std::uint64_t slots_ = 0;  // of it that were taken

  // NeighbourPlan. kReceive: Recv(iteration_) has not ended. kEnter: it has, and apply has run if
  // it is to; the controller's answer is not here, or, with a jump, Recv of the iteration before
  // next_ has not ended.
  enum class Phase : std::uint8_t { kReceive, kApply, kEnter };
  Phase phase_ = Phase::kReceive;
  std::optional<Iteration> next_;  // the one to enter

  // NeighbourPlan, StorePlan.
  UpdateQueues updates_;
  ShardStore store_;
  // StorePlan.
  struct Sharing {
    // What comes next: an update to be stored, its signal to be answered, shards to be read.
    enum class Next : std::uint8_t { kNone, kPush, kAnswer, kMayRead, kRead };
    Next next = Next::kNone;
    bool joins = false;                // the step in progress ends with the job's replica instead
    bool counts = false;               // its work is in the update
    std::uint32_t workers = 0;         // that train, as the newest answer says
    GroupId final_reading = kNoGroup;  // the group that shards were read for last
    GroupId final_read = kNoGroup;     // all of them
  };
  Sharing sharing_;

  // Payload::kChange.
  std::uint32_t local_steps_ = 0;  // since the round's start
  std::optional<Ready> asked_;     // the last Ready of this round
  bool told_ = false;              // delayed_ack: the next signal waits for the round's group

  Call call_ = Call::kNone;
  Instant call_at_;
  StepOutcome step_;
  bool discard_ = false;  // of the step in progress
  bool interrupt_ = false;

  Instant now_;       // of the input at work
  Instant heard_;     // from the controller, or since when it is missed
  Instant hello_at_;  // no Hello before this
  bool hello_due_ = false;
  Instant resend_at_;
  DurationNs resend_after_ = 0;
  Instant heartbeat_at_;
  Instant heartbeat_sent_;
  int heartbeats_out_ = 0;  // since the last answer
  DurationNs rtt_ns_ = 0;   // smoothed
  Instant leave_by_;
  std::string last_refusal_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_CORE_H_
