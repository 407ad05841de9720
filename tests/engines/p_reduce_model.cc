#include "tests/engines/p_reduce_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engines/p_reduce/p_reduce.h"

namespace prd {

namespace {

bool Meet(const std::set<Rank>& a, const std::set<Rank>& b) {
  return std::any_of(a.begin(), a.end(), [&](Rank rank) { return b.contains(rank); });
}

// Merges sets that share a rank until none do.
std::vector<std::set<Rank>> Merge(std::vector<std::set<Rank>> sets) {
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (std::size_t j = i + 1; j < sets.size(); ++j) {
      if (!Meet(sets[i], sets[j])) continue;
      sets[i].insert(sets[j].begin(), sets[j].end());
      sets.erase(sets.begin() + static_cast<std::ptrdiff_t>(j));
      return Merge(std::move(sets));
    }
  }
  return sets;
}

// The index of the component with this rank, or -1.
int IndexOf(const std::vector<std::set<Rank>>& components, Rank rank) {
  for (std::size_t i = 0; i < components.size(); ++i) {
    if (components[i].contains(rank)) return static_cast<int>(i);
  }
  return -1;
}

std::set<Rank> RanksOf(const FormGroup& group) {
  std::set<Rank> ranks;
  for (const GroupShare& member : group.members) ranks.insert(member.rank);
  return ranks;
}

}  // namespace

std::size_t PReduceModel::Size() const {
  return std::min(static_cast<std::size_t>(options_.group_size), joined_.size());
}

std::string PReduceModel::Check(const Applied& applied) {
  const Instant now = applied.now;
  if (const auto* joined = std::get_if<JoinedEvent>(&applied.event)) {
    joined_.insert(joined->rank);
    released_[joined->rank] = now;
    repeats_.erase(joined->rank);
  } else if (const auto* ready = std::get_if<ReadyEvent>(&applied.event)) {
    if (!repeats_.contains(ready->rank)) {
      steps_[ready->rank] = static_cast<double>(now - released_[ready->rank]);
    }
    longest_step_ns_ = std::max(longest_step_ns_, steps_[ready->rank]);
    queue_.push_back({ready->rank, ready->ready.iteration, now});
  } else if (const auto* finished = std::get_if<FinishedEvent>(&applied.event)) {
    released_[finished->rank] = now;
    finished->ok ? repeats_.erase(finished->rank) : repeats_.insert(finished->rank).second;
  } else if (const auto* left = std::get_if<LeftEvent>(&applied.event)) {
    joined_.erase(left->rank);
    split_.reset();
    window_.clear();
    std::erase_if(queue_, [&](const Waiting& one) { return one.rank == left->rank; });
  }
  for (const FormGroup& group : GroupsOf(applied.effects)) {
    if (auto wrong = CheckGroup(now, group); !wrong.empty()) {
      return "group " + std::to_string(group.id) + " (" + group.reason + "): " + wrong;
    }
  }
  return CheckHold(now);
}

std::string PReduceModel::CheckGroup(Instant now, const FormGroup& group) {
  if (auto wrong = CheckMembers(now, group); !wrong.empty()) return wrong;
  if (auto wrong = CheckWeights(group); !wrong.empty()) return wrong;
  if (group.reason.find("component") != std::string::npos && !split_) {
    return "speaks of components where all are connected";
  }
  if (held_since_)
    held_ns_ += static_cast<double>(held_size_) * static_cast<double>(now - *held_since_);
  held_since_.reset();
  const std::set<Rank> ranks = RanksOf(group);
  for (const Rank rank : ranks) step_ns_ += steps_[rank];
  std::erase_if(queue_, [&](const Waiting& one) { return ranks.contains(one.rank); });
  AddToWindow(ranks);
  return "";
}

std::string PReduceModel::CheckMembers(Instant now, const FormGroup& group) const {
  const std::set<Rank> ranks = RanksOf(group);
  if (ranks.size() != group.members.size()) return "a rank twice";
  std::vector<std::size_t> places;
  Iteration newest = 0;
  for (const GroupShare& member : group.members) {
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const Waiting& one) { return one.rank == member.rank; });
    if (found == queue_.end()) return "a member without a signal";
    if (found->iteration != member.iteration) return "a member's iteration is not its own";
    newest = std::max(newest, found->iteration);
    places.push_back(static_cast<std::size_t>(found - queue_.begin()));
  }
  if (group.iteration != newest) return "members do not continue at the largest iteration";
  std::sort(places.begin(), places.end());
  if (ranks.size() < Size()) {
    const bool overdue =
        options_.max_wait_ms > 0 && now - queue_[0].at >= options_.max_wait_ms * kMillisecond;
    if (!overdue || ranks.size() < 2) return "smaller than P for no reason";
    if (queue_.size() >= Size()) return "smaller than P although P are ready";
    return ranks.size() == queue_.size() ? "" : "closed without all who wait";
  }
  if (ranks.size() > Size()) return "larger than P";
  const bool fifo = places.back() == Size() - 1;
  if (fifo) return "";
  if (!group.reason.starts_with("bridged")) return "neither FIFO nor a bridge";
  if (!split_) return "bridges what is connected";
  if (Size() >= 2 && places[Size() - 2] >= Size()) return "more than one from behind the head";
  // The first of another component than the head's, and no sooner one passed over.
  int head = -1;
  for (std::size_t i = 0; head < 0 && i < Size(); ++i) head = IndexOf(*split_, queue_[i].rank);
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const int own = IndexOf(*split_, queue_[i].rank);
    if (own < 0 || own == head) continue;
    if (i != places.back()) return "not the earliest worker of another component";
    std::set<int> met;
    for (const Rank rank : ranks) met.insert(IndexOf(*split_, rank));
    met.erase(-1);
    return met.size() >= 2 ? "" : "joins no two components";
  }
  return "bridges without a worker of another component";
}

std::string PReduceModel::CheckWeights(const FormGroup& group) const {
  double sum = group.initial_weight;
  for (const GroupShare& member : group.members) {
    if (!(member.weight >= 0)) return "a weight below 0";
    sum += member.weight;
  }
  if (std::abs(sum - 1) > 1e-12) return "weights sum to " + std::to_string(sum);
  if (group.initial_weight > 0 && !RowsOf(engine_->plan()).initial)
    return "unannounced initial_weight";
  std::vector<Iteration> iterations;
  for (const GroupShare& member : group.members) iterations.push_back(member.iteration);
  const std::vector<double> expected = WeightsByTheBook(options_, iterations);
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    if (std::abs(expected[i] - group.members[i].weight) > 1e-9) return "a weight is not Eq. 9's";
  }
  return std::abs(expected.back() - group.initial_weight) > 1e-9 ? "initial_weight is not Eq. 9's"
                                                                 : "";
}

// What is not formed although P are ready must be held: for a bridge, until a deadline, in budget.
std::string PReduceModel::CheckHold(Instant now) {
  if (joined_.empty() || queue_.size() < Size()) {
    if (held_since_) {
      held_ns_ += static_cast<double>(held_size_) * static_cast<double>(now - *held_since_);
    }
    held_since_.reset();
    return "";
  }
  if (joined_.size() <= static_cast<std::size_t>(options_.group_size)) return "all wait for nobody";
  if (!split_) return "P are ready and the graph is connected, but no group";
  if (!engine_->NextDeadline()) return "held without end";
  if (queue_.size() >= 2 * Size()) return "held although 2P are ready";
  if (!held_since_) {
    held_since_ = now;
    held_size_ = Size();
    ++holds_;
  }
  const double allowed = step_ns_ / GroupFilter::kHoldShareInverse +
                         static_cast<double>(options_.group_size) * longest_step_ns_;
  return held_ns_ > allowed ? "held for longer than the budget" : "";
}

void PReduceModel::AddToWindow(const std::set<Rank>& ranks) {
  if (split_ &&
      IndexOf(*split_, *std::find_if(ranks.begin(), std::prev(ranks.end()), [&](Rank rank) {
        return IndexOf(*split_, rank) >= 0;
      })) >= 0) {
    split_->push_back(ranks);
    const std::size_t before = split_->size() - 1;
    split_ = Merge(*split_);
    if (split_->size() < before) ++bridges_;
    if (split_->size() < 2) split_.reset();
  }
  window_.push_back(ranks);
  const auto full = EffectiveWindow(options_, static_cast<std::int64_t>(joined_.size()));
  if (static_cast<std::int64_t>(window_.size()) < full) return;
  const Groups components = Merge(std::move(window_));
  if (components.size() > 1) split_ = components;
  window_.clear();
}

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
    // Who stands for r: those at the nearest relative iteration there is, the newer of two.
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

}  // namespace prd
