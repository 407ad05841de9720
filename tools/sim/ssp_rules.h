// Engine ssp (Ho et al., NIPS 2013), beside clocks that are counted in the paper's words.
//
//   bound       nobody is let on to a clock that is more than s beyond what each who trains has
//               stored; and who may be let on is (no deadlock): the slowest is, at once
//   clocks      who is let on goes on to the clock that it asked for, among all who train
//   placement   epochs ascend by one; members are all who have joined, or have finished and are
//               there; each shard has an owner and `replicas` holders among them, or all others;
//               owners have equal numbers of shards, or one fewer
//   opened      what is opened is the newest placement, once all its members that are left have
//               said Placed
#ifndef PRD_TOOLS_SIM_SSP_RULES_H_
#define PRD_TOOLS_SIM_SSP_RULES_H_

#include <cstdint>
#include <map>
#include <set>

#include "engines/ssp/options.h"
#include "tools/sim/engine_watch.h"

namespace prd::sim {

class SspRules final : public EngineRules {
 public:
  explicit SspRules(const SspOptions& options) : options_(options) {}
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override;

 private:
  struct Worker {
    Iteration clock = 0;
    bool asks = false;      // to go on to clock + 1, whose update is stored
    bool trains = false;    // has been in a placement, and not finished
    bool finished = false;  // and holds shards
    void Archive(StateArchive& ar) { ar(clock, asks, trains, finished); }
  };
  void Apply(const Event& event);
  Iteration Slowest() const;  // that those who train have stored
  void LetOn(const Answer& answer);
  void Place(const PlacementSet& set);
  void Open(const PlacementOpened& opened);

  const SspOptions options_;
  std::map<Rank, Worker> workers_;
  std::uint64_t epoch_ = 0;
  bool open_ = false;
  std::set<Rank> unplaced_;  // members of the newest placement that have not said Placed
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_SSP_RULES_H_
