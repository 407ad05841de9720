#include "worker/mesh/prober.h"

#include <algorithm>
#include <utility>

namespace prd {

void Prober::Start(Instant now, std::deque<Target> targets) {
  targets_ = std::move(targets);
  ask_at_ = now;
}

std::vector<Prober::Target> Prober::TakeDue(Instant now) {
  if (targets_.empty() || now < ask_at_) return {};
  ask_at_ = now + kInterval;
  const auto end =
      targets_.begin() + static_cast<std::ptrdiff_t>(std::min(targets_.size(), kAtOnce));
  std::vector<Target> due(targets_.begin(), end);
  std::rotate(targets_.begin(), end, targets_.end());
  return due;
}

std::optional<Rank> Prober::Answered(Incarnation from) {
  const auto it = std::find_if(targets_.begin(), targets_.end(), [&](const Target& target) {
    return target.member.incarnation == from;
  });
  if (it == targets_.end()) return std::nullopt;
  const Rank rank = it->member.rank;
  targets_.erase(it);
  return rank;
}

void Prober::Forget(Incarnation member) {
  std::erase_if(targets_,
                [member](const Target& each) { return each.member.incarnation == member; });
}

std::optional<Instant> Prober::NextDeadline() const {
  return targets_.empty() ? std::nullopt : std::optional(ask_at_);
}

}  // namespace prd
