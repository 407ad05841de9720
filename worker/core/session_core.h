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
// What a step does, waits for and ends with is the plan's affair, and in a class of its own
// (stepping.h). The core has what all plans share: Hello and Welcome, the link, the calls, the
// common start, copies of replicas, the final average, and the two places where the data plane
// works for it:
//   the call's   a reduction or a copy that the call in progress waits for, which reads and writes
//                the parameters: it begins once the caller is inside Attach, Step or Finish
//   beside it    a round, or an average in the background, which begins at once, whatever the
//                training loop does
// The data plane has one reduction and one copy at a time: a worker is in one group at a time, and
// a controller that announces a second one ends the session (kDataLoss), as it does with any group
// that cannot be.
#ifndef PRD_WORKER_CORE_SESSION_CORE_H_
#define PRD_WORKER_CORE_SESSION_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/stepping.h"

namespace prd {

class SessionCore {
 public:
  SessionCore();
  ~SessionCore();
  SessionCore(SessionCore&&) noexcept;
  SessionCore& operator=(SessionCore&&) noexcept;

  struct Options {
    // Later incarnations replace rank, iteration, own and job_trained.
    Hello hello;
    LinkToken token;               // of all its incarnations
    DurationNs timeout = 0;        // 0 = for ever
    DurationNs start_timeout = 0;  // for the job's start; 0 = as `timeout`
    std::string controller;        // where it is, for lines about waiting
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
  // Local work is done; done once a group has reduced with this worker, or as the plan has it.
  // Where another run is to follow (EndRun), a step that has ended does what Finish does, and ends
  // once this worker has the common start of that run: `adopted`.
  // `ready.iteration` as in engine.h for plans of parameters and of gradients; for the others it,
  // and all that concerns gradients and local steps, is set here. Not signalled when an earlier
  // signal is still unanswered. `discard`: the local work was cut short and does not count.
  // `taken`: AveragesInBackground: averages that were added to the parameters just before, with the
  // local step; `ready.iteration` has what they gained.
  void Step(Instant now, const Ready& ready, bool discard, std::int64_t taken, Actions* out);
  // `apply` has run, or the inbox was added, after ApplyNow: the replica is at this iteration, with
  // the results of this many rounds more (TrainsInRounds, AveragesInBackground). `digest`: of its
  // parameters, if ApplyNow asked for it.
  void Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
               std::uint64_t digest = 0);
  void Finish(Instant now, Actions* out);
  // Does what Finish does before it says so, and tells the controller that this worker pauses. From
  // then on only Resume, Average and Leave may be called. The incarnation of a worker that pauses
  // may end; the next one says Hello once the worker resumes.
  void Pause(Instant now, Actions* out);
  // Done once the worker trains again. `adopted` of the outcome: the replica was replaced.
  void Resume(Instant now, Actions* out);
  // Asks who has a replica, and has all of them copied but this worker's own (CopyForAverage).
  // Where replicas are equal, done at once; but with averaged state, which is each worker's own
  // under engines that reduce gradients.
  void Average(Instant now, bool with_state, Actions* out);
  // The mean of these numbers over all workers that give some. Meanwhile this worker pauses, as in
  // Pause; then it resumes, as in Resume, unless not `resumes`. After kUnavailable it may be called
  // again, as the same call. kInvalidArgument: others have given another count.
  void Mean(Instant now, std::vector<double> values, bool resumes, Actions* out);
  // The replica has gradients now. The controller hears of it with the next Hello.
  void HasGradientsNow() { options_.hello.gradients = HasGradients::kHere; }
  // The step about to come, or the one before, is not all finite. Told with the next report.
  void NoteNonfinite() { ++nonfinite_; }
  // The training loop has told losses. The same.
  void NoteLosses(const Losses& losses) { losses_.Add(losses); }
  // Done when the controller has let go, or after a second. Also instead of Applied, when `apply`
  // failed: the call in progress is then over without a CallDone of its own.
  void Leave(Instant now, const std::string& reason, Actions* out);
  // Leaves at the next boundary: once a step, Attach, Resume, Pause, or Finish as far as the final
  // average, is done; at once where none is to come. What is owed is reduced first, as in Pause.
  // The call that this ends, or that comes after it, fails as one that the controller has released
  // (kAborted). After `grace`, if positive, it leaves whatever it does. Again: does nothing.
  void LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out);
  // The job is done: told to the controller, in each run that does not know it yet. Any time after
  // Attach has begun; the first call counts.
  void Stop(Instant now, std::string reason, Actions* out);
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
  // `unreachable`: members that did not answer, or to which the connection broke. `digest`: of the
  // parameters, if Group::digest asks for it and the result is in them.
  void OnReduced(Instant now, GroupId group, const Status& status, std::uint64_t sent_bytes,
                 Actions* out, std::vector<Rank> unreachable = {}, std::uint64_t digest = 0);
  // `in_inbox`: how many of the replica's iterations are rounds in its inbox (TrainsInRounds).
  void OnFetched(Instant now, const Status& status, Iteration iteration, Actions* out,
                 Iteration in_inbox = 0);
  void OnCopiedForAverage(Instant now, const Status& status, Actions* out);
  // exchange.h: a note of a peer, its pull, and what became of a pull of this worker's.
  void OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  void OnRequest(Instant now, Incarnation from, Request request, const PeerItem& parcel,
                 Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out);
  // A peer that this worker exchanges with does not answer (HasNeighbours, HasStore).
  void OnOutOfReach(Instant now, Rank rank, Actions* out);
  // A target of the newest ProbePeers answered.
  void OnProbed(Instant now, Rank rank, Incarnation incarnation, Actions* out);
  // Why connections to the controller are not made, for who waits for an admission.
  void OnNoConnection(const std::string& why) {
    if (contact_ == Contact::kHello) last_refusal_ = why;
  }
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
  // Local steps and samples of this worker, over all incarnations; and the job's, as far as told,
  // which never fall.
  const Trained& own() const { return own_; }
  const JobProgress& progress() const { return progress_; }
  bool paused() const { return paused_; }
  // From the newest Welcome; rank kNoRank before the first.
  const Welcome& welcome() const { return welcome_; }
  // FollowsSchedule: groups up to this id are over, begun or not.
  GroupId called_off() const { return stepping_->called_off(); }

  // ---- for the ways of stepping alone ----

  enum class Call : std::uint8_t {
    kNone,
    kAttach,
    kStep,
    kFinish,
    kLeave,
    kPause,
    kResume,
    kAverage,
    kMean,
    kSwitch,  // what a kStep becomes that has ended, where the run is to end (EndRun)
  };
  enum class Work : std::uint8_t { kNone, kReduce, kApply, kFetch };
  // The group beside the call in progress: the newest kRound announced here, or the kTrain that
  // runs in the background. kFailed: its result is not here, but others may have it.
  struct Beside {
    enum class State : std::uint8_t { kNone, kReduce, kFailed, kFetch };
    State state = State::kNone;
    Group group;
    bool contributed = false;  // the outbox is part of it
    Instant at;
  };

 private:
  friend class Stepping;
  friend class GroupStepping;
  friend class OverlapStepping;
  friend class RoundStepping;
  friend class NeighbourStepping;
  friend class StoreStepping;

  enum class Contact : std::uint8_t { kNone, kHello, kMember, kOver };
  // The side that decides what becomes of a kReduce: the data plane and this core, or since
  // HandedOver the device alone; kGivenUp: of one that the controller has called off.
  enum class Decides : std::uint8_t { kHere, kDevice, kGivenUp };

  Stepping& stepping();

  void SayHello(Actions* out);
  void Push(WorkerBody body, Actions* out);
  WorkerEnvelope Envelope(Seq seq, WorkerBody body) const;
  void SendHeartbeat(Actions* out);
  void Resend(Actions* out);
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
  void ContinueMean(Actions* out);
  void OnNumbersMean(const NumbersMean& mean);
  // The call in progress is Mean, before this worker pauses for it.
  bool MeanPauses() const {
    return call_ == Call::kMean && !paused_ && !(mean_.answered && mean_.resumes);
  }
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
  void Apply(ApplyNow::What what, Iteration iteration, Actions* out);
  void ReportOutOfReach(const std::vector<Rank>& ranks, Actions* out);
  void Report(Outcome outcome, const std::string& detail, Actions* out);
  void GiveUpWork(const std::string& why, Actions* out);
  void DropWork(Actions* out);
  void FailHeld(const std::string& why, Actions* out);
  void ExpectReplica(Actions* out);
  void BeginBeside(Group group, Iteration gain, bool contributes, Actions* out);
  void EndBeside(Outcome outcome, const std::string& detail, Actions* out);
  bool AbortBeside(const Abort& abort, Actions* out);
  void CancelBeside(const std::string& why, Actions* out);
  void RefuseResult(const std::string& why, Actions* out);
  void HasReplica(bool copied, Actions* out);
  Reduced WhatReduces(GroupKind kind) const;

  // Messages.
  void Receive(const ControllerEnvelope& envelope, Actions* out);
  void OnWelcome(const Welcome& welcome, Actions* out);
  bool OfThisRun(const RunIdentity& identity, Actions* out);
  void OnHeartbeatAck(const HeartbeatAck& ack);
  void HearProgress(const JobProgress& progress);
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

  const Plan& plan() const { return welcome_.plan; }
  bool is_member() const { return contact_ == Contact::kMember; }
  bool trains() const { return is_member() && has_replica_; }
  // A group runs for the call in progress, or waits for the caller to be in one.
  bool HasGroup() const {
    return work_ == Work::kReduce || (held_ && std::holds_alternative<Group>(*held_));
  }
  bool BesideRuns() const {
    return beside_.state == Beside::State::kReduce || beside_.state == Beside::State::kFetch;
  }
  bool Passive(const Group& group) const;
  // The caller is in a call in which parameters may be written.
  bool Lends() const {
    return call_ != Call::kNone && call_ != Call::kLeave && call_ != Call::kAverage;
  }
  // The call in progress ends training, for now or for good, once nothing is left to do.
  bool Ends() const { return Finishes() || call_ == Call::kPause || MeanPauses(); }
  bool SaidEnd() const { return said_finish_ || said_leave_; }
  Status Left() const { return {Code::kAborted, "left: " + soon_->reason}; }
  // The same, in this run: it says Finish, and takes the final average.
  bool Finishes() const { return call_ == Call::kFinish || (call_ == Call::kSwitch && ends_run_); }
  // In the next run: the call in progress ends once the replica is that run's.
  bool Switched() const { return call_ == Call::kSwitch && !ends_run_; }

  // What the call in progress waits for, in words, and when the next line says so.
  std::string WaitsFor() const;
  Instant FirstLine() const;
  std::optional<Instant> LineAt() const;
  void SayLine(Actions* out);

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
  Iteration in_inbox_ = 0;  // of these, rounds that came with a copied replica and are not applied
  Trained own_;             // over all incarnations
  JobProgress progress_;    // the job's, as far as told
  std::unique_ptr<Stepping> stepping_;  // of the newest Welcome's plan

  // What the controller has been told of own_ in this incarnation, and when; and since then, steps
  // that were not all finite, and losses.
  Trained told_;
  Instant told_at_;
  std::uint32_t nonfinite_ = 0;
  Losses losses_;

  // The controller's view of this incarnation.
  RunIdentity identity_;              // the newest of this incarnation's run
  std::vector<std::uint64_t> lives_;  // of the controller before that, with this incarnation
  RunIdentity former_;                // the run in which the replica was trained
  std::string waits_for_;             // why the job has not begun here, in the controller's words
  bool has_replica_ = false;          // the common start, or a peer's model
  // A Ready that nothing has answered; with AveragesInBackground, whose group has not succeeded
  // yet.
  bool ready_waiting_ = false;
  bool said_finish_ = false;
  bool said_leave_ = false;       // of LeaveSoon; not answered
  bool final_announced_ = false;  // the last group is the final average
  bool final_done_ = false;       // the final average is in the replica, and no run follows
  bool ends_run_ = false;         // another run follows this one (EndRun)
  bool paused_ = false;           // said Pause; until Resumed, or until it says Hello anew
  bool said_resume_ = false;      // not answered
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
  std::uint64_t digest_ = 0;
  // Of the last group that failed on the data plane.
  GroupId failed_group_ = kNoGroup;
  std::vector<Rank> unreachable_;
  bool probes_ = false;                   // the newest ProbePeers had targets
  std::map<Rank, Instant> out_of_reach_;  // reported without a group, and when last
  std::optional<std::variant<Group, Adopt>> held_;

  Beside beside_;
  StepOutcome carried_over_;  // attempts, sent_bytes and reduced beside calls since the last step

  // LeaveSoon.
  struct Soon {
    std::string reason;
    std::optional<Instant> by;  // the grace ends
  };
  std::optional<Soon> soon_;
  std::optional<std::string> stop_;  // Stop's reason
  // The newest Mean.
  struct MeanCall {
    std::uint64_t call = 0;  // 0: none is open
    std::vector<double> values;
    bool resumes = true;
    bool given = false;  // in this incarnation
    bool answered = false;
    std::string wrong;
  };
  MeanCall mean_;
  std::uint64_t next_mean_ = 0;
  std::vector<double> numbers_;  // what came of the Mean that ends now

  Call call_ = Call::kNone;
  Instant call_at_;
  StepOutcome step_;
  StepOutcome ended_step_;  // kSwitch: what the step did, and when it had
  Instant ended_at_;
  bool handed_over_ = false;  // of the step in progress, an outcome (HandedOver)
  bool discard_ = false;      // of the step in progress
  bool interrupt_ = false;
  bool copies_ = false;                    // for kAverage; from average_from_.back()
  std::vector<GroupMember> average_from_;  // who are to be copied yet
  Rank source_ = kNoRank;                  // of kFetch
  Instant line_at_;                        // the next line about waiting
  std::map<Call, Instant> said_line_;      // the first line of the newest such call that had one

  Instant now_;       // of the input at work
  Instant heard_;     // from the controller, or since when it is missed
  Instant answered_;  // the newest word of the controller, whatever it was
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
