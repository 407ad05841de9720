#include "tests/engines/hop_world.h"

#include <algorithm>
#include <cmath>

#include "engines/hop/topology.h"
#include "engines/violation.h"

namespace prd {

namespace {

std::string Of(Rank rank) { return " of rank " + std::to_string(rank); }

}  // namespace

std::string HopWorld::Join(Rank rank, Iteration iteration, const std::string& host) {
  Worker& worker = workers_[rank];
  worker.let_into = worker.entered = iteration;
  worker.host = host;
  return Apply(JoinedEvent{.rank = rank, .iteration = iteration, .host = host});
}

std::string HopWorld::Leave(Rank rank, LeftReason why) {
  workers_.erase(rank);
  for (auto& [other, worker] : workers_) {
    worker.in.erase(rank);
    worker.out.erase(rank);
    worker.received.erase(rank);
  }
  return Apply(LeftEvent{.rank = rank, .why = why});
}

std::string HopWorld::PassDeadline() {
  now_ = std::max(now_, *engine_->NextDeadline());
  if (auto wrong = Apply(DeadlineEvent{}); !wrong.empty()) return wrong;
  return engine_->NextDeadline() ? "a deadline after the graph is set" : CheckPlaced();
}

std::string HopWorld::Signal(Rank rank) {
  Worker& worker = workers_.at(rank);
  worker.waiting = true;
  worker.jumped = false;
  if (!HasTokens(worker)) ++waits_;
  return Apply(ReadyEvent{.rank = rank, .ready = {.iteration = worker.entered + 1}});
}

bool HopWorld::CanSignal(Rank rank) const {
  const Worker& worker = workers_.at(rank);
  return worker.placed && !worker.waiting && worker.entered == worker.let_into &&
         MayEndRecv(worker, worker.entered);
}

std::vector<Rank> HopWorld::WhoCanSignal() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) {
    if (CanSignal(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Rank> HopWorld::Present() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, worker] : workers_) ranks.push_back(rank);
  return ranks;
}

// Figures 4, 8 and 9.
bool HopWorld::MayEndRecv(const Worker& worker, Iteration k) const {
  int missing = 0;
  for (const auto& [rank, edge] : worker.in) {
    if (edge.from > k) continue;
    const auto found = worker.received.find(rank);
    bool there = false;
    if (found != worker.received.end() && options_.staleness == 0) {
      there = found->second.contains(k);
    } else if (found != worker.received.end() && !found->second.empty()) {
      there = *found->second.rbegin() >= k - options_.staleness;
    }
    missing += there ? 0 : 1;
  }
  return missing <= options_.backups;
}

// TokenQ(j -> i) has Iter(j) - Iter(i) + max_ig tokens; of each it takes one.
bool HopWorld::HasTokens(const Worker& worker) const {
  if (options_.max_iteration_gap == 0) return true;
  return std::all_of(worker.out.begin(), worker.out.end(), [&](Rank rank) {
    return workers_.at(rank).let_into - worker.let_into + options_.max_iteration_gap >= 1;
  });
}

Iteration HopWorld::Target(const Worker& worker) const {
  const Iteration next = worker.let_into + 1;
  if (options_.max_jump == 0 || worker.out.empty()) return next;
  Iteration behind = options_.max_jump + options_.skip_behind;
  Iteration jump = options_.max_jump;
  for (const Rank rank : worker.out) {
    const Worker& other = workers_.at(rank);
    behind = std::min(behind, other.let_into - worker.let_into);
    const bool one_less = other.jumped && options_.staleness == 0;
    jump = std::min(jump, other.let_into - worker.let_into - (one_less ? 1 : 0));
  }
  return behind >= options_.skip_behind ? std::max(next, worker.let_into + jump) : next;
}

void HopWorld::Publish(Rank rank, Iteration k) {
  Worker& worker = workers_.at(rank);
  worker.published.insert(k);
  for (const Rank other : worker.out) workers_.at(other).received[rank].insert(k);
}

// Those who were let in and have what a jump needs first.
void HopWorld::EnterWhoCan() {
  for (bool again = true; again;) {
    again = false;
    for (auto& [rank, worker] : workers_) {
      if (worker.entered == worker.let_into) continue;
      const bool jump = worker.let_into > worker.entered + 1;
      if (jump && !MayEndRecv(worker, worker.let_into - 1)) continue;
      worker.entered = worker.let_into;
      ++worker.steps;
      Publish(rank, worker.entered);
      again = true;
    }
  }
  for (const auto& [rank, worker] : workers_) {
    for (const auto& [other, updates] : worker.received) {
      const auto first = updates.lower_bound(worker.entered);
      most_queued_ =
          std::max(most_queued_, static_cast<std::size_t>(std::distance(first, updates.end())));
    }
  }
}

std::string HopWorld::Heed(const Answer& answer) {
  const auto found = workers_.find(answer.rank);
  if (found == workers_.end() || !found->second.waiting) return "an answer to nothing";
  Worker& worker = found->second;
  if (!worker.placed || !HasTokens(worker)) return "an answer without tokens" + Of(answer.rank);
  if (answer.reason.empty() || answer.ready) return "a bad answer";
  const Iteration target = Target(worker);
  if (answer.next != target) return "another iteration" + Of(answer.rank);
  worker.jumped = target > worker.let_into + 1;
  jumps_ += worker.jumped ? 1 : 0;
  worker.let_into = target;
  worker.waiting = false;
  return "";
}

std::string HopWorld::Heed(const NeighboursSet& set) {
  const auto found = workers_.find(set.rank);
  if (found == workers_.end()) return "neighbours of nobody";
  Worker& worker = found->second;
  if (set.at < worker.let_into || (worker.placed && set.at != worker.let_into)) {
    return "moved back or forth" + Of(set.rank);
  }
  rewired_ += worker.placed ? 1 : 0;
  if (!worker.placed) worker.let_into = worker.entered = set.at;
  std::map<Rank, InEdge> in;
  double sum = set.own_weight;
  for (const InEdge& edge : set.in) {
    if (!workers_.contains(edge.rank) || edge.rank == set.rank || edge.weight <= 0) {
      return "a bad edge to" + Of(set.rank);
    }
    in.emplace(edge.rank, edge);
    sum += edge.weight;
    const auto before = worker.in.find(edge.rank);
    if (before != worker.in.end() && before->second.from != edge.from) return "another `from`";
    // A joiner's own is the one that it starts at, which it may not have been told yet.
    const Worker& sender = workers_.at(edge.rank);
    if (before == worker.in.end() && sender.placed && edge.from != sender.let_into) {
      return "a wrong `from`";
    }
  }
  if (std::abs(sum - 1) > 1e-9 || set.own_weight < -1e-12) return "weights" + Of(set.rank);
  if (set.reason.empty() || set.slots < 1 || in.size() != set.in.size()) return "a bad effect";
  worker.placed = true;
  worker.in = std::move(in);
  std::erase_if(worker.received, [&](const auto& of) { return !worker.in.contains(of.first); });
  worker.out = {set.out.begin(), set.out.end()};
  worker.own_weight = set.own_weight;
  worker.slots = set.slots;
  return "";
}

// What everybody was told is the graph of those present, and doubly stochastic.
std::string HopWorld::CheckPlaced() const {
  std::vector<HopPlace> present;
  std::map<std::string, std::int32_t> hosts;
  for (const auto& [rank, worker] : workers_) {
    const auto host = hosts.emplace(worker.host, static_cast<std::int32_t>(hosts.size())).first;
    present.push_back({.rank = rank, .host = host->second});
  }
  const Topology topology = TopologyOf(options_, present);
  std::map<Rank, double> sent;
  for (const Topology::Node& node : topology.nodes) {
    const Worker& worker = workers_.at(node.rank);
    if (!worker.placed) return "no neighbours" + Of(node.rank);
    if (worker.out != std::set<Rank>(node.out.begin(), node.out.end())) {
      return "other neighbours" + Of(node.rank);
    }
    if (worker.in.size() != node.in.size()) return "other in-neighbours" + Of(node.rank);
    sent[node.rank] += worker.own_weight;
    for (const Topology::In& in : node.in) {
      if (worker.in.at(in.rank).weight != in.weight) return "another weight" + Of(node.rank);
      if (!workers_.at(in.rank).out.contains(node.rank)) return "an edge of one end";
      sent[in.rank] += in.weight;
    }
  }
  for (const auto& [rank, sum] : sent) {
    if (std::abs(sum - 1) > 1e-9) return "not doubly stochastic: updates" + Of(rank);
  }
  return "";
}

std::string HopWorld::Apply(const Event& event) {
  Applied& applied = applied_.emplace_back();
  applied.now = now_;
  applied.event = event;
  try {
    engine_->Step(now_, event, &next_group_, &applied.effects);
  } catch (const Violation& violation) {
    return violation.what();
  }
  std::set<Rank> told;
  for (const Effect& effect : applied.effects) {
    std::string wrong = "another effect";
    if (const auto* answer = std::get_if<Answer>(&effect)) wrong = Heed(*answer);
    if (const auto* set = std::get_if<NeighboursSet>(&effect)) {
      wrong = Heed(*set);
      if (!std::holds_alternative<DeadlineEvent>(event)) wrong = "a graph out of turn";
      told.insert(set->rank);
    }
    if (!wrong.empty()) return wrong;
  }
  for (const Rank rank : told) {  // new out-neighbours get the newest update there is
    const Worker& worker = workers_.at(rank);
    for (const Rank other : worker.out) {
      std::set<Iteration>& received = workers_.at(other).received[rank];
      const auto from = workers_.at(other).in.find(rank);
      if (from == workers_.at(other).in.end()) return "an edge of one end";
      if (received.empty() && !worker.published.empty()) {
        received.insert(*worker.published.rbegin());
      }
    }
    if (worker.published.empty()) Publish(rank, worker.entered);
  }
  EnterWhoCan();
  for (const auto& [rank, worker] : workers_) {
    if (worker.waiting && worker.placed && HasTokens(worker)) return "no answer" + Of(rank);
    const std::string why = engine_->Explain(now_, rank);
    if (worker.waiting && why.find("waiting") == std::string::npos) return "no reason" + Of(rank);
  }
  return "";
}

// ---- random runs ----

std::string HopWorld::Storm(Prng* random, int events, Rank max_workers) {
  for (int i = 0; i < events; ++i) {
    now_.ns += static_cast<std::int64_t>(random->Below(2 * kMillisecond));
    const auto deadline = engine_->NextDeadline();
    const std::vector<Rank> present = Present();
    const std::vector<Rank> able = WhoCanSignal();
    const std::uint64_t dice = random->Below(100);
    std::string wrong;
    if (deadline && *deadline <= now_) {
      wrong = PassDeadline();
    } else if (present.empty() || (dice < 4 && std::ssize(present) < max_workers)) {
      auto rank = static_cast<Rank>(random->Below(static_cast<std::uint64_t>(max_workers)));
      while (workers_.contains(rank)) rank = (rank + 1) % max_workers;
      Iteration at = 0;
      if (!present.empty()) at = workers_.at(present[random->Below(present.size())]).entered;
      wrong = Join(rank, at, "host" + std::to_string(random->Below(3)));
    } else if (dice < 7) {
      const Rank rank = present[random->Below(present.size())];
      const bool may_finish = !Waits(rank) && random->Below(2) == 0;
      wrong = Leave(rank, may_finish ? LeftReason::kFinished : LeftReason::kLost);
    } else if (!able.empty()) {
      // Some are slow: the higher the rank the rarer.
      wrong = Signal(able[random->Below(1 + random->Below(able.size()))]);
    } else if (deadline) {
      wrong = PassDeadline();
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string HopWorld::Calm(Prng* random, int steps) {
  for (auto& [rank, worker] : workers_) worker.steps = 0;
  const auto done = [&] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [&](const auto& entry) { return entry.second.steps >= steps; });
  };
  const int limit = 1000 * (steps + 2) * static_cast<int>(workers_.size() + 1);
  for (int i = 0; !done(); ++i) {
    if (i == limit) return "no progress for some worker";
    const std::vector<Rank> able = WhoCanSignal();
    std::string wrong;
    if (engine_->NextDeadline() && (able.empty() || random->Below(4) == 0)) {
      wrong = PassDeadline();
    } else if (!able.empty()) {
      wrong = Signal(able[random->Below(able.size())]);
    } else {
      wrong = "deadlock";
      for (const auto& [rank, worker] : workers_) {
        wrong += "; rank " + std::to_string(rank) + ": " + engine_->Explain(now_, rank);
      }
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string HopWorld::Drain(Prng* random) {
  while (!workers_.empty()) {
    if (auto wrong = Calm(random, 2); !wrong.empty()) return wrong;
    const std::vector<Rank> present = Present();
    if (auto wrong = Leave(present[random->Below(present.size())]); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace prd
