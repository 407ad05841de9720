// Updates of neighbours in prdsim mesh: each worker publishes its parameters, and averages them
// with what it pulls of others.
//
//   mixed, once, hang   of mesh_run.h
#ifndef PRD_TOOLS_SIM_MESH_PULLS_H_
#define PRD_TOOLS_SIM_MESH_PULLS_H_

#include <map>
#include <optional>
#include <vector>

#include "tools/sim/mesh_world.h"

namespace prd::sim::mesh {

class MeshCopies;

class MeshPulls {
 public:
  MeshPulls(MeshWorld* world, const MeshCopies* copies)
      : world_(world), copies_(copies), sides_(world->setting.workers) {}

  // The worker publishes an update, and pulls another's.
  void Exchange(Worker* worker);
  void OnRequest(Worker* worker, Request request, const PeerItem& parcel);
  void OnPulled(Worker* worker, Ticket ticket, const Status& status, const ShardHeader& header);
  // The worker waits for an update.
  bool Waits(const Worker& worker) const { return !sides_[worker.number].pulls.empty(); }
  // Its process has ended.
  void Ended(const Worker& worker);
  // It is in nothing any more. Throws Violation.
  void CheckOver(const Worker& worker) const;

 private:
  struct Pulling {
    std::size_t from = 0;
    std::uint64_t life = 0;
    Iteration stamp = 0;
  };
  struct Side {
    std::map<Iteration, Bytes> published;
    Iteration newest = 0;  // published
    std::map<Ticket, Pulling> pulls;
    Ticket tickets = 0;
  };

  void Mix(Worker* worker, Ticket ticket, const std::optional<Bytes>& update);

  MeshWorld* world_;
  const MeshCopies* copies_;
  std::vector<Side> sides_;  // by worker
};

}  // namespace prd::sim::mesh

#endif  // PRD_TOOLS_SIM_MESH_PULLS_H_
