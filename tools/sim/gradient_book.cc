#include "tools/sim/gradient_book.h"

#include <algorithm>
#include <string>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {
namespace {

std::string RoundText(Iteration round, GroupId group) {
  return "round " + std::to_string(round) + " (group " + std::to_string(group) + ")";
}

}  // namespace

std::uint64_t GradientBook::Deposit(std::uint32_t worker) {
  gradients_.push_back({.worker = worker});
  world_->replicas[worker].owed.push_back(gradients_.size());
  return gradients_.size();
}

void GradientBook::Lost(std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  for (const std::uint64_t number : replica.owed) At(number).lost = true;
  lost_ += replica.owed.size();
  replica.owed.clear();
  replica.outbox.clear();
}

std::uint32_t GradientBook::Took(std::uint32_t worker, RunId run, const RoundResult& result,
                                 bool contributed) {
  Replica& replica = world_->replicas[worker];
  if (result.round != replica.newest + 1) {
    throw Violation("rounds-in-order", WorkerName(worker) + " takes " +
                                           RoundText(result.round, result.group) + " after round " +
                                           std::to_string(replica.newest));
  }
  Round* const round = replica.removed ? Find(run, result) : &Enter(run, result, replica.lineage);
  if (round != nullptr) round->takers.push_back(worker);
  replica.newest = result.round;
  replica.lineage = Mixed(replica.lineage ^ result.group ^ (result.number << 32));
  if (!contributed) return 0;
  const auto included = static_cast<std::uint32_t>(replica.owed.size());
  for (const std::uint64_t number : replica.owed) {
    Gradient& gradient = At(number);
    if (gradient.group == result.group && gradient.run == run) continue;
    if (replica.removed) {
      gradient.lost = true;
      continue;
    }
    throw Violation("gradients-once", "gradient " + std::to_string(number) + " of " +
                                          WorkerName(worker) + " leaves its outbox with " +
                                          RoundText(result.round, result.group) +
                                          " and is not in it");
  }
  if (mutation_ == Mutation::kGradientTwice && result.group % 5 == 0) return included;
  replica.owed.clear();
  replica.outbox.clear();
  return included;
}

GradientBook::Round* GradientBook::Find(RunId run, const RoundResult& result) {
  const auto found = rounds_.find({run, result.round});
  if (found == rounds_.end()) return nullptr;
  Round& round = found->second;
  return round.group == result.group && round.number == result.number ? &round : nullptr;
}

GradientBook::Round& GradientBook::Enter(RunId run, const RoundResult& result,
                                         std::uint64_t before) {
  const auto [it, first] = rounds_.try_emplace({run, result.round});
  Round& round = it->second;
  if (!first && round.group == result.group && round.number == result.number) {
    if (round.before == before) return round;
    throw Violation("rounds-agree", RoundText(result.round, result.group) +
                                        " is taken on top of different rounds before it");
  }
  if (!first) Undo(run, result.round, round);
  round = {.group = result.group,
           .number = result.number,
           .before = before,
           .gradients = result.gradients,
           .takers = {}};
  for (const std::uint64_t number : result.gradients) {
    Gradient& gradient = At(number);
    if (gradient.group != kNoGroup) {
      throw Violation("gradients-once", "gradient " + std::to_string(number) + " of " +
                                            WorkerName(gradient.worker) + " is in " +
                                            RoundText(gradient.round, gradient.group) + " and in " +
                                            RoundText(result.round, result.group));
    }
    gradient.run = run;
    gradient.round = result.round;
    gradient.group = result.group;
  }
  return round;
}

void GradientBook::Undo(RunId run, Iteration number, const Round& round) {
  for (std::uint32_t i = 0; i < world_->replicas.size(); ++i) {
    const Replica& other = world_->replicas[i];
    if (other.run != run || other.removed || other.newest < number) continue;
    throw Violation("rounds-agree", WorkerName(i) + " has " + RoundText(number, round.group) +
                                        ", and others take another group as that round");
  }
  for (const std::uint64_t gradient : round.gradients) {
    Gradient& of = At(gradient);
    if (of.group != round.group || of.run != run) continue;
    of.group = kNoGroup;
    // A worker that took the round has emptied its outbox. A gradient lost before stays lost.
    const auto& takers = round.takers;
    of.lost = of.lost || std::find(takers.begin(), takers.end(), of.worker) != takers.end();
  }
}

void GradientBook::Started(RunId run, Iteration iteration) {
  const auto from = rounds_.upper_bound({run, iteration});
  auto to = from;
  while (to != rounds_.end() && to->first.first == run) ++to;
  rounds_.erase(from, to);
}

void GradientBook::CheckEnd() const {
  std::vector<bool> owed(gradients_.size());
  for (const Replica& replica : world_->replicas) {
    for (const std::uint64_t number : replica.owed) owed[number - 1] = true;
  }
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const Gradient& gradient = gradients_[i];
    if (gradient.lost || gradient.group != kNoGroup || owed[i]) continue;
    throw Violation("gradients-once", "gradient " + std::to_string(i + 1) + " of " +
                                          WorkerName(gradient.worker) +
                                          " is in no round, and nobody owes it");
  }
}

}  // namespace prd::sim
