// Options of the engine `hop` (Luo et al., Hop: Heterogeneity-aware Decentralized Training, ASPLOS
// 2019).
#ifndef PRD_ENGINES_HOP_OPTIONS_H_
#define PRD_ENGINES_HOP_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engines/graph.h"
#include "engines/options.h"

namespace prd {

struct HopOptions {
  static constexpr EngineAbout kAbout = {
      .name = "hop",
      .paper = "Hop, Luo et al., ASPLOS 2019",
      .help =
          "Each worker sends its parameters to its neighbours on a graph, and goes on once it "
          "has averaged with theirs. Nothing is shared by all, so that a slow worker holds up "
          "its neighbours first and others by and by. For many workers on a network that has "
          "short and long ways."};

  enum class Order : std::uint8_t { kParallel, kSerial };

  // Weights are doubly stochastic: 1 / (1 + the larger degree of the two), which on regular graphs
  // is the paper's Equation 1; and for a directed list Equation 1 itself.
  Graph graph{.kind = Graph::Kind::kRingBased, .edges = {}};
  bool directed = false;
  int workers_per_host = 0;
  int max_iteration_gap = 5;
  int backups = 0;
  int staleness = 0;
  int max_jump = 0;
  int skip_behind = 2;
  Order order = Order::kParallel;

  void Describe(Fields& fields) {
    using Kind = Graph::Kind;
    static constexpr Kind kKinds[] = {Kind::kRing, Kind::kRingBased, Kind::kDoubleRing,
                                      Kind::kHierarchical, Kind::kComplete};
    DescribeGraph(fields, kKinds, &graph,
                  "Who sends to whom. \"ring\". \"ring-based\": a ring, and each to the one most "
                  "distant on it. \"double-ring\": two of those with half the workers each, "
                  "connected worker to worker. \"hierarchical\": all of a host with each other, "
                  "and the hosts' first workers in a ring. \"complete\": all with all. Or a list "
                  "of edges between ranks, as [[0, 1], [1, 2]], with a path between any two. More "
                  "edges mix models faster, and wait for more. When a worker of a list is gone, "
                  "those beside it are connected directly.");
    fields.Flag("directed", &directed,
                "true: the edges of a list lead from the first rank to the second and not back. "
                "The list must have paths both ways between any two ranks, as many edges to each "
                "rank as from it, and 2000 at most. false: both ways.");
    fields.Whole("workers_per_host", &workers_per_host, {0, 1'000'000, "workers", {0, 4}},
                 "\"hierarchical\": which workers share a host. 0: those that say so. n: ranks 0 "
                 "to n-1, n to 2n-1, ...");
    fields.Whole("max_iteration_gap", &max_iteration_gap, {0, 10'000, "iterations", {0, 6}},
                 "max_ig (section 4.2): iterations that a worker may be ahead of one that gets its "
                 "updates, which keeps up to so many and one of each neighbour's. 2, without "
                 "backups and staleness, is the older protocol notify-ack (section 3.3). 0: no "
                 "token queues, and no bound but the graph's; not with backups, which would have "
                 "none at all, nor with max_jump.");
    fields.Whole("backups", &backups, {0, 100'000, "updates", {0, 2}},
                 "N_buw (section 4.3): of the updates of its neighbours, so many an iteration need "
                 "not wait for: those that come late are dropped. For workers of which any may be "
                 "slow now and then. Fewer than each has neighbours, and itself.");
    fields.Whole("staleness", &staleness, {0, 1'000'000, "iterations", {0, 5}},
                 "s (section 4.4): iterations that a neighbour's update may be old. Newer ones "
                 "count more. It evens out what backups do, without dropping. 0: exactly those of "
                 "the iteration.");
    fields.Whole("max_jump", &max_jump, {0, 10'000, "iterations", {0, 10}},
                 "Section 5: iterations that a slow worker skips at most at once when it is behind "
                 "all who get its updates, never beyond them: for one that is always slow, whom "
                 "all would wait for in the end. 0: none skips.");
    fields.Whole("skip_behind", &skip_behind, {1, 10'000, "iterations", {1, 4}},
                 "With max_jump: iterations that it must be behind all of them.");
    fields.Choice("order", &order, {"parallel", "serial"},
                  "Figure 2. \"parallel\": a worker sends its parameters, computes its gradient "
                  "while others' come, averages, and applies the gradient: sending is hidden, and "
                  "gradients are of parameters before the average. \"serial\": compute, apply, "
                  "send, average.");
  }
  Status Check(int workers) const;
  void Fit(Prng* prng, int workers);
  std::string Paces(int workers) const;
  std::unique_ptr<Engine> Make() const;
  std::unique_ptr<EngineRules> Rules() const;

  friend bool operator==(const HopOptions&, const HopOptions&) = default;
};

}  // namespace prd

#endif  // PRD_ENGINES_HOP_OPTIONS_H_
