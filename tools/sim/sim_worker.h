// One training process: the library's own session core, a training loop, and the actions that the
// library's threads would carry out.
//
//   lent        the replica is read or changed from outside only while its training loop is in a
//               call, but for rounds, and for averages in the background
//   told        a Hello says the iteration of the parameters that the worker brings
//   dismissed   a worker that an operator has removed does not come back as another incarnation
//   share-limit, share-ahead
//               of the passes that the training loop computes (batch_book.h)
//   run-ahead   in the background, a step returns only while the signal that stands is not older
//               than the plan allows: of so many synchronising steps, its own among them
#ifndef PRD_TOOLS_SIM_SIM_WORKER_H_
#define PRD_TOOLS_SIM_SIM_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/batch_book.h"
#include "tools/sim/mesh_doors.h"
#include "tools/sim/objective.h"
#include "tools/sim/plane.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/run_book.h"
#include "tools/sim/stats.h"
#include "tools/sim/step_times.h"
#include "tools/sim/world.h"
#include "worker/core/session_core.h"
#include "worker/core/step_procedure.h"
#include "worker/core/step_shares.h"

namespace prd::sim {

// What all workers of a run share. All pointers outlive them; `objective` may be null.
struct WorkerParts {
  World* world = nullptr;
  Plane* plane = nullptr;
  MeshDoors* doors = nullptr;
  RunBook* runs = nullptr;
  ReplicaBook* replicas = nullptr;
  BatchBook* batches = nullptr;
  StepTimes* times = nullptr;
  Devices* devices = nullptr;
  const Objective* objective = nullptr;
  Stats* stats = nullptr;
  std::vector<Prng> draws;               // by worker, for gradients
  Actions spare;                         // kept for its memory
  std::vector<Devices::Finish> changed;  // the same
  Mutation mutation = Mutation::kNone;
};

class SimWorker {
 public:
  static constexpr const char* kNotice = "a notice";  // why it leaves

  enum class Phase : std::uint8_t {
    kAway,
    kAttaching,
    kComputing,
    kStepping,
    kPausing,  // in Pause
    kPaused,
    kResuming,   // in Resume
    kAveraging,  // in Average
    kFinishing,
    kLeaving,
    kDone,    // Finish has returned
    kFailed,  // a call has returned an error
  };

  void Init(WorkerParts* parts, std::uint32_t number);

  void Start();  // as a new process
  void Kill();   // by its launcher, which starts it anew
  void OnEnvelope(const ControllerEnvelope& envelope);
  void OnWake(Instant at);
  void OnStepDone(std::uint64_t ticket);
  void OnPoll(std::uint64_t step);
  void OnStops(std::uint64_t step);
  void OnNotice(std::uint64_t life);
  void OnResumes(std::uint64_t pause);
  void OnConnected(std::uint64_t connection);
  void OnReduced(const PlaneResult& result, const Status& status);
  void OnFetched(const PlaneResult& result);
  // Any other input, from its plane.
  void Hear(const std::function<void(SessionCore*, Instant, Actions*)>& input);

  std::uint64_t Mark() const { return parts_->plane->Mark(number_); }
  // Its replica may be read and changed: it is in a call.
  bool lends() const;
  const Plan& plan() const { return core_.welcome().plan; }
  Phase phase() const { return phase_; }
  RunId run() const { return core_.welcome().run; }
  RunId run_number() const { return parts_->world->NumberOf(core_.welcome().identity); }
  Rank rank() const { return core_.welcome().rank; }
  Incarnation incarnation() const { return core_.incarnation(); }
  const RunIdentity& identity() const { return core_.welcome().identity; }
  std::uint64_t launch() const { return launch_; }
  // It has had a replica of the job in this process.
  bool has_trained() const { return parts_->world->replicas[number_].trained; }
  std::int64_t steps() const { return steps_; }
  std::uint64_t lives() const { return lives_; }    // processes that it has been
  std::uint64_t calls() const { return calls_; }    // of the library, that are over
  std::uint64_t computed() const { return step_; }  // grows with each step begun or computed
  std::string Where() const;

 private:
  // Gives the core an input and carries out what it wants done.
  template <typename F>
  void Tell(F&& input);
  void Perform(Action* action);
  // A call of the session other than a step: what its thread does around it.
  template <typename F>
  void Call(PlaneCall call, F&& input);
  void OnCallDone(const CallDone& done);
  void GoOn();
  void BeginPause();
  void BeginAverage();
  bool Draw(double probability) const;
  void Flip();
  void BeginStep();
  void BeginPass();
  void DrawAhead();
  void AddPass(bool discard);
  void Count();
  void EndCompute();
  void EndStep(bool discard);
  void SayLeave();
  void PollSoon();
  template <typename F>
  void Run(StepProcedure* procedure, bool group, F&& tag);
  void OnApplyNow(const ApplyNow& apply);
  void OnSent(const WorkerEnvelope& envelope);
  void OnBecome(Incarnation incarnation);
  void OnStartReduce(const Group& group);
  void CheckIncluded(const WorkerBody& body) const;
  void CheckTold(const Hello& hello);
  void Die();
  void Away(double within_ms, bool killed = false);
  void Gone(bool killed);
  void Schedule();
  void Sliced(Slice::Kind kind) { SlicedUntil(kind, parts_->world->now); }
  void SlicedUntil(Slice::Kind kind, Instant end);
  void CheckLent(const Group& group) const;
  void CheckRunAhead() const;
  bool Passive(GroupId group) const;

  // A member may begin its part of a group long before the others do.
  bool Ahead() const { return DrawnAhead(core_.welcome().plan); }
  bool Overlaps() const { return AveragesInBackground(core_.welcome().plan); }
  Replica& replica() { return parts_->world->replicas[number_]; }
  std::int64_t Limit() const { return parts_->world->workload.cluster.steps; }

  WorkerParts* parts_ = nullptr;
  std::uint32_t number_ = 0;
  Phase phase_ = Phase::kAway;
  SessionCore core_;
  Plan plan_;               // of its run, as the engine has it
  std::int64_t steps_ = 0;  // over all its lives
  std::uint64_t lives_ = 0;
  std::uint64_t calls_ = 0;
  GroupId group_ = kNoGroup;
  Instant begun_;                  // the slice in progress
  Instant step_begun_;             // or the pass, where a step has several
  DurationNs computed_ = 0;        // in all passes of the step
  Instant ready_at_;               // the training loop has called Step
  std::uint64_t step_ = 0;         // that it computes, over all its lives; for polls
  bool interrupted_ = false;       // Session::Interrupted
  PlaneResult last_result_;        // of a round
  std::optional<Instant> wake_;    // the event that counts
  Group begun_group_;              // the newest that it has begun
  bool greeted_ = false;           // this incarnation has said Hello,
  RunId former_ = kNoRun;          // and that its replica is of this run
  Seq signal_ = 0;                 // the newest, as long as it stands; 0: none does
  Seq said_ = 0;                   // the newest
  Seq heard_ = 0;                  // the controller's newest message in order
  std::int64_t since_signal_ = 0;  // steps completed, its own among them
  std::uint64_t launch_ = 0;
  Trained own_;        // as it should count: with those that had its rank before
  bool done_ = false;  // its job's goal is reached
  bool noticed_ = false;
  // The batch of its job. A step that has been cut short has no samples any more.
  std::int64_t max_share_ = 0;
  bool accumulates_ = false;
  std::uint32_t lead_ = 0;
  StepShares::Piece piece_;                       // that it computes
  std::vector<BatchBook::Range> passes_;          // that its gradient is the mean over
  std::int64_t uncounted_ = 0;                    // samples of these that are not counted yet
  bool counted_ = false;                          // the step
  std::map<Iteration, StepShares::Piece> drawn_;  // by its loader, by step
  std::string error_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SIM_WORKER_H_
