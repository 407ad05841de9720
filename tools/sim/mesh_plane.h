// The workers of a run with the library's own meshes and replica stores (worker/mesh), on a
// simulated network (network.h).
//
// What workers reduce is their parameters, World::replicas[].x (node_replica.h), in chunks of a few
// numbers. Links are cut and break as the
// workload's faults say: [faults] reduce_fails and fetch_fails are here the probability that a link
// of the group, or to the source, breaks about then. Where frames are sealed, somebody without a
// key may change, repeat, swap, cut and reflect them while there are faults. Laws:
//   replicas-agree  members that have applied a group's result have one replica, bit for bit, where
//                   all replicas are to be equal
//   mass            of mass_book.h
//   result, one-average, untouched, contributed   what groups give (group_book.h)
//   torn, probed    what workers copy, and who answers them (copy_book.h)
//   mix, shard      what workers publish, serve and pull outside of groups (item_book.h)
//   honest          nobody finds that a peer has sent what does not fit
//   started         what comes of a group, a copy or a pull comes to who began it
#ifndef PRD_TOOLS_SIM_MESH_PLANE_H_
#define PRD_TOOLS_SIM_MESH_PLANE_H_

#include "tools/sim/plane.h"

namespace prd::sim {

std::unique_ptr<Plane> MakeMeshPlane(World* world, std::vector<SimWorker>* workers,
                                     std::function<void(const std::string&)> trace);

// The same, where the worker is killed when its mesh is to do something for the turn-th time,
// unless it has trained to the end by then.
MakePlane MakeKillingMeshPlane(std::uint32_t worker, std::uint64_t turn);

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_MESH_PLANE_H_
