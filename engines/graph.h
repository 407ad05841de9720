// A communication graph over the present workers of a job: which workers may synchronise with which
// (decentralised training: AD-PSGD, Hop). Here are the user's setting and undirected neighbours;
// engines/hop/topology.h has directed ones.
#ifndef PRD_ENGINES_GRAPH_H_
#define PRD_ENGINES_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/archive.h"
#include "common/base/fields.h"
#include "common/base/ids.h"
#include "prd/status.h"

namespace prd {

// As a user sets it.
struct Graph {
  enum class Kind : std::uint8_t {
    kRing,      // all present workers in order of rank, the last one beside the first
    kComplete,  // all present workers beside each other
    kEdges,     // those of the list; a worker that is not in it has no neighbours
    // Hop's (its Figures 11 and 21), which ad-psgd has not.
    kRingBased,     // a ring, and each worker beside those most distant on it
    kDoubleRing,    // two ring-based graphs of half the workers, connected worker to worker
    kHierarchical,  // complete within a host; the hosts' first workers in a ring
  };
  using Edge = std::pair<Rank, Rank>;
  static constexpr Rank kHighestRank = 999'999;  // in a list
  static constexpr std::size_t kMaxEdges = 1'000'000;

  Kind kind = Kind::kRing;
  std::vector<Edge> edges;  // kEdges

  friend bool operator==(const Graph&, const Graph&) = default;
};

// "ring", "ring-based", ..., or the list: "[[0, 1], [1, 2]]".
std::string ToText(const Graph& graph);

// Ok, or "graph: found X, allowed is Y": a list names ranks >= 0, no edge twice or from a rank to
// itself, has a path between any two ranks that it names, and names all `workers` that the job
// starts with (0: not known). Directed: an edge and the one back are two, and paths follow them.
Status Validate(const Graph& graph, int workers, bool directed = false);

// The key `graph`: one of these kinds by its name, or a list of edges.
void DescribeGraph(Fields& fields, std::span<const Graph::Kind> kinds, Graph* graph,
                   std::string_view help);

// The neighbours of each worker among those present. Finding the i-th costs O(1) for a ring and a
// complete graph, O(neighbours) for a list, whatever the number of workers.
class Neighbours {
 public:
  // REQUIRES: Validate(graph, 0) is ok; a ring, a complete graph or a list.
  explicit Neighbours(const Graph& graph);

  // O(log workers). REQUIRES: rank >= 0 is not present; rank is.
  void Join(Rank rank);
  void Leave(Rank rank);
  bool Has(Rank rank) const;

  // REQUIRES, all: Has(rank); `index` < Count(rank). On a ring the lower neighbour comes first. On
  // a complete graph the order depends on the joins and leaves before.
  std::size_t Count(Rank rank) const;
  Rank At(Rank rank, std::size_t index) const;
  std::vector<Rank> Of(Rank rank) const;  // ascending

  // Fails unless the ranks present are all below `ranks`: the owner's table, whose length the
  // snapshot has paid for.
  void Archive(StateArchive& ar, std::size_t ranks);

 private:
  struct Place {
    std::size_t index = 0;  // in present_
    Rank before = kNoRank;  // in the ring
    Rank after = kNoRank;
  };
  Place& PlaceOf(Rank rank) { return places_[RankIndex(rank)]; }
  const Place& PlaceOf(Rank rank) const { return places_[RankIndex(rank)]; }

  Graph::Kind kind_;
  std::vector<std::vector<Rank>> edges_;  // by rank, ascending; kEdges
  std::vector<Rank> present_;
  // Derived.
  std::vector<Place> places_;  // by rank; those absent have no neighbours in the ring
  std::set<Rank> by_rank_;
};

}  // namespace prd

#endif  // PRD_ENGINES_GRAPH_H_
