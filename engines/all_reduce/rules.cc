// The invariants of engine all-reduce: every iteration, every live worker, one round.
//
// whole-round: a round has all joined workers in it, each once. It forms as soon as all of them are
// ready, and is the only decision.
//
// weights: by their samples where all have told some, else equal.
//
// iterations: a round is of the newest iteration that a member offers a gradient for.
#include "engines/rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "engines/all_reduce/options.h"

namespace prd {
namespace {

class AllReduceRules final : public EngineRules {
 public:
  explicit AllReduceRules(const AllReduceOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override { ar(ready_); }

 private:
  struct Offer {
    Iteration iteration = 0;
    std::int64_t samples = 0;
    void Archive(StateArchive& ar) { ar(iteration, samples); }
  };
  void CheckRound(const GroupFormed& group, std::int64_t joined);

  const AllReduceOptions options_;
  std::map<Rank, Offer> ready_;
};

void AllReduceRules::Check(const Decision& of) {
  if (const auto* ready = std::get_if<ReadyEvent>(&of.event)) {
    ready_[ready->rank] = {ready->ready.iteration, ready->ready.samples};
  }
  if (const auto* left = std::get_if<LeftEvent>(&of.event)) ready_.erase(left->rank);
  const bool due = of.joined > 0 && std::ssize(ready_) == of.joined;
  const auto* group = of.effects.empty() ? nullptr : std::get_if<GroupFormed>(&of.effects.front());
  if (due && group != nullptr && of.effects.size() == 1) return CheckRound(*group, of.joined);
  if (!due && of.effects.empty()) return;
  throw Violation("whole-round", std::to_string(ready_.size()) + " of " +
                                     std::to_string(of.joined) + " workers are ready, and " +
                                     std::to_string(of.effects.size()) + " decisions come of it");
}

void AllReduceRules::CheckRound(const GroupFormed& group, std::int64_t joined) {
  double total = 0;
  Iteration newest = 0;
  bool by_samples = options_.weights == AllReduceOptions::Weights::kSamples;
  for (const auto& [rank, offer] : ready_) {
    by_samples = by_samples && offer.samples > 0;
    total += static_cast<double>(offer.samples);
    newest = std::max(newest, offer.iteration);
  }
  std::set<Rank> members;
  for (const GroupShare& member : group.members) {
    if (!ready_.contains(member.rank) || !members.insert(member.rank).second) {
      throw Violation("whole-round", NameOf(group) + " has " + RankName(member.rank) +
                                         " in it, which is not ready, or twice");
    }
    const double weight = by_samples ? static_cast<double>(ready_.at(member.rank).samples) / total
                                     : 1 / static_cast<double>(joined);
    if (std::abs(weight - member.weight) <= 1e-12) continue;
    throw Violation("weights", RankName(member.rank) + " has " + std::to_string(member.weight) +
                                   " in " + NameOf(group) + ", due is " + std::to_string(weight));
  }
  if (std::ssize(members) != joined) {
    throw Violation("whole-round", NameOf(group) + " has " + std::to_string(members.size()) +
                                       " of " + std::to_string(joined) + " workers");
  }
  if (group.iteration != newest || group.initial_weight != 0) {
    throw Violation("iterations", NameOf(group) + " is of iteration " +
                                      std::to_string(group.iteration) + ", due is " +
                                      std::to_string(newest));
  }
  ready_.clear();
  Count("rounds");
}

}  // namespace

// Counts rounds.
std::unique_ptr<EngineRules> AllReduceOptions::Rules() const {
  return std::make_unique<AllReduceRules>(*this);
}

}  // namespace prd
