// Copying a whole replica, or a round's result, from a running peer: the receiving side and the
// sending side.
#ifndef PRD_WORKER_MESH_FETCH_H_
#define PRD_WORKER_MESH_FETCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/memory/buffers.h"
#include "worker/mesh/copied_rows.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"
#include "worker/mesh/replica_store.h"

namespace prd {

// One replica, or one round's result, on its way here. Keeps the bytes that have come, and does not
// write the store before Commit, unless they go where they belong as they come (`in_place`). Then
// the replica is torn (ReplicaStore) from the first of them until Commit.
class IncomingReplica {
 public:
  struct Wanted {
    GroupId result = kNoGroup;  // of this kRound; kNoGroup: the replica
    bool alone = false;         // of the replica, the parameters alone (TakeParameters)
    bool in_place = false;      // the whole replica, over the one that is here
  };
  IncomingReplica(ReplicaStore* store, const Plan& plan, const Wanted& wanted);

  GroupId result() const { return wanted_.result; }

  // kReplica, then kChunk in order, row by row; or kGone. An error means that this copy cannot
  // succeed: kNotFound, that the source has no such result. In place, it takes the store's mutex.
  Status OnFrame(const FrameHeader& header, SharedBytes payload);
  bool Complete() const;
  // Replaces parameters, iteration, state, initial model and inbox, and the base if the plan keeps
  // one. Empties the outbox. Returns the replica's iteration, with what is in the inbox. REQUIRES:
  // Complete(), of a replica; store->mutex is held.
  Iteration Commit();
  // A result, as a row in host memory, and its round. REQUIRES: Complete(), of a result; once.
  std::shared_ptr<Buffer> TakeResult();
  Iteration round() const { return info_->inbox_iteration; }
  // A replica's parameters, the same.
  std::shared_ptr<Buffer> TakeParameters();

 private:
  Status OnInfo(const ReplicaInfo& info);
  Memory::Place PlaceOf(CopiedRow row);
  const Layout& LayoutOf(CopiedRow row) const;
  void LandNow(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes);
  void Write(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes);
  void Stage(CopiedRow row, std::uint64_t offset, const SharedBytes& bytes);
  template <typename F>
  void Put(CopiedRow row, F&& put);
  void Land(CopiedRow row);
  std::shared_ptr<Buffer> Gather(CopiedRow row);

  ReplicaStore* store_;
  Plan plan_;
  Wanted wanted_;
  Buffers buffers_;                // host memory of copies
  std::shared_ptr<Buffer> stage_;  // in place, on a device: the next bytes that it is to have
  std::optional<ReplicaInfo> info_;
  std::array<std::vector<SharedBytes>, kCopiedRows> chunks_;
  std::array<std::uint64_t, kCopiedRows> received_{};
  CountedBytes frames_;
};

// The result of a kRound where it can be copied.
struct RoundResult {
  GroupId group = kNoGroup;
  Iteration round = 0;
  Memory::Place row;
  SharedList<GroupMember> members;  // of the round: they may copy it
};

// Sends the replica to peers that ask, as it is at one moment between two steps, the same for all
// peers that wait then (CopiedRows). Where it has state that is kept, that is when the store can
// copy it (ReplicaStore). A round's result is copied when a peer asks.
//
// A replica goes only to whom the controller has ordered to copy it (Order): one order, one copy. A
// request may come before its order, and waits for it.
class ReplicaServer {
 public:
  static constexpr std::size_t kMaxWaiting = 64;
  // Requests of one member that wait for an order: a copy, and one for an average.
  static constexpr std::size_t kMaxUnordered = 2;
  // Memory of copies is kept for the next one for so long: new memory costs more to clear than to
  // fill, and a worker that is always slow may copy every few rounds.
  static constexpr DurationNs kKept = 30 * kSecond;

  // It sends rows in chunks of so many bytes. The pointers outlive it.
  ReplicaServer(ReplicaStore* store, Peers* peers, std::size_t chunk_bytes)
      : store_(store),
        peers_(peers),
        chunk_bytes_(chunk_bytes),
        buffers_([store](std::size_t bytes) {
          return store->memory->AllocateHost(MemoryUse::kCopies, bytes);
        }) {}

  // This member may copy the replica once.
  void Order(Instant now, Incarnation member);
  // It is out.
  void ForgetPeer(Incarnation member);
  // A checked kFetch frame of that member; `newest` is the result that can be had now. Asks over
  // the limit, or twice, are ignored.
  void OnRequest(Instant now, const FrameHeader& request, const GroupMember& to,
                 const RoundResult& newest);
  // Copies the replica for those who wait, if it may be read now: the caller is not inside `apply`.
  void ServeWaiting(Instant now);
  // The same, and sends as much as connections take.
  // Forgets peers that take nothing, and do not ask, for the time limit, and requests that have had
  // no order for so long.
  void Service(Instant now, DurationNs timeout);
  void OnLost(const std::string& endpoint);
  // Whether that ping is about a request that is not answered yet. The ping shows that the peer
  // still waits.
  bool IsAsked(Instant now, const FrameHeader& ping);
  // Tells all that have asked, as if they had asked whether it is still to come. While a replica is
  // copied, too.
  void SayToCome(Instant now);
  // Keeps connections in use that a rest would stop watching.
  void Hold();
  std::optional<Instant> NextDeadline(DurationNs timeout) const;
  bool idle() const { return waiting_.empty() && sending_.empty() && unordered_.empty() && !used_; }
  void Clear();
  // Other memory is used from now on.
  void Forget() { buffers_.Forget(); }
  // Something that is to be sent is on its way to host memory, or the caller is about to change it.
  bool Arriving() const;

 private:
  struct Offer {
    ReplicaInfo info;
    std::shared_ptr<CopiedRows> rows;
    SharedList<GroupMember> members;  // of a round whose result it is
  };
  struct Sending {
    std::string endpoint;
    FrameHeader request;
    std::shared_ptr<const Offer> offer;
    std::size_t row = 0;  // CopiedRow
    std::uint64_t offset = 0;
    Instant progress;
    bool looked_at = false;  // in a turn after the one in which it has got its offer
  };

  bool TakeOrder(Incarnation member);
  void HoldUnordered(Sending sending);
  void DropOlder(const FrameHeader& request);
  std::shared_ptr<Buffer> Copy(const Layout& layout, const Memory::Place& from);
  // `all`: with all that a worker that goes on with it needs, else the parameters alone.
  std::shared_ptr<const Offer> TakeReplica(bool all);
  std::shared_ptr<const Offer> TakeResult(const RoundResult& result);
  void GiveResult(Sending sending, const RoundResult& newest);
  void Start(Instant now, Sending sending, std::shared_ptr<const Offer> offer);
  FrameHeader Answer(const Sending& sending, FrameKind kind) const;
  bool Arriving(const Sending& sending) const;
  bool SendNext(Sending* sending);
  bool SendSome(Instant now, Sending* sending);

  ReplicaStore* store_;
  Peers* peers_;
  std::size_t chunk_bytes_;
  Buffers buffers_;
  std::optional<Instant> used_;                // they were, last
  std::map<Incarnation, std::size_t> orders_;  // copies that are not asked for yet
  std::deque<Sending> unordered_;              // without an order yet; `progress`: since then
  std::deque<Sending> waiting_;                // without an offer yet
  std::deque<Sending> sending_;
  bool locked_out_ = false;  // in the turn before
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_FETCH_H_
