// The communication graph of `hop` over the workers that are present, with the weights of their
// updates. A function of the options, of who is there, and of links that are broken: the engine and
// prdctl have the same.
#ifndef PRD_ENGINES_HOP_TOPOLOGY_H_
#define PRD_ENGINES_HOP_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "engines/hop/options.h"
#include "engines/links.h"

namespace prd {

// A worker that is present. `host` is equal for those that count as on one host.
struct HopPlace {
  Rank rank = kNoRank;
  std::int32_t host = 0;
};

struct Topology {
  struct In {
    Rank rank = kNoRank;
    double weight = 0;  // of its update in the receiver's average: W_ij
    friend bool operator==(const In&, const In&) = default;
  };
  struct Node {
    Rank rank = kNoRank;
    std::vector<In> in;     // whose updates it gets, by rank, ascending
    std::vector<Rank> out;  // who get its updates, ascending
    double own_weight = 1;  // W_ii; with those of `in` it sums to 1, and so do those of its updates
    friend bool operator==(const Node&, const Node&) = default;
  };
  std::vector<Node> nodes;  // by rank, ascending

  const Node& Of(Rank rank) const;  // REQUIRES: it is there
  friend bool operator==(const Topology&, const Topology&) = default;
};

// The computed kinds are computed from those present. In a list, those who are connected by way of
// ranks that are absent are connected directly, so that the graph stays connected; a worker that is
// not in the list has no neighbours.
//
// The weights are doubly stochastic. Undirected: 1 / (1 + the larger degree of the two), the rest
// is a worker's own (Metropolis). Directed: Equation 1, W_ij = 1 / |N_in(j)| where j is in N_in(j);
// and where ranks of the list are absent, what an update that passes through those would weigh.
//
// An undirected graph goes around broken links: an edge of two that do not reach each other is left
// out. Where that parts some from others, an edge between two of them that reach each other takes
// its place. Those who reach nobody of the others are apart from them until a link works again. A
// directed list keeps its edges: with others its weights would not be doubly stochastic.
//
// REQUIRES: Validate(options, 0) is ok; ranks ascend.
Topology TopologyOf(const HopOptions& options, const std::vector<HopPlace>& present,
                    const BrokenLinks& broken = {});

// By node: the longest of the shortest paths from it to one whose updates it gets, so many
// iterations its in-neighbours may be ahead without token queues (Theorem 1). 0 without
// in-neighbours. Of a very large directed graph: an upper bound.
std::vector<std::uint32_t> LongestWayBack(const Topology& topology);

// Equation 1 on a directed list, all of whose ranks are present, is doubly stochastic.
bool Equation1IsDoublyStochastic(const std::vector<Graph::Edge>& edges);

}  // namespace prd

#endif  // PRD_ENGINES_HOP_TOPOLOGY_H_
