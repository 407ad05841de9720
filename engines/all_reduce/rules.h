// The invariants of engine all-reduce: every iteration, every live worker, one round.
//
// whole-round: a round has all joined workers in it, each once. It forms as soon as all of them are
// ready, and is the only decision.
//
// weights: by their samples where all have told some, else equal.
//
// iterations: a round is of the newest iteration that a member offers a gradient for.
#ifndef PRD_ENGINES_ALL_REDUCE_RULES_H_
#define PRD_ENGINES_ALL_REDUCE_RULES_H_

#include <memory>

#include "engines/all_reduce/options.h"
#include "engines/rules.h"

namespace prd {

// Counts rounds.
std::unique_ptr<EngineRules> MakeRules(const AllReduceOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_ALL_REDUCE_RULES_H_
