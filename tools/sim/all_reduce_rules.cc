#include "tools/sim/all_reduce_rules.h"

#include "tools/sim/violation.h"

namespace prd::sim {

void AllReduceRules::Check(Instant, const Event& event, std::span<const Effect> effects,
                           std::int64_t joined) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) waiting_.insert(ready->rank);
  if (const auto* left = std::get_if<LeftEvent>(&event)) waiting_.erase(left->rank);
  for (const FormGroup& group : GroupsOf(effects)) {
    if (static_cast<std::int64_t>(group.members.size()) != joined) {
      throw Violation("whole-round", "round " + std::to_string(group.id) + " has " +
                                         std::to_string(group.members.size()) + " of " +
                                         std::to_string(joined) + " workers");
    }
    for (const GroupShare& share : group.members) waiting_.erase(share.rank);
  }
  if (joined > 0 && static_cast<std::int64_t>(waiting_.size()) == joined) {
    throw Violation("whole-round",
                    "all " + std::to_string(joined) + " workers are ready, and no round forms");
  }
}

}  // namespace prd::sim
