// SSP's sharded store, on the side of those who keep shards: their owners and holders. Pure; a part
// of ShardStore, which knows when what may be done.
//
// A shard has one history: the updates that its owners added, in their order. `version` counts
// them. All copies of it are moments of that history, so that two of the same version are equal
// (under lockstep but for when what is pending is merged, which the clock of a read decides).
//
// An update is acknowledged once every holder has a version that includes it. Whom a later
// placement names as the shard's source is the owner or a holder of the last one that was opened,
// and answers only once it is under the later one itself: it adds, takes and acknowledges nothing
// any more by then. So what was acknowledged is in the source's state, whoever of them has died.
// What was not may be there or not. The state says which by its clocks, and the pusher offers it
// again.
#ifndef PRD_WORKER_CORE_SHARD_KEEPER_H_
#define PRD_WORKER_CORE_SHARD_KEEPER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/pull_queue.h"

namespace prd {

// What counts as an update's clock. Others are a damaged message's.
inline constexpr std::int64_t kMaxClock = INT64_MAX / 4;

// When to say something again that nobody has answered: after 500 ms, doubling to 4 s.
class SayAgain {
 public:
  void Said(Instant now);      // for the first time
  void SaidOnce(Instant now);  // once more
  Instant at() const { return at_; }

 private:
  Instant at_;
  DurationNs after_ = 0;
};

// A Placement, for looking things up, as one of its members sees it.
class PlacementMap {
 public:
  PlacementMap() = default;
  PlacementMap(const Placement& placement, Incarnation self);

  std::uint64_t epoch() const { return epoch_; }
  Incarnation self() const { return self_; }
  std::uint32_t shards() const { return static_cast<std::uint32_t>(shards_.size()); }
  const ShardPlace& place(std::uint32_t shard) const { return shards_[shard]; }
  std::size_t members() const { return by_rank_.size(); }
  std::size_t self_index() const { return self_index_; }  // among the members, by rank
  bool Has(Incarnation worker) const { return ranks_.contains(worker); }
  Incarnation At(Rank rank) const { return by_rank_.at(rank); }
  Incarnation Owner(std::uint32_t shard) const { return At(shards_[shard].owner); }
  bool Holds(Incarnation worker, std::uint32_t shard) const;  // a copy, not being the owner

 private:
  std::uint64_t epoch_ = 0;
  Incarnation self_ = 0;
  std::size_t self_index_ = 0;
  SharedList<ShardPlace> shards_;
  std::map<Rank, Incarnation> by_rank_;
  std::map<Incarnation, Rank> ranks_;
};

class ShardKeeper {
 public:
  // A newer placement is in force; not open yet.
  // REQUIRES: where this worker is the source of a shard, it has it.
  void Place(Instant now, const StorePlan& plan, PlacementMap map, Actions* out);
  bool Has(std::uint32_t shard) const { return kept_.contains(shard); }
  // All shards owned here are complete, here and on their holders.
  bool placed() const { return map_.epoch() != 0 && unplaced_ == 0; }
  const PlacementMap& map() const { return map_; }
  // The next pull's, of the whole store.
  Ticket* next_ticket() { return &next_ticket_; }
  // Forgets what this worker neither owns nor holds any more.
  void Open(Actions* out);

  // REQUIRES, of what follows: parcel.epoch is the placement's; `from` is a member; for kDelta and
  // kShard, and AddOwn and ReadOwn, that the placement is open.

  // An offer of a kDelta or kState.
  void OnOffer(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  // A holder has the kState.
  void OnStored(Instant now, Incarnation from, const PeerItem& parcel, Actions* out);
  // A request for a kShard or kState.
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out);
  // False: the ticket is none of these.
  bool OnPulled(Instant now, Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out);
  // This worker's own update of a shard that it owns, with the note that it would offer it with.
  void AddOwn(Instant now, const PeerMessage& note, Actions* out);
  // Reads the shard, which is owned here, at this clock. Returns its version.
  std::int64_t ReadOwn(std::uint32_t shard, std::int64_t clock, bool keeps_move, Actions* out);
  // Own updates that are stored since the last call.
  std::vector<PeerItem> TakeStored() { return std::exchange(stored_, {}); }

  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;
  // Pulls on their way, for tests: of updates, of states.
  std::size_t deltas_under_way() const { return deltas_.under_way(); }
  std::size_t states_under_way() const { return states_.under_way(); }

 private:
  // The newest update of a worker in a shard.
  struct Included {
    std::int64_t clock = 0;
    std::int64_t version = 0;  // the shard's, with it
  };
  struct Kept {
    std::uint64_t epoch = 0;  // the last placement under which it is the owner's
    std::int64_t version = 0;
    std::int64_t readable = 0;  // lockstep: as in ShardHeader
    std::map<Incarnation, Included> included;
  };
  struct Holder {
    Incarnation worker = 0;
    std::int64_t confirmed = -1;          // version that it has
    std::optional<std::int64_t> offered;  // version; not answered
    SayAgain again;
  };
  struct Owned {
    bool placed = false;
    std::vector<Holder> holders;
    std::map<Incarnation, PeerMessage> offers;    // that are being pulled
    std::map<Incarnation, Included> unconfirmed;  // pushers who wait for kStored
  };

  bool Have(std::uint32_t shard) const;  // as the present placement has it
  void Own(Instant now, std::uint32_t shard, Actions* out);
  void OnDeltaOffer(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  void OnStateOffer(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  void Add(Instant now, Incarnation from, Ticket ticket, const PeerMessage& note, Actions* out);
  double Factor(const Kept& kept, const PeerMessage& note) const;
  void MergeUpTo(std::uint32_t shard, std::int64_t clock, Actions* out);
  void Keep(Instant now, Incarnation from, Ticket ticket, std::uint32_t shard,
            const ShardHeader& enclosure, Actions* out);
  void SayState(Incarnation to, std::uint32_t shard, Actions* out) const;
  void OfferStates(Instant now, std::uint32_t shard, Actions* out);
  void Confirm(std::uint32_t shard, Actions* out);

  // At once: so many parts of the parameters take memory besides those that are kept.
  static constexpr std::size_t kDeltasAtOnce = 16;
  static constexpr std::size_t kStatesAtOnce = 16;

  bool lockstep_ = false;
  bool staleness_aware_ = false;
  Ticket next_ticket_ = 1;
  PlacementMap map_;
  std::map<std::uint32_t, Kept> kept_;
  std::map<std::uint32_t, Owned> owned_;
  std::size_t unplaced_ = 0;  // of owned_
  std::vector<PeerItem> stored_;
  PullQueue deltas_{kDeltasAtOnce};
  PullQueue states_{kStatesAtOnce};
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SHARD_KEEPER_H_
