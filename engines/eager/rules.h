// The invariants of engine eager (Li et al., PPoPP 2020), beside a reference of its controller that
// looks at every worker at every event.
//
// quorum: a round starts with as many arrived as `quorum` says, of those that have joined
// (majority: one at least). None starts while one runs, and one starts as soon as it may.
//
// initiator: a round of a majority is started by the worker that the seed says (section 4.2), drawn
// here anew among those there, by host and rank, when the round first could start. Who waits for
// that worker is told its rank.
//
// max-stale: no worker is passed over in more than max_stale_rounds rounds in a row that succeed:
// neither contributing nor having arrived.
//
// contributors: who owes gradients contributes with weight 1/n, nobody else has a weight.
//
// sync-every: of sync_every rounds the last is followed by an average with equal weights, once all
// have arrived. The average changes no iteration.
//
// everybody: a group has all who have joined, each once, and the workers of a host one after
// another. It is the only decision on its event, and has a reason. Rounds are numbered one by one.
//
// explained: a worker that has arrived, and waits, has a reason (up to kMaxWatched workers).
#ifndef PRD_ENGINES_EAGER_RULES_H_
#define PRD_ENGINES_EAGER_RULES_H_

#include <memory>

#include "engines/eager/options.h"
#include "engines/rules.h"

namespace prd {

// Counts bounds (workers passed over as often as they may be), holds (rounds that wait for one),
// averages, failures.
std::unique_ptr<EngineRules> MakeRules(const EagerOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_EAGER_RULES_H_
