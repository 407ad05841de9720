#include "tools/sim/replica_book.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engines/violation.h"

namespace prd::sim {

ReplicaBook::ReplicaBook(const World* world)
    : world_(world),
      may_differ_(Differ(world->workload.faults) && world->workload.job.check_replicas_ms > 0),
      every_(world->workload.job.check_replicas_ms * kMillisecond) {}

bool ReplicaBook::Told(Rank rank) const {
  return std::find(told_.begin(), told_.end(), rank) != told_.end();
}

void ReplicaBook::Applied(RunId run, GroupId group, std::uint64_t digest) {
  if (on_ && run == run_) digests_[group].push_back(digest);
}

void ReplicaBook::Seen(RunId run, const Record& record) {
  if (!may_differ_) return;
  if (std::holds_alternative<RunStarted>(record.body)) {
    on_ = AllOrNone(world_->runs.PlanOf(run));
    run_ = run;
    digests_.clear();
    formed_.clear();
    copies_.clear();
    untold_ = differ_ = {};
    told_.clear();
  }
  if (!on_ || run != run_ || world_->forgot) return;
  if (const auto* formed = std::get_if<GroupFormed>(&record.body);
      formed != nullptr && formed->kind == GroupKind::kTrain) {
    Formed& entry = formed_[formed->id];
    entry.at = record.now;
    for (const GroupShare& member : formed->members) entry.members.push_back(member.rank);
  }
  if (const auto* copy = std::get_if<AdoptOrdered>(&record.body); copy != nullptr) {
    copies_.erase(copy->rank);
    if (!Told(copy->source)) copies_[copy->rank] = copy->source;
  }
  if (const auto* left = std::get_if<WorkerLeft>(&record.body);
      left != nullptr && left->why != LeftReason::kPaused) {
    untold_ = differ_ = {};
  }
  if (const auto* ended = std::get_if<GroupEnded>(&record.body)) OnEnded(*ended);
  if (const auto* differ = std::get_if<ReplicasDiffer>(&record.body)) OnReported(*differ);
}

void ReplicaBook::OnEnded(const GroupEnded& ended) {
  const auto formed = formed_.find(ended.id);
  if (formed == formed_.end()) return;
  const Formed group = std::move(formed->second);
  formed_.erase(formed);
  const std::vector<std::uint64_t> digests = std::exchange(digests_[ended.id], {});
  digests_.erase(ended.id);
  last_equal_ = std::all_of(digests.begin(), digests.end(),
                            [&](std::uint64_t digest) { return digest == digests[0]; });
  if (!ended.ok || last_equal_) {
    untold_ = differ_ = {};
    if (ended.ok) {
      for (const Rank rank : group.members) copies_.erase(rank);
    }
    return;
  }
  // The groups before this one: what is reported after a group follows its end.
  const auto length = [](const Span& span) { return span.from ? span.to - *span.from : 0; };
  const std::string text = "replicas have differed for " +
                           std::to_string(length(differ_) / kMillisecond) + " ms, until group " +
                           std::to_string(ended.id) + ", ";
  if (length(untold_) > every_) throw Violation("difference-told", text + "and nobody is told");
  const bool repairs = world_->workload.job.on_divergence == JobSpec::OnDivergence::kRepair &&
                       world_->workload.faults.state_not_told == 0;
  if (repairs && length(differ_) > 3 * every_) {
    throw Violation("difference-repaired", text + "and are not repaired");
  }
  for (Span* span : {&untold_, &differ_}) {
    if (!span->from) span->from = group.at;
    span->to = group.at;
  }
  if (!told_.empty()) untold_ = {};
}

void ReplicaBook::OnReported(const ReplicasDiffer& differ) {
  std::vector<Rank> more = differ.ranks;
  std::erase_if(more, [this](Rank rank) { return Told(rank); });
  if (!more.empty() && last_equal_) {
    throw Violation("difference-true", "replicas are equal after group " +
                                           std::to_string(differ.group) +
                                           ", and reported to differ: " + differ.reason);
  }
  const auto spread = [&more](const auto& copy) {
    return std::find(more.begin(), more.end(), copy.second) != more.end();
  };
  if (std::erase_if(copies_, spread) > 0) differ_ = {};
  told_ = differ.ranks;
  untold_ = {};
}

}  // namespace prd::sim
