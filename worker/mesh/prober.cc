#include "worker/mesh/prober.h"

#include <algorithm>
#include <cstring>

namespace prd {

void Prober::Start(Instant now, const SharedList<GroupMember>& targets) {
  targets_.clear();
  for (const GroupMember& target : targets) {
    const Result<std::string> endpoint = peers_->EndpointOf(target);
    if (endpoint.ok()) targets_.push_back({target, *endpoint});
  }
  ask_at_ = now;
}

void Prober::Ask(Instant now) {
  if (targets_.empty() || now < ask_at_) return;
  ask_at_ = now + kInterval;
  const auto end =
      targets_.begin() + static_cast<std::ptrdiff_t>(std::min(targets_.size(), kAtOnce));
  SharedBytes bytes(kBytes);
  std::memset(bytes.data(), 0, kBytes);
  for (auto target = targets_.begin(); target != end; ++target) {
    FrameHeader ping =
        PingOf(Topic::kLife, 0, directory_->run(), directory_->self(), target->member.incarnation);
    ping.length = kBytes;
    (void)peers_->Signal(now, target->endpoint, ping, bytes);
  }
  std::rotate(targets_.begin(), end, targets_.end());
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
