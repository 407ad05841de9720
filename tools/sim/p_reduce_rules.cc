#include "tools/sim/p_reduce_rules.h"

#include <algorithm>

#include "engines/p_reduce/p_reduce.h"
#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Name(const FormGroup& group) {
  return "group " + std::to_string(group.id) + " (" + group.reason + ")";
}

}  // namespace

Rank PReduceRules::Component(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < component_.size() ? component_[index] : kNoRank;
}

std::set<Rank> PReduceRules::Components(std::size_t from, std::size_t to) const {
  std::set<Rank> found;
  for (std::size_t i = from; i < to; ++i) {
    if (Component(queue_[i].first) != kNoRank) found.insert(Component(queue_[i].first));
  }
  return found;
}

void PReduceRules::Check(Instant now, const Event& event, std::span<const Effect> effects,
                         std::int64_t joined) {
  if (const auto* ready = std::get_if<ReadyEvent>(&event)) queue_.emplace_back(ready->rank, now);
  if (const auto* left = std::get_if<LeftEvent>(&event)) {
    std::erase_if(queue_, [&](const auto& signal) { return signal.first == left->rank; });
    window_.clear();  // its links must not count any more
    component_.clear();
  }
  for (const FormGroup& group : GroupsOf(effects)) CheckGroup(now, group, joined);
  CheckQueue(static_cast<std::size_t>(std::min<std::int64_t>(options_.group_size, joined)), joined);
}

void PReduceRules::CheckGroup(Instant now, const FormGroup& group, std::int64_t joined) {
  const auto p = static_cast<std::size_t>(std::min<std::int64_t>(options_.group_size, joined));
  std::set<Rank> members;
  for (const GroupShare& share : group.members) members.insert(share.rank);
  if (members.size() > p || members.size() > queue_.size()) {
    throw Violation("group-size", Name(group) + " has " + std::to_string(members.size()) + " of " +
                                      std::to_string(p) + " members");
  }
  if (members.size() < p) {
    const bool waited = options_.max_wait_ms > 0 &&
                        now - queue_.front().second >= options_.max_wait_ms * kMillisecond;
    if (!waited || members.size() < 2 || members.size() != queue_.size()) {
      throw Violation("group-size", Name(group) + " has " + std::to_string(members.size()) +
                                        " members before max_wait_ms");
    }
  } else {
    CheckOrder(group, members, p, joined);
  }
  std::erase_if(queue_, [&](const auto& signal) { return members.contains(signal.first); });
  if (!component_.empty()) Link(group);
  window_.emplace_back(members.begin(), members.end());
  if (static_cast<std::int64_t>(window_.size()) >= EffectiveWindow(options_, joined)) Close();
}

void PReduceRules::CheckOrder(const FormGroup& group, const std::set<Rank>& members, std::size_t p,
                              std::int64_t joined) {
  const bool bridging = !component_.empty() && joined > options_.group_size;
  std::size_t in_order = 0;
  while (in_order < p && members.contains(queue_[in_order].first)) ++in_order;
  const std::set<Rank> head = bridging ? Components(0, p) : std::set<Rank>();
  if (in_order == p) {
    if (head.size() != 1) return;
    std::set<Rank> later = Components(p, queue_.size());
    later.erase(*head.begin());
    if (later.empty()) return;
    throw Violation("bridge", Name(group) +
                                  " keeps components of the last T groups apart while a "
                                  "worker of another waits");
  }
  if (!bridging || head.size() > 1) {
    throw Violation("fifo", Name(group) + " is not the head of the queue, and no bridge is due");
  }
  std::set<Rank> joins;
  for (const Rank rank : members) {
    if (Component(rank) != kNoRank) joins.insert(Component(rank));
  }
  if (joins.size() < 2 || in_order + 2 < p) {
    throw Violation("bridge", Name(group) + " leaves the order and joins no components");
  }
}

void PReduceRules::CheckQueue(std::size_t p, std::int64_t joined) const {
  if (p == 0 || queue_.size() < p) return;
  const bool bridging = !component_.empty() && joined > options_.group_size;
  if (!bridging || queue_.size() >= 2 * p || Components(0, queue_.size()).size() != 1) {
    throw Violation("no-idle-queue", std::to_string(queue_.size()) + " signals wait, P is " +
                                         std::to_string(p) +
                                         (bridging ? ", a bridge is due" : ", no bridge is due"));
  }
}

void PReduceRules::Link(const FormGroup& group) {
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

void PReduceRules::Archive(StateArchive& ar) { ar(queue_, window_, component_, components_); }

}  // namespace prd::sim
