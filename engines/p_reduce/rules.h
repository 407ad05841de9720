// The invariants of engine p-reduce (Miao et al., SIGMOD 2021), beside a reference of its
// controller that is too simple to be wrong: a queue, and the last groups.
//
// group-size: a group has P members, or all joined workers when they are fewer. A group of fewer,
// of at least two, has all that wait, and forms only when its head has waited for max_wait_ms.
//
// fifo: first come, first grouped, but for a bridge.
//
// broken-link: as in engines/rules.h.
//
// around: while a worker waits that does not reach all others, groups are those of a reference of
// p_reduce.h's rule for that, and bridges are not due. A worker alone reaches nobody.
//
// bridge: when a window of T groups fell apart, then until its components are joined (or another
// falls apart, or a worker leaves) a group that keeps it apart forms only if nobody of another
// component waits. Else the earliest worker of another component than the head's takes the place of
// one of the head. The order is left for nothing else, and a reason speaks of components only then.
//
// no-idle-queue: P signals wait only for a bridge that is due, with a deadline, and never 2 P.
//
// hold-budget: workers are held for at most 1/150 of what the members of all groups have spent on
// their steps, and the longest step of one group.
//
// iterations: members have the iteration of their signal, and go on at the largest.
//
// weights: they are those of Eq. 9 and section 3.3.3, or by the members' samples where all have
// told some, else equal (in jobs of up to kMaxWatched workers).
#ifndef PRD_ENGINES_P_REDUCE_RULES_H_
#define PRD_ENGINES_P_REDUCE_RULES_H_

#include <memory>
#include <vector>

#include "engines/p_reduce/options.h"
#include "engines/rules.h"

namespace prd {

// REQUIRES: options.weights is constant or dynamic.
// Eq. 9 and section 3.3.3 word for word: walks over every relative iteration. The weights are in
// the order of `iterations`, the initial model's share is last.
std::vector<double> WeightsByTheBook(const PReduceOptions& options,
                                     const std::vector<Iteration>& iterations);

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_RULES_H_
