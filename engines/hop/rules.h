// The invariants of engine hop (Luo et al., ASPLOS 2019), beside token queues that are counted in
// the paper's words. Iter is where a worker was let into: that it joined at, was told with its
// neighbours, or answered.
//
// tokens: of each edge i -> j, TokenQ(j -> i) = Iter(j) - Iter(i) + max_ig is not negative (section
// 4.2), and at most max_ig (length(Path_i->j) + 1) (Table 1). A worker that asks is let in as soon
// as each queue of its has a token, and not before.
//
// gap: for every pair, Iter(i) - Iter(j) <= min(b0 length(Path_j->i), max_ig length(Path_i->j)),
// with b0 = 1, or s + 1 with a staleness, and without it with backups (Theorems 1 and 2, Table 1;
// notify-ack is max_ig = 2). Paths are shortest, mixed ones too. Where an edge is new, its two ends
// may be as far apart as they were then, and the receiver's signal that stood lets it go one
// further.
//
// jump: nobody goes back, or further on than max_jump. A worker goes further than it asked to if
// and only if it is behind all that get its updates by skip_behind or more, and as far as the
// nearest of them, or one less where that one has come there by a jump and updates are of one
// iteration.
//
// graph: every worker is told the graph of those present. Whose updates a worker gets is who sends
// them, from the sender's iteration on. Weights sum to 1 by receiver, and by sender too;
// undirected, they are the same both ways.
//
// slots: there are max_ig + 1; without token queues as many as Theorem 1 asks for; with a staleness
// 1 (section 6.1).
//
// explained: a worker whose signal stands has a reason to wait.
//
// In jobs of more workers than kMaxWatched, once there have been so many, nothing is checked. Where
// workers jump, Theorem 1's half is the true iterations' (the simulator's neighbour_book.h): a jump
// is answered before it is made.
#ifndef PRD_ENGINES_HOP_RULES_H_
#define PRD_ENGINES_HOP_RULES_H_

#include <memory>

#include "engines/hop/options.h"
#include "engines/rules.h"

namespace prd {

// Counts waits (signals that found no token), jumps, rewired.
std::unique_ptr<EngineRules> MakeRules(const HopOptions& options);

}  // namespace prd

#endif  // PRD_ENGINES_HOP_RULES_H_
