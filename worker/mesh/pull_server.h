// Sends peers what they pull (exchange.h): from the request until the last byte is handed to the
// network. Part of Exchange: used by the background thread alone.
#ifndef PRD_WORKER_MESH_PULL_SERVER_H_
#define PRD_WORKER_MESH_PULL_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/time.h"
#include "worker/core/exchange.h"
#include "worker/mesh/exchange_peers.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"
#include "worker/mesh/shards.h"

namespace prd {

class PullServer {
 public:
  // Requests of one peer; more are refused.
  static constexpr std::size_t kMaxRequests = 256;

  // Sends parts of so many bytes. All must outlive it. `counters` gets what is sent.
  PullServer(const ReplicaStore* store, ExchangePeers* peers, Peers* connections,
             std::size_t part_bytes, ExchangeCounters* counters)
      : store_(store),
        peers_(peers),
        connections_(connections),
        part_bytes_(part_bytes),
        counters_(counters) {}

  // Forgets everything.
  void Reset();

  // A peer that is met pulls. nullopt: its frame counts for nothing.
  std::optional<Request> OnPull(Instant now, const FrameHeader& header);
  // The peer ends the pull. False: there is none.
  bool OnStop(const FrameHeader& header);

  // Whether the peer waits for one of the next two.
  bool Awaits(Request request) const;
  // Without a buffer: refuses.
  void Serve(Instant now, Request request, Slice slice, const ShardHeader& enclosure);
  void Refuse(Request request);

  // Requests of others than these peers are refused. Those over this connection, and those of this
  // peer, are forgotten.
  void KeepOnly(const std::set<Incarnation>& peers);
  void OnLost(const std::string& endpoint);
  void Forget(Incarnation peer);

  // The peer still waits for this pull of its. False: there is none.
  bool IsAsked(Instant now, Incarnation from, std::uint64_t number);
  // Tells all peers that wait.
  void SayToCome(Instant now);

  // Sends as much as connections take.
  void Service(Instant now);
  // The time of the next Service that has something to do, whatever comes in.
  std::optional<Instant> NextDeadline() const;
  // Something that is to be sent is on its way to host memory.
  bool Arriving() const;

 private:
  struct Asked {
    Incarnation from = 0;
    std::string endpoint;
    std::uint64_t number = 0;  // the peer's
    Slice slice;               // once it is served
    std::size_t sent = 0;
    Instant progress;

    bool served() const { return slice.buffer != nullptr; }
    bool sent_all() const { return sent == slice.range.length; }
  };

  std::size_t Ready(const Slice& slice) const;
  bool SendPart(Instant now, Asked* asked);

  const ReplicaStore* store_;
  ExchangePeers* peers_;
  Peers* connections_;
  const std::size_t part_bytes_;
  ExchangeCounters* counters_;
  std::map<Request, Asked> asked_;
  Request requests_ = 0;
  bool due_ = false;  // there is more to send
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PULL_SERVER_H_
