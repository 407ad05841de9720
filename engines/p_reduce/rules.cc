#include "engines/p_reduce/rules.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "engines/p_reduce/p_reduce.h"

namespace prd {
namespace {

// How long workers were held, beside how long their steps were.
class HoldBudget {
 public:
  void Joined(Instant now, Rank rank) {
    released_[rank] = now;
    repeats_.erase(rank);
  }
  void Signalled(Instant now, Rank rank) {
    if (!repeats_.contains(rank)) steps_[rank] = static_cast<double>(now - released_[rank]);
    longest_step_ns_ = std::max(longest_step_ns_, steps_[rank]);
  }
  void Finished(Instant now, Rank rank, bool ok) {
    released_[rank] = now;
    ok ? repeats_.erase(rank) : repeats_.insert(rank).second;
  }
  void Formed(const GroupFormed& group) {
    for (const GroupShare& share : group.members) step_ns_ += steps_[share.rank];
  }
  // Between events at which Holds says so, the time until `promised` counts at most: a deadline may
  // be passed late.
  bool Begin(Instant now, std::size_t workers) {
    if (since_) return false;
    since_ = now;
    size_ = static_cast<std::int64_t>(workers);
    return true;
  }
  void Promise(Instant until) { promised_ = until; }
  void End(Instant now) {
    if (since_) held_ns_ += Held(std::min(now, promised_));
    since_.reset();
  }
  DurationNs longest_step() const { return static_cast<DurationNs>(longest_step_ns_); }
  double Promised() const { return held_ns_ + Held(promised_); }
  double Allowed(int group_size) const {
    return step_ns_ / GroupFilter::kHoldShareInverse + group_size * longest_step_ns_;
  }
  void Archive(StateArchive& ar) {
    ar(since_, promised_, size_, held_ns_, step_ns_, longest_step_ns_, released_, steps_, repeats_);
  }

 private:
  double Held(Instant until) const {
    const auto ns = std::max<DurationNs>(0, until - *since_);
    return static_cast<double>(size_) * static_cast<double>(ns);
  }

  std::optional<Instant> since_;
  Instant promised_;
  std::int64_t size_ = 0;
  double held_ns_ = 0;  // worker-ns in all holds
  double step_ns_ = 0;  // worker-ns in all steps of groups' members
  double longest_step_ns_ = 0;
  std::map<Rank, Instant> released_;
  std::map<Rank, double> steps_;
  std::set<Rank> repeats_;  // whose last group failed for them
};

class PReduceRules final : public EngineRules {
 public:
  explicit PReduceRules(const PReduceOptions& options) : options_(options) {}
  void Check(const Decision& of) override;
  void Archive(StateArchive& ar) override { ar(queue_, window_, component_, components_, budget_); }

 private:
  struct Waiting {
    Rank rank = kNoRank;
    Iteration iteration = 0;
    std::int64_t samples = 0;
    Instant at;
    std::size_t passed = 0;
    void Archive(StateArchive& ar) { ar(rank, iteration, samples, at, passed); }
  };

  void Follow(Instant now, const Event& event);
  void CheckGroup(const Decision& of, const GroupFormed& group);
  bool Impaired() const;
  // The workers that are due to be in a group; none: no group is. `now`: max_wait_ms counts until
  // then.
  std::vector<Rank> DueAround(std::optional<Instant> now, std::size_t p);
  void CheckSize(const Decision& of, const GroupFormed& group, std::size_t p);
  void CheckIterations(const GroupFormed& group) const;
  void CheckOrder(const GroupFormed& group, std::size_t p, bool bridging) const;
  void CheckBridge(const GroupFormed& group, std::size_t p,
                   const std::vector<std::size_t>& places) const;
  // What is due, in the order of the members; the initial model's share is last.
  std::vector<double> DueWeights(const GroupFormed& group) const;
  void CheckWeights(const GroupFormed& group, const Engine& engine) const;
  void CheckQueue(const Decision& of, std::size_t p);
  // P where no worker is missing (options.h, group_size).
  std::int64_t FullSize(std::int64_t joined) const {
    return options_.group_size != 0 ? options_.group_size : joined > 7 ? 3 : 2;
  }
  // A group may have up to 2P - 1 members, where P is not given.
  bool Gathers(std::int64_t joined) const {
    return options_.group_size == 0 && !options_.overlap && joined > FullSize(joined) &&
           joined <= 12;
  }
  bool Bridging(std::int64_t joined) const {
    return !component_.empty() && joined > FullSize(joined);
  }
  // The worker's component in the split window; kNoRank for a worker it does not have.
  Rank Component(Rank rank) const;
  // Components among the queue's signals from `from` to before `to`.
  std::set<Rank> Components(std::size_t from, std::size_t to) const;
  void Link(const GroupFormed& group);  // in the split window
  void Close();                         // the window being collected

  const PReduceOptions options_;
  std::vector<Waiting> queue_;
  std::vector<std::vector<Rank>> window_;  // groups being collected
  std::vector<Rank> component_;            // of the split window, by rank; empty: it is not split
  std::int64_t components_ = 0;
  HoldBudget budget_;
};

bool PReduceRules::Impaired() const {
  return std::any_of(queue_.begin(), queue_.end(),
                     [this](const Waiting& one) { return broken().HasAny(one.rank); });
}

std::vector<Rank> PReduceRules::DueAround(std::optional<Instant> now, std::size_t p) {
  for (std::size_t first = 0; first < queue_.size(); ++first) {
    const Rank rank = queue_[first].rank;
    std::vector<Rank> group = {rank};
    std::set<Rank> waiting;
    for (const Waiting& one : queue_) {
      waiting.insert(one.rank);
      const bool reaches = std::none_of(group.begin(), group.end(), [&](Rank member) {
        return member == one.rank || broken().Has(member, one.rank);
      });
      if (reaches && group.size() < p) group.push_back(one.rank);
    }
    const bool all_here = std::all_of(present().begin(), present().end(), [&](Rank other) {
      return other == rank || broken().Has(rank, other) || waiting.contains(other);
    });
    const bool passed = queue_[first].passed * p >= present().size();
    const bool waited = options_.max_wait_ms > 0 && now &&
                        *now - queue_[first].at >= options_.max_wait_ms * kMillisecond;
    const bool small = group.size() >= 2 && (passed || waited);
    if (group.size() < p && !all_here && !small) continue;
    for (std::size_t i = 0; i < first; ++i) ++queue_[i].passed;
    Count("around");
    Count("small", group.size() < p ? 1 : 0);
    Count("alone", group.size() == 1 ? 1 : 0);
    return group;
  }
  return {};
}

Rank PReduceRules::Component(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < component_.size() ? component_[index] : kNoRank;
}

std::set<Rank> PReduceRules::Components(std::size_t from, std::size_t to) const {
  std::set<Rank> found;
  for (std::size_t i = from; i < to; ++i) {
    if (Component(queue_[i].rank) != kNoRank) found.insert(Component(queue_[i].rank));
  }
  return found;
}

void PReduceRules::Follow(Instant now, const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    budget_.Joined(now, joined->rank);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    budget_.Signalled(now, ready->rank);
    queue_.push_back({ready->rank, ready->ready.iteration, ready->ready.samples, now});
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    budget_.Finished(now, finished->rank, finished->ok);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    std::erase_if(queue_, [&](const Waiting& one) { return one.rank == left->rank; });
    window_.clear();  // its links must not count any more
    component_.clear();
  }
}

void PReduceRules::Check(const Decision& of) {
  CheckLinks(of.effects);
  Follow(of.now, of.event);
  for (const GroupFormed& group : GroupsOf(of.effects)) CheckGroup(of, group);
  CheckQueue(of, static_cast<std::size_t>(std::min(FullSize(of.joined), of.joined)));
}

void PReduceRules::CheckGroup(const Decision& of, const GroupFormed& group) {
  const auto p = static_cast<std::size_t>(std::min(FullSize(of.joined), of.joined));
  if (Impaired()) {
    std::set<Rank> members;
    for (const GroupShare& share : group.members) members.insert(share.rank);
    const std::vector<Rank> due = DueAround(of.now, p);
    if (members != std::set<Rank>(due.begin(), due.end())) {
      throw Violation("around", NameOf(group) + " has others than are due");
    }
    CheckIterations(group);
  } else {
    CheckSize(of, group, p);
    CheckIterations(group);
    if (group.members.size() == p) CheckOrder(group, p, Bridging(of.joined));
  }
  if (of.joined <= kMaxWatched) CheckWeights(group, of.engine);
  if (component_.empty() && group.reason.find("component") != std::string::npos) {
    throw Violation("bridge", NameOf(group) + " speaks of components where all are connected");
  }
  budget_.End(of.now);
  budget_.Formed(group);
  std::vector<Rank>& members = window_.emplace_back();
  for (const GroupShare& share : group.members) members.push_back(share.rank);
  std::erase_if(queue_, [&](const Waiting& one) {
    return std::find(members.begin(), members.end(), one.rank) != members.end();
  });
  if (!component_.empty()) Link(group);
  if (std::ssize(window_) >= EffectiveWindow(options_, of.joined)) Close();
}

void PReduceRules::CheckSize(const Decision& of, const GroupFormed& group, std::size_t p) {
  const std::size_t members = group.members.size();
  if (members > p && Gathers(of.joined) && members < 2 * p && members == queue_.size()) {
    Count("gathered");
    return;
  }
  if (members > p || members > queue_.size()) {
    throw Violation("group-size", NameOf(group) + " has " + std::to_string(members) + " of " +
                                      std::to_string(p) + " members");
  }
  if (members == p) return;
  const bool waited =
      options_.max_wait_ms > 0 && of.now - queue_.front().at >= options_.max_wait_ms * kMillisecond;
  if (waited && members >= 2 && members == queue_.size()) return;
  throw Violation("group-size", NameOf(group) + " has " + std::to_string(members) + " of " +
                                    std::to_string(queue_.size()) +
                                    " that wait, or is before max_wait_ms");
}

void PReduceRules::CheckIterations(const GroupFormed& group) const {
  Iteration newest = 0;
  for (const GroupShare& member : group.members) {
    newest = std::max(newest, member.iteration);
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const Waiting& one) { return one.rank == member.rank; });
    if (found != queue_.end() && found->iteration == member.iteration) continue;
    throw Violation("iterations", RankName(member.rank) + " is in " + NameOf(group) +
                                      " with another iteration than its signal's");
  }
  if (group.iteration == newest) return;
  throw Violation("iterations", NameOf(group) + " goes on at " + std::to_string(group.iteration) +
                                    ", the largest is " + std::to_string(newest));
}

void PReduceRules::CheckOrder(const GroupFormed& group, std::size_t p, bool bridging) const {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const bool in =
        std::any_of(group.members.begin(), group.members.end(),
                    [&](const GroupShare& share) { return share.rank == queue_[i].rank; });
    if (in) places.push_back(i);
  }
  if (places.size() != p) throw Violation("fifo", NameOf(group) + " has a member twice");
  const std::set<Rank> head = bridging ? Components(0, p) : std::set<Rank>();
  if (places.back() == p - 1) {
    if (head.size() != 1) return;
    std::set<Rank> later = Components(p, queue_.size());
    later.erase(*head.begin());
    if (later.empty()) return;
    throw Violation("bridge", NameOf(group) +
                                  " keeps components of the last T groups apart while a "
                                  "worker of another waits");
  }
  if (!bridging || head.size() > 1) {
    throw Violation("fifo", NameOf(group) + " is not the head of the queue, and no bridge is due");
  }
  CheckBridge(group, p, places);
}

void PReduceRules::CheckBridge(const GroupFormed& group, std::size_t p,
                               const std::vector<std::size_t>& places) const {
  std::set<Rank> joins;
  for (const std::size_t place : places) {
    if (Component(queue_[place].rank) != kNoRank) joins.insert(Component(queue_[place].rank));
  }
  if (joins.size() < 2 || (p >= 2 && places[p - 2] >= p)) {
    throw Violation("bridge", NameOf(group) + " leaves the order and joins no components");
  }
  const auto first = std::find_if(queue_.begin(), queue_.end(), [this](const Waiting& one) {
    return Component(one.rank) != kNoRank;
  });
  const auto other = std::find_if(first, queue_.end(), [&](const Waiting& one) {
    return Component(one.rank) != kNoRank && Component(one.rank) != Component(first->rank);
  });
  if (other - queue_.begin() != static_cast<std::ptrdiff_t>(places.back()) ||
      !group.reason.starts_with("bridged")) {
    throw Violation("bridge", NameOf(group) + " passes over the earliest of another component");
  }
}

std::vector<double> PReduceRules::DueWeights(const GroupFormed& group) const {
  if (options_.weights != PReduceOptions::Weights::kSamples) {
    std::vector<Iteration> iterations;
    for (const GroupShare& member : group.members) iterations.push_back(member.iteration);
    return WeightsByTheBook(options_, iterations);
  }
  std::vector<double> due;
  for (const GroupShare& member : group.members) {
    const auto of = std::find_if(queue_.begin(), queue_.end(),
                                 [&](const Waiting& one) { return one.rank == member.rank; });
    due.push_back(of == queue_.end() ? 0 : static_cast<double>(of->samples));
  }
  if (std::find(due.begin(), due.end(), 0) != due.end()) std::fill(due.begin(), due.end(), 1);
  const double total = std::accumulate(due.begin(), due.end(), 0.0);
  for (double& weight : due) weight /= total;
  due.push_back(0);
  return due;
}

void PReduceRules::CheckWeights(const GroupFormed& group, const Engine& engine) const {
  const std::vector<double> due = DueWeights(group);
  bool equal = std::abs(due.back() - group.initial_weight) <= 1e-9;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    equal = equal && std::abs(due[i] - group.members[i].weight) <= 1e-9;
  }
  if (!equal) throw Violation("weights", NameOf(group) + " has others than are due");
  if (group.initial_weight > 0 && !RowsOf(engine.plan()).initial) {
    throw Violation("weights", NameOf(group) + " needs the initial model, and nobody keeps it");
  }
}

// What does not form although P are ready is held: for a bridge, until a deadline, in budget.
void PReduceRules::CheckQueue(const Decision& of, std::size_t p) {
  if (Impaired()) {
    if (!DueAround(std::nullopt, p).empty()) {
      throw Violation("around",
                      std::to_string(queue_.size()) + " signals wait, and a group of some is due");
    }
    return budget_.End(of.now);
  }
  if (p == 0 || queue_.size() < p) return budget_.End(of.now);
  const bool bridging = Bridging(of.joined);
  const std::optional<Instant> deadline = of.engine.NextDeadline();
  // For one that would be left over: those who wait lose less than one step of one worker in all.
  const auto size = static_cast<DurationNs>(p);
  if (Gathers(of.joined) && deadline && queue_.size() + 1 < 2 * p &&
      of.joined > std::ssize(queue_) &&
      size * (*deadline - queue_[p - 1].at) < budget_.longest_step()) {
    Count("left_over");
    return budget_.End(of.now);
  }
  if (!bridging || queue_.size() >= 2 * p || Components(0, queue_.size()).size() != 1 ||
      !deadline) {
    throw Violation("no-idle-queue", std::to_string(queue_.size()) + " signals wait, P is " +
                                         std::to_string(p) +
                                         (bridging ? ", a bridge is due" : ", no bridge is due") +
                                         (deadline ? "" : ", and there is no deadline"));
  }
  if (budget_.Begin(of.now, p)) Count("holds");
  budget_.Promise(*deadline);
  if (budget_.Promised() <= budget_.Allowed(static_cast<int>(FullSize(of.joined)))) return;
  throw Violation("hold-budget", std::to_string(queue_.size()) + " signals are held for longer");
}

void PReduceRules::Link(const GroupFormed& group) {
  Rank target = kNoRank;
  for (const GroupShare& share : group.members) {
    const Rank own = Component(share.rank);
    if (own == kNoRank || own == target) continue;
    if (target == kNoRank) {
      target = own;
      continue;
    }
    std::replace(component_.begin(), component_.end(), own, target);
    --components_;
    Count("bridges");
  }
  if (target == kNoRank) return;
  for (const GroupShare& share : group.members) {
    const auto index = static_cast<std::size_t>(share.rank);
    if (index >= component_.size()) component_.resize(index + 1, kNoRank);
    component_[index] = target;
  }
  if (components_ < 2) component_.clear();
}

void PReduceRules::Close() {
  std::int64_t components = 0;
  std::vector<Rank> parent;
  const auto root = [&parent](Rank rank) {
    while (parent[static_cast<std::size_t>(rank)] != rank) {
      Rank& up = parent[static_cast<std::size_t>(rank)];
      up = parent[static_cast<std::size_t>(up)];
      rank = up;
    }
    return rank;
  };
  for (const std::vector<Rank>& group : window_) {
    for (const Rank rank : group) {
      const auto index = static_cast<std::size_t>(rank);
      if (index >= parent.size()) parent.resize(index + 1, kNoRank);
      if (parent[index] == kNoRank) {
        parent[index] = rank;
        ++components;
      }
      const Rank a = root(group.front());
      const Rank b = root(rank);
      if (a == b) continue;
      parent[static_cast<std::size_t>(b)] = a;
      --components;
    }
  }
  window_.clear();
  if (components < 2) return;  // and one that is still split goes on being bridged
  components_ = components;
  component_.assign(parent.size(), kNoRank);
  for (std::size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] != kNoRank) component_[i] = root(static_cast<Rank>(i));
  }
}

}  // namespace

std::vector<double> WeightsByTheBook(const PReduceOptions& options,
                                     const std::vector<Iteration>& iterations) {
  using Missing = PReduceOptions::Missing;
  const std::size_t size = iterations.size();
  std::vector<double> weights(size + 1, 0.0);
  if (options.weights == PReduceOptions::Weights::kConstant) {
    for (std::size_t i = 0; i < size; ++i) weights[i] = 1.0 / static_cast<double>(size);
    return weights;
  }
  const Iteration newest = *std::max_element(iterations.begin(), iterations.end());
  std::vector<Iteration> relative;
  for (const Iteration k : iterations) relative.push_back(newest - k + 1);
  const Iteration largest = *std::max_element(relative.begin(), relative.end());
  double given = 0;
  for (Iteration r = 1; r <= largest; ++r) {
    const double beta = (1 - options.alpha) * std::pow(options.alpha, static_cast<double>(r - 1)) /
                        (1 - std::pow(options.alpha, static_cast<double>(largest)));
    // The members that stand for r: those at the nearest relative iteration there is, the newer of
    // two.
    Iteration stands = relative[0];
    for (const Iteration one : relative) {
      const Iteration nearer = std::abs(stands - r) - std::abs(one - r);
      if (nearer > 0 || (nearer == 0 && one < stands)) stands = one;
    }
    if (stands != r && options.missing == Missing::kInitial) {
      weights[size] += beta;
    } else if (stands == r || options.missing == Missing::kNearest) {
      const auto sharers = std::count(relative.begin(), relative.end(), stands);
      for (std::size_t i = 0; i < size; ++i) {
        if (relative[i] == stands) weights[i] += beta / static_cast<double>(sharers);
      }
    } else {
      continue;
    }
    given += beta;
  }
  for (double& weight : weights) weight /= given;
  return weights;
}

// Counts bridges, holds.
std::unique_ptr<EngineRules> PReduceOptions::Rules() const {
  return std::make_unique<PReduceRules>(*this);
}

}  // namespace prd
