// One training process: the library's own session core, a training loop, and the actions that the
// library's threads would carry out.
//
//   lent        the replica is read or changed from outside only while its training loop is in a
//               call, but for rounds, and for averages in the background
//   dismissed   a worker that an operator has removed does not come back as another incarnation
// and those of its parts: dialogue.h, loader.h, own_group.h.
#ifndef PRD_TOOLS_SIM_SIM_WORKER_H_
#define PRD_TOOLS_SIM_SIM_WORKER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/dialogue.h"
#include "tools/sim/loader.h"
#include "tools/sim/own_group.h"
#include "tools/sim/own_replica.h"
#include "tools/sim/plane.h"
#include "tools/sim/step_clock.h"
#include "tools/sim/worker_parts.h"
#include "tools/sim/world.h"
#include "worker/core/session_core.h"
#include "worker/core/step_procedure.h"

namespace prd::sim {

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
  Phase phase() const { return phase_; }
  const Welcome& welcome() const { return core_.welcome(); }  // to the run that it is in
  RunId run_number() const { return parts_->world->runs.NumberOf(core_.welcome().identity); }
  Incarnation incarnation() const { return core_.incarnation(); }
  std::uint64_t launch() const { return launch_; }
  // It has had a replica of the job in this process.
  bool has_trained() const { return parts_->world->replicas[number_].trained; }
  std::uint64_t lives() const { return lives_; }  // processes that it has been
  std::uint64_t calls() const { return calls_; }  // of the library, that are over
  // Grows with each step begun or computed.
  std::uint64_t computed() const { return clock_.turn(); }
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
  void BeginStep();
  void BeginPass();
  void EndPass();
  void EndStep(bool discard);
  void SayLeave();
  void OnApplyNow(const ApplyNow& apply);
  void OnSent(const WorkerEnvelope& envelope);
  void OnBecome(Incarnation incarnation);
  void OnStartReduce(const Group& group);
  void Die();
  void Away(double within_ms, bool killed = false);
  void Gone(bool killed);
  void Schedule();

  WorkerParts* parts_ = nullptr;
  std::uint32_t number_ = 0;
  Phase phase_ = Phase::kAway;
  SessionCore core_;
  Plan plan_;  // of its run, as the engine has it
  Loader loader_;
  OwnReplica own_;
  StepClock clock_;
  Dialogue dialogue_;
  OwnGroup group_;
  std::int64_t steps_ = 0;  // over all its lives
  std::uint64_t lives_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t launch_ = 0;
  std::optional<Instant> wake_;  // the event that counts
  bool interrupted_ = false;     // Session::Interrupted
  bool done_ = false;            // its job's goal is reached
  bool noticed_ = false;
  std::string error_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SIM_WORKER_H_
