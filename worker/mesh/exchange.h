// Notes, pulls and shards between workers (worker/core/exchange.h) over the connections of a mesh.
//
// The puller (pulls.h) sends kPull to the peer. The peer (pull_server.h) answers kRefused; or
// kParcel, with the size and the enclosure, and then the bytes in parts, in order. The peer sends a
// part only when the part before has been handed to the network. So pulls of one peer take turns,
// and a slow puller delays only itself. The puller knows the size beforehand and takes no other.
// The bytes stay where they are received until the core uses them. Published updates and deltas are
// sent to all pullers from one row.
//
// Wrong frames are dropped, but for those that fail a pull. Part of Mesh: used by the background
// thread alone.
#ifndef PRD_WORKER_MESH_EXCHANGE_H_
#define PRD_WORKER_MESH_EXCHANGE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/exchange.h"
#include "worker/memory/buffers.h"
#include "worker/mesh/early_asks.h"
#include "worker/mesh/exchange_peers.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/offer_watch.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/pull_server.h"
#include "worker/mesh/pulls.h"
#include "worker/mesh/replica_store.h"
#include "worker/mesh/shards.h"

namespace prd {

// Called from Mesh::Service only. By default nothing is done with them.
class ExchangeEvents {
 public:
  virtual ~ExchangeEvents() = default;
  virtual void OnNote(Incarnation /*from*/, const PeerMessage& /*note*/) {}
  // To be answered by Serve or Refuse. The peer may stop waiting at any time; then neither has an
  // effect.
  virtual void OnRequest(Incarnation /*from*/, Request /*request*/, const PeerItem& /*parcel*/) {}
  // Once for each StartPull without DropPull. Not ok: kUnavailable (the peer is gone, or none of
  // those that were met), kNotFound (it refused), kDeadlineExceeded (it sent nothing and does not
  // answer, or nothing is to come any more), kDataLoss (it sent what does not fit),
  // kInvalidArgument (there is no such shard).
  virtual void OnPulled(Ticket /*ticket*/, const Status& /*status*/,
                        const ShardHeader& /*enclosure*/) {}
  // A peer that a pull waits for does not answer, or the connection to it broke. Or a peer that was
  // offered something neither says anything nor answers.
  virtual void OnOutOfReach(Rank /*rank*/) {}
};

class Exchange {
 public:
  using Counters = ExchangeCounters;
  static constexpr std::size_t kMaxRequests = PullServer::kMaxRequests;

  // What is pulled is sent in parts of so many bytes. The pointers must outlive it.
  Exchange(ReplicaStore* store, Peers* peers, ExchangeEvents* events, std::size_t part_bytes);

  // Silent peers are asked, and given up, after this time limit from now on.
  void SetTimeout(DurationNs timeout) { peers_.SetTimeout(timeout); }

  // From now on this worker is this incarnation in this run; kNoRun: in none. Forgets everything.
  void Join(Incarnation self, RunId run, const Plan& plan);

  // The actions of worker/core/exchange.h. Their requirements are checked. An action uses only
  // tickets of pulls that ended ok.
  void Do(Instant now, const SetPeers& action);
  void Do(Instant now, const SendNote& action);
  void Do(Instant now, const StartPull& action);
  void Do(Instant, const DropPull& action) { pulls_.Drop(action.ticket); }
  void Do(Instant now, const Serve& action);
  void Do(Instant, const Refuse& action) { server_.Refuse(action.request); }
  void Do(Instant now, const SetIteration& action);
  void Do(Instant now, const PublishUpdate& action);
  void Do(Instant now, const RetireUpdate& action);
  void Do(Instant now, const MixUpdates& action);
  void Do(Instant, const CutShards& action) { shards_.Cut(action.shards); }
  void Do(Instant, const TakeDelta& action) { shards_.TakeDelta(action.share); }
  void Do(Instant now, const KeepShard& action);
  void Do(Instant now, const AddDelta& action);
  void Do(Instant, const MergePending& action) { shards_.Merge(action.shard); }
  void Do(Instant now, const ReadShard& action);
  void Do(Instant, const ForgetShard& action) { shards_.Forget(action.shard); }

  // A frame of the kinds from kNote on, to this incarnation. False: it counts for nothing.
  bool OnFrame(Instant now, const FrameHeader& header, SharedBytes payload);
  void OnLost(const std::string& endpoint);
  // This peer is out: pulls from it fail, and it is given nothing.
  void ForgetPeer(Incarnation peer);
  // Whether that ping is about a pull that is not answered yet. The ping shows that the peer still
  // waits.
  bool IsAsked(Instant now, const FrameHeader& ping);
  // Tells all whose pulls are not answered, as if they had asked whether something is still to
  // come.
  void SayToCome(Instant now) { server_.SayToCome(now); }
  // False: it counts for nothing.
  bool OnPong(Instant now, const FrameHeader& header);
  // Endpoints of peers that did not answer, once: their connections are better given up.
  std::vector<std::string> TakeUnreachable() { return peers_.TakeGivenUp(); }

  // Sends as much as connections take, and reports notes, requests and ended pulls.
  void Service(Instant now);
  // The time of the next Service that has something to do, whatever comes in.
  std::optional<Instant> NextDeadline() const;

  // Other memory is used from now on. REQUIRES: no run is joined.
  void Forget() { buffers_.Forget(); }
  // Something that is to be sent is on its way to host memory.
  bool Arriving() const { return server_.Arriving(); }

  const Counters& counters() const { return counters_; }

 private:
  bool OnAsking(Instant now, const FrameHeader& header, std::span<const std::byte> payload);
  std::optional<std::size_t> BytesOf(const PeerItem& parcel) const;
  Slice Find(const PeerItem& parcel);

  ReplicaStore* store_;
  ExchangeEvents* events_;
  Counters counters_;
  Buffers buffers_;
  std::map<Iteration, std::shared_ptr<Buffer>> updates_;  // published
  Shards shards_;

  ExchangePeers peers_;
  EarlyAsks early_;
  OfferWatch offers_;
  PullServer server_;
  Pulls pulls_;
  bool met_ = false;  // some peers that may have been heard already
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_EXCHANGE_H_
