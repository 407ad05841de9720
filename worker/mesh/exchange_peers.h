// The peers that an exchange meets: where they are reached, what is said to them, and which of them
// turn out to be out of reach. Part of Exchange: used by the background thread alone.
#ifndef PRD_WORKER_MESH_EXCHANGE_PEERS_H_
#define PRD_WORKER_MESH_EXCHANGE_PEERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"

namespace prd {

struct ExchangeCounters {
  std::uint64_t sent_bytes = 0;       // of parcels
  std::uint64_t held_bytes = 0;       // by pulls now: under way, or waiting to be used
  std::uint64_t most_held_bytes = 0;  // at any time since the run was joined
};

class ExchangePeers {
 public:
  // Messages that may get lost are dropped while this many frames wait to be sent to a peer.
  static constexpr std::size_t kMaxQueued = 256;

  // *connections must outlive it.
  explicit ExchangePeers(Peers* connections) : connections_(connections) {}

  // How long a peer may be silent, from now on.
  void SetTimeout(DurationNs timeout) { timeout_ = timeout; }
  DurationNs timeout() const { return timeout_; }

  // From now on this worker is this incarnation in this run. Forgets everything.
  void Join(Incarnation self, RunId run);
  // From now on these are met, and no others.
  void Meet(const std::vector<GroupMember>& peers);
  // It is still met, but not to be reached, nor looked for.
  void Forget(Incarnation peer);

  // Whether the frame is of another worker in this run.
  bool Hears(const FrameHeader& header) const;
  bool Meets(Incarnation peer) const { return endpoints_.contains(peer); }
  // Empty: it has none to be used.
  std::string EndpointOf(Incarnation peer) const;
  // There is a connection from now on, whose loss is reported. False: there is none.
  bool Connect(const std::string& endpoint);

  FrameHeader Header(FrameKind kind, Incarnation to, std::uint64_t number) const;
  // False: it was not sent. What may get lost is dropped where too much waits.
  bool Say(Incarnation to, const std::string& endpoint, FrameKind kind, std::uint64_t number,
           std::span<const std::byte> payload = {});
  // Asks whether something is still to come.
  void Ask(Instant now, Incarnation peer, const std::string& endpoint, std::uint64_t number);
  void SayToCome(Instant now, Incarnation peer, const std::string& endpoint, std::uint64_t number);

  // The peer does not answer, or the connection to it broke.
  void NoteOutOfReach(Incarnation peer);
  // The peer does not answer: nor is the connection to be used any more.
  void GiveUp(Incarnation peer, const std::string& endpoint);
  std::set<Rank> TakeOutOfReach() { return std::exchange(out_of_reach_, {}); }
  std::vector<std::string> TakeGivenUp() { return std::exchange(given_up_, {}); }

 private:
  Peers* connections_;
  DurationNs timeout_ = 0;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  std::map<Incarnation, std::string> endpoints_;  // empty: it has none to be used
  std::map<Incarnation, Rank> ranks_;             // of those that are looked for
  std::set<Rank> out_of_reach_;                   // to be reported
  std::vector<std::string> given_up_;             // the same
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_EXCHANGE_PEERS_H_
