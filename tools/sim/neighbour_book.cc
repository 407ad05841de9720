#include "tools/sim/neighbour_book.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

// As the tag of a replica changes where its worker applies a gradient itself (own_replica.h).
std::uint64_t WithGradient(std::uint32_t worker, std::uint64_t tag) {
  return Prng(tag ^ worker).Next();
}

}  // namespace

void NeighbourBook::Told(std::uint32_t worker, const Neighbourhood& hood) {
  Side& side = sides_[worker];
  const Iteration own = std::max({world_->replicas[worker].iteration, hood.at, side.asked});
  std::map<Incarnation, Edge> in;
  for (std::size_t i = 0; i < hood.in.size(); ++i) {
    const GroupMember& member = hood.in[i];
    const Iteration theirs = world_->replicas[WorkerOf(member.incarnation)].iteration;
    Edge& edge = in[member.incarnation];
    const auto before = side.in.find(member.incarnation);
    if (before != side.in.end()) edge = before->second;
    if (before == side.in.end() && side.before.contains(member.incarnation)) {
      edge = side.before.at(member.incarnation);
      edge.lost = edge.here;
    }
    edge.from = hood.from[i];
    edge.weight = member.weight;
    if (before == side.in.end()) edge.ahead = own - theirs;
  }
  for (auto& [from, edge] : side.in) side.before[from] = edge;
  side.in = std::move(in);
  side.own_weight = hood.own_weight;
  // Where there are fewer, what it has already keeps its place.
  side.slots = std::max<std::size_t>(side.slots, hood.slots);
  side.at = hood.at;
  if (side.answered && *side.answered < hood.at) side.answered.reset();
}

void NeighbourBook::Pulls(std::uint32_t worker, Incarnation from, std::size_t of_it,
                          std::size_t all) const {
  const Side& side = sides_[worker];
  const std::size_t most = plans_[worker].staleness > 0 ? 2 : side.slots;
  if (of_it < most && all < std::max(side.slots, most) * std::max<std::size_t>(side.in.size(), 1)) {
    return;
  }
  throw Violation("queue", WorkerName(worker) + " pulls an update of " +
                               WorkerName(WorkerOf(from)) + " and has " + std::to_string(of_it) +
                               " of it and " + std::to_string(all) + " in all, of " +
                               std::to_string(side.in.size()) + " neighbours with " +
                               std::to_string(most) + " slots");
}

void NeighbourBook::Received(std::uint32_t worker, Incarnation from, Iteration iteration) {
  const auto edge = sides_[worker].in.find(from);
  if (edge == sides_[worker].in.end()) return;
  std::optional<Iteration>& newest = edge->second.received;
  newest = std::max(newest.value_or(iteration), iteration);
  edge->second.here.insert(iteration);
}

void NeighbourBook::Offered(std::uint32_t worker, Incarnation from, Iteration last,
                            Iteration iteration) {
  const auto edge = sides_[worker].in.find(from);
  if (edge == sides_[worker].in.end()) return;
  for (Iteration skipped = std::max(last + 1, iteration - 64); skipped < iteration; ++skipped) {
    edge->second.skipped.insert(skipped);
  }
}

// Its replica is the one that it entered its iteration with, in the serial order with a gradient.
void NeighbourBook::CheckEntered(std::uint32_t worker, const char* what) const {
  const std::optional<std::uint64_t>& entered = sides_[worker].entered;
  const std::uint64_t now = world_->replicas[worker].tag;
  if (!entered || now == entered ||
      (plans_[worker].serial && now == WithGradient(worker, *entered)))
    return;
  throw Violation("recursion", WorkerName(worker) + what + " in iteration " +
                                   std::to_string(world_->replicas[worker].iteration) +
                                   " is not the replica that it entered it with");
}

void NeighbourBook::Publishes(std::uint32_t worker, Iteration iteration) {
  CheckEntered(worker, "'s update");
  sides_[worker].published[iteration] = world_->replicas[worker].tag;
}

void NeighbourBook::CheckSent(std::uint32_t worker, const Used& used) const {
  if (!world_->Lives(used.from)) return;
  const auto& published = sides_[WorkerOf(used.from)].published;
  const auto sent = published.find(used.iteration);
  if (sent != published.end() && sent->second == used.tag) return;
  throw Violation("recursion", WorkerName(worker) + " uses another update " +
                                   std::to_string(used.iteration) + " of " +
                                   WorkerName(WorkerOf(used.from)) + " than that one sent");
}

bool NeighbourBook::Fits(std::uint32_t worker, Iteration iteration,
                         const std::vector<Used>& updates) const {
  const Side& side = sides_[worker];
  const NeighbourPlan& plan = plans_[worker];
  return std::all_of(updates.begin(), updates.end(), [&](const Used& used) {
    const Iteration age = iteration - used.iteration;
    return side.in.contains(used.from) && age <= plan.staleness && (age >= 0 || plan.staleness > 0);
  });
}

// Two averages may end a step: the second, before a jump, is that of the iteration before the one
// that is entered (Hop, section 5).
void NeighbourBook::Mixes(std::uint32_t worker, double own_weight,
                          const std::vector<Used>& updates) {
  Side& side = sides_[worker];
  const Iteration now = world_->replicas[worker].iteration;
  const bool jumps = side.answered && *side.answered > now + 1;
  const bool first = !std::exchange(side.mixed, true);
  if (first && !jumps) CheckEntered(worker, "'s share of an average");
  for (const Used& used : updates) CheckSent(worker, used);
  const bool here = Fits(worker, now, updates);
  if (!here && !(jumps && Fits(worker, *side.answered - 1, updates))) {
    std::string text;
    for (const Used& used : updates) {
      text += " " + std::to_string(used.iteration) + " of " + WorkerName(WorkerOf(used.from)) +
              (side.in.contains(used.from) ? "," : " (no neighbour),");
    }
    throw Violation("update-age", WorkerName(worker) + " in iteration " + std::to_string(now) +
                                      " uses" + text + " with a staleness of " +
                                      std::to_string(plans_[worker].staleness));
  }
  Iteration iteration = here ? now : *side.answered - 1;
  try {
    CheckMix(worker, iteration, own_weight, updates);
  } catch (const Violation&) {  // with a staleness the updates may fit both
    if (!jumps || iteration == *side.answered - 1) throw;
    iteration = *side.answered - 1;
    CheckMix(worker, iteration, own_weight, updates);
  }
  for (const Used& used : updates) stats_->staleness.Add(iteration - used.iteration);
}

void NeighbourBook::CheckMix(std::uint32_t worker, Iteration iteration, double own_weight,
                             const std::vector<Used>& updates) const {
  CheckCount(worker, iteration, updates);
  CheckWeights(worker, iteration, own_weight, updates);
}

void NeighbourBook::CheckCount(std::uint32_t worker, Iteration iteration,
                               const std::vector<Used>& updates) const {
  std::size_t missing = 0;
  for (const auto& [from, edge] : sides_[worker].in) {
    const bool used = std::any_of(updates.begin(), updates.end(),
                                  [&, who = from](const Used& of) { return of.from == who; });
    const Iteration newest = std::max(edge.received.value_or(edge.from - 1), edge.from - 1);
    const bool satisfied = plans_[worker].staleness > 0
                               ? newest >= iteration - plans_[worker].staleness
                               : used || edge.from > iteration ||
                                     edge.skipped.contains(iteration) ||
                                     edge.lost.contains(iteration);
    if (!satisfied) ++missing;
  }
  if (missing <= plans_[worker].backups) return;
  throw Violation("update-count", WorkerName(worker) + " averages in iteration " +
                                      std::to_string(iteration) + " without " +
                                      std::to_string(missing) + " of its neighbours, where " +
                                      std::to_string(plans_[worker].backups) + " may be missing");
}

void NeighbourBook::CheckWeights(std::uint32_t worker, Iteration iteration, double own_weight,
                                 const std::vector<Used>& updates) const {
  const Side& side = sides_[worker];
  const auto factor = [&](Iteration of) {
    return static_cast<double>(of - (iteration - plans_[worker].staleness) + 1);
  };
  const bool stale = plans_[worker].staleness > 0;
  const double own = side.own_weight * (stale ? factor(iteration) : 1);
  double due = own;
  double sum = own_weight;
  for (const Used& used : updates) {
    due += side.in.at(used.from).weight * (stale ? factor(used.iteration) : 1);
    sum += used.weight;
  }
  bool wrong = std::abs(sum - 1) > 1e-9 || std::abs(own_weight * due - own) > 1e-9 * due;
  for (const Used& used : updates) {
    const double of = side.in.at(used.from).weight * (stale ? factor(used.iteration) : 1);
    wrong = wrong || std::abs(used.weight * due - of) > 1e-9 * due;
  }
  if (!wrong) return;
  throw Violation("update-weights",
                  WorkerName(worker) + "'s in iteration " + std::to_string(iteration) + " sum to " +
                      std::to_string(sum) + ", its own is " + std::to_string(own_weight) +
                      " where " + std::to_string(own / due) + " is due");
}

void NeighbourBook::Enters(std::uint32_t worker, Iteration iteration) {
  Side& side = sides_[worker];
  side.entered = world_->replicas[worker].tag;
  side.mixed = false;
  const Iteration now = world_->replicas[worker].iteration;
  if (iteration == side.at && iteration != side.answered) return;  // as it was told with its graph
  if (iteration == now && !side.answered) return;
  if (iteration != side.answered) {
    throw Violation("entry", WorkerName(worker) + " goes from iteration " + std::to_string(now) +
                                 " to " + std::to_string(iteration) + ", where " +
                                 (side.answered ? std::to_string(*side.answered) : "none") +
                                 " was answered");
  }
  side.answered.reset();
  if (plans_[worker].backups > 0) return;
  for (const auto& [from, edge] : side.in) {
    if (!world_->Lives(from) || iteration <= edge.from) continue;
    const Iteration ahead = iteration - world_->replicas[WorkerOf(from)].iteration;
    if (ahead <= std::max<Iteration>(plans_[worker].staleness + 1, edge.ahead)) continue;
    throw Violation("in-edge", WorkerName(worker) + " enters iteration " +
                                   std::to_string(iteration) + ", " + std::to_string(ahead) +
                                   " ahead of its in-neighbour " + WorkerName(WorkerOf(from)));
  }
}

}  // namespace prd::sim
