#include "tools/sim/backup_rules.h"

#include <algorithm>
#include <string>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Name(const FormGroup& group) {
  return "group " + std::to_string(group.id) + " (" + group.reason + ")";
}
std::string RankText(Rank rank) { return "rank " + std::to_string(rank); }

}  // namespace

BackupRules::Worker& BackupRules::At(Rank rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= workers_.size()) workers_.resize(index + 1);
  return workers_[index];
}

std::int64_t BackupRules::Needed(std::int64_t joined) const {
  return std::max<std::int64_t>(1, joined - options_.backups);
}

void BackupRules::Apply(const Event& event) {
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    At(joined->rank) = {.joined = true, .model = joined->iteration};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    Worker& worker = At(ready->rank);
    worker.waiting = true;
    worker.unknown = false;
    worker.model = ready->ready.iteration - 1;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    Worker& worker = At(finished->rank);
    worker.group = kNoGroup;
    worker.failed = !finished->ok;
    if (finished->ok) worker.model = iteration_;
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    At(left->rank) = {};
  } else if (const auto* ended = std::get_if<EndedEvent>(&event)) {
    running_ = kNoGroup;
    if (ended->ok) committed_ = iteration_;
    for (Worker& worker : workers_) {  // the job has them copy the result
      if (worker.failed) worker.unknown = ended->ok;
      worker.failed = false;
    }
  }
}

void BackupRules::Check(Instant, const Event& event, std::span<const Effect> effects,
                        std::int64_t joined) {
  Apply(event);
  for (const Effect& effect : effects) {
    if (const auto* group = std::get_if<FormGroup>(&effect)) CheckGroup(*group, joined);
    if (const auto* late = std::get_if<CatchUp>(&effect)) CheckDrop(*late);
  }
  if (!std::holds_alternative<FinishedEvent>(event)) CheckAll(joined);
}

void BackupRules::CheckGroup(const FormGroup& group, std::int64_t joined) {
  const auto members = static_cast<std::int64_t>(group.members.size());
  if (running_ != kNoGroup || members < Needed(joined)) {
    throw Violation("quorum", Name(group) + " has " + std::to_string(members) + " members, " +
                                  std::to_string(Needed(joined)) + " are needed" +
                                  (running_ != kNoGroup ? ", and a round runs" : ""));
  }
  for (const GroupShare& share : group.members) {
    Worker& worker = At(share.rank);
    if (share.weight != 1.0 / static_cast<double>(members)) {
      throw Violation("weights",
                      RankText(share.rank) + " has another one than the others in " + Name(group));
    }
    if (worker.model + 1 != group.iteration) {
      throw Violation("iterations", RankText(share.rank) + " offers a gradient for iteration " +
                                        std::to_string(worker.model + 1) + " and is put into " +
                                        Name(group) + " of iteration " +
                                        std::to_string(group.iteration));
    }
    worker.waiting = false;
    worker.group = group.id;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.joined && !worker.unknown && worker.model + 1 > group.iteration) {
      throw Violation("iterations", Name(group) + " is of iteration " +
                                        std::to_string(group.iteration) + ", and " +
                                        RankText(static_cast<Rank>(i)) + " is further");
    }
    if (worker.waiting) {
      throw Violation("quorum", Name(group) + " leaves out " + RankText(static_cast<Rank>(i)) +
                                    ", which waits");
    }
  }
  running_ = group.id;
  iteration_ = group.iteration;
}

void BackupRules::CheckDrop(const CatchUp& late) {
  Worker& worker = At(late.rank);
  if (worker.unknown || worker.model >= committed_) {
    bool newer = false;
    for (const Worker& other : workers_) {
      newer = newer || (other.joined && !other.unknown && other.model > worker.model);
    }
    if (worker.unknown || !newer) {
      throw Violation("dropped", RankText(late.rank) + " at iteration " +
                                     std::to_string(worker.model) +
                                     " loses its update, and nobody is further: " + late.reason);
    }
  }
  worker.waiting = false;
  worker.unknown = true;
}

void BackupRules::CheckAll(std::int64_t joined) const {
  if (running_ != kNoGroup) return;
  Iteration newest = 0;
  std::int64_t waiting = 0;
  for (const Worker& worker : workers_) {
    if (!worker.joined) continue;
    waiting += worker.waiting ? 1 : 0;
    if (!worker.unknown) newest = std::max(newest, worker.model);
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.waiting || worker.model == newest) continue;
    throw Violation("dropped", RankText(static_cast<Rank>(i)) + " waits with a gradient for " +
                                   std::to_string(worker.model + 1) + " where " +
                                   std::to_string(newest + 1) + " is next");
  }
  if (waiting == 0 || waiting < Needed(joined)) return;
  throw Violation("quorum", std::to_string(waiting) + " of " + std::to_string(joined) + " wait, " +
                                std::to_string(Needed(joined)) + " are needed, and no round forms");
}

void BackupRules::Archive(StateArchive& ar) { ar(workers_, committed_, iteration_, running_); }

}  // namespace prd::sim
