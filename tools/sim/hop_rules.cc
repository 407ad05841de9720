#include "tools/sim/hop_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

constexpr Iteration kFar = std::numeric_limits<Iteration>::max() / 4;

std::string Name(Rank rank) { return "rank " + std::to_string(rank); }

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

}  // namespace

void HopRules::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    workers_[joined->rank] = {.iteration = joined->iteration, .in = {}, .out = {}};
    Measure();
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    workers_.erase(left->rank);
    for (auto& [rank, worker] : workers_) {
      worker.in.erase(left->rank);
      std::erase(worker.out, left->rank);
    }
    Measure();
  }
}

void HopRules::Tell(const NeighboursSet& set) {
  Worker& worker = workers_.at(set.rank);
  if (set.at < worker.iteration) {
    throw Violation("jump", Name(set.rank) + " goes back to iteration " + std::to_string(set.at));
  }
  worker.iteration = set.at;
  worker.told = true;
  worker.own_weight = set.own_weight;
  worker.slots = set.slots;
  worker.out = set.out;
  std::map<Rank, In> in;
  for (const InEdge& edge : set.in) {
    const auto before = worker.in.find(edge.rank);
    In& now = in[edge.rank];
    now = before != worker.in.end() ? before->second : In{.ahead = -kFar, .behind = -kFar};
    now.weight = edge.weight;
  }
  worker.in = std::move(in);
}

void HopRules::LetIn(const Answer& answer) {
  Worker& worker = workers_.at(answer.rank);
  const Iteration jump = answer.next - worker.iteration;
  Iteration nearest = kFar;
  for (const Rank rank : worker.out) {
    nearest = std::min(nearest, workers_.at(rank).iteration);
  }
  const bool skips = jump > 1;
  if (jump < 1 || (skips && (jump > options_.max_jump || answer.next > nearest ||
                             nearest - worker.iteration < options_.skip_behind))) {
    throw Violation("jump", Name(answer.rank) + " goes from iteration " +
                                std::to_string(worker.iteration) + " to " +
                                std::to_string(answer.next) + ", and the nearest who gets its " +
                                "updates is at " + std::to_string(nearest));
  }
  worker.iteration = answer.next;
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
      if (in.ahead == -kFar) in = {.weight = in.weight, .ahead = ahead + 1, .behind = -ahead};
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

void HopRules::Check(Instant, const Event& event, std::span<const Effect> effects,
                     std::int64_t joined) {
  unseen_ = unseen_ || joined > kMostWatched;
  if (unseen_) return;
  Apply(event);
  bool changed = false;
  std::set<Rank> moved;
  for (const Effect& effect : effects) {
    if (const auto* answer = std::get_if<Answer>(&effect)) {
      if (changed) Measure();
      changed = false;
      LetIn(*answer);
      moved.insert(answer->rank);
    }
    const auto* set = std::get_if<NeighboursSet>(&effect);
    if (set != nullptr) {
      Tell(*set);
      moved.insert(set->rank);
    }
    changed = changed || set != nullptr;
  }
  if (changed) Measure();
  const bool told = std::any_of(effects.begin(), effects.end(), [](const Effect& effect) {
    return std::holds_alternative<NeighboursSet>(effect);
  });
  if (told) CheckGraph();
  if (!moved.empty()) CheckGaps(moved);
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
        throw Violation("graph", Name(rank) + " gets updates of " + Name(sender) +
                                     (same ? ", who does not send them"
                                           : " with another weight "
                                             "than it sends them"));
      }
    }
    for (const Rank receiver : worker.out) {
      if (workers_.at(receiver).in.contains(rank)) continue;
      throw Violation("graph", Name(rank) + " sends to " + Name(receiver) + ", who expects none");
    }
    if (std::abs(received - 1) > 1e-9 || worker.own_weight < 0) {
      throw Violation("graph",
                      "the weights of " + Name(rank) + " sum to " + std::to_string(received));
    }
    const Iteration gap = options_.max_iteration_gap;
    const Iteration due = options_.staleness > 0 ? 1 : 1 + (gap > 0 ? gap : way_back);
    const bool upper = gap == 0 && options_.directed;  // there the engine may have more
    if (worker.slots != due && !(upper && worker.slots > due)) {
      throw Violation("slots", Name(rank) + " has " + std::to_string(worker.slots) + " where " +
                                   std::to_string(due) + " are due");
    }
  }
  for (const auto& [rank, weight] : sent) {
    if (std::abs(weight - 1) < 1e-9) continue;
    throw Violation("graph", "the weights of the updates of " + Name(rank) + " sum to " +
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
      throw Violation("gap", Name(rank) + " is " + std::to_string(ahead) + " iterations ahead of " +
                                 Name(pair.second) + ", allowed are " + std::to_string(bound));
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
  ar(workers_, unseen_);
  if (!ar.saving()) Measure();
}

}  // namespace prd::sim
