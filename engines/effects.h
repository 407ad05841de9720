// What an engine decides. Each decision carries its reason in words, which the log, the history,
// prdctl and the tests share.
#ifndef PRD_ENGINES_EFFECTS_H_
#define PRD_ENGINES_EFFECTS_H_

#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"

namespace prd {

// These workers reduce together once, now. Members are joined, in no other running group, and have
// a ready signal waiting, which this answers. Weights are >= 0 and sum to 1 with initial_weight.
struct FormGroup {
  GroupId id = kNoGroup;            // taken from *next_group
  std::vector<GroupShare> members;  // in ring order, no rank twice
  Iteration iteration = 0;          // where members continue after success
  double initial_weight = 0;        // share of the initial model (MayUseInitial)
  std::string reason;
  friend bool operator==(const FormGroup&, const FormGroup&) = default;
};

// In the order of decision. The shell makes all of them durable before it sends any.
using Effects = std::vector<FormGroup>;

}  // namespace prd

#endif  // PRD_ENGINES_EFFECTS_H_
