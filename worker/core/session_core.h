// The protocol of one worker with the controller, as a state machine: what the background thread of
// a session does, without the thread, the sockets and the clock. The library and the simulator
// drive this same class.
//
// Inputs: the controller's messages, the user's calls, the results of reductions and copies, time.
// Output: a list of actions in order. One user call is in progress at a time; every call ends with
// exactly one CallDone. Not thread safe.
//
// What the core guarantees to the controller: exactly one Finished per group announced, and one
// Adopted per Adopt; no Ready that waits while one is unanswered; one Finish once trained; nothing
// is done twice and nothing is lost (link.h), whatever the network does. A refusal that says "this
// incarnation is over" makes the core say Hello as a new incarnation, with the same rank, and go on
// with the replica as it is.
//
// The plan decides what a step does, waits for and ends with (step_protocol.h). The core has what
// all plans share: Hello and Welcome, the link, the calls, the common start, copies of replicas,
// the final average, and the two places where the data plane works for it:
//   the call's   a reduction or a copy that the call in progress waits for, which reads and writes
//                the parameters: it begins once the caller is inside Attach, Step or Finish
//   beside it    a round, or an average in the background, which begins at once, whatever the
//                training loop does
// The data plane has one reduction and one copy at a time: a worker is in one group at a time. A
// controller that announces a second group ends the session (kDataLoss), as does any group that
// cannot be.
#ifndef PRD_WORKER_CORE_SESSION_CORE_H_
#define PRD_WORKER_CORE_SESSION_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"

namespace prd {

class ControllerInbox;
class SessionFlow;
class StepShares;
struct SessionParts;
class TrainedReport;

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

  // Random bits come from outside: whenever wants_incarnation(), give a fresh non-zero one. Until
  // then no Hello is said.
  bool wants_incarnation() const;
  void GiveIncarnation(Incarnation incarnation);

  // ---- user calls ----
  // REQUIRES: no call is in progress (but Cancel, Applied).

  // Says Hello. Done once the replica is the job's.
  void Attach(Instant now, Options options, Actions* out);
  // Local work is done. Done once a group has reduced with this worker, or as the plan has it.
  // Where another run follows (EndRun), a step that has ended does what Finish does, and ends once
  // this worker has the common start of that run: `adopted`.
  // `ready.iteration` is as in engine.h for plans of parameters and of gradients. For other plans
  // the core sets it, and all that concerns gradients and local steps. Says no Ready while an
  // earlier one is unanswered. `discard`: the local work was cut short and does not count.
  // In a job with a batch, `ready.samples` 0 stands for the share() that was told. A step that has
  // not computed all of its share yet is done at once, and `partial`: the next Step goes on with
  // it. So is a step that waits, when the controller orders more for it.
  // `taken`: under AveragesInBackground, the averages that were added to the parameters just
  // before, with the local step; `ready.iteration` includes what they gained.
  void Step(Instant now, const Ready& ready, bool discard, std::int64_t taken, Actions* out);
  // `apply` has run, or the inbox was added, after ApplyNow: the replica is at this iteration, with
  // the results of this many rounds more (TrainsInRounds, AveragesInBackground). `digest`: of its
  // parameters, if ApplyNow asked for it.
  void Applied(Instant now, Iteration iteration, std::int64_t rounds, Actions* out,
               std::uint64_t digest = 0);
  void Finish(Instant now, Actions* out);
  // Does what Finish does before it says so, and tells the controller that this worker pauses. From
  // then on only Resume, Average and Leave may be called. The incarnation of a paused worker may
  // end; the next one says Hello once the worker resumes.
  void Pause(Instant now, Actions* out);
  // Done once the worker trains again. `adopted` of the outcome: the replica was replaced.
  void Resume(Instant now, Actions* out);
  // Asks which workers have a replica, and has all of them copied but this worker's own
  // (CopyForAverage). Done at once where replicas are equal, unless `with_state`: averaged state is
  // each worker's own under engines that reduce gradients.
  void Average(Instant now, bool with_state, Actions* out);
  // The mean of these numbers over all workers that give some. Meanwhile this worker pauses, as in
  // Pause. Then it resumes, as in Resume, if `resumes`. After kUnavailable it may be called again,
  // as the same call. kInvalidArgument: others have given another count.
  void Mean(Instant now, std::vector<double> values, bool resumes, Actions* out);
  // The replica has gradients now. The next Hello tells the controller.
  void HasGradientsNow();
  // What the next report is to tell the controller: losses, memory, steps that are not finite.
  TrainedReport& report();
  // Done when the controller has let go, or after a second. Also instead of Applied, when `apply`
  // failed: the call in progress is then over without a CallDone of its own.
  void Leave(Instant now, const prd::Leave& leave, Actions* out);
  // Leaves at the next boundary: once a step, Attach, Resume, Pause, or Finish as far as the final
  // average, is done; at once where no boundary is to come. Reduces first what it owes, as in
  // Pause. The call that this ends, or that comes after it, fails like one that the controller has
  // released (kAborted). After `grace`, if positive, it leaves whatever it does. A second LeaveSoon
  // does nothing.
  void LeaveSoon(Instant now, std::string reason, DurationNs grace, Actions* out);
  // The job is done. Tells the controller so, in each run that does not know it yet. May be called
  // any time after Attach has begun; the first call counts.
  void Stop(Instant now, std::string reason, Actions* out);
  // The call in progress, and every later one but Leave, ends with kCancelled. Also cancels a round
  // in the background.
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
  // Why connections to the controller fail. A call that waits to be admitted says so.
  void OnNoConnection(const std::string& why);
  void OnTime(Instant now, Actions* out);
  // Something takes long. Sends a heartbeat if one is due, and does nothing else: may be called
  // while actions are done.
  void KeepLease(Instant now, Actions* out);
  // When OnTime has something to do at the latest.
  std::optional<Instant> NextDeadline() const;

  // The device will commit the group's result, or not, and OnReduced will tell. Returns what the
  // step in progress will have done if it does; nullopt: the step does not end with that. For plans
  // whose result goes into the parameters without an `apply`.
  std::optional<StepOutcome> HandedOver(GroupId group);

  bool in_call() const;
  Incarnation incarnation() const;
  Iteration iteration() const;
  // Local steps and samples of this worker, over all incarnations; and the job's, as far as told.
  // Neither ever falls.
  const Trained& own() const;
  const JobProgress& progress() const;
  bool paused() const;
  // From the newest Welcome; rank kNoRank before the first.
  const Welcome& welcome() const;
  // What the worker computes of the job's batch.
  const StepShares& shares() const;
  // FollowsSchedule: groups up to this id are over, begun or not.
  GroupId called_off() const;

 private:
  std::unique_ptr<SessionParts> p_;
  std::unique_ptr<SessionFlow> flow_;
  std::unique_ptr<ControllerInbox> inbox_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SESSION_CORE_H_
