// The invariants of engine ad-psgd (Lian et al., ICML 2018; Figure 3 of Prague, Luo et al., ASPLOS
// 2020), beside a list of the pairs that are not through, in the order of their draws.
//
// pairs: a group has the worker that asked for it and one passive member, with weights of one half
// each. It was drawn for a signal that stands, or once more for one whose pair failed or whose
// neighbour left; a signal has one pair at a time, and no pair is drawn for anybody else.
//
// neighbours: the two are joined, and neighbours in the graph of those who have joined. A worker
// that has no neighbour there is told to go on alone, and no other worker is.
//
// atomic: a pair forms as soon as no pair drawn earlier has a member of it that is not through, and
// not before. It says `conflict` if there was such a pair of another asker when it was drawn.
//
// explained: a worker has a reason to wait while its signal stands, and only then.
//
// In jobs of more workers than kMaxWatched, once there have been so many, nothing is checked.
#ifndef PRD_ENGINES_AD_PSGD_RULES_H_
#define PRD_ENGINES_AD_PSGD_RULES_H_

#include <memory>

#include "engines/ad_psgd/options.h"
#include "engines/rules.h"

namespace prd {

// Counts pairs, conflicts, redrawn, alone.
std::unique_ptr<EngineRules> MakeRules(const AdPsgdOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_AD_PSGD_RULES_H_
