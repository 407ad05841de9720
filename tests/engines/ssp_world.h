// Workers under engine `ssp` with the shards that they hold, as counts of updates: what the
// engine's rules allow to happen, and nothing else. Follows each event by definition, too simple to
// be wrong, and says where the engine decides otherwise.
#ifndef PRD_TESTS_ENGINES_SSP_WORLD_H_
#define PRD_TESTS_ENGINES_SSP_WORLD_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/prng.h"
#include "engines/engine.h"
#include "engines/ssp/options.h"
#include "tests/engines/engine_driver.h"

namespace prd {

class SspWorld {
 public:
  SspWorld(const SspOptions& options, Engine* engine) : options_(options), engine_(engine) {}

  // Each of these returns "" or what is wrong.
  std::string Join(Rank rank, Iteration clock = 0);
  std::string Leave(Rank rank, LeftReason why = LeftReason::kLost);
  std::string PassDeadline();
  // Its shards get there, and it says so. REQUIRES: MustPlace(rank).
  std::string Place(Rank rank);
  std::string PlaceAll();
  // Its update is stored by all owners and holders. REQUIRES: CanSignal(rank).
  std::string Signal(Rank rank);

  bool MustPlace(Rank rank) const;
  bool CanSignal(Rank rank) const;
  std::vector<Rank> WhoCanSignal() const;
  std::vector<Rank> WhoMustPlace() const;
  std::vector<Rank> Present() const;
  bool Has(Rank rank) const { return workers_.contains(rank); }
  bool Waits(Rank rank) const { return workers_.at(rank).waiting; }
  Iteration Clock(Rank rank) const { return workers_.at(rank).clock; }
  // Updates up to this clock of all who train are in what the worker has read.
  Iteration SeesUpTo(Rank rank) const { return workers_.at(rank).sees; }
  const PlacementSet& placement() const { return placement_; }
  bool open() const { return open_; }
  // Of all updates, in each shard; those of lost shards are not in it.
  int lost() const { return lost_; }          // shards that nobody had any more
  int expected() const { return expected_; }  // of them, those whose owner and holders all died
  int moved() const { return moved_; }        // shards whose owner has changed
  int placements() const { return placements_; }
  int late() const { return late_; }  // placements superseded before they were open

  std::string Storm(Prng* random, int events, Rank max_workers);
  std::string Calm(Prng* random, int steps);
  std::string Drain(Prng* random);

  const std::vector<Applied>& applied() const { return applied_; }

 private:
  struct Worker {
    Iteration clock = 0;
    Iteration sees = 0;
    bool member = false;  // of a placement
    bool reads = false;   // has been in an open one
    bool finished = false;
    bool waiting = false;
    bool placed = false;  // of the newest placement
    int steps = 0;
    std::map<std::size_t, int> shards;  // that it has, and the updates in each
  };

  std::string Apply(const Event& event);
  std::string Heed(const Answer& answer);
  std::string Heed(const PlacementSet& set);
  std::string Heed(const PlacementOpened& opened);
  std::string CheckBalance() const;
  // Of the newest placement, as the same incarnation.
  bool IsMember(Rank rank) const;
  Iteration LowestStored() const;
  bool MayGoOn(const Worker& worker) const;

  const SspOptions options_;
  Engine* const engine_;
  Instant now_;
  GroupId next_group_ = 1;
  Iteration reached_ = 0;  // the highest clock that anybody was let go on to
  std::map<Rank, Worker> workers_;
  PlacementSet placement_;
  bool open_ = false;
  std::vector<int> updates_;                // by shard: stored, and not lost
  std::vector<std::set<Rank>> alive_with_;  // by shard: who may still have all of it
  std::vector<Applied> applied_;
  int lost_ = 0;
  int expected_ = 0;
  int moved_ = 0;
  int placements_ = 0;
  int late_ = 0;
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_SSP_WORLD_H_
