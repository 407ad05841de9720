// The peers that were offered something and have not been heard of since. Each is asked, and given
// up if it does not answer. Part of Exchange: used by the background thread alone.
#ifndef PRD_WORKER_MESH_OFFER_WATCH_H_
#define PRD_WORKER_MESH_OFFER_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "worker/mesh/exchange_peers.h"
#include "worker/mesh/silence.h"

namespace prd {

class OfferWatch {
 public:
  // What a ping is about, where pulls have their tickets.
  static constexpr std::uint64_t kOffers = 0;

  // *peers must outlive it.
  explicit OfferWatch(ExchangePeers* peers) : peers_(peers) {}

  void Reset() { silences_.clear(); }
  // The peer is offered something. It is offered again until it is answered, and then watched
  // again.
  void Offered(Instant now, Incarnation peer);
  void Heard(Incarnation peer) { silences_.erase(peer); }
  void KeepOnly(const std::set<Incarnation>& peers);
  // False: it was not asked, or has answered before.
  bool OnPong(Instant now, Incarnation peer);

  void Service(Instant now);
  std::optional<Instant> NextDeadline() const;

 private:
  ExchangePeers* peers_;
  std::map<Incarnation, Silence> silences_;
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_OFFER_WATCH_H_
