// Pulls that a worker wants to make, a few of them at once, until each has succeeded. Pure; a part
// of ShardStore.
#ifndef PRD_WORKER_CORE_PULL_QUEUE_H_
#define PRD_WORKER_CORE_PULL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "worker/core/actions.h"
#include "worker/core/exchange.h"

namespace prd {

// At most `limit` are on their way, which bounds the memory that they take; they begin in the order
// in which they were asked for. One that fails is tried again after 100 ms, doubling to 2 s.
class PullQueue {
 public:
  struct Pull {
    Incarnation from = 0;
    PeerItem parcel;
  };

  explicit PullQueue(std::size_t limit) : limit_(limit) {}

  // One per peer and shard: a parcel with a higher stamp takes the place of the one before it.
  // False, and nothing changes, unless it is the first or its stamp is higher.
  bool Want(Incarnation from, const PeerItem& parcel, Actions* out);
  // Starts what may start; takes tickets from *next_ticket.
  void Start(Instant now, Ticket* next_ticket, Actions* out);
  // That has this ticket, if there is one.
  std::optional<Pull> Find(Ticket ticket) const;
  // It has ended: it is no longer wanted, or tried again later. REQUIRES: Find(ticket).
  void Succeeded(Ticket ticket);
  void Failed(Instant now, Ticket ticket);
  // Nothing is wanted any more.
  void Clear(Actions* out);

  // When Start has something to do because time has passed.
  std::optional<Instant> NextDeadline() const;
  std::size_t under_way() const { return tickets_.size(); }
  std::size_t wanted() const { return items_.size(); }

 private:
  using Key = std::pair<Incarnation, std::uint32_t>;  // peer, shard
  struct Item {
    PeerItem parcel;
    Ticket ticket = 0;     // 0: waits
    DurationNs after = 0;  // between the last failure and the next try
  };

  std::size_t limit_;
  std::map<Key, Item> items_;
  std::deque<Key> waiting_;  // in order; each is in items_
  std::set<std::pair<Instant, Key>> failed_;
  std::map<Ticket, Key> tickets_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_PULL_QUEUE_H_
