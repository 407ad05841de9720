// Engine `ssp`: Stale Synchronous Parallel (Ho et al., NIPS 2013) over parameters in shards that
// live in the workers. No worker is more than s clocks ahead of the slowest; at clock c it reads
// all updates up to clock c - s - 1, and its own.
//
// A ready signal with clock c + 1 says that the worker's update is stored by the owners of all
// shards. It is answered, which lets the worker read, once all who train have stored so many: none
// has stored fewer than c + 1 - s.
//
// Where the shards are: kSettle after workers have come or gone, a new placement is set
// (placement.h), and opened once all members have their shards. Who has died meanwhile makes
// another. For each shard the engine knows who has all of its newest state: owner and holders of
// the last placement that was opened, and, of newer ones, those of shards whose owner has said that
// they are complete: nothing is pushed until one is opened. A placement of whose members somebody
// has gone is not opened any more: at an opening, those who passed shards on forget them.
//
// What else is decided where the paper says nothing:
//  - A worker that joins counts from the placement on that it is in, at the lowest clock of those
//    who train, or its own where that is higher.
//  - A worker that pauses or has finished goes on holding shards until it is gone; nobody waits for
//    it. One that comes back from a pause joins, and has its shards.
#ifndef PRD_ENGINES_SSP_SSP_H_
#define PRD_ENGINES_SSP_SSP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engines/engine.h"
#include "engines/ssp/options.h"
#include "engines/ssp/placement.h"

namespace prd {

class Ssp final : public Engine {
 public:
  static constexpr DurationNs kSettle = 5 * kMillisecond;
  // Shards, where their number is left to the engine: two per worker, and no more than this.
  static constexpr std::size_t kMaxShards = 4096;

  // REQUIRES: Validate(options, 0) is ok.
  explicit Ssp(const SspOptions& options) : options_(options) {}

  Plan plan() const override;
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override;
  std::optional<Instant> NextDeadline() const override { return settles_; }
  std::string Explain(Instant now, Rank rank) const override;
  Leaving leaving(Rank rank) const override;
  void Archive(StateArchive& ar) override;

 private:
  enum class State : std::uint8_t {
    kAbsent,
    kJoined,    // in no placement yet
    kTraining,  // its clock counts
    kHolding,   // pauses or has finished
  };
  struct Worker {
    State state = State::kAbsent;
    Iteration clock = 0;      // that it was let go on to
    bool waiting = false;     // its signal stands: it has stored update clock + 1
    bool placed = false;      // has its shards of the newest placement
    std::uint32_t place = 0;  // kTraining: in clocks_ (derived)
    void Archive(StateArchive& ar) { ar(state, clock, waiting, placed); }
  };

  Worker& At(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  const Worker& At(Rank rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool Present(Rank rank) const;
  // Updates that are stored.
  static Iteration Stored(const Worker& worker) { return worker.clock + (worker.waiting ? 1 : 0); }
  std::uint32_t Training() const { return training_; }

  void OnJoined(Instant now, const JoinedEvent& event);
  void OnReady(const ReadyEvent& event, Effects* out);
  void OnLeft(Instant now, const LeftEvent& event, Effects* out);
  void OnPlaced(const PlacedEvent& event, Effects* out);

  void Count(Rank rank);
  void Uncount(Rank rank);
  // Lets go on who may at this lowest clock.
  void LetGo(Effects* out);

  void SetPlacement(Effects* out);
  void OpenIfPlaced(Effects* out);
  std::string ReasonFor(const std::vector<ShardPlace>& places) const;

  std::string ExplainPlacing(Rank rank) const;
  bool Consistent() const;

  const SspOptions options_;
  std::vector<Worker> workers_;  // by rank
  std::uint64_t epoch_ = 0;      // of the newest placement
  bool open_ = false;            // it is
  bool whole_ = false;           // none of its members has gone; else it is opened no more
  std::vector<Rank> members_;    // of it, without those who are gone
  std::vector<ShardState> shards_;
  std::optional<Instant> settles_;  // kSettle after a change
  // Workers that train, by how many updates they have stored, in no order.
  std::map<Iteration, std::vector<Rank>> clocks_;
  // Workers with an unanswered signal, by the clock that they are to go on to, in order of coming.
  std::map<Iteration, std::vector<Rank>> waiting_;
  Iteration reached_ = 0;       // the highest clock that anybody was let go on to
  std::uint32_t training_ = 0;  // in clocks_ (derived)
  std::size_t to_place_ = 0;    // of members_, those not placed (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_SSP_SSP_H_
