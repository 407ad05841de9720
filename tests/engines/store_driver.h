// Workers with the shards of a store that they hold, as counts of updates: an update is stored by
// all owners and holders at once, and a worker reads when it is let on.
#ifndef PRD_TESTS_ENGINES_STORE_DRIVER_H_
#define PRD_TESTS_ENGINES_STORE_DRIVER_H_

#include <map>
#include <string>
#include <vector>

#include "tests/engines/engine_driver.h"

namespace prd {

class StoreDriver final : public EngineDriver {
 public:
  explicit StoreDriver(Engine* engine, std::uint64_t seed = 1, Rank max_workers = 1)
      : EngineDriver(engine, seed, max_workers, 2 * kMillisecond, 3) {}

  // Each of these returns "" or what is wrong.
  std::string Join(Rank rank, Iteration clock = 0);
  std::string Leave(Rank rank, LeftReason why = LeftReason::kLost);
  // Its shards get there, and it says so. REQUIRES: MustPlace(rank).
  std::string Place(Rank rank);
  std::string PlaceAll();
  // Its update is stored by all owners and holders. REQUIRES: CanSignal(rank).
  std::string Signal(Rank rank);

  bool MustPlace(Rank rank) const;
  bool CanSignal(Rank rank) const;
  std::vector<Rank> WhoCanSignal() const;
  std::vector<Rank> WhoMustPlace() const;
  std::vector<Rank> Present() const override;
  bool Has(Rank rank) const { return workers_.contains(rank); }
  bool Waits(Rank rank) const { return workers_.at(rank).waiting; }
  Iteration Clock(Rank rank) const { return workers_.at(rank).clock; }
  // Updates up to this clock of all who train are in what the worker has read.
  Iteration SeesUpTo(Rank rank) const { return workers_.at(rank).sees; }
  const PlacementSet& placement() const { return placement_; }
  bool open() const { return open_; }

 private:
  struct Worker {
    Iteration clock = 0;
    Iteration sees = 0;
    bool member = false;   // of a placement
    bool reads = false;    // has been in an open one
    bool stopped = false;  // and holds shards
    bool pauses = false;
    bool waiting = false;
    bool placed = false;  // of the newest placement
    int steps = 0;
    std::map<std::size_t, int> shards;  // that it has, and the updates in each
  };

  std::string Heed(const Effect& effect, const Event& cause) override;
  void Place(const PlacementSet& set);
  void Open();
  std::string JoinOne() override;
  std::string LeaveOne(Rank rank) override;
  bool Act(bool storms, std::uint64_t dice, std::string* wrong) override;
  void ForgetSteps() override;
  bool AllHave(int steps) const override;
  // Whether it is a member of the newest placement, as the same incarnation.
  bool IsMember(Rank rank) const;
  Iteration LowestStored() const;

  std::map<Rank, Worker> workers_;
  PlacementSet placement_;
  bool open_ = false;
  std::vector<int> updates_;  // by shard: stored, and not lost
};

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_STORE_DRIVER_H_
