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
// undirected, they are the same both ways. Undirected, nobody has a neighbour that it does not
// reach; and two that reach each other are connected if they would be with all links whole.
//
// slots: there are max_ig + 1; without token queues as many as Theorem 1 asks for; with a staleness
// 1 (section 6.1).
//
// explained: a worker whose signal stands has a reason to wait.
//
// In jobs of more workers than kMaxWatched, once there have been so many, nothing is checked. Where
// workers jump, Theorem 1's half is the true iterations' (the simulator's neighbour_book.h): a jump
// is answered before it is made.
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engines/hop/options.h"
#include "engines/hop/topology.h"

namespace prd {
namespace {

constexpr Iteration kFar = std::numeric_limits<Iteration>::max() / 4;

// Shortest paths between all (Floyd and Warshall).
void Close(const std::vector<Rank>& ranks, std::map<std::pair<Rank, Rank>, Iteration>* lengths) {
  const std::size_t n = ranks.size();
  std::vector<Iteration> of(n * n, kFar);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const auto at = lengths->find({ranks[i], ranks[j]});
      if (at != lengths->end()) of[i * n + j] = at->second;
    }
    of[i * n + i] = 0;
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n && of[i * n + k] < kFar; ++j) {
        of[i * n + j] = std::min(of[i * n + j], of[i * n + k] + of[k * n + j]);
      }
    }
  }
  lengths->clear();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (of[i * n + j] < kFar) (*lengths)[{ranks[i], ranks[j]}] = of[i * n + j];
    }
  }
}

class HopRules final : public EngineRules {
 public:
  explicit HopRules(const HopOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override;

 private:
  struct In {
    double weight = 0;
    Iteration from = 0;
    Iteration ahead = 0;   // the receiver of the sender, at most, while the edge is there
    Iteration behind = 0;  // the same, the sender of the receiver
    void Archive(StateArchive& ar) { ar(weight, from, ahead, behind); }
  };
  struct Worker {
    Iteration iteration = 0;
    std::string host;
    bool told = false;
    bool waiting = false;  // its signal stands
    bool jumped = false;   // let in by a jump; its next signal ends that
    double own_weight = 1;
    std::uint32_t slots = 0;
    std::map<Rank, In> in;
    std::vector<Rank> out;
    void Archive(StateArchive& ar) {
      ar(iteration, host, told, waiting, jumped, own_weight, slots, in, out);
    }
  };
  using Lengths = std::map<std::pair<Rank, Rank>, Iteration>;

  void Apply(const Event& event);
  void Tell(const NeighboursSet& set);
  void LetIn(const QueryAnswered& answer);
  void CheckEdge(Rank rank, const Worker& worker, const InEdge& edge) const;
  bool HasTokens(const Worker& worker) const;
  Iteration Target(const Worker& worker) const;
  void CheckGraph() const;
  void CheckTopology() const;
  void CheckBroken(const Topology& whole) const;
  void CheckWaiting(const Decision& of) const;
  // Between workers that have moved and all others.
  void CheckGaps(const std::set<Rank>& moved) const;
  void CheckTokens(const std::set<Rank>& moved) const;
  void Measure();  // the edges' bounds again, and by them all pairs'
  Iteration OwnBound() const { return options_.staleness + 1; }
  bool Bounded() const { return options_.backups == 0 && options_.max_jump == 0; }

  const HopOptions options_;
  std::map<Rank, Worker> workers_;  // joined
  // Derived: how far the first may be ahead of the second; hops from the first to the second.
  Lengths bounds_;
  Lengths hops_;
};

void HopRules::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    workers_[joined->rank] = {
        .iteration = joined->iteration, .host = joined->host, .in = {}, .out = {}};
    Measure();
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    Worker& worker = workers_.at(ready->rank);
    worker.waiting = true;
    worker.jumped = false;
    Count("waits", HasTokens(worker) ? 0 : 1);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    workers_.erase(left->rank);
    for (auto& [rank, worker] : workers_) {
      worker.in.erase(left->rank);
      std::erase(worker.out, left->rank);
    }
    Measure();
  }
}

void HopRules::CheckEdge(Rank rank, const Worker& worker, const InEdge& edge) const {
  const auto sender = workers_.find(edge.rank);
  if (sender == workers_.end() || edge.rank == rank || edge.weight <= 0) {
    throw Violation("graph", RankName(rank) + " gets updates of " + RankName(edge.rank) +
                                 ", which is not there, or without a weight");
  }
  const auto before = worker.in.find(edge.rank);
  const bool known = before != worker.in.end();
  // A joiner's own is the one that it starts at, which it may not have been told yet.
  if (known ? before->second.from == edge.from
            : !sender->second.told || edge.from == sender->second.iteration) {
    return;
  }
  throw Violation("graph", RankName(rank) + " gets updates of " + RankName(edge.rank) +
                               " from iteration " + std::to_string(edge.from) + " on");
}

void HopRules::Tell(const NeighboursSet& set) {
  Worker& worker = workers_.at(set.rank);
  if (set.at < worker.iteration || (worker.told && set.at != worker.iteration)) {
    throw Violation("jump",
                    RankName(set.rank) + " goes back or on to iteration " + std::to_string(set.at));
  }
  Count("rewired", worker.told ? 1 : 0);
  std::map<Rank, In> in;
  for (const InEdge& edge : set.in) {
    CheckEdge(set.rank, worker, edge);
    const auto before = worker.in.find(edge.rank);
    In& now = in[edge.rank];
    now = before != worker.in.end() ? before->second : In{.ahead = -kFar, .behind = -kFar};
    now.weight = edge.weight;
    now.from = edge.from;
  }
  if (set.reason.empty() || in.size() != set.in.size()) {
    throw Violation("graph", RankName(set.rank) + " has a neighbour twice, or no reason");
  }
  worker.iteration = set.at;
  worker.told = true;
  worker.own_weight = set.own_weight;
  worker.slots = set.slots;
  worker.out = set.out;
  worker.in = std::move(in);
}

// TokenQ(j -> i) has Iter(j) - Iter(i) + max_ig tokens; of each it takes one.
bool HopRules::HasTokens(const Worker& worker) const {
  if (options_.max_iteration_gap == 0) return true;
  return std::all_of(worker.out.begin(), worker.out.end(), [&](Rank rank) {
    return workers_.at(rank).iteration - worker.iteration + options_.max_iteration_gap >= 1;
  });
}

Iteration HopRules::Target(const Worker& worker) const {
  const Iteration next = worker.iteration + 1;
  if (options_.max_jump == 0 || worker.out.empty()) return next;
  Iteration behind = options_.max_jump + options_.skip_behind;
  Iteration jump = options_.max_jump;
  for (const Rank rank : worker.out) {
    const Worker& other = workers_.at(rank);
    behind = std::min(behind, other.iteration - worker.iteration);
    const bool one_less = other.jumped && options_.staleness == 0;
    jump = std::min(jump, other.iteration - worker.iteration - (one_less ? 1 : 0));
  }
  return behind >= options_.skip_behind ? std::max(next, worker.iteration + jump) : next;
}

void HopRules::LetIn(const QueryAnswered& answer) {
  Worker& worker = workers_.at(answer.rank);
  if (!worker.waiting || !worker.told || !HasTokens(worker) || answer.ready ||
      answer.reason.empty()) {
    throw Violation("tokens", RankName(answer.rank) +
                                  " is let in without a token or a signal: " + answer.reason);
  }
  const Iteration target = Target(worker);
  if (answer.next != target) {
    throw Violation("jump", RankName(answer.rank) + " goes from iteration " +
                                std::to_string(worker.iteration) + " to " +
                                std::to_string(answer.next) + ", due is " + std::to_string(target));
  }
  worker.jumped = target > worker.iteration + 1;
  Count("jumps", worker.jumped ? 1 : 0);
  worker.iteration = target;
  worker.waiting = false;
}

// New edges count from here.
void HopRules::Measure() {
  std::vector<Rank> ranks;
  bounds_.clear();
  hops_.clear();
  for (auto& [rank, worker] : workers_) {
    ranks.push_back(rank);
    for (auto& [sender, in] : worker.in) {
      const Iteration ahead = worker.iteration - workers_.at(sender).iteration;
      if (in.ahead == -kFar)
        in = {.weight = in.weight, .from = in.from, .ahead = ahead + 1, .behind = -ahead};
      hops_[{sender, rank}] = 1;
      const auto tighten = [&](Rank a, Rank b, Iteration bound) {
        const auto [at, fresh] = bounds_.try_emplace({a, b}, bound);
        if (!fresh) at->second = std::min(at->second, bound);
      };
      if (Bounded()) tighten(rank, sender, std::max(OwnBound(), in.ahead));
      if (options_.max_iteration_gap > 0) {
        tighten(sender, rank, std::max<Iteration>(options_.max_iteration_gap, in.behind));
      }
    }
  }
  Close(ranks, &bounds_);
  Close(ranks, &hops_);
}

void HopRules::Check(const Decision& of) {
  if (crowded()) return;
  Apply(of.event);
  bool changed = false;  // since the last Measure
  bool told = false;
  std::set<Rank> moved;
  for (const Effect& effect : of.effects) {
    if (const auto* answer = std::get_if<QueryAnswered>(&effect)) {
      if (changed) Measure();
      changed = false;
      LetIn(*answer);
      moved.insert(answer->rank);
    } else if (const auto* set = std::get_if<NeighboursSet>(&effect)) {
      Tell(*set);
      moved.insert(set->rank);
      changed = told = true;
    }
  }
  if (changed) Measure();
  if (told) CheckGraph();
  const bool deadline = std::holds_alternative<DeadlineEvent>(of.event);
  if (told && !deadline) throw Violation("graph", "neighbours are told out of turn");
  if (deadline) CheckTopology();
  if (!moved.empty()) CheckGaps(moved);
  CheckWaiting(of);
}

void HopRules::CheckWaiting(const Decision& of) const {
  for (const auto& [rank, worker] : workers_) {
    if (!worker.waiting) continue;
    if (worker.told && HasTokens(worker)) {
      throw Violation("tokens", RankName(rank) + " asks and has tokens, and is not let in");
    }
    if (of.engine.Explain(of.now, rank).find("waiting") == std::string::npos) {
      throw Violation("explained", RankName(rank) + " waits without a reason");
    }
  }
}

// What everybody was told is the graph of those present.
void HopRules::CheckTopology() const {
  std::vector<HopPlace> present;
  std::map<std::string, std::int32_t> hosts;
  for (const auto& [rank, worker] : workers_) {
    const auto host = hosts.emplace(worker.host, static_cast<std::int32_t>(hosts.size())).first;
    present.push_back({.rank = rank, .host = host->second});
  }
  const Topology topology = TopologyOf(options_, present, broken());
  for (const Topology::Node& node : topology.nodes) {
    const Worker& worker = workers_.at(node.rank);
    bool same = worker.told && worker.in.size() == node.in.size() &&
                std::set<Rank>(worker.out.begin(), worker.out.end()) ==
                    std::set<Rank>(node.out.begin(), node.out.end());
    for (const Topology::In& in : node.in) {
      const auto found = worker.in.find(in.rank);
      same = same && found != worker.in.end() && found->second.weight == in.weight;
    }
    if (same) continue;
    throw Violation("graph", RankName(node.rank) + " was told other neighbours than it has");
  }
  if (!options_.directed && !broken().empty()) CheckBroken(TopologyOf(options_, present));
}

void HopRules::CheckBroken(const Topology& whole) const {
  const auto connected = [&](Rank start, const auto& beside) {
    std::set<Rank> seen = {start};
    for (std::vector<Rank> open = {start}; !open.empty();) {
      const Rank rank = open.back();
      open.pop_back();
      for (const Rank next : beside(rank)) {
        if (seen.insert(next).second) open.push_back(next);
      }
    }
    return seen;
  };
  for (const auto& [rank, worker] : workers_) {
    if (!broken().Reaches(rank, worker.out)) {
      throw Violation("graph", RankName(rank) + " has a neighbour that it does not reach");
    }
    const auto now = connected(rank, [&](Rank of) { return workers_.at(of).out; });
    for (const Rank other : connected(rank, [&](Rank of) { return whole.Of(of).out; })) {
      if (now.contains(other) || broken().Has(rank, other)) continue;
      throw Violation("graph", RankName(rank) + " and " + RankName(other) +
                                   " reach each other and are not connected");
    }
  }
}

void HopRules::CheckGraph() const {
  std::map<Rank, double> sent;
  for (const auto& [rank, worker] : workers_) {
    if (!worker.told) continue;
    double received = worker.own_weight;
    sent[rank] += worker.own_weight;
    Iteration way_back = 0;
    for (const auto& [sender, in] : worker.in) {
      received += in.weight;
      sent[sender] += in.weight;
      const Worker& other = workers_.at(sender);
      const auto back = hops_.find({rank, sender});
      way_back = std::max(way_back, back != hops_.end() ? back->second : 0);
      const auto mirrored = other.in.find(rank);
      const bool same = options_.directed || (mirrored != other.in.end() &&
                                              std::abs(mirrored->second.weight - in.weight) < 1e-9);
      if (!same || std::find(other.out.begin(), other.out.end(), rank) == other.out.end()) {
        throw Violation("graph", RankName(rank) + " gets updates of " + RankName(sender) +
                                     (same ? ", who does not send them"
                                           : " with another weight "
                                             "than it sends them"));
      }
    }
    for (const Rank receiver : worker.out) {
      if (workers_.at(receiver).in.contains(rank)) continue;
      throw Violation("graph",
                      RankName(rank) + " sends to " + RankName(receiver) + ", who expects none");
    }
    if (std::abs(received - 1) > 1e-9 || worker.own_weight < 0) {
      throw Violation("graph",
                      "the weights of " + RankName(rank) + " sum to " + std::to_string(received));
    }
    const Iteration gap = options_.max_iteration_gap;
    const Iteration due = options_.staleness > 0 ? 1 : 1 + (gap > 0 ? gap : way_back);
    const bool upper = gap == 0 && options_.directed;  // there the engine may have more
    if (worker.slots != due && !(upper && worker.slots > due)) {
      throw Violation("slots", RankName(rank) + " has " + std::to_string(worker.slots) + " where " +
                                   std::to_string(due) + " are due");
    }
  }
  for (const auto& [rank, weight] : sent) {
    if (std::abs(weight - 1) < 1e-9) continue;
    throw Violation("graph", "the weights of the updates of " + RankName(rank) + " sum to " +
                                 std::to_string(weight));
  }
}

void HopRules::CheckGaps(const std::set<Rank>& moved) const {
  for (const Rank rank : moved) {
    const Iteration own = workers_.at(rank).iteration;
    for (auto at = bounds_.lower_bound({rank, 0}); at != bounds_.end(); ++at) {
      const auto& [pair, bound] = *at;
      if (pair.first != rank) break;
      const Iteration ahead = own - workers_.at(pair.second).iteration;
      if (ahead <= bound) continue;
      throw Violation("gap", RankName(rank) + " is " + std::to_string(ahead) +
                                 " iterations ahead of " + RankName(pair.second) +
                                 ", allowed are " + std::to_string(bound));
    }
  }
  if (options_.max_iteration_gap > 0) CheckTokens(moved);
}

void HopRules::CheckTokens(const std::set<Rank>& moved) const {
  const Iteration max_ig = options_.max_iteration_gap;
  for (const auto& [rank, worker] : workers_) {
    for (const auto& [sender, in] : worker.in) {
      if (!moved.contains(rank) && !moved.contains(sender)) continue;
      const Iteration tokens = worker.iteration - workers_.at(sender).iteration + max_ig;
      const auto ahead = bounds_.find({rank, sender});
      const Iteration most = ahead != bounds_.end() ? max_ig + ahead->second : kFar;
      const Iteration least = -std::max<Iteration>(0, in.behind - max_ig);
      if (tokens >= least && tokens <= most) continue;
      throw Violation("tokens", "TokenQ(" + std::to_string(rank) + " -> " + std::to_string(sender) +
                                    ") holds " + std::to_string(tokens));
    }
  }
}

void HopRules::Archive(StateArchive& ar) {
  ar(workers_);
  if (!ar.saving()) Measure();
}

}  // namespace

// Counts waits (signals that found no token), jumps, rewired.
std::unique_ptr<EngineRules> HopOptions::Rules() const { return std::make_unique<HopRules>(*this); }

}  // namespace prd
