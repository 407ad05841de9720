#include "engines/hop/options.h"

#include <algorithm>
#include <string>

#include "engines/hop/topology.h"

namespace prd {

namespace {

// Those of a directed list: with each rank that is taken out the others get more edges, up to all
// with all, and the controller does nothing else meanwhile.
constexpr std::size_t kMostDirectedEdges = 2000;
// Workers for whom the smallest number of neighbours is looked up.
constexpr int kMostLookedAt = 4096;

Status Wrong(const std::string& key, const std::string& found, const std::string& allowed) {
  return Status(Code::kInvalidArgument, key + ": found " + found + ", allowed is " + allowed);
}

Status CheckGraph(const HopOptions& options, int workers) {
  const Graph& graph = options.graph;
  if (options.directed && graph.kind != Graph::Kind::kEdges) {
    return Wrong("directed", "true", "false, unless graph is a list of edges");
  }
  if (options.directed && graph.edges.size() > kMostDirectedEdges) {
    return Wrong("graph", std::to_string(graph.edges.size()) + " edges",
                 "1 to " + std::to_string(kMostDirectedEdges) + " directed ones");
  }
  if (Status status = Validate(graph, workers, options.directed); !status.ok()) return status;
  if (options.directed && !Equation1IsDoublyStochastic(graph.edges)) {
    return Wrong("graph",
                 "a directed list on which 1 / |N_in| (Equation 1) is not doubly "
                 "stochastic",
                 "one on which the weights of each worker's updates sum to 1: for one, as many "
                 "edges to each rank as from it, and the same number for all");
  }
  return Status::Ok();
}

Status CheckRanges(const HopOptions& options) {
  const struct {
    const char* key;
    int found, low, high;
  } keys[] = {
      {"workers_per_host", options.workers_per_host, 0, 1'000'000},
      {"max_iteration_gap", options.max_iteration_gap, 0, 10'000},
      {"backups", options.backups, 0, 100'000},
      {"staleness", options.staleness, 0, 1'000'000},
      {"max_jump", options.max_jump, 0, 10'000},
      {"skip_behind", options.skip_behind, 1, 10'000},
  };
  for (const auto& key : keys) {
    if (key.found >= key.low && key.found <= key.high) continue;
    return Wrong(key.key, std::to_string(key.found),
                 std::to_string(key.low) + " to " + std::to_string(key.high));
  }
  return Status::Ok();
}

// N_buw(i) < |N_in(i)|, where i is in N_in(i) (Figure 8, section 3.1).
Status CheckBackups(const HopOptions& options, int workers) {
  const bool known =
      options.graph.kind != Graph::Kind::kHierarchical || options.workers_per_host > 0;
  if (options.backups == 0 || workers == 0 || workers > kMostLookedAt || !known) {
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

}  // namespace

std::string_view ToText(HopOptions::Order order) {
  return order == HopOptions::Order::kParallel ? "parallel" : "serial";
}

Status Validate(const HopOptions& options, int workers) {
  if (Status status = CheckRanges(options); !status.ok()) return status;
  if (Status status = CheckGraph(options, workers); !status.ok()) return status;
  if (options.max_iteration_gap == 0 && options.backups > 0) {
    return Wrong("max_iteration_gap", "0",
                 "1 to 10000 with backups: without token queues nothing would bound the iteration "
                 "gap (section 4.3)");
  }
  if (options.max_iteration_gap == 0 && options.max_jump > 0) {
    return Wrong("max_iteration_gap", "0",
                 "1 to 10000 with max_jump: who is behind is seen by its token queues (section 5)");
  }
  return CheckBackups(options, workers);
}

}  // namespace prd
