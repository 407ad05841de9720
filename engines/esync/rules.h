// The invariants of engine esync (Li et al.), beside Algorithm 2 of its paper, worked out anew at
// every event: one record per worker, and the slowest, the overdue and the members are looked for
// from end to end.
//
// ready: a worker is told READY if and only if it is the slowest, the slowest is ready, or it could
// not end another iteration before the slowest ends its own.
//
// dropped: what has counted and is trained on a model older than the newest is dropped, at once,
// and before a group forms; and nothing else is.
//
// round: a group has all that wait, each once, with equal weights. One runs at a time, and one
// forms as soon as all that count wait.
//
// stall: the engine's deadline is when every worker that the others wait for is overdue:
// stall_factor times its longest iteration of late after its last sign of life. Then none of them
// counts any more. So no worker holds up those that wait for longer.
//
// explained: a worker has a reason to wait while it is at the barrier, and only then (in jobs of up
// to kMaxWatched workers).
#ifndef PRD_ENGINES_ESYNC_RULES_H_
#define PRD_ENGINES_ESYNC_RULES_H_

#include <memory>

#include "engines/esync/options.h"
#include "engines/rules.h"

namespace prd {

// Counts rounds, dropped, taken_out (as stalled), local_steps (members with several in a round).
std::unique_ptr<EngineRules> MakeRules(const EsyncOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_ESYNC_RULES_H_
