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
#include "worker/transport/zmq_transport.h"

namespace prd::testing {

Instant MeshNow();

MeshKeyPair DrawnKeys();
// Drawn, and with a rank of its own (MeshNode::AsMember).
Incarnation FreshIncarnation();
// The key of a worker that is not there.
inline MeshKey AnyMeshKey() { return DrawnKeys().public_key; }

// With how others reach it.
struct NodeOptions : Mesh::Options {
  NodeOptions(Mesh::Options options = {}) : Mesh::Options(std::move(options)) {}  // NOLINT
  Listening listening;
  std::size_t max_connections = 0;
};

// One worker: its memory, its mesh and what the mesh reported.
class MeshNode : public MeshEvents {
 public:
  // `options.incarnation` is the node's identity; hosts that differ talk over tcp.
  MeshNode(NodeOptions options, const std::vector<Tensor>& parameters,
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
  void OnIntruder(const std::string& what) override { intruders.push_back(what); }

  void AppendPollItems(std::vector<zmq::pollitem_t>* items) {
    transport->AppendPollItems(mesh->WatchedLinks(), items);
  }

  GroupMember AsMember(double weight) const;
  const MeshKeyPair& keys() const { return *options_.keys; }

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
  std::vector<std::string> intruders;
  // Answers requests; without it they are refused.
  std::function<void(Incarnation from, Request request, const PeerItem& parcel)> on_request;
  ReplicaStore store;
  zmq::context_t context;
  ZmqTransport* transport = nullptr;  // the mesh's
  std::unique_ptr<Mesh> mesh;

 private:
  NodeOptions options_;
};

// Tells each of these of all others, as the controller does.
void Announce(const std::vector<MeshNode*>& nodes, const SharedList<GroupMember>& members);

// Sets what a socket shows at the door of a worker: that it is another one, with this key.
Pass ShowPass(zmq::socket_t* socket, const MeshKeyPair& from_keys, const MeshKey& to_key,
              const Direction& way, Purpose purpose);

// So long may a test's own socket take to send: one that is refused has nobody to send to, and
// would wait for ever.
inline constexpr int kSendMs = 10'000;

// A worker that a test plays: it is admitted, and sends what the test likes. Data and signals have
// a connection each, as they must.
class PlayedWorker {
 public:
  // A worker of its own that the node has been told of, in run 1. Answers go to `endpoints`.
  PlayedWorker(MeshNode* to, Incarnation self, Rank rank, std::vector<std::string> endpoints = {});
  // In the name of that one, and with its key; the node is told of it.
  PlayedWorker(MeshNode* to, const MeshNode& as);

  GroupMember AsMember() const { return self_; }
  Pass PassOf(Purpose purpose) const { return passes_.at(purpose); }
  // `header.from` and `header.to` are as they are.
  void Send(const FrameHeader& header, const std::string& payload);
  void SendParts(const std::vector<std::string>& parts);  // as data

 private:
  void Open(MeshNode* to, const MeshKeyPair& keys);

  GroupMember self_;
  std::map<Purpose, Pass> passes_;
  zmq::context_t context_;
  zmq::socket_t data_;
  zmq::socket_t signals_;
};

// Where nobody answers: connections to its sockets stand, and nothing is ever taken.
class DeafEnd {
 public:
  DeafEnd();
  std::string endpoint() const { return pull_.get(zmq::sockopt::last_endpoint); }

 private:
  zmq::context_t context_;
  zmq::socket_t door_{context_, zmq::socket_type::router};
  mutable zmq::socket_t pull_{context_, zmq::socket_type::pull};
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
