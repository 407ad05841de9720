// The workers of a run with a model of meshes and replicas, in parts: reductions, copies, probes
// and exchanges (data_plane.h, data_copies.h, peer_probes.h, data_plane_exchange.h): it costs what
// the workload says, and thousands of workers can have it.
//
// Its events are in World::queue.
#ifndef PRD_TOOLS_SIM_MODEL_PLANE_H_
#define PRD_TOOLS_SIM_MODEL_PLANE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/sim/data_copies.h"
#include "tools/sim/data_plane.h"
#include "tools/sim/data_plane_exchange.h"
#include "tools/sim/mesh_doors.h"
#include "tools/sim/mutation.h"
#include "tools/sim/peer_probes.h"
#include "tools/sim/plane.h"
#include "tools/sim/replica_boxes.h"
#include "tools/sim/stats.h"
#include "tools/sim/world.h"

namespace prd::sim {

class ModelPlane final : public Plane {
 public:
  // `plan` as the engine of the first run has it; `unreported` as of DataPlane. The pointers
  // outlive it.
  ModelPlane(World* world, std::vector<SimWorker>* workers, const MeshDoors* doors, Stats* stats,
             const Plan& plan, Mutation mutation, std::function<void(const Group&)> unreported);

  bool RunNext(Instant) override { return false; }
  void OnEvent(const SimEvent& event, Traces::Trace* trace) override;

  void Start(std::uint32_t worker, Incarnation incarnation, bool accumulates) override;
  void End(std::uint32_t worker, bool killed) override;
  std::vector<std::string> Endpoints(std::uint32_t) const override { return {"sim"}; }
  MeshKey Key(std::uint32_t worker) const override;
  std::uint64_t Mark(std::uint32_t worker) const override { return world_->replicas[worker].tag; }

  void Enter(std::uint32_t worker, PlaneCall call) override;
  void Ask(std::uint32_t) override {}
  void Leave(std::uint32_t, bool) override {}
  StepReplica* Lent(std::uint32_t worker) override { return &lent_[worker]; }
  void BeforeApply(std::uint32_t) override {}
  void AfterApply(std::uint32_t, Iteration, bool) override {}
  void Perform(std::uint32_t worker, const Action& action) override;
  void Told(std::uint32_t worker, const ControllerBody& body) override;
  void Says(std::uint32_t worker, const WorkerBody& body) override;

  void Flip(std::uint32_t worker) override;
  void Agree(std::uint32_t, RunId, GroupId, bool) override {}
  void Cut(std::uint32_t, std::uint32_t, Instant) override {}  // World::links says so
  void CutLarge(std::uint32_t, std::uint32_t, Instant) override {}
  void Frozen(std::uint32_t worker) override { exchange_.Frozen(worker); }

  void Seen(RunId run, const Record& record) override;
  void Forgot(RunId run, std::span<const Record> left) override { exchange_.Forgot(run, left); }
  void CheckEnd() const override { boxes_.book().CheckEnd(); }
  std::uint64_t bytes() const override {
    return data_.bytes() + copies_.bytes() + exchange_.bytes();
  }

 private:
  struct Lent final : public StepReplica {
    ModelPlane* plane = nullptr;
    std::uint32_t worker = 0;
    Plan plan;  // of its run, as the engine has it
    std::uint64_t lives = 0;
    Replica& replica() const { return plane->world_->replicas[worker]; }
    Iteration iteration() const override { return replica().iteration; }
    std::int64_t AddInbox() override { return plane->boxes_.AddInbox(worker); }
    Inbox TakeInbox() override {
      const std::int64_t rounds = plane->boxes_.TakeInbox(worker, TakesNewestOnly(plan));
      return {.rounds = rounds, .iteration = replica().newest};
    }
    std::uint64_t Digest() const override { return replica().Digest(); }
  };

  void Reduced(const std::vector<PlaneResult>& results);
  void OnExchange(const SimEvent& event, Traces::Trace* trace);
  void Copies(std::uint32_t worker, const GroupMember& source);

  World* world_;
  std::vector<SimWorker>* workers_;
  const MeshDoors* doors_;
  ReplicaBoxes boxes_;
  DataPlane data_;
  DataCopies copies_;
  PeerProbes probes_;
  Exchange exchange_;
  std::vector<struct Lent> lent_;  // by worker
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MODEL_PLANE_H_
