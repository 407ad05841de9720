// SSP's sharded store: this worker's side of it, as one that pushes updates and reads shards, and
// (shard_keeper.h) as one that owns and holds them (Ho et al., NIPS 2013). Pure; a part of
// SessionCore.
//
// Each Placement closes the store until it is Opened. What is under way then ends without a trace:
// updates are offered to the new owners, and shards read from them, once it is open. Notes and
// requests of older placements come to nothing; those of newer ones, and those that need the store
// to be open, wait until this worker has heard so too.
#ifndef PRD_WORKER_CORE_SHARD_STORE_H_
#define PRD_WORKER_CORE_SHARD_STORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "prd/status.h"
#include "worker/core/actions.h"
#include "worker/core/pull_queue.h"
#include "worker/core/shard_keeper.h"

namespace prd {

class ShardStore {
 public:
  // What is wrong with a placement for the worker that has this rank and incarnation, or empty.
  std::string Check(const Placement& placement, Rank rank, Incarnation self) const;
  // REQUIRES: Check says nothing.
  void SetPlacement(Instant now, const StorePlan& plan, const Placement& placement,
                    Incarnation self, Actions* out);
  // True once per placement: all that this worker owns under it is complete, here and on holders.
  bool TakePlaced();
  // False: the placement cannot be open, for this worker has not placed its shards. Of an older
  // placement: nothing happens.
  bool Open(Instant now, std::uint64_t epoch, Actions* out);
  std::uint64_t epoch() const { return keeper_.map().epoch(); }
  std::size_t members() const { return keeper_.map().members(); }

  // Pushes the update with which this worker reaches `clock`: `share` of what its parameters have
  // moved since they were read. `workers` train. REQUIRES: there is a placement; the training loop
  // is in a call; the push before is through, or was given up; clocks ascend.
  void Push(Instant now, std::int64_t clock, double share, std::uint32_t workers, Actions* out);
  // Every owner has the update, and so have the holders.
  bool pushed() const { return push_.clock > 0 && push_.left == 0; }

  // Reads all shards at this clock into the parameters; all anew under each placement that comes
  // before that is through. `keeps_move`: as in ReadShard. REQUIRES: the training loop is in a call
  // until TakeRead or StopReading.
  void Read(Instant now, std::int64_t clock, bool keeps_move, Actions* out);
  void StopReading(Actions* out);
  // True once per Read, when it is through.
  bool TakeRead();

  void OnNote(Instant now, Incarnation from, const PeerMessage& note, Actions* out);
  void OnRequest(Incarnation from, Request request, const PeerItem& parcel, Actions* out);
  void OnPulled(Instant now, Ticket ticket, const Status& status, const ShardHeader& enclosure,
                Actions* out);
  void OnTime(Instant now, Actions* out);
  std::optional<Instant> NextDeadline() const;

  // Notes and requests that wait, for tests.
  std::size_t waiting() const { return early_notes_.size() + early_requests_.size(); }
  const ShardKeeper& keeper() const { return keeper_; }

 private:
  struct Pushing {
    std::int64_t clock = 0;  // 0: nothing has been pushed
    std::uint32_t workers = 1;
    std::vector<bool> stored;  // by shard
    std::size_t left = 0;      // not stored
    SayAgain again;
  };
  struct Reading {
    bool wanted = false;
    bool begun = false;
    std::int64_t clock = 0;
    bool keeps_move = false;
    std::size_t left = 0;
  };

  bool Early(const PeerItem& parcel, bool needs_open) const;
  void AdmitEarly(Instant now, Actions* out);
  void BeginPush(Instant now, Actions* out);
  void Offer(Instant now, std::uint32_t shard, Actions* out);
  void Stored(const PeerItem& parcel);
  void TakeOwnStored();
  void BeginRead(Instant now, Actions* out);

  // A worker that reads has so many parts of the parameters twice.
  static constexpr std::size_t kReadsAtOnce = 16;
  // A limit for each kind. What does not fit comes again: notes are said, and pulls tried, again.
  static constexpr std::size_t kMaxEarly = 4096;

  ShardKeeper keeper_;
  bool open_ = false;
  bool said_placed_ = false;
  std::vector<std::int64_t> versions_;  // of each shard, as this worker read it last
  Pushing push_;
  Reading read_;
  PullQueue reads_{kReadsAtOnce};
  std::map<std::tuple<Incarnation, PeerMessage::Kind, PeerItem>, PeerMessage> early_notes_;
  std::map<Request, std::pair<Incarnation, PeerItem>> early_requests_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_SHARD_STORE_H_
