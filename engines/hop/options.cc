#include "engines/hop/options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engines/hop/topology.h"

namespace prd {

namespace {

// Those of a directed list: with each rank that is taken out the others get more edges, up to all
// with all, and the controller does nothing else meanwhile.
constexpr std::size_t kMaxDirectedEdges = 2000;
// Workers for whom the smallest number of neighbours is looked up.
constexpr int kMaxLookedAt = 4096;

Status CheckGraph(const HopOptions& options, int workers) {
  const Graph& graph = options.graph;
  if (options.directed && graph.kind != Graph::Kind::kEdges) {
    return Wrong("directed", "true", "false, unless graph is a list of edges");
  }
  if (options.directed && graph.edges.size() > kMaxDirectedEdges) {
    return Wrong("graph", std::to_string(graph.edges.size()) + " edges",
                 "1 to " + std::to_string(kMaxDirectedEdges) + " directed ones");
  }
  PRD_RETURN_IF_ERROR(Validate(graph, workers, options.directed));
  if (options.directed && !Equation1IsDoublyStochastic(graph.edges)) {
    return Wrong("graph",
                 "a directed list on which 1 / |N_in| (Equation 1) is not doubly stochastic",
                 "one on which the weights of each worker's updates sum to 1: for one, as many "
                 "edges to each rank as from it, and the same number for all");
  }
  return Status::Ok();
}

// N_buw(i) < |N_in(i)|, where i is in N_in(i) (Figure 8, section 3.1).
Status CheckBackups(const HopOptions& options, int workers) {
  const bool known =
      options.graph.kind != Graph::Kind::kHierarchical || options.workers_per_host > 0;
  if (options.backups == 0 || workers == 0 || workers > kMaxLookedAt || !known) {
    return Status::Ok();
  }
  std::vector<HopPlace> present;
  for (Rank rank = 0; rank < workers; ++rank) present.push_back({.rank = rank});
  for (const Topology::Node& node : TopologyOf(options, present).nodes) {
    if (node.in.size() >= static_cast<std::size_t>(options.backups)) continue;
    return Wrong("backups", std::to_string(options.backups),
                 "0 to " + std::to_string(node.in.size()) + ": so many neighbours has rank " +
                     std::to_string(node.rank));
  }
  return Status::Ok();
}

// Each rank to those that follow it on the ring by 1 and by some other number of steps: on these
// Equation 1 is doubly stochastic.
std::vector<Graph::Edge> DrawDirected(Prng* prng, int workers) {
  const auto ranks = static_cast<std::uint64_t>(workers);
  const auto second = static_cast<Rank>(1 + prng->Below(ranks - 1));
  std::vector<Graph::Edge> edges;
  for (Rank rank = 0; rank < workers; ++rank) {
    edges.emplace_back(rank, (rank + 1) % workers);
    if (second > 1) edges.emplace_back(rank, (rank + second) % workers);
  }
  return edges;
}

}  // namespace

Status HopOptions::Check(int workers) const {
  PRD_RETURN_IF_ERROR(CheckGraph(*this, workers));
  if (max_iteration_gap == 0 && backups > 0) {
    return Wrong("max_iteration_gap", "0",
                 "1 to 10000 with backups: without token queues nothing would bound the iteration "
                 "gap (section 4.3)");
  }
  if (max_iteration_gap == 0 && max_jump > 0) {
    return Wrong("max_iteration_gap", "0",
                 "1 to 10000 with max_jump: who is behind is seen by its token queues (section 5)");
  }
  return CheckBackups(*this, workers);
}

std::string HopOptions::Paces(int) const {
  if (max_jump == 0) {
    return "max_jump 0: who is always slow holds up all in the end; max_jump, with backups or "
           "staleness, lets it skip iterations";
  }
  if (backups > 0 || staleness > 0) return {};
  return "backups 0 and staleness 0: each iteration waits for all neighbours, also for one that "
         "skips; backups or staleness goes on without it";
}

void HopOptions::Fit(Prng* prng, int workers) {
  directed = directed && graph.kind == Graph::Kind::kEdges;
  if (directed) graph.edges = DrawDirected(prng, workers);
  if (max_iteration_gap == 0) backups = max_jump = 0;
  if (!CheckBackups(*this, workers).ok()) backups = 0;
}

}  // namespace prd
