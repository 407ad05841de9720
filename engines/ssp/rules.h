// The invariants of engine ssp (Ho et al., NIPS 2013), beside clocks that are counted in the
// paper's words, and who may have which shard.
//
// bound: nobody is let on to a clock that is more than s beyond what each worker that trains has
// stored. Who may be let on is let on at once; so the slowest is, and there is no deadlock.
//
// clocks: who is let on goes on to the clock that it asked for, among all who train. A worker that
// comes, and has not asked, begins at the clock that all have stored; where nobody trains, at the
// highest that anybody was let on to.
//
// placement: epochs ascend by one. Members are all who have joined, or have finished and are there.
// The number of shards stays. Each shard has an owner and `replicas` holders among the members, or
// all others. Owners have equal numbers of shards, or one fewer; holders, or two fewer.
//
// source: a shard comes from a worker that may have all of it, and is there. It begins anew only if
// there is none.
//
// opened: what is opened is the newest placement, once all its members that are left have said
// Placed; and they are told.
//
// explained: a worker has a reason to wait while it waits, or a placement is not open (in jobs of
// up to kMaxWatched workers).
#ifndef PRD_ENGINES_SSP_RULES_H_
#define PRD_ENGINES_SSP_RULES_H_

#include <memory>

#include "engines/rules.h"
#include "engines/ssp/options.h"

namespace prd {

// Counts placements, late (superseded before they were open), moved (shards whose owner has
// changed), lost (shards that nobody had any more).
std::unique_ptr<EngineRules> MakeRules(const SspOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_SSP_RULES_H_
