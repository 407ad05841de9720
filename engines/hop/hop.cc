#include "engines/hop/hop.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "engines/words.h"

namespace prd {

namespace {

// Beyond it iterations come from a damaged snapshot.
constexpr Iteration kMaxIteration = Iteration{1} << 62;

bool EdgeBefore(const InEdge& edge, Rank rank) { return edge.rank < rank; }

// By rank; the end where there is none.
template <typename Edges>
auto FindEdge(Edges& edges, Rank rank) {
  const auto at = std::lower_bound(edges.begin(), edges.end(), rank, EdgeBefore);
  return at != edges.end() && at->rank == rank ? at : edges.end();
}

template <typename Item>
bool Ascends(const std::vector<Item>& items) {
  const auto rank = [](const auto& item) {
    if constexpr (std::is_same_v<Item, Rank>) {
      return item;
    } else {
      return item.rank;
    }
  };
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (rank(items[i - 1]) >= rank(items[i])) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Engine> HopOptions::Make() const { return std::make_unique<Hop>(*this); }

Plan Hop::plan() const {
  return {.by = NeighbourPlan{.staleness = options_.staleness,
                              .backups = static_cast<std::uint32_t>(options_.backups),
                              .serial = options_.order == HopOptions::Order::kSerial}};
}

bool Hop::Joined(Rank rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < workers_.size() && At(rank).joined;
}

bool Hop::HasToken(Iteration next, Iteration other) const {
  return options_.max_iteration_gap == 0 || next - other <= options_.max_iteration_gap;
}

void Hop::Step(Instant now, const Event& event, GroupId*, Effects* out) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    OnReady(*ready, out);
  } else if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    OnJoined(now, *joined);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    OnLeft(now, *left, out);
  } else if (const auto* link = std::get_if<LinkEvent>(&event)) {
    links_.Set(link->a, link->b, link->works);
    if (!settles_ && !options_.directed) settles_ = now + kSettle;
  } else if (std::holds_alternative<DeadlineEvent>(event)) {
    settles_.reset();
    Place(out);
  }
}

// ---- events ----

void Hop::OnJoined(Instant now, const JoinedEvent& event) {
  PRD_CHECK(event.rank >= 0 && !Joined(event.rank));
  const std::size_t ranks = static_cast<std::size_t>(event.rank) + 1;
  if (ranks > workers_.size()) workers_.resize(ranks);
  told_.resize(workers_.size());
  At(event.rank) = {.iteration = event.iteration, .joined = true};
  ToldTo(event.rank).host = hosts_.Add(event.host);
  if (!settles_) settles_ = now + kSettle;
}

void Hop::OnReady(const ReadyEvent& event, Effects* out) {
  PRD_CHECK(Joined(event.rank));
  Worker& worker = At(event.rank);
  PRD_CHECK(!worker.waiting && event.ready.iteration == worker.iteration + 1);
  worker.waiting = true;
  worker.jumped = false;
  worker.lacking = CountLacking(worker);
  LetGoIfFree(event.rank, out);
}

void Hop::OnLeft(Instant now, const LeftEvent& event, Effects* out) {
  PRD_CHECK(Joined(event.rank));
  if (!settles_) settles_ = now + kSettle;
  const Worker gone = std::exchange(At(event.rank), {});
  const Told told = std::exchange(ToldTo(event.rank), {});
  hosts_.Remove(told.host);
  links_.Forget(event.rank);
  for (const Rank rank : told.out) {
    std::vector<InEdge>& in = ToldTo(rank).in;
    in.erase(FindEdge(in, event.rank));
    Shrink(rank);
  }
  for (const InEdge& edge : told.in) {
    std::vector<Rank>& out_of = ToldTo(edge.rank).out;
    out_of.erase(std::lower_bound(out_of.begin(), out_of.end(), event.rank));
    Worker& sender = At(edge.rank);
    const bool lacked = sender.waiting && !HasToken(sender.iteration + 1, gone.iteration);
    if (lacked) --sender.lacking;
    Shrink(edge.rank);
  }
  for (const InEdge& edge : told.in) LetGoIfFree(edge.rank, out);
}

// ---- tokens ----

std::uint32_t Hop::CountLacking(const Worker& worker) const {
  if (options_.max_iteration_gap == 0) return 0;
  std::uint32_t lacking = 0;
  for (const Rank rank : Outs(worker)) {
    lacking += HasToken(worker.iteration + 1, At(rank).iteration) ? 0 : 1;
  }
  return lacking;
}

Iteration Hop::Target(const Worker& worker) const {
  const Iteration next = worker.iteration + 1;
  if (options_.max_jump == 0 || worker.outs == 0) return next;
  Iteration lowest = At(Outs(worker).front()).iteration;
  Iteration allowed = lowest;
  for (const Rank rank : Outs(worker)) {
    const Worker& other = At(rank);
    const bool needs_one_more = other.jumped && options_.staleness == 0;
    lowest = std::min(lowest, other.iteration);
    allowed = std::min(allowed, other.iteration - (needs_one_more ? 1 : 0));
  }
  if (lowest - worker.iteration < options_.skip_behind) return next;
  return std::max(next, std::min(allowed, worker.iteration + options_.max_jump));
}

void Hop::LetGoIfFree(Rank rank, Effects* out) {
  const Worker& worker = At(rank);
  if (worker.waiting && worker.placed && worker.lacking == 0) LetGo(rank, out);
}

void Hop::LetGo(Rank rank, Effects* out) {
  freed_.assign(1, rank);
  for (std::size_t i = 0; i < freed_.size(); ++i) {
    const Rank next = freed_[i];
    Worker& worker = At(next);
    const Iteration before = worker.iteration;
    const Iteration target = Target(worker);
    QueryAnswered answer{
        .rank = next,
        .reason = options_.max_iteration_gap > 0 ? "has its tokens" : "no tokens needed",
        .next = target};
    if (target > before + 1) {
      answer.reason =
          "skips to iteration " + std::to_string(target) + ", as all who get its updates are there";
    }
    worker.waiting = false;
    worker.jumped = target > before + 1;
    worker.iteration = target;
    out->push_back(std::move(answer));
    if (options_.max_iteration_gap == 0) continue;
    for (const Rank sender : Ins(worker)) {
      Worker& other = At(sender);
      if (!other.waiting || !other.placed) continue;
      const Iteration wanted = other.iteration + 1;
      if (HasToken(wanted, before) || !HasToken(wanted, target)) continue;
      if (--other.lacking == 0) freed_.push_back(sender);
    }
  }
}

// ---- the graph ----

void Hop::Place(Effects* out) {
  std::vector<HopPlace> present;
  std::optional<Iteration> lowest;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.joined) continue;
    present.push_back({.rank = static_cast<Rank>(i), .host = told_[i].host});
    if (worker.placed) lowest = std::min(lowest.value_or(worker.iteration), worker.iteration);
  }
  for (const HopPlace& place : present) {
    Worker& worker = At(place.rank);
    if (!worker.placed && !worker.waiting && lowest) {
      worker.iteration = std::max(worker.iteration, *lowest);
    }
  }
  const Topology topology = TopologyOf(options_, present, links_);
  std::vector<std::uint32_t> ways;
  if (options_.max_iteration_gap == 0) ways = LongestWayBack(topology);
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    SetNeighbours(topology.nodes[i], SlotsFor(ways.empty() ? 0 : ways[i]), out);
  }
  LayOut();
  for (const HopPlace& place : present) {
    Worker& worker = At(place.rank);
    if (worker.waiting) worker.lacking = CountLacking(worker);
  }
  for (const HopPlace& place : present) LetGoIfFree(place.rank, out);
}

void Hop::LayOut() {
  std::size_t edges = 0;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].first = static_cast<std::uint32_t>(edges);
    edges += told_[i].out.size() + told_[i].in.size();
  }
  around_.resize(edges);
  for (std::size_t i = 0; i < workers_.size(); ++i) Shrink(static_cast<Rank>(i));
}

void Hop::Shrink(Rank rank) {
  Worker& worker = At(rank);
  const Told& told = ToldTo(rank);
  worker.outs = static_cast<std::uint32_t>(told.out.size());
  worker.ins = static_cast<std::uint32_t>(told.in.size());
  const auto ins = std::copy(told.out.begin(), told.out.end(), around_.begin() + worker.first);
  std::transform(told.in.begin(), told.in.end(), ins, [](const InEdge& edge) { return edge.rank; });
}

std::uint32_t Hop::SlotsFor(std::uint32_t way_back) const {
  if (options_.staleness > 0) return 1;
  const auto gap = static_cast<std::uint32_t>(options_.max_iteration_gap);
  return 1 + (gap > 0 ? gap : way_back);
}

void Hop::SetNeighbours(const Topology::Node& node, std::uint32_t slots, Effects* out) {
  Worker& worker = At(node.rank);
  Told& told = ToldTo(node.rank);
  NeighboursSet set{.rank = node.rank,
                    .at = worker.iteration,
                    .in = {},
                    .out = node.out,
                    .own_weight = node.own_weight,
                    .slots = slots,
                    .reason = {}};
  for (const Topology::In& in : node.in) {
    const auto before = FindEdge(told.in, in.rank);
    const bool known = before != told.in.end();
    set.in.push_back({.rank = in.rank,
                      .weight = in.weight,
                      .from = known ? before->from : At(in.rank).iteration});
  }
  const bool same = worker.placed && told.in == set.in && told.out == set.out &&
                    told.own_weight == set.own_weight && told.slots == slots;
  if (same) return;
  const bool list = options_.graph.kind == Graph::Kind::kEdges;
  set.reason = (list ? "list of " + std::to_string(options_.graph.edges.size()) + " edges"
                     : ToText(options_.graph)) +
               (worker.placed ? "; its neighbours changed" : "; it has joined");
  worker.placed = true;
  told.in = set.in;
  told.out = set.out;
  told.own_weight = set.own_weight;
  told.slots = slots;
  out->push_back(std::move(set));
}

// ---- explanations ----

std::string Hop::Explain(Instant, Rank rank) const {
  if (!Joined(rank)) return "";
  const Worker& worker = At(rank);
  if (!worker.placed) return "waiting for its neighbours to be set";
  return worker.waiting ? ExplainWaiting(worker) : ExplainMissing(rank);
}

std::string Hop::ExplainWaiting(const Worker& worker) const {
  std::vector<Rank> ranks;
  Iteration lowest = worker.iteration;
  for (const Rank rank : Outs(worker)) {
    if (HasToken(worker.iteration + 1, At(rank).iteration)) continue;
    ranks.push_back(rank);
    lowest = std::min(lowest, At(rank).iteration);
  }
  return "waiting for a token of " + words::Ranks(ranks) + ", at iteration " +
         std::to_string(lowest) + ", " + std::to_string(worker.iteration - lowest) +
         " behind (max_iteration_gap " + std::to_string(options_.max_iteration_gap) + ")";
}

std::string Hop::ExplainMissing(Rank rank) const {
  const Worker& worker = At(rank);
  // What Recv needs; after a jump, first that of the iteration before.
  const Iteration needed =
      std::max<Iteration>(0, worker.iteration - (worker.jumped ? 1 : 0) - options_.staleness);
  std::vector<Rank> behind;
  for (const InEdge& edge : ToldTo(rank).in) {
    if (At(edge.rank).iteration < needed && edge.from <= needed) behind.push_back(edge.rank);
  }
  const auto backups = static_cast<std::size_t>(options_.backups);
  if (behind.size() <= backups) return "";
  return "computing, or waiting for updates of iteration " + std::to_string(needed) +
         (options_.staleness > 0 ? " or later" : "") + " of " + words::Ranks(behind) +
         (backups > 0 ? ", but " + std::to_string(backups) : "");
}

// ---- state ----

void Hop::Archive(StateArchive& ar) {
  ar(workers_, told_, hosts_, links_, settles_);
  if (ar.saving()) return;
  if (told_.size() != workers_.size()) return ar.Fail();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!Consistent(static_cast<Rank>(i))) return ar.Fail();
  }
  LayOut();
  for (Worker& worker : workers_) worker.lacking = worker.waiting ? CountLacking(worker) : 0;
}

bool Hop::Consistent(Rank rank) const {
  const Worker& worker = At(rank);
  const Told& told = ToldTo(rank);
  const bool has_edges = !told.in.empty() || !told.out.empty();
  if (has_edges && !(worker.joined && worker.placed)) return false;
  if (!worker.joined) return !worker.placed && !worker.waiting;
  if (!hosts_.Has(told.host) || worker.iteration < 0 || worker.iteration > kMaxIteration) {
    return false;
  }
  if (!Ascends(told.in) || !Ascends(told.out)) return false;
  for (const InEdge& edge : told.in) {
    if (!Joined(edge.rank) || edge.rank == rank) return false;
    const std::vector<Rank>& out = ToldTo(edge.rank).out;
    if (!std::binary_search(out.begin(), out.end(), rank)) return false;
  }
  return std::all_of(told.out.begin(), told.out.end(), [&](Rank other) {
    return Joined(other) && FindEdge(ToldTo(other).in, rank) != ToldTo(other).in.end();
  });
}

}  // namespace prd
