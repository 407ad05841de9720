// What workers ask of each other outside of groups (worker/core/exchange.h): notes and pulls, with
// costs, faults and the values they carry, and what a worker's data plane keeps for it.
//
// A note takes the time of a control message, and is lost, doubled or overtaken as one; it is gone
// with either process, and what a worker sends to those it was not told of goes nowhere. A pull
// takes a request, and then its bytes over the link's bandwidth, those between the same two one
// after another; it fails when its source dies, refuses, or does not know the puller, and by fault.
// Over a link that is cut no note gets through; a pull over it, or from a worker that stands still,
// fails after a lease. The puller's core is told if the other one does not answer even then, or if
// its process is gone. So is the core of a worker that has offered something to one of whom it has
// heard nothing for a lease, and who does not answer.
//
//   tickets   a pull is used once, when it is through, and for what it brought; numbers are not
//             used twice
//   served    what is served is what was asked for, and there
//   parameters  are touched only while the training loop is in a call
// and those of neighbour_book.h and store_book.h.
#ifndef PRD_TOOLS_SIM_DATA_PLANE_EXCHANGE_H_
#define PRD_TOOLS_SIM_DATA_PLANE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tools/sim/mutation.h"
#include "tools/sim/neighbour_book.h"
#include "tools/sim/store_book.h"
#include "tools/sim/world.h"
#include "worker/core/actions.h"

namespace prd::sim {

class Exchange {
 public:
  // `plan` as the engine of the first run has it, whatever workers are told.
  Exchange(World* world, const Plan& plan, Stats* stats, Mutation mutation);

  // A record has become durable.
  void Seen(RunId run, const Record& record) { store_.Seen(run, record); }
  // The controller has forgotten the end of a run; these are left.
  void Forgot(RunId run, std::span<const Record> left) { store_.Forgot(run, left); }

  // Carries out an action of exchange.h. `lent`: the training loop is in a call. False: it is none.
  bool Perform(std::uint32_t worker, RunId run, bool lent, const Action& action);
  // The worker is in a run of this plan now.
  void Joins(std::uint32_t worker, const Plan& plan);
  // The worker's process is gone, or another incarnation now.
  void Gone(std::uint32_t worker);
  // It stands still from now on.
  void Frozen(std::uint32_t worker);
  // Its core is told these next.
  void Told(std::uint32_t worker, const ControllerBody& body);
  // It says this for the first time.
  void Says(std::uint32_t worker, RunId run, const WorkerBody& body);

  // What the events kNote, kRequest and kPulled tell worker `who`'s core; nullopt: nothing.
  struct Noted {
    Incarnation from = 0;
    PeerMessage note;
  };
  struct Requested {
    Incarnation from = 0;
    Request request = 0;
    PeerItem parcel;
  };
  struct Pulled {
    Ticket ticket = 0;
    bool ok = false;
    ShardHeader enclosure;
    Incarnation from = 0;
    PeerItem parcel;
    bool out_of_reach = false;  // why it failed: the peer does not answer, or its process is gone
  };
  std::optional<Noted> OnNote(std::uint32_t worker, std::uint64_t what);
  std::optional<Requested> OnRequest(std::uint32_t worker, std::uint64_t what);
  std::optional<Pulled> OnPulled(std::uint32_t worker, std::uint64_t what);
  // What the event kUnheard tells it: who is out of reach; nullopt: nobody.
  std::optional<Rank> OnUnheard(std::uint32_t worker, std::uint64_t what);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Load {  // what a parcel has in it
    std::vector<double> values;
    std::uint64_t tag = 0;
    std::shared_ptr<const ShardCopy> copy;  // kShard, kState
    ShardHeader enclosure;
  };
  struct Pull {
    Incarnation from = 0;
    PeerItem parcel;
    bool through = false;
    Load load;
  };
  struct Incoming {  // a peer's pull
    Incarnation from = 0;
    Ticket ticket = 0;
    PeerItem parcel;
  };
  struct Update {
    std::vector<double> values;
    std::uint64_t tag = 0;
  };
  struct Side {
    std::set<Incarnation> peers;
    std::map<Ticket, Pull> pulls;
    std::map<Incarnation, std::uint64_t> offered;  // who is not heard of since; watches' numbers
    Ticket newest_ticket = 0;
    std::map<Request, Incoming> requests;
    Request next_request = 1;
    std::map<Iteration, Update> published;
    std::uint32_t shards = 0;
    std::vector<double> base;              // what was read last
    std::vector<std::uint64_t> read_tags;  // by shard
    std::vector<double> delta;
    Iteration delta_clock = 0;
    Iteration read_clock = 0;  // of the reads to come, as far as the controller has told
    std::map<std::uint32_t, ShardCopy> kept;
    std::map<std::pair<Incarnation, PeerItem>, PeerMessage>
        offers;  // kDelta: the newest of each peer
  };
  struct Mailed {
    Incarnation from = 0, to = 0;
    PeerMessage note;
  };
  struct Watch {
    Incarnation from = 0, to = 0;
    std::uint64_t number = 0;
  };
  struct Asked {
    Incarnation from = 0, to = 0;
    Ticket ticket = 0;
    PeerItem parcel;
  };
  struct Answered {
    Incarnation from = 0, to = 0;
    Ticket ticket = 0;
    bool ok = false;
    bool late = false;  // not ok: after a lease of silence
    Load load;
  };

  void SendNote(std::uint32_t worker, const prd::SendNote& send);
  void WatchOffer(std::uint32_t worker, Incarnation to);
  void StartPull(std::uint32_t worker, const prd::StartPull& start);
  void Serve(std::uint32_t worker, RunId run, const prd::Serve& serve);
  void Refuse(std::uint32_t worker, Request request);
  void Publish(std::uint32_t worker, Iteration iteration);
  void Mix(std::uint32_t worker, const MixUpdates& mix);
  void TakeDelta(std::uint32_t worker, double share);
  void KeepShard(std::uint32_t worker, const prd::KeepShard& keep);
  void AddDelta(std::uint32_t worker, const prd::AddDelta& add);
  void MergePending(std::uint32_t worker, std::uint32_t shard);
  void ReadShard(std::uint32_t worker, RunId run, const prd::ReadShard& read);
  void CheckLent(std::uint32_t worker, bool lent, const Action& action) const;

  Pull Use(std::uint32_t worker, Ticket ticket, PeerItem::Kind kind, std::uint32_t shard);
  ShardCopy& Kept(std::uint32_t worker, std::uint32_t shard);
  // Entries of the parameters in a shard: from, to.
  std::pair<std::size_t, std::size_t> Cut(const Side& side, std::size_t size,
                                          std::uint32_t shard) const;
  double BytesOf(const Side& side, const PeerItem& parcel, const Load& load) const;
  void Fail(Incarnation from, Incarnation to, Ticket ticket, bool late = false);
  void FailLate(Incarnation from, Incarnation to, Ticket ticket) { Fail(from, to, ticket, true); }
  bool OutOfReach(std::uint32_t worker, const Answered& failed) const;
  bool Whole(std::uint32_t a, std::uint32_t b) const {
    return world_->links.WholeFrom(a, b) <= world_->now;
  }
  Instant Arrival(std::uint32_t from, std::uint32_t to);

  World* world_;
  std::vector<Plan> plans_;  // by worker
  Stats* stats_;
  const Mutation mutation_;
  NeighbourBook neighbours_;
  StoreBook store_;
  std::vector<Side> sides_;  // by worker
  Mail<Mailed> notes_;
  Mail<Watch> watches_;
  std::uint64_t next_watch_ = 1;
  Mail<Asked> asked_;
  Mail<Answered> answered_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Instant> last_;  // arrival of a note
  std::map<std::pair<std::uint32_t, std::uint32_t>, Instant> busy_;  // until when the link is
  std::uint64_t bytes_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_DATA_PLANE_EXCHANGE_H_
