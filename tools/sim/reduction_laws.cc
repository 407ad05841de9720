#include "tools/sim/reduction_laws.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engines/violation.h"
#include "tools/sim/names.h"
#include "tools/sim/replica_book.h"

namespace prd::sim {

void ReductionLaws::Seen(RunId run, const GroupFormed& formed) {
  if (formed.kind != GroupKind::kFinal) return;
  std::map<Rank, double>& weights = finals_[{run, formed.id}];
  weights.clear();
  for (const GroupShare& share : formed.members) weights[share.rank] = share.weight;
}

// What those who have trained before have learned is not lost.
void ReductionLaws::CheckStart(const Reduction& reduction) const {
  if (CheckSwitched(reduction)) return;
  std::vector<std::size_t> returning;
  Iteration newest = 0;
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    if (!replica.trained) continue;
    returning.push_back(i);
    newest = std::max(newest, replica.told);
  }
  const bool equal = AllOrNone(reduction.plan) || TrainsInRounds(reduction.plan);
  const double share = 1.0 / static_cast<double>(returning.size());
  for (const std::size_t i : returning) {
    const double weight = reduction.group.members[i].weight;
    const Iteration iteration = world_->replicas[reduction.members[i]].told;
    if (equal ? weight == 1 && iteration == newest : weight != share) {
      if (equal) return;
      throw Violation("returning-start",
                      WorkerName(reduction.members[i]) + " has trained before, as " +
                          std::to_string(returning.size()) + " have, and counts " +
                          std::to_string(weight) + " in the common start");
    }
  }
  if (!equal || returning.empty()) return;
  throw Violation("returning-start", "the common start takes no replica of iteration " +
                                         std::to_string(newest) +
                                         ", which is the newest of those that have trained before");
}

// False: nobody brings the final average of a run that this one continues.
bool ReductionLaws::CheckSwitched(const Reduction& reduction) const {
  const RunTable::Former* former = world_->runs.FormerOf(reduction.run);
  if (former == nullptr) return false;
  const RunId run = former->run;
  const Replica* averaged = nullptr;
  double weight = 0;  // of the members that hold it: one, or several that copied it
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    const GroupMember& member = reduction.group.members[i];
    if (replica.averaged != run || !former->with_model.contains(member.rank)) continue;
    const std::string who = WorkerName(reduction.members[i]);
    if (averaged != nullptr && averaged->tag != replica.tag) {
      throw Violation("switched-model", who + " ended run " + std::to_string(run) +
                                            " with another replica than others");
    }
    averaged = &replica;
    weight += member.weight;
  }
  if (averaged == nullptr || std::abs(weight - 1) < 1e-9) return averaged != nullptr;
  throw Violation("switched-model", "run " + std::to_string(reduction.run) +
                                        " does not begin with the final average of run " +
                                        std::to_string(run));
}

// A controller that has forgotten one final average may form another of that id.
void ReductionLaws::CheckFinal(const Reduction& reduction) const {
  const auto recorded = finals_.find({reduction.run, reduction.group.id});
  if (recorded == finals_.end() || world_->forgot) return;
  for (const GroupMember& member : reduction.group.members) {
    const auto weight = recorded->second.find(member.rank);
    if (weight != recorded->second.end() && weight->second == member.weight) continue;
    throw Violation("final-model",
                    RankName(member.rank) + " counts " + std::to_string(member.weight) +
                        " in the final average, and the history says " +
                        (weight == recorded->second.end() ? "that it is not in it"
                                                          : std::to_string(weight->second)));
  }
}

void ReductionLaws::CheckBefore(const Reduction& reduction) const {
  if (reduction.group.kind == GroupKind::kInitial) CheckStart(reduction);
  if (reduction.group.kind == GroupKind::kFinal) CheckFinal(reduction);
  const bool may_differ = ReplicaBook::Differ(world_->workload.faults);
  const std::string name = GroupName(reduction.group.id);
  const Landing landing = reduction.what.landing;
  const bool base = landing == Landing::kBase;
  const bool models =
      reduction.group.kind == GroupKind::kAverage || reduction.group.kind == GroupKind::kFinal;
  const Replica& first = world_->replicas[reduction.members[0]];
  for (std::size_t i = 0; i < reduction.members.size(); ++i) {
    const Replica& replica = world_->replicas[reduction.members[i]];
    const std::string who = WorkerName(reduction.members[i]);
    const bool same = base ? replica.base_tag == first.base_tag : replica.tag == first.tag;
    if ((base || landing == Landing::kGradients) && !same && !may_differ) {
      throw Violation(
          "replicas-agree",
          who + " and worker " + std::to_string(reduction.members[0]) + " differ before " + name);
    }
    if (models && (!replica.inbox.empty() || replica.overlap.averages > 0)) {
      throw Violation("inbox", who + " has results to add, and its model is averaged in " + name);
    }
    if (reduction.group.kind == GroupKind::kRound && reduction.group.members[i].weight > 0 &&
        replica.owed.empty()) {
      throw Violation("outbox", who + " is to contribute to " + name + " and owes nothing");
    }
  }
}

// What all members of a group that averages models hold, of all parameters together.
double ReductionLaws::Mass(const Reduction& reduction) const {
  double mass = 0;
  if (reduction.group.kind != GroupKind::kTrain || !CountsLocalSteps(reduction.plan)) return mass;
  for (const std::uint32_t member : reduction.members) {
    const Replica& replica = world_->replicas[member];
    for (const double value : replica.x) mass += value;
    for (const double value : replica.overlap.inbox) mass += value;
  }
  return mass;
}

void ReductionLaws::CheckMass(const Reduction& reduction, double before) const {
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
