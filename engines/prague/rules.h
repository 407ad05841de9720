// The invariants of engine prague (Luo et al., ASPLOS 2020), beside a reference of its group
// buffers that is too simple to be wrong: all groups that are not through in one list, by id.
//
// group-size: random. A group has group_size members, or all joined workers when they are fewer,
// one of which asked and is not passive. A worker has one such group at a time.
//
// division: smart. A request of a worker that is in a group that is not through, or has been
// served, draws nothing. Any other divides the idle workers, those in no such group, but for the
// slow ones: into floor(n / group_size) groups whose sizes differ by one at most. Where they are on
// several hosts and inter_intra is on, into two phases (section 5.2): first groups of one head per
// host and groups within a host of the others, then all of each host together. Nobody else is
// drawn.
//
// slow-worker: smart. A worker that has requested slowdown_threshold groups fewer than the worker
// that requests is in none of the groups of its division.
//
// weights: they are equal.
//
// served: a request is answered without a group if and only if a group of its worker was through
// before it.
//
// atomic: a group forms as soon as no group drawn earlier has a member of it that is not through,
// and not before. Until then it stays as it was drawn. It says `pending` if a member has asked and
// it is the first that answers that member.
//
// waits: a worker whose request stands has a group to come, or one that failed and has not ended;
// and a reason to wait, which no other worker has.
//
// no-groups: static. The engine forms none.
//
// In jobs of more workers than kMaxWatched, once there have been so many, only no-groups is
// checked.
#ifndef PRD_ENGINES_PRAGUE_RULES_H_
#define PRD_ENGINES_PRAGUE_RULES_H_

#include <memory>

#include "engines/prague/options.h"
#include "engines/rules.h"

namespace prd {

// Counts divisions, in_two_phases, excluded (divisions that left somebody idle as slow), served,
// conflicts, redraws.
std::unique_ptr<EngineRules> MakeRules(const PragueOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_RULES_H_
