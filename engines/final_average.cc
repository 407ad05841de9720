#include "engines/final_average.h"

#include <algorithm>
#include <string>

#include "engines/words.h"

namespace prd {
namespace {

constexpr std::int64_t kStaleShare = 20;
constexpr Iteration kFewIterations = 24;  // as workers of one pace are apart at times

// What each member's replica lacks, in steps; in iterations where replicas are equal.
std::vector<std::int64_t> Missed(const Plan& plan, const std::vector<std::int64_t>& stopped_at,
                                 const GroupFormed& form) {
  const bool announced = TrainsInGroups(plan) && !DrawnAhead(plan);
  const std::int64_t last = *std::max_element(stopped_at.begin(), stopped_at.end());
  const std::int64_t steps = (std::ssize(form.members) - 1) * std::int64_t{StepsPerSignal(plan)};
  std::vector<std::int64_t> missed;
  for (std::size_t i = 0; i < form.members.size(); ++i) {
    const Iteration iterations = form.iteration - form.members[i].iteration;
    const bool long_ago = announced && iterations > kFewIterations;
    const std::int64_t since = std::max(last - stopped_at[i], long_ago ? iterations * steps : 0);
    missed.push_back(ReplicasAreEqual(plan) ? iterations : since);
  }
  return missed;
}

}  // namespace

void WeighFinalAverage(const Plan& plan, std::int64_t gained,
                       const std::vector<std::int64_t>& stopped_at, GroupFormed* form) {
  for (const GroupShare& share : form->members) {
    form->iteration = std::max(form->iteration, share.iteration);
  }
  const bool equal = ReplicasAreEqual(plan);
  const std::int64_t told_at_once = std::int64_t{StepsPerSignal(plan)} + RunAhead(plan);
  const std::int64_t untold = 2 * told_at_once * std::ssize(form->members);
  const std::int64_t bound = equal ? 0 : std::max(untold, gained / kStaleShare);
  const std::vector<std::int64_t> missed = Missed(plan, stopped_at, *form);
  const std::int64_t least = *std::min_element(missed.begin(), missed.end());
  std::vector<Rank> count;
  std::vector<Rank> stale;
  std::int64_t furthest = 0;  // behind, of those that are stale
  for (std::size_t i = 0; i < form->members.size(); ++i) {
    GroupShare& share = form->members[i];
    const std::int64_t behind = missed[i] - least;
    share.weight = behind > bound ? 0 : 1;
    (behind > bound ? stale : count).push_back(share.rank);
    if (behind > bound) furthest = std::max(furthest, behind);
  }
  for (GroupShare& share : form->members) share.weight /= static_cast<double>(count.size());
  if (stale.empty()) {
    form->reason = "final average of all " + std::to_string(count.size()) + " workers";
    return;
  }
  const bool one = stale.size() == 1;
  form->reason = "final average of " + words::Ranks(count) + "; " + words::Ranks(stale) +
                 (one ? " is " : " are up to ") + std::to_string(furthest) +
                 (equal ? " iteration" : " step") + (furthest == 1 ? "" : "s") + " behind and " +
                 (one ? "takes" : "take") + " it";
}

}  // namespace prd
