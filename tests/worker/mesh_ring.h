// Meshes of several workers in one test, driven together on one thread: no timing, no races; real
// sockets all the same.
#ifndef PRD_TESTS_WORKER_MESH_RING_H_
#define PRD_TESTS_WORKER_MESH_RING_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "worker/mesh/mesh.h"

namespace prd::testing {

Instant MeshNow();

// One worker: its memory, its mesh and what the mesh reported.
class MeshNode : public MeshEvents {
 public:
  // `options.incarnation` is the node's identity; hosts that differ talk over tcp.
  MeshNode(Mesh::Options options, const std::vector<Tensor>& parameters,
           const std::vector<Tensor>& gradients = {});

  void OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes,
                 const std::vector<Rank>& unreachable, std::uint64_t digest) override;
  void OnHandedOver(GroupId group, std::uint64_t) override { handed_over = group; }
  void OnFetched(const Status& status, Iteration iteration) override;
  void OnProbed(Rank rank, Incarnation incarnation) override;
  void OnNote(Incarnation from, const PeerMessage& note) override;
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel) override;
  void OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure) override;
  void OnOutOfReach(Rank rank) override { out_of_reach.push_back(rank); }

  GroupMember AsMember(double weight) const;

  struct Reduced {
    GroupId group = kNoGroup;
    Status status;
    std::uint64_t sent = 0;
    std::vector<Rank> unreachable;
    std::uint64_t digest = 0;
  };
  struct Fetched {
    Status status;
    Iteration iteration = 0;
  };
  std::optional<Reduced> reduced;
  GroupId handed_over = kNoGroup;
  struct Pulled {
    Status status;
    ShardHeader enclosure;
  };
  std::optional<Fetched> fetched;
  std::vector<std::pair<Rank, Incarnation>> probed;
  std::vector<std::pair<Incarnation, PeerMessage>> notes;
  std::map<Ticket, Pulled> pulled;
  std::vector<Rank> out_of_reach;
  // Answers requests; without it they are refused.
  std::function<void(Incarnation from, Request request, const PeerItem& parcel)> on_request;
  ReplicaStore store;
  zmq::context_t context;
  std::unique_ptr<Mesh> mesh;

 private:
  Mesh::Options options_;
};

// A row of host memory as a vector, to be compared.
inline std::vector<std::byte> Bytes(const Row& row) {
  return {row.data(), row.data() + row.size()};
}

// Services all meshes until done() or 20 s are over; returns done().
bool RunUntil(const std::vector<MeshNode*>& nodes, const std::function<bool()>& done);

// Reduces among `nodes`, in this order, with these weights; returns each node's status.
std::vector<Status> ReduceAll(const std::vector<MeshNode*>& nodes,
                              const std::vector<double>& weights, Group group,
                              bool gradients = false);

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_MESH_RING_H_
