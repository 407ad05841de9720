#include "engines/graph.h"

#include <algorithm>
#include <map>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {

namespace {

std::string EdgeText(const Graph::Edge& edge) {
  return "[" + std::to_string(edge.first) + ", " + std::to_string(edge.second) + "]";
}

Status WrongGraph(const std::string& found, const std::string& allowed) {
  return Wrong("graph", found, allowed);
}

using Adjacent = std::map<Rank, std::vector<Rank>>;

Status CheckEdges(const std::vector<Graph::Edge>& edges, bool directed) {
  std::set<Graph::Edge> known;
  for (const Graph::Edge& edge : edges) {
    const auto [low, high] = std::minmax(edge.first, edge.second);
    if (low < 0 || high > Graph::kHighestRank) {
      return WrongGraph(EdgeText(edge), "ranks from 0 to " + std::to_string(Graph::kHighestRank));
    }
    if (low == high) return WrongGraph(EdgeText(edge), "an edge between two ranks");
    const Graph::Edge same = directed ? edge : Graph::Edge(low, high);
    if (!known.insert(same).second) return WrongGraph(EdgeText(edge) + " twice", "each edge once");
  }
  return Status::Ok();
}

// Those that a path leads to from the first.
std::set<Rank> Reached(const Adjacent& adjacent) {
  std::set<Rank> reached = {adjacent.begin()->first};
  std::vector<Rank> open(reached.begin(), reached.end());
  while (!open.empty()) {
    const Rank rank = open.back();
    open.pop_back();
    for (const Rank next : adjacent.at(rank)) {
      if (reached.insert(next).second) open.push_back(next);
    }
  }
  return reached;
}

}  // namespace

std::string ToText(const Graph& graph) {
  switch (graph.kind) {
    case Graph::Kind::kRing:
      return "ring";
    case Graph::Kind::kComplete:
      return "complete";
    case Graph::Kind::kRingBased:
      return "ring-based";
    case Graph::Kind::kDoubleRing:
      return "double-ring";
    case Graph::Kind::kHierarchical:
      return "hierarchical";
    case Graph::Kind::kEdges:
      break;
  }
  std::string text = "[";
  for (const Graph::Edge& edge : graph.edges) {
    text += (text.size() > 1 ? ", " : "") + EdgeText(edge);
  }
  return text + "]";
}

Status Validate(const Graph& graph, int workers, bool directed) {
  if (graph.kind != Graph::Kind::kEdges) return Status::Ok();
  if (graph.edges.empty() || graph.edges.size() > Graph::kMaxEdges) {
    return WrongGraph(std::to_string(graph.edges.size()) + " edges",
                      "1 to " + std::to_string(Graph::kMaxEdges));
  }
  if (Status status = CheckEdges(graph.edges, directed); !status.ok()) return status;
  Adjacent adjacent;  // every rank of the list has its entry in both
  Adjacent back;
  for (const auto& [a, b] : graph.edges) {
    adjacent[a].push_back(b);
    back[b].push_back(a);
    std::vector<Rank>& from_b = adjacent[b];
    std::vector<Rank>& to_a = back[a];
    if (directed) continue;
    from_b.push_back(a);
    to_a.push_back(b);
  }
  const Rank first = adjacent.begin()->first;
  const std::set<Rank> reached = Reached(adjacent);
  const std::set<Rank> reaching = Reached(back);
  for (const auto& [rank, ignored] : adjacent) {
    if (reached.contains(rank) && reaching.contains(rank)) continue;
    const bool to = !reached.contains(rank);
    return WrongGraph("no path from rank " + std::to_string(to ? first : rank) + " to rank " +
                          std::to_string(to ? rank : first),
                      "a connected graph");
  }
  for (Rank rank = 0; rank < workers; ++rank) {
    if (adjacent.contains(rank)) continue;
    return WrongGraph("no edge of rank " + std::to_string(rank),
                      "a list that names all " + std::to_string(workers) + " workers");
  }
  return Status::Ok();
}

void DescribeGraph(Fields& fields, std::span<const Graph::Kind> kinds, Graph* graph,
                   std::string_view help) {
  std::vector<std::string> texts;
  for (const Graph::Kind kind : kinds) texts.push_back(ToText(Graph{.kind = kind, .edges = {}}));
  const std::vector<std::string_view> names(texts.begin(), texts.end());
  auto index =
      static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), graph->kind) - kinds.begin());
  fields.NameOrPairs("graph", &index, &graph->edges, names, 0, Graph::kHighestRank, help);
  graph->kind = index < kinds.size() ? kinds[index] : Graph::Kind::kEdges;
}

Neighbours::Neighbours(const Graph& graph) : kind_(graph.kind) {
  if (kind_ != Graph::Kind::kEdges) return;
  Rank highest = 0;
  for (const auto& [a, b] : graph.edges) highest = std::max({highest, a, b});
  edges_.resize(static_cast<std::size_t>(highest) + 1);
  for (const auto& [a, b] : graph.edges) {
    edges_[static_cast<std::size_t>(a)].push_back(b);
    edges_[static_cast<std::size_t>(b)].push_back(a);
  }
  for (std::vector<Rank>& edges : edges_) std::sort(edges.begin(), edges.end());
}

bool Neighbours::Has(Rank rank) const {
  return rank >= 0 && RankIndex(rank) < places_.size() && PlaceOf(rank).after != kNoRank;
}

void Neighbours::Join(Rank rank) {
  PRD_CHECK(rank >= 0 && !Has(rank));
  if (RankIndex(rank) >= places_.size()) {
    places_.resize(RankIndex(rank) + 1);
  }
  const auto at = by_rank_.insert(rank).first;
  const Rank before = at == by_rank_.begin() ? *by_rank_.rbegin() : *std::prev(at);
  const Rank after = std::next(at) == by_rank_.end() ? *by_rank_.begin() : *std::next(at);
  PlaceOf(before).after = rank;
  PlaceOf(after).before = rank;
  PlaceOf(rank) = {.index = present_.size(), .before = before, .after = after};
  present_.push_back(rank);
}

void Neighbours::Leave(Rank rank) {
  PRD_CHECK(Has(rank));
  const Place place = PlaceOf(rank);
  PlaceOf(place.before).after = place.after;
  PlaceOf(place.after).before = place.before;
  PlaceOf(rank) = {};
  by_rank_.erase(rank);
  const Rank last = present_.back();
  present_.pop_back();
  if (last == rank) return;
  present_[place.index] = last;
  PlaceOf(last).index = place.index;
}

std::size_t Neighbours::Count(Rank rank) const {
  if (kind_ == Graph::Kind::kRing) return std::min<std::size_t>(present_.size() - 1, 2);
  if (kind_ == Graph::Kind::kComplete) return present_.size() - 1;
  if (RankIndex(rank) >= edges_.size()) return 0;
  const std::vector<Rank>& all = edges_[RankIndex(rank)];
  return static_cast<std::size_t>(
      std::count_if(all.begin(), all.end(), [this](Rank other) { return Has(other); }));
}

Rank Neighbours::At(Rank rank, std::size_t index) const {
  const Place& place = PlaceOf(rank);
  if (kind_ == Graph::Kind::kRing) {
    return index == 0 ? std::min(place.before, place.after) : std::max(place.before, place.after);
  }
  if (kind_ == Graph::Kind::kComplete) return present_[index < place.index ? index : index + 1];
  for (const Rank other : edges_[RankIndex(rank)]) {
    if (Has(other) && index-- == 0) return other;
  }
  PRD_CHECK(false);
  return kNoRank;
}

std::vector<Rank> Neighbours::Of(Rank rank) const {
  std::vector<Rank> all;
  for (std::size_t i = 0; i < Count(rank); ++i) all.push_back(At(rank, i));
  std::sort(all.begin(), all.end());
  return all;
}

void Neighbours::Archive(StateArchive& ar, std::size_t ranks) {
  std::vector<Rank> present = present_;
  ar(present);
  if (ar.saving()) return;
  present_.clear();
  places_.clear();
  by_rank_.clear();
  for (const Rank rank : present) {
    if (rank < 0 || RankIndex(rank) >= ranks || Has(rank)) return ar.Fail();
    Join(rank);
  }
}

}  // namespace prd
