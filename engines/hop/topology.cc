#include "engines/hop/topology.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace prd {

namespace {

// Those around an absent part of a list are all connected with each other up to so many, else in a
// ring: otherwise the end of a hub would connect everybody with everybody.
constexpr std::size_t kLargestClique = 64;

// Beyond so many looks, LongestWayBack answers with a bound.
constexpr std::size_t kMaxLooks = 100'000'000;

using Edges = std::vector<Graph::Edge>;  // undirected: the lower rank first; some are there twice

void Connect(Rank a, Rank b, Edges* edges) {
  if (a != b) edges->push_back(std::minmax(a, b));
}

void AddRing(const std::vector<Rank>& ranks, Edges* edges) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Connect(ranks[i], ranks[(i + 1) % ranks.size()], edges);
  }
}

void AddComplete(const std::vector<Rank>& ranks, Edges* edges) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) Connect(ranks[i], ranks[j], edges);
  }
}

// Figure 11 (2). Of an odd number two are most distant.
void AddRingBased(const std::vector<Rank>& ranks, Edges* edges) {
  AddRing(ranks, edges);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Connect(ranks[i], ranks[(i + ranks.size() / 2) % ranks.size()], edges);
  }
}

// Figure 11 (3). Of an odd number the first half has one more, beside the other's last.
void AddDoubleRing(const std::vector<Rank>& ranks, Edges* edges) {
  const auto half = ranks.begin() + static_cast<std::ptrdiff_t>((ranks.size() + 1) / 2);
  const std::vector<Rank> first(ranks.begin(), half);
  const std::vector<Rank> second(half, ranks.end());
  AddRingBased(first, edges);
  AddRingBased(second, edges);
  for (std::size_t i = 0; i < first.size() && !second.empty(); ++i) {
    Connect(first[i], second[std::min(i, second.size() - 1)], edges);
  }
}

// Figure 21 (b): all of a host, and a ring of the hosts.
void AddHierarchical(const HopOptions& options, const std::vector<HopPlace>& present,
                     Edges* edges) {
  std::map<std::int32_t, std::vector<Rank>> hosts;
  std::vector<Rank> heads;
  for (const HopPlace& place : present) {
    const std::int32_t host =
        options.workers_per_host > 0 ? place.rank / options.workers_per_host : place.host;
    std::vector<Rank>& ranks = hosts[host];
    if (ranks.empty()) heads.push_back(place.rank);
    ranks.push_back(place.rank);
  }
  for (const auto& [host, ranks] : hosts) AddComplete(ranks, edges);
  AddRing(heads, edges);
}

// Those of the list that are left, and in place of each connected part that is absent, edges
// between those around it.
void AddList(const std::vector<Graph::Edge>& list, const std::set<Rank>& present, Edges* edges) {
  std::map<Rank, std::vector<Rank>> beside_absent;
  for (const auto& [a, b] : list) {
    if (present.contains(a) && present.contains(b)) Connect(a, b, edges);
    if (!present.contains(a)) beside_absent[a].push_back(b);
    if (!present.contains(b)) beside_absent[b].push_back(a);
  }
  std::set<Rank> seen;
  for (const auto& [start, ignored] : beside_absent) {
    if (!seen.insert(start).second) continue;
    std::vector<Rank> open = {start};
    std::set<Rank> around;
    while (!open.empty()) {
      const Rank rank = open.back();
      open.pop_back();
      for (const Rank next : beside_absent.at(rank)) {
        if (present.contains(next)) {
          around.insert(next);
        } else if (seen.insert(next).second) {
          open.push_back(next);
        }
      }
    }
    const std::vector<Rank> ranks(around.begin(), around.end());
    ranks.size() <= kLargestClique ? AddComplete(ranks, edges) : AddRing(ranks, edges);
  }
}

// Which ranks are connected by the edges so far.
class Parts {
 public:
  explicit Parts(const std::vector<HopPlace>& present) {
    for (const HopPlace& place : present) part_[place.rank] = place.rank;
  }
  bool Together(Rank a, Rank b) const { return part_.at(a) == part_.at(b); }
  void Join(Rank a, Rank b) {
    if (Together(a, b)) return;
    const Rank to = std::min(part_.at(a), part_.at(b));
    const Rank from = std::max(part_.at(a), part_.at(b));
    for (auto& [rank, part] : part_) part = part == from ? to : part;
  }
  friend bool operator==(const Parts&, const Parts&) = default;

 private:
  std::map<Rank, Rank> part_;  // by rank: the lowest of those that it is connected with
};

void GoAround(const std::vector<HopPlace>& present, const BrokenLinks& broken, Edges* edges) {
  Edges lost;
  std::erase_if(*edges, [&](const Graph::Edge& edge) {
    if (!broken.Has(edge.first, edge.second)) return false;
    lost.push_back(edge);
    return true;
  });
  Parts parts(present);
  for (const auto& [a, b] : *edges) parts.Join(a, b);
  Parts whole = parts;
  for (const auto& [a, b] : lost) whole.Join(a, b);
  if (whole == parts) return;
  for (const auto& [one, host] : present) {
    for (const auto& [other, host_of_other] : present) {
      if (!whole.Together(one, other) || parts.Together(one, other) || broken.Has(one, other)) {
        continue;
      }
      Connect(one, other, edges);
      parts.Join(one, other);
    }
  }
}

std::size_t IndexOf(const Topology& topology, Rank rank) {
  const auto at =
      std::lower_bound(topology.nodes.begin(), topology.nodes.end(), rank,
                       [](const Topology::Node& node, Rank value) { return node.rank < value; });
  PRD_CHECK(at != topology.nodes.end() && at->rank == rank);
  return static_cast<std::size_t>(at - topology.nodes.begin());
}

Topology Undirected(const std::vector<HopPlace>& present, const BrokenLinks& broken, Edges edges) {
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  if (!broken.empty()) GoAround(present, broken, &edges);
  Topology topology;
  std::vector<std::size_t> index;  // by rank
  for (const HopPlace& place : present) {
    index.resize(static_cast<std::size_t>(place.rank) + 1);
    index.back() = topology.nodes.size();
    topology.nodes.emplace_back().rank = place.rank;
  }
  const auto node_of = [&](Rank rank) -> Topology::Node& {
    return topology.nodes[index[static_cast<std::size_t>(rank)]];
  };
  for (const auto& [a, b] : edges) {
    node_of(a).out.push_back(b);
    node_of(b).out.push_back(a);
  }
  for (Topology::Node& node : topology.nodes) std::sort(node.out.begin(), node.out.end());
  for (Topology::Node& node : topology.nodes) {
    for (const Rank other : node.out) {
      const std::size_t larger = std::max(node.out.size(), node_of(other).out.size());
      node.in.push_back({other, 1.0 / static_cast<double>(1 + larger)});
      node.own_weight -= node.in.back().weight;
    }
  }
  return topology;
}

// ---- directed lists ----

// W by receiver, and who has a weight there, by sender; a rank's own is among them.
struct Weights {
  std::map<Rank, std::map<Rank, double>> in;
  std::map<Rank, std::set<Rank>> out;
};

Weights Equation1(const std::vector<Graph::Edge>& edges) {
  Weights weights;
  for (const auto& [a, b] : edges) {
    for (const Rank rank : {a, b}) {
      weights.in[rank][rank] = 0;
      weights.out[rank].insert(rank);
    }
    weights.in[b][a] = 0;
    weights.out[a].insert(b);
  }
  for (auto& [receiver, shares] : weights.in) {
    for (auto& [sender, share] : shares) share = 1.0 / static_cast<double>(shares.size());
  }
  return weights;
}

// Takes a rank out: what came to it goes on to those who got its updates, in proportion. Doubly
// stochastic weights stay so (the censored Markov chain; its stationary distribution is uniform).
void TakeOut(Rank rank, Weights* weights) {
  const std::map<Rank, double> shares = weights->in.at(rank);
  const double rest = 1 - shares.at(rank);
  for (const Rank receiver : weights->out.at(rank)) {
    if (receiver == rank) continue;
    std::map<Rank, double>& in = weights->in.at(receiver);
    const double through = in.at(rank) / rest;
    in.erase(rank);
    for (const auto& [sender, share] : shares) {
      if (sender == rank) continue;
      in[sender] += through * share;
      weights->out.at(sender).insert(receiver);
    }
  }
  for (const auto& [sender, share] : shares) weights->out.at(sender).erase(rank);
  weights->in.erase(rank);
  weights->out.erase(rank);
}

Topology Directed(const std::vector<Graph::Edge>& edges, const std::vector<HopPlace>& present) {
  Weights weights = Equation1(edges);
  std::set<Rank> absent;
  for (const auto& [rank, shares] : weights.in) absent.insert(rank);
  for (const HopPlace& place : present) absent.erase(place.rank);
  for (const Rank rank : absent) TakeOut(rank, &weights);
  Topology topology;
  for (const HopPlace& place : present) {
    Topology::Node& node = topology.nodes.emplace_back();
    node.rank = place.rank;
    const auto found = weights.in.find(place.rank);
    if (found == weights.in.end()) continue;
    for (const auto& [sender, share] : found->second) {
      if (sender == place.rank) continue;
      node.in.push_back({sender, share});
      node.own_weight -= share;
    }
    for (const Rank receiver : weights.out.at(place.rank)) {
      if (receiver != place.rank) node.out.push_back(receiver);
    }
  }
  return topology;
}

// From one node to the last of those whose updates it gets.
std::uint32_t WayBack(const Topology& topology, std::size_t start) {
  const Topology::Node& node = topology.nodes[start];
  std::set<Rank> wanted;
  for (const Topology::In& in : node.in) wanted.insert(in.rank);
  std::map<Rank, std::uint32_t> distance = {{node.rank, 0}};
  std::deque<std::size_t> open = {start};
  std::uint32_t longest = 0;
  while (!open.empty() && !wanted.empty()) {
    const Topology::Node& next = topology.nodes[open.front()];
    open.pop_front();
    const std::uint32_t far = distance.at(next.rank) + 1;
    for (const Rank rank : next.out) {
      if (!distance.emplace(rank, far).second) continue;
      if (wanted.erase(rank) > 0) longest = far;
      open.push_back(IndexOf(topology, rank));
    }
  }
  return longest;
}

}  // namespace

const Topology::Node& Topology::Of(Rank rank) const { return nodes[IndexOf(*this, rank)]; }

Topology TopologyOf(const HopOptions& options, const std::vector<HopPlace>& present,
                    const BrokenLinks& broken) {
  const Graph& graph = options.graph;
  if (options.directed) return Directed(graph.edges, present);
  std::vector<Rank> ranks;
  for (const HopPlace& place : present) ranks.push_back(place.rank);
  Edges edges;
  switch (graph.kind) {
    case Graph::Kind::kRing:
      AddRing(ranks, &edges);
      break;
    case Graph::Kind::kComplete:
      AddComplete(ranks, &edges);
      break;
    case Graph::Kind::kRingBased:
      AddRingBased(ranks, &edges);
      break;
    case Graph::Kind::kDoubleRing:
      AddDoubleRing(ranks, &edges);
      break;
    case Graph::Kind::kHierarchical:
      AddHierarchical(options, present, &edges);
      break;
    case Graph::Kind::kEdges:
      AddList(graph.edges, {ranks.begin(), ranks.end()}, &edges);
      break;
  }
  return Undirected(present, broken, std::move(edges));
}

std::vector<std::uint32_t> LongestWayBack(const Topology& topology) {
  std::vector<std::uint32_t> ways;
  std::size_t edges = 0;
  bool one_way = false;
  for (const Topology::Node& node : topology.nodes) {
    edges += node.out.size();
    one_way =
        one_way || !std::equal(node.in.begin(), node.in.end(), node.out.begin(), node.out.end(),
                               [](const Topology::In& in, Rank out) { return in.rank == out; });
  }
  const std::size_t count = topology.nodes.size();
  const bool large = count * edges > kMaxLooks;
  for (std::size_t i = 0; i < count; ++i) {
    if (topology.nodes[i].in.empty()) {
      ways.push_back(0);
    } else if (!one_way) {
      ways.push_back(1);
    } else {
      ways.push_back(large ? static_cast<std::uint32_t>(count) : WayBack(topology, i));
    }
  }
  return ways;
}

bool Equation1IsDoublyStochastic(const std::vector<Graph::Edge>& edges) {
  const Weights weights = Equation1(edges);
  std::map<Rank, double> sent;
  for (const auto& [receiver, shares] : weights.in) {
    for (const auto& [sender, share] : shares) sent[sender] += share;
  }
  return std::all_of(sent.begin(), sent.end(),
                     [](const auto& entry) { return std::abs(entry.second - 1) < 1e-9; });
}

}  // namespace prd
