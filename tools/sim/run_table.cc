#include "tools/sim/run_table.h"

#include <algorithm>

namespace prd::sim {

RunId RunTable::Begins(RunId id, const RunStarted& started, const Plan& plan) {
  const RunId number = by_identity_.size() + 1;
  by_identity_.emplace(started.identity.high, number);
  by_id_[id] = number;
  if (!(plan == first_plan_)) plans_[number] = plan;
  const RunId before = NumberOf(started.former.run);
  if (before == kNoRun) return number;
  Former& former = former_[number];
  former.run = before;
  for (const FormerRank& rank : started.former.ranks) {
    if (rank.has_model) former.with_model.insert(rank.rank);
  }
  return number;
}

void RunTable::Finish(RunId id) { finished_ = std::max(finished_, NumberOf(id)); }

RunId RunTable::NumberOf(const RunIdentity& run) const {
  const auto found = by_identity_.find(run.high);
  return found == by_identity_.end() ? kNoRun : found->second;
}

RunId RunTable::NumberOf(RunId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? kNoRun : found->second;
}

const Plan& RunTable::PlanOf(RunId run) const {
  const auto found = plans_.find(run);
  return found == plans_.end() ? first_plan_ : found->second;
}

const RunTable::Former* RunTable::FormerOf(RunId run) const {
  const auto found = former_.find(run);
  return found == former_.end() ? nullptr : &found->second;
}

}  // namespace prd::sim
