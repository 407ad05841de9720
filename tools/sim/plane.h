// What carries out what a worker's session core wants done with its replica and among peers: a
// model (model_plane.h), or the library's own mesh and replica store for each worker
// (mesh_plane.h).
//
// Calls are those of a session's two threads, in their order: Enter, perhaps BeforeApply and
// AfterApply, Ask, Perform of what the core wants, and Leave. What comes of it is told to the
// workers in RunNext and OnEvent.
#ifndef PRD_TOOLS_SIM_PLANE_H_
#define PRD_TOOLS_SIM_PLANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/trace.h"
#include "worker/core/actions.h"
#include "worker/core/step_procedure.h"

namespace prd::sim {

struct World;
class SimWorker;

// What a call of the session is for.
enum class PlaneCall : std::uint8_t { kStep, kAverage, kOther };

struct PlaneResult {
  std::uint32_t worker = 0;
  GroupId group = kNoGroup;
  bool ok = false;
  std::uint64_t bytes = 0;                    // sent
  std::optional<std::uint32_t> included = 0;  // kRound: gradients of this worker's, if known
  DurationNs took = 0;                        // from when the last member began
  std::vector<Rank> unreachable = {};         // as in Finished
  std::uint64_t digest = 0;                   // as in Finished, if the result is in the parameters
};

class Plane {
 public:
  virtual ~Plane() = default;

  // Runs the next of the plane's own events, if it is due by `until`, and sets World::now to its
  // time. False: there is none.
  virtual bool RunNext(Instant until) = 0;
  // An event of World::queue that is neither the controller's nor a worker's.
  virtual void OnEvent(const SimEvent&, Traces::Trace*) {}

  // A new process, whose replica has been set; and its end, of itself or not.
  virtual void Start(std::uint32_t worker, Incarnation incarnation, bool accumulates) = 0;
  virtual void End(std::uint32_t worker, bool killed) = 0;
  virtual std::vector<std::string> Endpoints(std::uint32_t worker) const = 0;
  virtual MeshKey Key(std::uint32_t worker) const = 0;
  // It has a part of another one's replica.
  virtual bool Torn(std::uint32_t) const { return false; }
  // Equal for equal replicas.
  virtual std::uint64_t Mark(std::uint32_t worker) const = 0;

  // The caller's thread begins a call, waits for its answer, has it. `pauses`: it goes away for
  // long.
  virtual void Enter(std::uint32_t worker, PlaneCall call) = 0;
  virtual void Ask(std::uint32_t worker) = 0;
  virtual void Leave(std::uint32_t worker, bool pauses) = 0;
  virtual StepReplica* Lent(std::uint32_t worker) = 0;
  virtual void BeforeApply(std::uint32_t worker) = 0;
  // `group`: of what a group gave, with what the replica's state says.
  virtual void AfterApply(std::uint32_t worker, Iteration iteration, bool group) = 0;
  // Actions for the connection to the controller, and answers to the caller, change nothing here.
  virtual void Perform(std::uint32_t worker, const Action& action) = 0;
  // The controller's next message is about to be told; and what the worker says for the first time.
  virtual void Told(std::uint32_t, const ControllerBody&) {}
  virtual void Says(std::uint32_t, const WorkerBody&) {}

  // A fault changes the replica by itself, in what the next group is applied to.
  virtual void Flip(std::uint32_t worker) = 0;
  // A member has applied a group's result, where all that do are to have one replica. `kept`: with
  // all state.
  virtual void Agree(std::uint32_t worker, RunId run, GroupId group, bool kept) = 0;

  // Nothing gets from one to the other until then.
  virtual void Cut(std::uint32_t from, std::uint32_t to, Instant until) = 0;
  // The same of large packets, while small ones pass.
  virtual void CutLarge(std::uint32_t from, std::uint32_t to, Instant until) = 0;
  // Its process stands still from now on.
  virtual void Frozen(std::uint32_t) {}

  // A record of a run has become durable; the controller has forgotten all but these of one.
  virtual void Seen(RunId, const Record&) {}
  virtual void Forgot(RunId, std::span<const Record>) {}
  // Nothing happens any more. Throws Violation.
  virtual void CheckEnd() const {}
  virtual std::uint64_t bytes() const { return 0; }  // sent, if it is known
};

// `trace` may be empty. The pointers outlive the plane.
using MakePlane = std::function<std::unique_ptr<Plane>(
    World* world, std::vector<SimWorker>* workers, std::function<void(const std::string&)> trace)>;

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PLANE_H_
