// A run around its engine: everything that does not depend on which engine decides.
//
// Pure like the engines: Step applies one input and appends records and messages; the same inputs
// give the same state. Not thread safe.
//
// The life of a worker:
//   Hello -> kJoining -(start barrier)-> kStarting: in the initial group -> kActive
//                    \-(job is running)-> kAdopting: copies a running peer's replica -> kActive
//   kActive -(Pause)-> kPaused -(Resume)-> kActive, or kJoining while it must copy first
//   kActive -(Finish)-> kFinishing -(all live workers finish)-> kFinal: in the final group -> gone
//   any -(Leave, lease ran out, process ended, protocol broken)-> gone; the groups it was in fail.
//
// Where the parameters are in shards (HasStore), a worker that pauses or has finished holds its
// shards until it is gone.
//
// The run is made of parts, each of which owns its data (run_state.h wires them). Parts with state:
//   roster            ranks, incarnations, states, links to workers
//   admissions        what a Hello must agree with; workers that were refused
//   start_barrier     the common start
//   ready_queue       signals that are not answered, and why some are held back
//   group_table       groups, from announcement to end
//   held_groups       groups that wait for a link
//   link_table        links between workers that are broken
//   replica_copies    which worker copies whose replica
//   training_clock    how far the job is, and whether it is done
//   divergence_check  replicas that should be equal, and are not
//   operator_orders   a pause, drains, dismissals
//   run_switch        the run before, and the run after
//   number_calls      the mean of numbers that workers give
//   gone_notices      which workers have heard that others are gone
// Parts that act on those: announcer, joiners, training_stops, drains, link_reports. Functions on
// the whole: explain, admit, final_average, run_snapshot.
#ifndef PRD_ENGINES_RUN_H_
#define PRD_ENGINES_RUN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engines/admit.h"
#include "engines/announcer.h"
#include "engines/drains.h"
#include "engines/explain.h"
#include "engines/joiners.h"
#include "engines/link_reports.h"
#include "engines/run_state.h"
#include "engines/training_stops.h"
#include "prd/status.h"

namespace prd {

class Run final : private RunActions, public RunState {
 public:
  using State = WorkerState;
  using Worker = RunWorker;

  Run(RunId run, JobSpec spec);

  // Appends the RunStarted record. Call once for a new run, before any Step; not for a restored
  // one.
  void Start(Instant now, std::int64_t wall_ns, RunIdentity identity, const FormerRun& former,
             RunOutput* out);

  // Whether to step a worker's message, given the present state.
  Admission Admit(const WorkerEnvelope& envelope) const { return prd::Admit(*this, envelope); }
  // Whether an operator can do this now; else why not.
  Status CheckAct(const OperatorActed& act) const { return prd::CheckAct(*this, act); }

  // Applies one input. REQUIRES: a FromWorker was admitted with kStep; a LeaseExpired or a
  // ProcessEnded names a worker that is there; DeadlineReached only when now >= NextDeadline();
  // CheckAct is ok for an OperatorActed; now does not decrease.
  void Step(Instant now, const Input& input, RunOutput* out);
  std::optional<Instant> NextDeadline() const;
  // An acknowledgement that came with a heartbeat or a duplicate. Not an input: it only shortens
  // what is sent again, and a replay decides the same without it.
  bool OnAck(Rank rank, Seq ack) { return roster_.Acknowledge(rank, ack); }

  // See explain.h.
  std::string Explain(Instant now, Rank rank) const override {
    return prd::Explain(*this, now, rank);
  }
  std::string WaitsFor(Instant now, Rank rank) const { return prd::WaitsFor(*this, now, rank); }

  void Archive(StateArchive& ar) { RunState::Archive(ar); }
  // Loads what SaveState(*this) gave, for the same spec. An error leaves the run unusable.
  Status Load(std::string_view state);
  // Equal for equal states, whatever has been acknowledged.
  std::uint64_t StateHash() const;

 private:
  // What the run as a whole is about.
  enum class Phase : std::uint8_t {
    kForming,    // workers wait for the common start
    kTraining,   // some train, or will
    kFinishing,  // all have finished training
    kSwitching,  // all end their steps, so that the job can go on in another run
    kAveraging,  // they take the final average
    kEnded,
  };
  Phase phase() const;

  void OnWorker(const WorkerEnvelope& envelope);
  void OnDeadline();
  void OnAct(const OperatorActed& act);
  void OnHello(const WorkerEnvelope& envelope);
  // Each returns what is wrong with the message, or empty.
  std::string OnMessage(Rank rank, const WorkerBody& body);
  std::string OnReady(Rank rank, const Ready& ready);
  std::string OnFinished(Rank rank, const Finished& finished);
  std::string OnAdopted(Rank rank, const Adopted& adopted);
  std::string OnPlaced(Rank rank, const Placed& placed);
  void OnAskMembers(Rank rank);
  void OnLeave(Rank rank, const Leave& leave);
  std::string CountReport(Rank rank, const Trained& own, std::uint32_t nonfinite);
  void LookForGoal();

  // RunActions.
  void ToEngine(const Event& event) override;
  void DeliverReady(Rank rank) override;
  void Activate(Rank rank, Iteration iteration, const std::string& reason) override;
  void Remove(Rank rank, LeftReason why, const std::string& reason) override;
  void TakeHeldStop(Rank rank) override;
  void AdmitJoiners() override { joiners_.Admit(); }
  void EndCommonStart(Iteration iteration, const std::vector<Rank>& ok,
                      const std::vector<Rank>& failed) override;

  bool StartsApart(const std::vector<Rank>& ok, const std::vector<Rank>& failed) const;
  void LookAtDoubtedStart();
  // When the run itself, and not its engine, has something to look at.
  std::array<std::optional<Instant>, 5> OwnDeadlines() const;
  // The engine hears of a worker that has become active.
  void Join(Rank rank, Iteration newest, const std::string& reason);
  void Progress();
  void EndWithoutCutOff();
  void MoveWorkersOn();
  void MakeStart();
  void EndAverage();
  void Gather(GroupKind kind, State from, State to);
  void EndWithoutWorkers();
  void EndForNext();
  void SendAway(LeftReason why, const std::string& reason);

  TrainingStops stops_;
  Joiners joiners_;
  LinkReports link_reports_;
  Drains drains_;
  Announcer announcer_;
  Effects effects_;  // of one engine step; kept for its memory
};

}  // namespace prd

#endif  // PRD_ENGINES_RUN_H_
