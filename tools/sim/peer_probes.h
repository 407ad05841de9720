// Questions of workers whether their peers are there, in the model's data plane.
#ifndef PRD_TOOLS_SIM_PEER_PROBES_H_
#define PRD_TOOLS_SIM_PEER_PROBES_H_

#include <cstdint>
#include <vector>

#include "common/base/messages.h"
#include "tools/sim/world.h"

namespace prd::sim {

class PeerProbes {
 public:
  explicit PeerProbes(World* world) : world_(world), asks_(world->replicas.size()) {}

  // Asks the targets, at once and from time to time, until each has answered; instead of those
  // before. Asks are numbered: kProbe has the number.
  void Ask(std::uint32_t worker, const SharedList<GroupMember>& targets) {
    Questions& ask = asks_[worker];
    ask.targets.assign(targets.begin(), targets.end());
    ++ask.number;
    if (!ask.targets.empty()) {
      world_->queue.Push(world_->now + kFirst, EventKind::kProbe, worker, ask.number);
    }
  }
  // The event kProbe: who answers. They are asked no more.
  std::vector<GroupMember> OnProbe(std::uint32_t worker, std::uint64_t number) {
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

 private:
  static constexpr DurationNs kFirst = kMillisecond;
  static constexpr DurationNs kGap = 250 * kMillisecond;
  struct Questions {
    std::vector<GroupMember> targets;
    std::uint64_t number = 0;
  };

  World* world_;
  std::vector<Questions> asks_;  // by worker
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_PEER_PROBES_H_
