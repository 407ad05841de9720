// The weight generator of P-Reduce (section 3.1 and 3.3 of the paper). Pure functions.
#ifndef PRD_ENGINES_P_REDUCE_WEIGHTS_H_
#define PRD_ENGINES_P_REDUCE_WEIGHTS_H_

#include <vector>

#include "common/base/history.h"
#include "engines/p_reduce/options.h"

namespace prd {

// REQUIRES: options.weights is constant or dynamic.
// Fills in the weights of a group whose members' ranks and iterations are set, and returns the
// initial model's share. The weights are >= 0 and, with that share, sum to 1 (to 1e-12). May
// reorder the members.
//
// Constant: 1/P each. Dynamic: Eq. 9 over the relative iterations r_i = max_j k_j - k_i + 1
// (section 3.3.3), so that r in [1, r_max] has the share
//     beta(r) = (1 - alpha) alpha^(r-1) / (1 - alpha^r_max),
// and the newest model the largest. Members at the same r divide its share equally. The share of an
// r that nobody has goes where options.missing says; `nearest` gives a share that is equally near
// to two members' iterations to the newer. alpha = 0 leaves everything to the newest.
//
// O(P log P) whatever the gap between iterations: the shares of a run of r are summed in closed
// form.
double SetWeights(const PReduceOptions& options, std::vector<GroupShare>* members);

}  // namespace prd

#endif  // PRD_ENGINES_P_REDUCE_WEIGHTS_H_
