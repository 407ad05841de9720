#include "worker/mesh/prober.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace prd {

void Prober::Clear() {
  targets_.clear();
  large_ = 0;
}

void Prober::Start(Instant now, const SharedList<GroupMember>& targets) {
  Clear();
  for (const GroupMember& target : targets) {
    const Result<std::string> endpoint = peers_->EndpointOf(target);
    if (endpoint.ok()) targets_.push_back({.member = target, .endpoint = *endpoint});
  }
  ask_at_ = now;
}

void Prober::Ask(Instant now) {
  if (targets_.empty() || now < ask_at_) return;
  ask_at_ = now + kInterval;
  const auto end =
      targets_.begin() + static_cast<std::ptrdiff_t>(std::min(targets_.size(), kAtOnce));
  for (auto target = targets_.begin(); target != end; ++target) {
    if (!target->answered) Send(now, *target, SharedBytes());
  }
  std::rotate(targets_.begin(), end, targets_.end());
  AskLarge(now);
}

// The next one of those that have answered a small question.
void Prober::AskLarge(Instant now) {
  large_ = 0;
  const auto next = std::find_if(targets_.begin(), targets_.end(),
                                 [](const Target& target) { return target.answered; });
  if (next == targets_.end()) return;
  const Target target = *next;
  targets_.erase(next);
  targets_.push_back(target);
  large_ = target.member.incarnation;
  SharedBytes bytes(large_bytes_);
  std::memset(bytes.data(), 0, large_bytes_);
  Send(now, target, std::move(bytes));
}

void Prober::Send(Instant now, const Target& target, SharedBytes payload) {
  FrameHeader ping =
      PingOf(Topic::kLife, 0, directory_->run(), directory_->self(), target.member.incarnation);
  ping.length = payload.size();
  (void)peers_->Signal(now, target.endpoint, ping, std::move(payload));
}

std::optional<Rank> Prober::Answered(Instant now, Incarnation from, std::uint64_t bytes) {
  const auto it = std::find_if(targets_.begin(), targets_.end(), [&](const Target& target) {
    return target.member.incarnation == from;
  });
  if (it == targets_.end()) return std::nullopt;
  std::optional<Rank> rank;
  if (bytes < large_bytes_) {
    it->answered = true;
  } else {
    rank = it->member.rank;
    targets_.erase(it);
  }
  if (large_ == 0 || (rank && large_ == from)) AskLarge(now);
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
