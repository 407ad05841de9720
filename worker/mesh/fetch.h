// Copying a whole replica from a running peer: the side that wants it and the side that gives it.
#ifndef PRD_WORKER_MESH_FETCH_H_
#define PRD_WORKER_MESH_FETCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"

namespace prd {

// Where the replica is to be sent: the payload of a kFetch frame, as text.
std::string EncodeReturnAddress(const std::string& host, const std::vector<std::string>& endpoints);
// Bounded; nullopt for what is not a return address.
std::optional<GroupMember> DecodeReturnAddress(std::string_view text);

// One replica on its way here. Keeps what has come; the store is not written before Commit.
class IncomingReplica {
 public:
  explicit IncomingReplica(ReplicaStore* store) : store_(store) {}

  // kReplica, then kChunk in order. An error means that this copy cannot succeed.
  Status OnFrame(const FrameHeader& header, zmq::message_t payload);
  bool Complete() const;
  // Replaces parameters, iteration and initial model. REQUIRES: Complete(); store->mutex is held.
  Iteration Commit();

 private:
  ReplicaStore* store_;
  std::optional<ReplicaInfo> info_;
  std::array<std::vector<zmq::message_t>, 2> chunks_;  // parameters, initial model
  std::array<std::uint64_t, 2> received_{};
};

// Gives the replica to those who ask. The copy is taken at one moment between two steps, once for
// all that wait then, and sent from there.
class ReplicaServer {
 public:
  static constexpr std::size_t kMaxWaiting = 64;

  ReplicaServer(ReplicaStore* store, Peers* peers) : store_(store), peers_(peers) {}

  // A checked kFetch frame. Asks over the limit, or twice, are ignored.
  void OnRequest(Instant now, const FrameHeader& request, const GroupMember& to);
  // Sends what can be sent. When the caller's thread is inside `apply`, waits for a later call.
  void Service(Instant now, DurationNs timeout);
  void OnLost(const std::string& endpoint);
  // Keeps connections in use that a rest would stop watching.
  void Hold();
  std::optional<Instant> NextDeadline(DurationNs timeout) const;
  bool idle() const { return waiting_.empty() && sending_.empty(); }
  void Clear();

 private:
  struct Snapshot {
    ReplicaInfo info;
    std::vector<std::byte> parameters;
    std::vector<std::byte> initial;
  };
  struct Sending {
    std::string endpoint;
    FrameHeader request;
    std::shared_ptr<const Snapshot> snapshot;
    std::uint32_t stage = 0;
    std::uint64_t offset = 0;
    Instant progress;
  };

  void SendInfo(const Sending& sending);
  bool SendNext(Sending* sending);

  ReplicaStore* store_;
  Peers* peers_;
  std::deque<Sending> waiting_;  // without a snapshot yet
  std::deque<Sending> sending_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_FETCH_H_
