// Engine all-reduce: every iteration, every live worker, one round.
//   whole-round     a round has all joined workers in it, and forms as soon as all of them are
//   ready
#ifndef PRD_TOOLS_SIM_ALL_REDUCE_RULES_H_
#define PRD_TOOLS_SIM_ALL_REDUCE_RULES_H_

#include <set>

#include "tools/sim/engine_watch.h"

namespace prd::sim {

class AllReduceRules final : public EngineRules {
 public:
  void Check(Instant now, const Event& event, std::span<const Effect> effects,
             std::int64_t joined) override;
  void Archive(StateArchive& ar) override { ar(waiting_); }

 private:
  std::set<Rank> waiting_;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_ALL_REDUCE_RULES_H_
