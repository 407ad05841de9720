// The driver for engines whose groups form before their members are ready (DrawnAhead).
#include <algorithm>

#include "tests/engines/group_driver.h"

namespace prd {

std::string GroupDriver::FormAhead(const GroupFormed& group) {
  const std::string name = "group " + std::to_string(group.id);
  if (group.kind != GroupKind::kTrain || group.members.empty()) return name + " is none";
  if (group.reason.empty()) return name + " has no reason";
  if (group.id >= next_group_ || groups_.contains(group.id)) return name + " is not its own id";
  Running& running = groups_[group.id];
  double sum = 0;
  for (const GroupShare& member : group.members) {
    const auto found = workers_.find(member.rank);
    if (found == workers_.end()) return name + " has a member that is not there";
    Worker& worker = found->second;
    if (worker.group != kNoGroup) return name + " has a member that is in a group";
    if (group.id <= worker.newest_group) return name + " comes after a later one";
    worker.group = worker.newest_group = group.id;
    running.pending.push_back(member.rank);
    if (member.passive) running.passive.insert(member.rank);
    sum += member.weight;
  }
  if (running.passive.size() == group.members.size()) return name + " answers nobody";
  return sum > 0.999999 && sum < 1.000001 ? "" : name + "'s weights do not sum to 1";
}

std::string GroupDriver::AnswerAhead(const QueryAnswered& answer) {
  const auto found = workers_.find(answer.rank);
  if (found == workers_.end() || found->second.state != State::kWaiting) {
    return "an answer to nothing";
  }
  if (answer.ready || answer.reason.empty()) return "a bad answer";
  found->second.state = State::kComputing;
  ++found->second.steps;
  return "";
}

// One member's report; the last one ends the group. Unless it takes part in the background, its
// signal comes first.
std::string GroupDriver::ReportAhead(GroupId id, bool ok) {
  Running& group = groups_[id];
  ok = ok && !group.failed;
  const std::size_t index = random_.Below(group.pending.size());
  const Rank rank = group.pending[index];
  const bool finishing = group.finishing.contains(rank);
  if (!finishing && ok && !AveragesInBackground(engine_->plan()) &&
      workers_[rank].state == State::kComputing) {
    return BeReady(rank);
  }
  group.pending.erase(group.pending.begin() + static_cast<std::ptrdiff_t>(index));
  group.failed = group.failed || !ok;
  if (!finishing) {
    Worker& worker = workers_[rank];
    worker.group = kNoGroup;
    if (ok && worker.state == State::kWaiting && !group.passive.contains(rank)) {
      worker.state = State::kComputing;
      ++worker.steps;
    }
    const FinishedEvent finished{.rank = rank, .group = id, .ok = ok};
    if (auto wrong = Apply(finished); !wrong.empty()) return wrong;
  }
  if (!groups_[id].pending.empty()) return "";
  const bool all_ok = !groups_[id].failed;
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = all_ok});
}

// A finishing worker has no unanswered signal, and its group runs on; a dead one takes the group
// along.
std::string GroupDriver::LeaveAhead(Rank rank) {
  const Worker worker = workers_[rank];
  const bool finishes = worker.state == State::kComputing && random_.Below(2) == 0;
  workers_.erase(rank);
  const GroupId id = worker.group;
  if (finishes && id != kNoGroup) groups_[id].finishing.insert(rank);
  const LeftReason why = finishes ? LeftReason::kFinished : LeftReason::kLost;
  if (auto wrong = Apply(LeftEvent{.rank = rank, .why = why}); !wrong.empty()) return wrong;
  if (finishes || id == kNoGroup) return "";
  Running& group = groups_[id];
  group.failed = true;
  std::erase(group.pending, rank);
  if (!group.pending.empty()) return "";
  groups_.erase(id);
  return Apply(EndedEvent{.group = id, .ok = false});
}

bool GroupDriver::Finishing(Rank rank) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [rank](const auto& entry) { return entry.second.finishing.contains(rank); });
}

}  // namespace prd
