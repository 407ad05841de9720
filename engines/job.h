// A job around its engine: everything that does not depend on which engine decides.
//
// That is: ranks and incarnations, links, the common start, late workers, the life of groups (which
// members have reported, what an abort means), rounds that all or none must commit, and the final
// average. Pure like the engines: Step applies one input and appends records and messages; the same
// inputs give the same state. Not thread safe.
//
// The life of a worker:
//   Hello -> kJoining -(start barrier)-> kStarting: in the initial group -> kActive
//                    \-(job is running)-> kAdopting: copies a running peer's replica -> kActive
//   kActive -(Pause)-> kPaused -(Resume)-> kActive, or kJoining where it is to copy before
//   kActive -(Finish)-> kFinishing -(all live workers finish)-> kFinal: in the final group -> gone
//   any -(Leave, lease ran out, process ended, protocol broken)-> gone; the groups it was in are
//   aborted.
//
// A worker that pauses trains no more, for its engine, and stays: it keeps its replica, and the
// final average waits for it. Where all hold one model it comes back with the newest, elsewhere
// with its own (job_pause.cc).
//
// Where the parameters are in shards (HasStore), a worker that pauses or has finished holds its
// shards until it is gone.
//
// Some groups must be committed by all members or by none: the initial group, the final group, and
// groups that train under plans that are AllOrNone. If any member has the result of
// such a group, the group is committed: members for whom it failed copy (Adopt) the replica of one
// that has it. Of a kRound they copy the result alone, before the round ends.
//
// Workers tell what they have trained so far, each over its whole life. The job keeps a tally for
// each rank, which outlives the worker that held the rank, and the sum of what the tallies have
// grown. Every message says how far the job is. From when the job reaches its goal, every message
// and every group that trains says so (job_training.cc).
//
// Operators act on the run from outside: they evict a worker, drain a host, end the job, or pause
// it (job_operator.cc). A worker that is evicted or drained is told why, and not admitted again.
// Or they switch the engine: the run ends as if its training were over, up to the final average,
// and the job goes on in another run with that model (job_switch.cc).
//
// Two workers that are there may not reach each other. A member that names another one as
// unreachable breaks their link, and probes the other until it answers; then the link works again.
// A group of which two members do not reach each other runs in a ring in which those are not
// adjacent. Where there is no such ring, the group is held back until the link works, or until
// other members can be had (job_links.cc).
#ifndef PRD_ENGINES_JOB_H_
#define PRD_ENGINES_JOB_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/admissions.h"
#include "engines/divergence_check.h"
#include "engines/engine.h"
#include "engines/link_table.h"
#include "engines/number_rounds.h"
#include "engines/operator_orders.h"
#include "engines/run_spec.h"
#include "engines/run_switch.h"
#include "engines/training_clock.h"
#include "prd/status.h"

namespace prd {

// Records and messages of one input, in order. Records have run, index and now filled in.
struct JobOutput {
  struct Outgoing {
    Rank rank = kNoRank;
    ControllerEnvelope envelope;
  };
  std::vector<Record> records;
  std::vector<Outgoing> sends;
};

class Job {
 public:
  enum class State : std::uint8_t {
    kAbsent,
    kJoining,
    kStarting,
    kAdopting,
    kActive,
    kPaused,
    kFinishing,
    kFinal,
  };
  // Why a worker trains no more.
  enum class Stop : std::uint8_t { kNone, kFinish, kPause };

  // One worker as prdctl shows it.
  struct Worker {
    State state = State::kAbsent;
    Incarnation incarnation = 0;
    std::string host;
    std::string host_name;
    std::uint32_t pid = 0;
    std::vector<std::string> endpoints;
    MeshKey mesh_key;
    HasGradients gradients = HasGradients::kHere;
    std::string identity;
    std::uint32_t version = kProtocolVersion;  // of the protocol
    bool returns_at_once = false;              // as its Hello says
    LinkToken token;
    bool continues = false;  // its replica was trained in the run that this one continues
    bool returns = false;    // its replica has been trained: before it joined, or by its source
    Trained job_trained;     // by all workers of the job before, as its Hello says
    Iteration brought = 0;   // the iteration of the replica that it came with
    Iteration iteration = 0;
    GroupId group = kNoGroup;       // runs, and the worker has not reported on it
    GroupId last_group = kNoGroup;  // the last group that the worker reported on, and its outcome
    bool last_ok = false;
    std::optional<Ready> signal;  // not answered; the engine has it, or it is held back (below)
    Iteration signalled = 0;      // of the newest signal
    std::uint32_t owed = 0;       // TrainsInRounds: the worker's gradients in no round yet
    // The signal is held back: the worker failed in an all-or-none group that still runs, or copies
    // a replica.
    bool signal_held = false;
    // The same: its replica is compared with others (OnDivergence::kRepair).
    bool compared = false;
    bool signal_withheld = false;  // the signal is held back while another worker copies (kPause)
    // The worker said Finish or Pause before all others had the common start, or before an order to
    // copy a replica reached it: it counts after that.
    Stop stop_held = Stop::kNone;
    bool resumes = false;  // said Resume, and has no answer
    // The replica that the worker copied was outdated on arrival: its work on it is dropped.
    bool outdated = false;
    GroupId first_group = kNoGroup;  // it can be in no group before this one
    Rank source = kNoRank;     // the worker copies this rank's replica, or its result of `group`
    bool source_gone = false;  // the replica of a worker that has gone since
    int fetches = 0;           // failed attempts to copy that result
    Rank failed_source = kNoRank;         // the worker could not copy this rank's replica
    std::optional<Instant> copies_after;  // it is told to copy one from then on (job_copies.cc)
    // The worker has no replica of the job yet. In a job of rounds such a worker may be kActive. It
    // is stranded if no worker has a replica that it could copy.
    bool no_replica = true;
    std::int64_t stopped_at = 0;  // the job's steps in this run when the worker stopped training
    Instant since;                // of the worker's last input
    // A worker that is out, and had sent what the worker still reads: the parts of this group, or
    // the replica of this rank. The worker is told once that is over (job_gone.cc).
    std::vector<Incarnation> untold;
    GroupId reads_group = kNoGroup;
    Rank reads_from = kNoRank;
    LinkEnd<ControllerBody> link;
    void Archive(StateArchive& ar);
  };

  using Tally = prd::Tally;
  using Divergence = prd::Divergence;
  using Hold = prd::Hold;
  using Switch = prd::Switch;
  using Refusal = prd::Refusal;

  // A group whose members have not all reported.
  struct Running {
    GroupKind kind = GroupKind::kTrain;
    std::vector<GroupShare> members;
    std::vector<Rank> pending;  // not reported yet, or being repaired
    std::vector<Rank> ok;       // have the result; last_ok is false where it was fetched
    std::vector<Rank> failed;   // without it
    Iteration iteration = 0;    // where members continue
    bool compares = false;      // members tell digests of their replicas
    bool last = false;          // its members train no further
    std::vector<Digest> digests;
    bool aborted = false;
    std::string failure;  // the first thing that went wrong
    Instant since;
    void Archive(StateArchive& ar);
  };

  Job(RunId run, JobSpec spec);

  // Appends the RunStarted record. Call once for a new run, before any Step; not for a restored
  // one.
  void Start(Instant now, std::int64_t wall_ns, RunIdentity identity, const FormerRun& former,
             JobOutput* out);

  // Whether to step a worker's message, given the present state. Changes nothing.
  struct Admission {
    // kForeign: from somebody who has not the token of the incarnation that the message names.
    // It is not answered: the answer would go to that incarnation.
    enum class Verdict { kStep, kDuplicate, kGap, kRefuse, kForeign } verdict;
    Rank rank = kNoRank;  // of the sender; kNoRank for a Hello to be stepped
    std::optional<Refused> refusal = std::nullopt;  // for kRefuse
  };
  Admission Admit(const WorkerEnvelope& envelope) const;
  // The message names an incarnation that is here, and its sender has not that one's token: it is
  // kForeign here, and whatever else it names.
  bool Foreign(const WorkerEnvelope& envelope) const;

  // Applies one input. REQUIRES: a FromWorker was admitted with kStep; a LeaseExpired or a
  // ProcessEnded names a worker that is there; DeadlineReached only when now >= NextDeadline();
  // CheckAct is ok for an OperatorActed; now does not decrease.
  void Step(Instant now, const Input& input, JobOutput* out);

  // Whether an operator can do this now; else why not.
  Status CheckAct(const OperatorActed& act) const;

  std::optional<Instant> NextDeadline() const;

  // Why this worker waits, or what it did last.
  std::string Explain(Instant now, Rank rank) const;

  RunId run() const { return run_; }
  const RunIdentity& identity() const { return identity_; }
  const JobSpec& spec() const { return spec_; }
  int start_workers() const { return start_workers_; }
  bool ended() const { return ended_; }  // the last worker has gone; the run takes nothing more
  // It has ended, and its workers ended it themselves (RunEnded).
  bool finished() const { return finished_; }
  // The engine, or other settings, are about to be switched.
  const std::optional<Switch>& switching() const { return switch_.switching(); }
  // It has ended, and the job goes on in the run switching()->next, which takes this over. Null:
  // it does not.
  const FormerRun* next() const { return switch_.next().known() ? &switch_.next() : nullptr; }
  // Unix time at this time of the controller's clock, as it was when the run began.
  std::int64_t WallAt(Instant now) const { return wall_ns_ + (now - started_at_); }
  std::uint64_t next_index() const { return next_index_; }  // of the next record
  Instant last_now() const { return now_; }                 // of the last input
  // By rank; absent ones have state kAbsent.
  const std::vector<Worker>& workers() const { return workers_; }
  int live() const { return live_; }
  // kNoRank: it is not there.
  Rank RankOf(Incarnation incarnation) const {
    const auto found = by_incarnation_.find(incarnation);
    return found == by_incarnation_.end() ? kNoRank : found->second;
  }
  // By rank, as long as workers().
  const std::vector<Tally>& tallies() const { return clock_.tallies(); }
  // How far the job is, as its workers are told.
  JobProgress progress() const;
  // Of all ranks.
  std::uint64_t nonfinite() const { return clock_.nonfinite(); }
  const Divergence& divergence() const { return divergence_.divergence(); }
  const std::optional<Hold>& paused() const { return orders_.paused(); }
  const NumberRounds& numbers() const { return numbers_; }
  // The worker that has stopped the job, and why: "stopped by rank 0: REASON"; empty: nobody.
  const std::string& stopped_by() const { return clock_.stopped_by(); }
  // The operator that has paused it, since when and why; empty: nobody.
  std::string PauseWords(Instant now) const { return orders_.PauseWords(now); }
  // Workers that leave once they are in no group any more, and why.
  const std::map<Rank, std::string>& draining() const { return orders_.draining(); }
  // The newest ones, the newest last.
  const std::vector<Dismissal>& dismissed() const { return orders_.dismissed(); }
  const std::map<GroupId, Running>& groups() const { return groups_; }
  const Engine& engine() const { return *engine_; }
  // The links between present workers that are broken, by lower and higher rank.
  const std::map<std::pair<Rank, Rank>, BrokenLink>& broken_links() const { return links_.all(); }

  // The link of a worker that is there, for retransmission.
  const LinkEnd<ControllerBody>& link(Rank rank) const { return workers_[Index(rank)].link; }
  // An acknowledgement that came with a heartbeat or a duplicate. Not an input: it only shortens
  // what is sent again, and a replay decides the same without it.
  bool OnAck(Rank rank, Seq ack) { return workers_[Index(rank)].link.OnAck(ack); }

  // The newest workers that were not admitted, the newest last. Whoever has joined since is left
  // out.
  const std::vector<Refusal>& refusals() const { return admissions_.refusals(); }

  // Why the job has not begun for this worker, or for whom the worker has waited for some seconds.
  // Empty: it does not wait.
  std::string WaitsFor(Instant now, Rank rank) const;
  // The start that workers wait for, in words; empty: nobody waits for one.
  std::string StartWaits(Instant now) const;

  void Archive(StateArchive& ar);
  // Loads what SaveState(*this) gave, for the same spec. An error leaves the job unusable.
  Status Load(std::string_view state);
  // Equal for equal states, whatever has been acknowledged.
  std::uint64_t StateHash() const;

 private:
  static constexpr std::size_t kStates = 8;
  static std::size_t Index(Rank rank) { return static_cast<std::size_t>(rank); }
  Worker& At(Rank rank) { return workers_[Index(rank)]; }
  bool Present(Rank rank) const;
  // Reductions that all members or none must commit.
  bool AllOrNone(GroupKind kind) const;
  // The engine forms such groups, and gets their events.
  static bool OfEngine(GroupKind kind) {
    return kind != GroupKind::kInitial && kind != GroupKind::kFinal;
  }
  // The group's success answers this member's signal.
  bool AnsweredByEnd(const Running& group, Rank rank) const;
  int Count(State state) const { return counts_[static_cast<std::size_t>(state)]; }
  void SetState(Rank rank, State state);

  Record& Write(RecordBody body);
  void Send(Rank rank, ControllerBody body);

  std::optional<Refused> CheckHello(const WorkerEnvelope& envelope, const Hello& hello) const;
  bool Waits(const Worker& worker) const;
  void OnHello(const WorkerEnvelope& envelope);
  Trained CountHello(Rank rank, const Hello& hello);
  std::string CountReport(Rank rank, const Trained& own, std::uint32_t nonfinite);
  void LookForGoal();
  // The mean of numbers (job_numbers.cc).
  std::string OnGiveNumbers(Rank rank, const GiveNumbers& numbers);
  bool GivesNumbers(Rank rank) const;
  void EndNumberRound();
  std::string NumbersWords(Instant now, Rank rank) const;
  void TakeStart(const GroupFormed& start);
  void FinalWeights(GroupFormed* form) const;
  std::vector<Rank> Compare(GroupId id, const Running& group);
  void EndComparison(const Running& group, const std::vector<Rank>& have);
  // Each returns what is wrong with the message, or empty.
  std::string OnReady(Rank rank, const Ready& ready);
  std::string OnFinished(Rank rank, const Finished& finished);
  std::string OnAdopted(Rank rank, const Adopted& adopted);
  std::string OnPlaced(Rank rank, const Placed& placed);
  std::string OnProbed(Rank rank, const Probed& probed);
  std::string OnStop(Rank rank, Stop stop);
  std::string OnResume(Rank rank);
  std::string OnAskMembers(Rank rank);
  std::string OnLeave(Rank rank, const Leave& leave);

  // Switches (job_switch.cc).
  Status CheckSwitch(const OperatorActed& act) const;
  void OnSwitch(const OperatorActed& act);
  bool AtBoundary() const;
  void EndForNext();
  void TakeOver(const FormerRun& former);
  bool Awaits() const;
  bool HasFormerModel(Rank rank) const;
  void SendAway(LeftReason why, const std::string& reason);

  // Operators (job_operator.cc).
  void OnAct(const OperatorActed& act);
  bool OnHost(Rank rank, const std::string& host) const;
  bool StopsInGroups(Rank rank) const;
  bool MayGo(Rank rank) const;
  void LetDrainingGo();
  void Dismiss(Rank rank, LeftReason why, const std::string& reason);
  std::string LeavesWords(Rank rank) const;

  void Remove(Rank rank, LeftReason why, const std::string& reason);
  void ToEngine(const Event& event);
  void Carry(Effect effect);
  GroupMember Describe(Rank rank) const;
  void Announce(GroupFormed form);
  void Announce(QueryAnswered answer);
  void Announce(UpdateDropped late);
  void Announce(ScheduleSet set);
  void Announce(NeighboursSet set);
  void Announce(PlacementSet set);
  void Announce(PlacementOpened opened);
  void FailGroup(GroupId id, const std::string& why);
  void EndIfDone(GroupId id);
  void Settle(const Running& group, const std::vector<Rank>& ok, const std::vector<Rank>& failed);
  void Activate(Rank rank, Iteration iteration, const std::string& reason);
  void HandSignal(Rank rank);
  void SetWithheld(Rank rank, bool withheld);
  void HandWithheld();
  std::string OnResult(Rank rank, const Adopted& adopted);
  bool Repair(GroupId id);
  void LeaveBehind(Rank rank, const std::string& why);
  void LeaveOlderBehind();
  void OrderResult(Rank rank, Rank source, GroupId group);
  void CatchUpOrRejoin(Rank rank);
  void Rejoin();
  Iteration Newest() const;
  Iteration NewestThatStands() const;
  Rank SourceFor(Rank rank, Rank avoid) const;
  void OrderAdopt(Rank rank, Rank source, const std::string& reason);
  void Introduce(Rank asks, Rank asked, bool copies);
  // Tells the others that a worker is out (job_gone.cc).
  void NoteGone(Rank rank, const Worker& gone, LeftReason why);
  void TellGone();
  // Copies that failed (job_copies.cc).
  void SourceGone(Rank rank);
  bool Forked(Rank rank, Iteration iteration) const;
  void CopyFailed(Rank rank, Rank source);
  bool CopyPauses(Rank rank) const;
  void RetryCopies();
  std::string JoinReason(Rank rank) const;
  void CopyLater(Rank rank);
  std::string CopyWords(Instant now, Rank rank) const;
  void AdmitJoiners();
  void AdmitResuming();
  bool Stranded(Rank rank) const;
  void HelpStranded();
  // Links and held groups (job_links.cc).
  std::string OnLinkReport(Rank rank, const Finished& finished);
  std::string NoteUnreachable(Rank rank, const Finished& finished);
  void BreakLinks(Rank asks, const std::vector<Rank>& others, const std::string& where);
  void MendLink(Rank one, Rank other, const std::string& reason);
  void ForgetLinks(Rank rank);
  void TellLinks(Rank rank);
  void LinkToEngine(Rank a, Rank b, bool works);
  void SendProbe(Rank rank);
  bool CanMeet(State from) const;
  bool CanHold(GroupKind kind) const;
  bool CanBegin(const GroupFormed& form) const;
  bool OthersWouldHelp(const GroupFormed& form) const;
  void LookAtHeld();
  void DropHeld(const GroupFormed& form);
  bool NothingRuns() const { return groups_.empty() && held_.empty(); }
  std::string ExplainLinks(Instant now, Rank rank) const;
  std::string ExplainHeld(Instant now, Rank rank) const;
  std::string ExplainWorker(Instant now, Rank rank) const;
  void Progress();
  void EndLost(const HistoryLost& lost);
  void End();
  int NeededForStart();
  void StartWeights(GroupFormed* form) const;
  void Collective(GroupKind kind, State from, State to);

  const RunId run_;
  const JobSpec spec_;
  std::unique_ptr<Engine> engine_;
  const Plan plan_;
  const Engine::Joining joining_;

  RunIdentity identity_;
  std::int64_t wall_ns_ = 0;  // when the run began, and what time it was then
  Instant started_at_;
  std::uint64_t next_index_ = 0;
  Instant now_;
  int start_workers_ = 0;                // 0 until known
  bool started_ = false;                 // the common start has been made
  bool begun_ = false;                   // it has been made before, in this run
  std::optional<Instant> grace_ends_;    // a start of returning workers goes on then
  std::optional<Instant> copies_again_;  // the first pause after a failed copy ends then
  bool ended_ = false;
  bool finished_ = false;
  Admissions admissions_;
  int live_ = 0;  // workers not kAbsent
  std::array<int, kStates> counts_{};
  int stranded_ = 0;               // workers for which Stranded is true (derived)
  int withheld_ = 0;               // workers for which withheld is true (derived)
  int resuming_ = 0;               // workers that resume (derived)
  int untold_ = 0;                 // workers with any `untold` (derived)
  std::vector<Incarnation> gone_;  // in this Step; empty between two Steps
  std::vector<Rank> behind_;       // workers that are to join anew with their own replicas
  GroupId next_group_ = 1;
  std::vector<Worker> workers_;
  TrainingClock clock_;
  DivergenceCheck divergence_;
  OperatorOrders orders_;
  NumberRounds numbers_;
  RunSwitch switch_;
  std::map<GroupId, Running> groups_;
  // Formed by the engine and held back: no worker and no record knows of them yet.
  std::vector<GroupFormed> held_;
  LinkTable links_;
  bool look_at_held_ = false;  // a link or a worker has changed; false between two Steps
  std::map<Incarnation, Rank> by_incarnation_;  // of those present, for a repeated Hello

  JobOutput* out_ = nullptr;  // during Step
  Effects effects_;           // of one engine step; kept for its memory
};

}  // namespace prd

#endif  // PRD_ENGINES_JOB_H_
