// Notes, pulls and shards between workers (worker/core/exchange.h) over the connections of a mesh.
//
// The puller sends kPull to the peer. The peer answers kRefused; or kParcel, with the size and the
// enclosure, and then the bytes in parts, in order. The peer sends a part only when the part before
// has been handed to the network. So pulls of one peer take turns, and a slow puller delays only
// itself. The puller knows the size beforehand and takes no other. The bytes stay where they are
// received until the core uses them. Published updates and deltas are sent to all pullers from one
// row.
//
// A frame that does not fit its pull fails the pull with kDataLoss; any other wrong frame is
// dropped. Part of Mesh: used by the background thread alone.
#ifndef PRD_WORKER_MESH_EXCHANGE_H_
#define PRD_WORKER_MESH_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/exchange.h"
#include "worker/memory/buffers.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"
#include "worker/mesh/shards.h"
#include "worker/mesh/silence.h"

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
  // Requests of one peer; more are refused.
  static constexpr std::size_t kMaxRequests = 256;
  // Notes and requests of peers that are not met yet are kept for when they are.
  static constexpr std::size_t kMaxEarly = 256;
  // Notes to a peer are dropped while this many frames wait to be sent to it.
  static constexpr std::size_t kMaxQueued = 256;

  struct Counters {
    std::uint64_t sent_bytes = 0;       // of parcels
    std::uint64_t held_bytes = 0;       // by pulls now: under way, or waiting to be used
    std::uint64_t most_held_bytes = 0;  // at any time since the run was joined
  };

  // What is pulled is sent in parts of so many bytes. The pointers must outlive it.
  Exchange(ReplicaStore* store, Peers* peers, ExchangeEvents* events, std::size_t part_bytes);

  // Silent peers are asked, and given up, after this time limit from now on.
  void SetTimeout(DurationNs timeout) { timeout_ = timeout; }

  // From now on this worker is this incarnation in this run; kNoRun: in none. Forgets everything.
  void Join(Incarnation self, RunId run, const Plan& plan);

  // The actions of worker/core/exchange.h. Their requirements are checked. An action uses only
  // tickets of pulls that ended ok.
  void Do(Instant now, const SetPeers& action);
  void Do(Instant now, const SendNote& action);
  void Do(Instant now, const StartPull& action);
  void Do(Instant now, const DropPull& action);
  void Do(Instant now, const Serve& action);
  void Do(Instant now, const Refuse& action);
  void Do(Instant now, const SetIteration& action);
  void Do(Instant now, const PublishUpdate& action);
  void Do(Instant now, const RetireUpdate& action);
  void Do(Instant now, const MixUpdates& action);
  void Do(Instant now, const CutShards& action);
  void Do(Instant now, const TakeDelta& action);
  void Do(Instant now, const KeepShard& action);
  void Do(Instant now, const AddDelta& action);
  void Do(Instant now, const MergePending& action);
  void Do(Instant now, const ReadShard& action);
  void Do(Instant now, const ForgetShard& action);

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
  void SayToCome(Instant now);
  // False: it counts for nothing.
  bool OnPong(Instant now, const FrameHeader& header);
  // Endpoints of peers that did not answer, once: their connections are better given up.
  std::vector<std::string> TakeUnreachable() { return std::exchange(unreachable_, {}); }

  // Sends as much as connections take, and reports notes, requests and ended pulls.
  void Service(Instant now);
  // The time of the next Service that has something to do, whatever comes in.
  std::optional<Instant> NextDeadline() const;

  // Other memory is used from now on. REQUIRES: no run is joined.
  void Forget() { buffers_.Forget(); }
  // Something that is to be sent is on its way to host memory.
  bool Arriving() const;

  const Counters& counters() const { return counters_; }

 private:
  struct Pull {
    Incarnation from = 0;
    std::string endpoint;  // empty: nobody was asked
    std::size_t bytes = 0;
    bool described = false;          // kParcel has come
    std::shared_ptr<Buffer> buffer;  // from then on
    std::size_t received = 0;
    ShardHeader enclosure;
    Silence silence;
    Status failure;
    bool reported = false;

    bool complete() const { return described && received == bytes; }
    bool ended() const { return !failure.ok() || complete(); }
  };
  struct Asked {  // by a peer
    Incarnation from = 0;
    std::string endpoint;
    std::uint64_t number = 0;  // the peer's
    Slice slice;               // once it is served
    std::size_t sent = 0;
    Instant progress;
  };
  struct Early {
    FrameHeader header;
    SharedBytes payload;
  };

  std::string EndpointOf(Incarnation peer) const;
  bool Say(Incarnation to, const std::string& endpoint, FrameKind kind, std::uint64_t number,
           std::span<const std::byte> payload);
  std::size_t Ready(const Slice& slice) const;
  bool SendPart(Instant now, Asked* asked);

  bool OnAsking(Instant now, const FrameHeader& header, SharedBytes payload);
  bool OnNote(const FrameHeader& header, std::span<const std::byte> payload);
  bool OnPull(Instant now, const FrameHeader& header, std::span<const std::byte> payload);
  bool OnStop(const FrameHeader& header);
  bool OnAnswer(Instant now, const FrameHeader& header, std::span<const std::byte> payload);
  Status TakeInfo(Pull* pull, std::span<const std::byte> payload);
  Status TakePart(Pull* pull, const FrameHeader& header, std::span<const std::byte> payload);

  std::optional<std::size_t> BytesOf(const PeerItem& parcel) const;
  Slice Find(const PeerItem& parcel);
  void Fail(Ticket ticket, Pull* pull, Status status);
  void Hold(Pull* pull);
  std::shared_ptr<Buffer> LetGo(Pull* pull);
  std::shared_ptr<Buffer> Use(Ticket ticket);

  void HearEarly(Instant now);
  void SendParts(Instant now);
  void Ask(Instant now, Incarnation peer, const std::string& endpoint, std::uint64_t number);
  void WatchPull(Instant now, Ticket ticket, Pull* pull);
  void WatchOffers(Instant now);
  void EndPulls(Instant now);
  void NoteOutOfReach(Incarnation peer);

  ReplicaStore* store_;
  Peers* peers_;
  ExchangeEvents* events_;
  std::size_t part_bytes_;
  DurationNs timeout_ = 0;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  bool due_ = false;  // Service has something to do at once

  std::map<Incarnation, std::string> met_;  // their endpoints; empty: it has none to be used
  std::map<Incarnation, Rank> ranks_;       // of those
  std::set<Rank> out_of_reach_;             // to be reported
  std::deque<Early> early_;
  std::map<Ticket, Pull> pulls_;
  std::map<Incarnation, Silence> offered_;  // peers not heard of since an offer to them
  std::map<Request, Asked> asked_;
  Request requests_ = 0;
  std::vector<std::string> unreachable_;

  Buffers buffers_;
  std::map<Iteration, std::shared_ptr<Buffer>> updates_;  // published
  Shards shards_;
  Counters counters_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_EXCHANGE_H_
