// Connections to other workers' meshes: one PUSH per peer, made when it is first needed.
//
// Sending never blocks: frames that a connection does not take yet wait in a queue here. A broken
// connection is reported, and dropped with its queue. Not thread safe.
#ifndef PRD_WORKER_MESH_PEERS_H_
#define PRD_WORKER_MESH_PEERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/messages.h"
#include "prd/status.h"
#include "worker/mesh/frame.h"

namespace prd {

class Peers {
 public:
  // Connections kept at most: the one unused for longest makes room.
  static constexpr std::size_t kMaxConnections = 256;

  // `host` as in Hello: equal hosts are reached by ipc.
  Peers(zmq::context_t* context, std::string host) : context_(context), host_(std::move(host)) {}
  ~Peers();

  // Where to reach a member from here. kInvalidArgument: none of its endpoints can be used.
  Result<std::string> EndpointOf(const GroupMember& member) const;

  // Connects if there is no connection yet, and watches it from now on: Service reports its loss.
  // kUnavailable: the system has no more sockets.
  Status Use(const std::string& endpoint);
  // The same. Rest does not stop watching it until every keeper has released it.
  enum class Keeper : std::uint8_t { kExchange = 1, kCommunicators = 2 };
  Status Keep(const std::string& endpoint, Keeper keeper);
  void Release(const std::string& endpoint, Keeper keeper);
  // Stops watching all connections, except those that are kept or have frames to send.
  void Rest();

  // Queues a frame. REQUIRES: Use(endpoint) before, and no loss reported since.
  void Send(const std::string& endpoint, const FrameHeader& header, zmq::message_t payload);
  // True when everything given to Send has been handed to the network (or the peer is gone).
  bool Idle(const std::string& endpoint) const;
  // Frames that wait.
  std::size_t Queued(const std::string& endpoint) const;
  // Sends a frame without payload to a peer that need not be in use, and that this call does not
  // put in use. Queues the frame only if the peer is in use and no frame of its kind is queued.
  // False: the frame was not sent.
  bool Offer(const std::string& endpoint, const FrameHeader& header);
  // Drops the queued frames of a group that was given up, for all peers.
  void DropQueued(std::uint64_t group);

  // Sends as much as connections take. Returns the endpoints that broke, and drops them.
  std::vector<std::string> Service();

  void AppendPollItems(std::vector<zmq::pollitem_t>* items);

  std::size_t connections() const { return peers_.size(); }

 private:
  struct Frame {
    FrameHeader header;
    zmq::message_t payload;
  };
  struct Peer {
    zmq::socket_t push;
    zmq::socket_t monitor;
    std::deque<Frame> queue;
    bool used = false;
    std::uint8_t kept = 0;  // Keepers
    bool broken = false;    // in use; to be reported
    std::uint64_t last_use = 0;
  };

  Result<Peer*> Connect(const std::string& endpoint);
  bool Flush(Peer* peer);
  bool Broken(Peer* peer);
  void Evict();

  zmq::context_t* context_;
  std::string host_;
  std::map<std::string, Peer> peers_;
  std::uint64_t uses_ = 0;
  std::uint64_t monitors_ = 0;  // for names
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PEERS_H_
