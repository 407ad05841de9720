#include "tools/sim/mesh_faults.h"

#include <algorithm>
#include <cmath>

#include "engines/violation.h"

namespace prd::sim::mesh {

double MeshFaults::PerSecond() const {
  const Setting& setting = world_->setting;
  return setting.breaks + setting.cuts + setting.kills + setting.freezes;
}

bool MeshFaults::KillsAlone() const {
  const Setting& setting = world_->setting;
  return setting.breaks + setting.cuts + setting.freezes == 0 && setting.network.attacks == 0;
}

void MeshFaults::Schedule() {
  const double all = PerSecond();
  if (all == 0) return;
  world_->After(static_cast<DurationNs>(-std::log(1 - world_->prng.Unit()) / all * 1e9), [this] {
    if (!On()) return;
    Do();
    Schedule();
  });
}

void MeshFaults::Disturb(std::size_t a, std::size_t b, DurationNs time) {
  Instant& until = disturbed_[std::minmax(a, b)];
  until = std::max(until, world_->now() + time + 2 * kLease);
}

void MeshFaults::Do() {
  const Setting& setting = world_->setting;
  double drawn = world_->prng.Unit() * PerSecond();
  Worker* a = world_->Any();
  Worker* b = world_->Any();
  if (a == nullptr || b == nullptr || a == b) return;
  const std::string first = WorkerName(a->number);
  if ((drawn -= setting.breaks) < 0) {
    ++world_->result.breaks;
    world_->Say("the links from " + first + " to " + WorkerName(b->number) + " break");
    Disturb(a->number, b->number, 0);
    return world_->network.Break(a->process, b->process);
  }
  if ((drawn -= setting.cuts) < 0) {
    ++world_->result.cuts;
    const DurationNs time = world_->DelayNs(world_->prng.Below(3) == 0 ? 3e9 : 2e8);
    const bool large_alone = world_->prng.Below(4) == 0;
    world_->Say("nothing " + std::string(large_alone ? "large " : "") + "gets from " + first +
                " to " + WorkerName(b->number) + " for " + std::to_string(time / kMillisecond) +
                " ms");
    Disturb(a->number, b->number, time);
    const auto cut = large_alone ? &SimNetwork::CutLarge : &SimNetwork::Cut;
    (world_->network.*cut)(a->process, b->process, time);
    if (world_->prng.Below(2) == 0) (world_->network.*cut)(b->process, a->process, time);
    return;
  }
  if ((drawn -= setting.kills) < 0) {
    if (a->replica.on_device() && world_->prng.Below(2) == 0) {
      return a->replica.FailAt(1 + world_->prng.Below(12));
    }
    return kill_(a);
  }
  const DurationNs time = world_->DelayNs(2e9);
  world_->Say(first + " stands still for " + std::to_string(time / kMillisecond) + " ms");
  Disturb(a->number, time);
  a->frozen_until = world_->now() + time;
}

void MeshFaults::CheckAccused(const Worker& worker, Rank accused, GroupId group) const {
  if (world_->setting.network.attacks > 0) return;
  const auto other = static_cast<std::uint32_t>(accused);
  const auto disturbed = disturbed_.find(std::minmax<std::size_t>(worker.number, other));
  if (disturbed != disturbed_.end() && disturbed->second >= world_->now()) return;
  throw Violation("accused", WorkerName(worker.number) + " says of group " + std::to_string(group) +
                                 " that " + WorkerName(other) +
                                 " is out of reach, and nothing is wrong with it");
}

}  // namespace prd::sim::mesh
