// DataPlane: averages that are made while training loops compute (AveragesInBackground), and what
// no average may change.
#include <cmath>
#include <string>

#include "engines/violation.h"
#include "tools/sim/data_plane.h"

namespace prd::sim {

// A group begins on the virtual replica: the parameters with what earlier groups have changed.
void DataPlane::FillOutbox(std::uint32_t worker, Iteration gain) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  overlap.outbox = replica.x;
  for (std::size_t j = 0; j < overlap.inbox.size(); ++j) overlap.outbox[j] += overlap.inbox[j];
  overlap.outbox_tag = overlap.averages > 0 ? Mixed(replica.tag ^ overlap.inbox_tag) : replica.tag;
  overlap.gain = gain;
}

void DataPlane::CommitOverlap(const Sum& sum, double initial_weight, std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  overlap.inbox.resize(sum.values.size(), 0.0);
  for (std::size_t j = 0; j < sum.values.size(); ++j) {
    const double initial = initial_weight > 0 ? initial_weight * replica.initial[j] : 0;
    const double kept = mutation_ == Mutation::kInboxOverwritten ? 0 : overlap.inbox[j];
    overlap.inbox[j] = kept + sum.values[j] + initial - overlap.outbox[j];
  }
  ++overlap.averages;
  overlap.inbox_tag = Mixed(overlap.inbox_tag ^ sum.tag);
  overlap.gained += overlap.gain;
}

std::int64_t DataPlane::AddInbox(std::uint32_t worker) {
  Replica& replica = world_->replicas[worker];
  Overlap& overlap = replica.overlap;
  const std::int64_t averages = overlap.averages;
  if (averages == 0) return 0;
  for (std::size_t j = 0; j < replica.x.size(); ++j) replica.x[j] += overlap.inbox[j];
  replica.tag = Mixed(replica.tag ^ overlap.inbox_tag);
  replica.iteration += overlap.gained;
  overlap.inbox.clear();
  overlap.averages = 0;
  overlap.inbox_tag = 0;
  overlap.gained = 0;
  return averages;
}

// What all members of a group that averages models hold, of all parameters together.
double DataPlane::Mass(const Reduction& reduction) const {
  double mass = 0;
  if (reduction.group.kind != GroupKind::kTrain || !CountsLocalSteps(reduction.plan)) return mass;
  for (const std::uint32_t member : reduction.members) {
    const Replica& replica = world_->replicas[member];
    for (const double value : replica.x) mass += value;
    for (const double value : replica.overlap.inbox) mass += value;
  }
  return mass;
}

void DataPlane::CheckMass(const Reduction& reduction, double before) const {
  double scale = 1;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    if (reduction.group.members[i].weight != reduction.group.members[0].weight) return;
    for (const double value : world_->replicas[reduction.members[i]].x) scale += std::abs(value);
  }
  const double after = Mass(reduction);
  if (reduction.group.initial_weight > 0 || std::abs(after - before) <= 1e-9 * scale) return;
  throw Violation("mass", GroupName(reduction.group.id) +
                              " changes the sum of its members' models from " +
                              std::to_string(before) + " to " + std::to_string(after));
}

}  // namespace prd::sim
