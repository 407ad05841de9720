#include "tools/sim/peer_probes.h"

namespace prd::sim {

void PeerProbes::Ask(std::uint32_t worker, const SharedList<GroupMember>& targets) {
  Questions& ask = asks_[worker];
  ask.targets.assign(targets.begin(), targets.end());
  ++ask.number;
  if (!ask.targets.empty()) {
    world_->queue.Push(world_->now + kFirst, EventKind::kProbe, worker, ask.number);
  }
}

std::vector<GroupMember> PeerProbes::OnProbe(std::uint32_t worker, std::uint64_t number) {
  Questions& ask = asks_[worker];
  if (ask.number != number) return {};
  std::vector<GroupMember> answered;
  std::erase_if(ask.targets, [&](const GroupMember& target) {
    if (!world_->Answers(worker, target.incarnation)) return false;
    answered.push_back(target);
    return true;
  });
  if (!ask.targets.empty()) {
    world_->queue.Push(world_->now + kGap, EventKind::kProbe, worker, number);
  }
  return answered;
}

}  // namespace prd::sim
