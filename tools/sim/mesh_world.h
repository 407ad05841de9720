// What the parts of a run of real meshes share: what the seed has drawn, the network with its time,
// the workers, and what has come of them. The laws are in mesh_run.h.
#ifndef PRD_TOOLS_SIM_MESH_WORLD_H_
#define PRD_TOOLS_SIM_MESH_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "tools/sim/mesh_replica.h"
#include "tools/sim/mesh_run.h"
#include "tools/sim/mesh_setting.h"
#include "tools/sim/names.h"
#include "tools/sim/network.h"
#include "worker/mesh/mesh.h"

namespace prd::sim::mesh {

inline constexpr DurationNs kLease = kSecond;

// A process, and the one before it that had its number.
struct Worker {
  std::uint32_t number = 0;
  std::size_t host = 0;
  std::uint64_t life = 0;  // of how many processes it is the last
  Incarnation incarnation = 0;
  SimNetwork::Process process = 0;
  MeshReplica replica;
  std::unique_ptr<MeshEvents> events;
  std::unique_ptr<Mesh> mesh;  // null: dead
  bool started = false;        // has a replica of the run
  bool woken = false;
  bool ends = false;  // its session has: it is served no more
  Instant frozen_until;
  std::optional<Alarm> deadline;  // of its mesh

  bool Is(std::uint64_t process_before) const { return life == process_before && mesh != nullptr; }
};

struct MeshWorld {
  explicit MeshWorld(const MeshRunOptions& run)
      : options(run),
        prng(Mixed(run.seed)),
        setting(Draw(&prng)),
        network(prng.Next(), setting.network) {}

  Instant now() const { return network.now(); }
  void After(DurationNs delay, std::function<void()> what) {
    network.At(now() + delay, std::move(what));
  }
  DurationNs DelayNs(double most) { return static_cast<DurationNs>(prng.Unit() * most); }
  // The worker's mesh is served soon.
  void Wake(Worker* worker);
  // nullptr: the one that is drawn is dead.
  Worker* Any();
  GroupMember MemberOf(const Worker& worker) const;
  bool Lives(const GroupMember& member) const;
  void SetVersion(Worker* worker) const { worker->replica.SetVersion(now()); }
  // Its `apply` is over, if it is in one.
  void EndApply(Worker* worker);
  // A status that is no mistake of a member's. Throws Violation.
  static void CheckHonest(const Worker& worker, const Status& status);
  void Hash(const Bytes& bytes);
  void Say(const std::string& what) const;

  const MeshRunOptions& options;
  Prng prng;
  const Setting setting;
  SimNetwork network;
  std::vector<Worker> workers;
  bool last = false;  // what goes wrong by itself is over, too: the last group
  MeshRunResult result;
  std::function<void(Worker*)> serve;  // a mesh
  std::function<void(Worker*)> apply;  // a training loop begins to change its replica
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_WORLD_H_
