#include "engines/start_barrier.h"

#include <algorithm>
#include <limits>
#include <string>

namespace prd {

int StartBarrier::Needed(Instant now, const JobSpec& spec, bool returns) {
  if (!returns) {
    EndGrace();
    return workers_;
  }
  if (!grace_ends_) grace_ends_ = now + spec.start_grace_ms * kMillisecond;
  return now < *grace_ends_ ? workers_ : std::min(workers_, spec.min_workers);
}

int StartBarrier::NeededAfterSwitch(Instant now, const JobSpec& spec, bool awaits, Instant until) {
  EndGrace();
  if (awaits) return std::numeric_limits<int>::max();
  return now < until ? 1 : std::min(workers_, spec.min_workers);
}

void WeighCommonStart(const Plan& plan, const std::vector<Starter>& starters, RunId former,
                      GroupFormed* form) {
  const bool switched = std::any_of(starters.begin(), starters.end(), [](const Starter& starter) {
    return starter.returns && starter.former_model;
  });
  std::vector<GroupShare*> returning;
  for (std::size_t i = 0; i < starters.size(); ++i) {
    if (starters[i].returns && (!switched || starters[i].former_model)) {
      returning.push_back(&form->members[i]);
    }
  }
  const std::string start =
      "common start: " + std::to_string(form->members.size()) + " workers take ";
  if (returning.size() > 1 && !ReplicasAreEqual(plan) && !switched) {
    for (GroupShare* share : returning) {
      share->weight = 1.0 / static_cast<double>(returning.size());
      form->iteration = std::max(form->iteration, share->iteration);
    }
    form->reason = start + "the average of the " + std::to_string(returning.size()) +
                   " that have trained before";
    return;
  }
  GroupShare* source = &form->members.front();
  if (!returning.empty()) {
    source =
        *std::max_element(returning.begin(), returning.end(),
                          [](const auto* a, const auto* b) { return a->iteration < b->iteration; });
  }
  source->weight = 1;
  form->iteration = source->iteration;
  form->reason = start + "the parameters of rank " + std::to_string(source->rank);
  if (switched) {
    form->reason += ", which are the final average of run " + std::to_string(former);
  } else if (!returning.empty()) {
    form->reason += ", the newest of those that have trained before";
  }
}

}  // namespace prd
