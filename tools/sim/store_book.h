// Which updates are in which copy of which shard (StorePlan): an update is known by
// the incarnation that made it and the clock that it reached with it.
//
//   update-once      no update is added to a shard that has it
//   update-kept      what is read has every update whose Ready is in the history, its reader's own
//                    among them; in lockstep, in the values, those up to the reader's clock. A
//                    shard may begin anew only when nobody is left who has it: more members have
//                    gone since the last opening than there are copies besides the owner's
//   update-stored    who says Ready has its update on the owners and all holders of all shards
//   copies-agree     copies with equal updates have equal values, and a holder has none that the
//                    owner has not
//   version          a copy's version counts its updates, and its clocks are the newest of each
//   lockstep         all reads of a shard at a clock find the same updates and values, none of a
//                    later clock; not from when two members have gone (one, if there are no other
//                    copies) until the next opening: an update that one had not stored everywhere
//                    may go with it and an owner
//   delayed          an update counts in full, or staleness-aware: as many workers as train over as
//                    many updates as have come since what it was computed on was read, if fewer
#ifndef PRD_TOOLS_SIM_STORE_BOOK_H_
#define PRD_TOOLS_SIM_STORE_BOOK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"
#include "tools/sim/stats.h"
#include "tools/sim/world.h"
#include "worker/core/exchange.h"

namespace prd::sim {

// Updates, by who made them, as ranges of clocks.
class UpdateSet {
 public:
  // False if it is in already.
  bool Add(Incarnation worker, Iteration clock);
  void Add(const UpdateSet& others);
  bool Has(Incarnation worker, Iteration clock) const;
  std::size_t size() const { return size_; }
  std::uint64_t tag() const { return tag_; }  // equal for equal sets
  // An update that is in `others` up to that clock and not in here, in words; empty: there is none.
  std::string Lacks(const UpdateSet& others, Iteration up_to) const;
  std::optional<Iteration> Newest(Incarnation worker) const;
  Iteration Newest() const;  // of all; 0 where there is none
  friend bool operator==(const UpdateSet&, const UpdateSet&) = default;

 private:
  using Range = std::pair<Iteration, Iteration>;  // closed
  std::map<Incarnation, std::vector<Range>> ranges_;
  std::size_t size_ = 0;
  std::uint64_t tag_ = 0;
};

// A copy of a shard.
struct ShardCopy {
  std::vector<double> values, pending;  // empty when nothing is trained
  UpdateSet in_values, in_pending;
  std::size_t size() const { return in_values.size() + in_pending.size(); }
};

class StoreBook {
 public:
  StoreBook(const World* world, Stats* stats) : world_(world), stats_(stats) {}

  // A record has become durable.
  void Seen(RunId run, const Record& record);
  // The controller has forgotten the end of a run; these are left. Where a placement was forgotten,
  // nothing is checked until the next one is opened.
  void Forgot(RunId run, std::span<const Record> left);

  // To be added to a copy. `offer`: what came with a peer's.
  void Adds(const ShardCopy& copy, std::uint32_t shard, Incarnation from, Iteration clock,
            double factor, bool pending, const std::optional<PeerMessage>& offer,
            const StorePlan& plan) const;
  // A copy as it leaves who keeps it.
  void Serves(RunId run, const ShardCopy& copy, Incarnation keeper, Incarnation reader,
              const PeerItem& parcel, const ShardHeader& enclosure);
  // Its owner itself reads it.
  void Reads(RunId run, const ShardCopy& copy, Incarnation reader, std::uint32_t shard,
             Iteration clock);
  // That the incarnation keeps of the shard; null: it does not.
  using FindCopy = std::function<const ShardCopy*(Incarnation worker, std::uint32_t shard)>;
  // The worker is about to say Ready.
  void SaysReady(RunId run, Incarnation worker, Iteration clock, const FindCopy& find) const;

 private:
  struct Read {
    UpdateSet updates;
    std::vector<double> values;
  };
  struct Shard {
    ShardPlace place;
    bool excused = false;  // begins anew: what is recorded until the opening may not be in it
    UpdateSet recorded;
    std::map<std::int64_t, Read> reads;  // lockstep: the first of each clock
  };
  struct Run {
    std::set<Incarnation> finished;  // who read once more, at no clock
    std::map<Rank, Incarnation> there;
    std::map<Rank, Iteration> clocks;     // recorded, of those who train
    std::map<Rank, Incarnation> members;  // of the newest placement
    std::uint64_t epoch = 0;
    // The newest open placement: copies besides an owner's, and its members that have gone.
    std::uint64_t opened = 0;
    std::map<Rank, Incarnation> had;
    std::size_t copies = 0;
    std::size_t gone = 0;
    // An update that one had stored with an owner alone may have gone with both.
    bool Torn() const { return gone > std::min<std::size_t>(copies, 1); }
    bool behind = false;  // workers may know of a placement that the controller has forgotten
    std::vector<Shard> shards;
  };
  void OnPlaced(Run* run, const PlacementSet& set);
  static bool There(const Run& run, Incarnation worker);
  static void CheckRead(Shard* shard, const ShardCopy& copy, std::uint32_t number, Iteration clock,
                        bool lockstep, bool torn);
  StorePlan PlanOf(RunId run) const {
    const StorePlan* plan = StoreOf(world_->runs.PlanOf(run));
    return plan != nullptr ? *plan : StorePlan();
  }
  static void CheckAnew(const Run& run, const PlacementSet& set, std::size_t shard);

  const World* world_;
  Stats* stats_;
  std::map<RunId, Run> runs_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_STORE_BOOK_H_
