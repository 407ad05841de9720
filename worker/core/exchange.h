// What workers ask of each other outside of groups: under plans with neighbours or a store.
//
// There is one mechanism. A worker that has an item for a peer offers it in a PeerMessage. The peer
// pulls the item when it wants it and has room for it, or declines. So a worker sends nothing that
// its receiver has no use for (Hop, section 6.2: the receiver is asked before an update is sent),
// and a receiver decides how much memory it gives. The core decides, by actions (actions.h); the
// data plane carries messages and items, and does the arithmetic.
//
// Messages and requests may be lost with a connection or a process. A worker that waits for an
// answer repeats its message, or pulls again, after a while. So each of them may come twice, and
// late.
#ifndef PRD_WORKER_CORE_EXCHANGE_H_
#define PRD_WORKER_CORE_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"

namespace prd {

// Names something that a worker can pull from a peer.
struct PeerItem {
  enum class Kind : std::uint8_t {
    kUpdate = 0,  // NeighbourPlan: the parameters that the peer sent in iteration `stamp`
    kDelta = 1,   // StorePlan, of the peer's update of clock `stamp`: the part in `shard`
    kShard = 2,   // the values of `shard`, for a read at clock `stamp`
    kState = 3,   // all there is of `shard`, for an owner or holder; of version `stamp` or newer
  };
  Kind kind = Kind::kUpdate;
  std::uint32_t shard = 0;
  std::uint64_t epoch = 0;  // of the Placement that it is asked for under; kUpdate: 0
  std::int64_t stamp = 0;
  friend auto operator<=>(const PeerItem&, const PeerItem&) = default;
};

struct PeerMessage {
  enum class Kind : std::uint8_t {
    kOffer = 0,     // "I have this item for you"
    kDeclined = 1,  // answers an offer: "I have no use for it"
    kStored = 2,    // answers an offer: "I have it"; of a kDelta: "and so have all holders"
  };
  Kind kind = Kind::kOffer;
  PeerItem parcel;
  // An offered kDelta: the shard's version that the update was computed on, and how many workers
  // train (its share in the parameters is one over that). An offered kUpdate: the iteration of the
  // sender's update before this one; it skipped those between the two (Hop, section 5), so that
  // nobody waits for them. `stamp` - 1 where there was none.
  std::int64_t version = 0;
  std::uint32_t workers = 0;
  friend bool operator==(const PeerMessage&, const PeerMessage&) = default;
};

// What a kState or kShard comes with.
struct ShardHeader {
  struct Clock {  // the newest update of a worker that is in the shard
    Incarnation worker = 0;
    std::int64_t clock = 0;
    friend bool operator==(const Clock&, const Clock&) = default;
  };
  std::int64_t version = 0;   // updates in the shard, pending ones included
  std::int64_t readable = 0;  // lockstep: the clock up to which updates are in its values; those
                              // after that are pending
  std::vector<Clock> clocks;  // kState; by worker, ascending
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;
};

using Ticket = std::uint64_t;   // of a pull; the core numbers them from 1
using Request = std::uint64_t;  // of a peer's pull; the data plane numbers them from 1

// ---- actions ----
//
// All but StartPull and Serve are done at once, before any later action. They touch parameters only
// while the training loop is in a call, or (PublishUpdate) read them between two steps.

// From now on, messages and pulls go to these peers only, by incarnation. Messages from others, and
// pulls from others, come to nothing. What came from these peers before, up to a limit, counts now.
struct SetPeers {
  std::vector<GroupMember> peers;
};
struct SendNote {
  Incarnation to = 0;
  PeerMessage note;
};
// Ends with SessionCore::OnPulled, once, unless it is cancelled. What was pulled is kept under the
// ticket until an action below uses or drops it.
struct StartPull {
  Ticket ticket = 0;
  Incarnation from = 0;
  PeerItem parcel;
};
// Also of one that has ended: forgets what it brought.
struct DropPull {
  Ticket ticket = 0;
};
// Answers a request (SessionCore::OnRequest): the bytes are those of now.
struct Serve {
  Request request = 0;
  PeerItem parcel;
  ShardHeader enclosure;
};
struct Refuse {
  Request request = 0;
};
// The replica's iteration, for whoever asks or copies it.
struct SetIteration {
  Iteration iteration = 0;
};

// NeighbourPlan. The parameters as they are now can be pulled as the update of this iteration;
// until it is retired.
struct PublishUpdate {
  Iteration iteration = 0;
};
struct RetireUpdate {
  Iteration iteration = 0;
};
// parameters = own_weight * parameters + sum of weight * update. The tickets are used up.
struct MixUpdates {
  struct Update {
    Ticket ticket = 0;
    double weight = 0;
    friend bool operator==(const Update&, const Update&) = default;
  };
  double own_weight = 1;  // with the others' it sums to 1
  std::vector<Update> updates;
};

// StorePlan. The parameters are cut into so many shards, the same on every worker.
struct CutShards {
  std::uint32_t shards = 0;
};
// delta = share * (parameters - what was read last). It can be pulled, as kDelta, until the next.
struct TakeDelta {
  double share = 1;
};
// This worker keeps the shard from now on: with the values that it read last, or began with (ticket
// 0), or with the kState that was pulled.
struct KeepShard {
  std::uint32_t shard = 0;
  Ticket ticket = 0;
};
// values += factor * delta; `pending`: to what is pending instead. Ticket 0: its own delta.
struct AddDelta {
  std::uint32_t shard = 0;
  Ticket ticket = 0;
  double factor = 1;
  bool pending = false;
};
// values += what is pending, of which nothing is left.
struct MergePending {
  std::uint32_t shard = 0;
};
// The part of the parameters in this shard, and what was read last there, become the values that
// were pulled; ticket 0: of the shard kept here. `keeps_move`: the parameters have, beside these
// values, what they have moved since they were read last.
struct ReadShard {
  std::uint32_t shard = 0;
  Ticket ticket = 0;
  bool keeps_move = false;
};
struct ForgetShard {
  std::uint32_t shard = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_EXCHANGE_H_
