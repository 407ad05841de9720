// What carries out what a worker's session core wants done with its replica and among peers, where
// that is not the model of DataPlane and Exchange. MakeMeshPlane (mesh_plane.h) gives each worker
// the library's own mesh and replica store.
//
// Calls are those of a session's two threads, in their order: Enter, perhaps BeforeApply and
// AfterApply, Ask, Perform of what the core wants, and Leave. What comes of it is told to the
// workers in RunNext.
#ifndef PRD_TOOLS_SIM_PLANE_H_
#define PRD_TOOLS_SIM_PLANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/core/actions.h"
#include "worker/core/step_procedure.h"

namespace prd::sim {

struct World;
class SimWorker;

class Plane {
 public:
  virtual ~Plane() = default;

  // Runs the plane's next event, if it is due by `until`, and sets World::now to its time. False:
  // there is none.
  virtual bool RunNext(Instant until) = 0;

  // A new process, whose replica has been set; and its end, of itself or not.
  virtual void Start(std::uint32_t worker, Incarnation incarnation, bool accumulates) = 0;
  virtual void End(std::uint32_t worker, bool killed) = 0;
  virtual std::vector<std::string> Endpoints(std::uint32_t worker) const = 0;
  virtual MeshKey Key(std::uint32_t worker) const = 0;

  // The caller's thread begins a call, waits for its answer, has it. `pauses`: it goes away for
  // long.
  virtual void Enter(std::uint32_t worker, bool step) = 0;
  virtual void Ask(std::uint32_t worker) = 0;
  virtual void Leave(std::uint32_t worker, bool pauses) = 0;
  virtual StepReplica* Lent(std::uint32_t worker) = 0;
  virtual void BeforeApply(std::uint32_t worker) = 0;
  virtual void AfterApply(std::uint32_t worker, Iteration iteration) = 0;
  // Actions for the connection to the controller, and answers to the caller, change nothing here.
  virtual void Perform(std::uint32_t worker, const Action& action) = 0;

  // A fault changes the replica by itself, in what the next group is applied to.
  virtual void Flip(std::uint32_t worker) = 0;
  // A member has applied a group's result, where all that do are to have one replica. `kept`: with
  // all state.
  virtual void Agree(std::uint32_t worker, RunId run, GroupId group, bool kept) = 0;

  // Nothing gets from one to the other until then.
  virtual void Cut(std::uint32_t from, std::uint32_t to, Instant until) = 0;
};

// `trace` may be empty. The pointers outlive the plane.
using MakePlane = std::function<std::unique_ptr<Plane>(
    World* world, std::vector<SimWorker>* workers, std::function<void(const std::string&)> trace)>;

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PLANE_H_
