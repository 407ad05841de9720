// What this worker pulls from peers (exchange.h): from the request until the bytes are used.
//
// A frame that does not fit its pull fails the pull with kDataLoss. A peer that is silent is asked,
// and given up. Part of Exchange: used by the background thread alone.
#ifndef PRD_WORKER_MESH_PULLS_H_
#define PRD_WORKER_MESH_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/exchange.h"
#include "worker/memory/buffers.h"
#include "worker/mesh/exchange_peers.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/silence.h"

namespace prd {

class Pulls {
 public:
  struct Ended {
    Ticket ticket = 0;
    Status status;
    ShardHeader enclosure;
  };

  // All must outlive it. `counters` gets what is held.
  Pulls(ExchangePeers* peers, Buffers* buffers, ExchangeCounters* counters)
      : peers_(peers), buffers_(buffers), counters_(counters) {}

  // Forgets everything.
  void Reset();

  // The peer is to send so many bytes; nullopt: there is no such item.
  void Start(Instant now, const StartPull& action, std::optional<std::size_t> bytes);
  void Drop(Ticket ticket);
  // The bytes of a pull that ended ok, which is forgotten; null of ticket 0.
  std::shared_ptr<Buffer> Use(Ticket ticket);

  // Pulls of others than these peers fail; pulls over this connection; and those from this peer.
  void KeepFrom(const std::set<Incarnation>& peers);
  void OnLost(const std::string& endpoint);
  void Forget(Incarnation peer);

  // A frame that answers a pull, or a kPong about one. False: it counts for nothing.
  bool OnAnswer(Instant now, const FrameHeader& header, std::span<const std::byte> payload);
  bool OnPong(Instant now, const FrameHeader& header);

  // Asks peers that are silent. Returns each pull that has ended, once.
  std::vector<Ended> Service(Instant now);
  // The time of the next Service that has something to do, whatever comes in.
  std::optional<Instant> NextDeadline() const;

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

  Pull* Find(Ticket ticket, Incarnation from);
  Status TakeInfo(Pull* pull, std::span<const std::byte> payload);
  Status TakePart(Pull* pull, const FrameHeader& header, std::span<const std::byte> payload);
  void Watch(Instant now, Ticket ticket, Pull* pull);
  void Fail(Ticket ticket, Pull* pull, Status status);
  std::shared_ptr<Buffer> LetGo(Pull* pull);

  ExchangePeers* peers_;
  Buffers* buffers_;
  ExchangeCounters* counters_;
  std::map<Ticket, Pull> pulls_;
  bool due_ = false;  // some have failed
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_PULLS_H_
