// Copies of replicas in prdsim mesh, of the results of rounds, and of parameters alone (samples).
//
//   torn, ordered, once, hang   of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_COPIES_H_
#define PRD_TOOLS_SIM_MESH_COPIES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

class MeshGroups;
class MeshPulls;

class MeshCopies {
 public:
  // The pointers may be to what is made later.
  MeshCopies(MeshWorld* world, MeshGroups* groups, const MeshPulls* pulls)
      : world_(world),
        groups_(groups),
        pulls_(pulls),
        copying_(world->setting.workers),
        sampling_(world->setting.workers) {}

  // The worker is to copy another one's replica.
  void Fetch(Worker* worker);
  // It is to copy the result of this round from another one that has it.
  void FetchResult(Worker* worker, const Worker& source, GroupId round, bool contributed);
  // It is to copy the parameters of `source`; null: of any.
  void Sample(Worker* worker, Worker* source = nullptr);
  void OnFetched(Worker* worker, const Status& status, Iteration iteration);
  void OnSampled(const Worker& worker, const Status& status, const std::shared_ptr<Buffer>& row);

  bool Copying(const Worker& worker) const { return copying_[worker.number].has_value(); }
  bool CopiesInPlace(const Worker& worker) const {
    return Copying(worker) && copying_[worker.number]->in_place;
  }
  // Its process has ended.
  void Ended(const Worker& worker);
  // It is in nothing any more. Throws Violation.
  void CheckOver(const Worker& worker) const;

 private:
  struct Copy {
    std::size_t source = 0;
    std::uint64_t life = 0;
    Instant since;
    GroupId result = kNoGroup;
    bool in_place = false;
  };

  void Order(Worker* source, const GroupMember& taker);
  // The worker has a copy. Gives its source, if that is there still.
  const Worker* Take(const Worker& worker, const Copy& copy);

  MeshWorld* world_;
  MeshGroups* groups_;
  const MeshPulls* pulls_;
  std::vector<std::optional<Copy>> copying_, sampling_;                 // by worker
  std::map<std::pair<Incarnation, Incarnation>, std::int64_t> orders_;  // by source and taker
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_COPIES_H_
