// FollowsSchedule: this worker's groups from the newest Schedule, slot by slot
// (common/base/static_schedule.h). No message says that they begin or end.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "worker/core/overlap_protocol.h"
#include "worker/core/session_flow.h"

namespace prd {

// What is wrong with the schedule, or empty.
std::string OverlapProtocol::CheckSchedule(const Schedule& schedule) const {
  if (schedule.first <= core().standing_.last_group) return "its ids are not above those before";
  if (schedule.first > std::numeric_limits<GroupId>::max() - kScheduleSpan) {
    return "its ids are out of range";
  }
  const std::size_t count = schedule.members.size();
  if (count == 0 || count > core().options_.max_members) {
    return "it has " + std::to_string(count) + " members";
  }
  if (schedule.hosts.size() != count) {
    return "it has " + std::to_string(schedule.hosts.size()) + " hosts for " +
           std::to_string(count) + " members";
  }
  std::set<Incarnation> members;
  Rank before = kNoRank;
  for (const GroupMember& member : schedule.members) {
    if (member.rank <= before) return "its members are not in order of rank";
    before = member.rank;
    members.insert(member.incarnation);
  }
  if (members.size() != count) return "a member is in it twice";
  if (!members.contains(core().incarnation())) return "this worker is not in it";
  return {};
}

void OverlapProtocol::OnSchedule(const Schedule& schedule, Actions* out) {
  if (core().aim() == Aim::kLeave) return;
  const std::string wrong = CheckSchedule(schedule);
  if (!wrong.empty()) {
    return core().Over(Status(Code::kDataLoss, "the controller set a schedule, but " + wrong), out);
  }
  if (core().work_.reduces() && core().work_.group().kind == GroupKind::kTrain) {
    core().work_.Cancel(out);
    core().step_.outcome.reduced += core().now_ - core().work_.at();
    core().step_.idle_at = core().now_;
  }
  if (core().beside_.runs()) {
    core().beside_.End(core().now_);
    core().beside_.Drop(out);
  }
  schedule_ = schedule;
  self_ = static_cast<std::size_t>(
      std::find_if(schedule.members.begin(), schedule.members.end(),
                   [this](const GroupMember& m) { return m.incarnation == core().incarnation(); }) -
      schedule.members.begin());
  slots_ = outstanding_ = 0;
  // A step that waits begins anew. One that adds the inbox is about to end.
  due_ = core().aim() == Aim::kStep && !core().work_.applies();
  core().BeginHeld(out);
  Continue(out);
}

// The step in progress takes its slot, once there is a schedule.
void OverlapProtocol::TakeSlot(Actions* out) {
  if (!schedule_) return;
  due_ = false;
  ++slots_;
  ++outstanding_;
  RunSlots(out);
}

// The group of this worker in a slot.
Group OverlapProtocol::SlotGroup(std::uint64_t slot, const StaticMembers& members) const {
  const Schedule& schedule = *schedule_;
  Group group{.id = StaticGroupId(schedule.first, schedule.members.size(), slot, members),
              .kind = GroupKind::kTrain,
              .members = {},
              .iteration = core().step_.iteration,
              .reason = "static schedule, slot " + std::to_string(slot) + ", phase " +
                        std::to_string(slot % kStaticPhases)};
  StaticMembers ring = members;
  std::stable_sort(ring.begin(), ring.end(), [&](std::size_t a, std::size_t b) {
    return schedule.hosts[a] < schedule.hosts[b];
  });
  for (const std::size_t index : ring) {
    GroupMember member = schedule.members[index];
    member.weight = 1.0 / static_cast<double>(members.size());
    member.passive = false;
    group.members.push_back(std::move(member));
  }
  return group;
}

// Begins the first slot that is taken and not over. Those in which this worker has no group are
// over at once.
void OverlapProtocol::RunSlots(Actions* out) {
  if (!schedule_ || !core().is_member() || core().call_.cancelled() || core().aim() == Aim::kLeave)
    return;
  if (core().beside_.runs() || core().work_.reduces() || core().work_.fetches()) return;
  for (; outstanding_ > 0; --outstanding_) {
    const std::uint64_t slot = slots_ - outstanding_;
    const StaticMembers members = StaticGroup(schedule_->hosts, slot, self_);
    if (members.empty()) continue;
    Group group = SlotGroup(slot, members);
    if (group.id == kNoGroup) {
      return core().Over(Status(Code::kResourceExhausted, "the schedule's group ids are used up"),
                         out);
    }
    core().standing_.last_group = group.id;
    if (InBackground()) return BeginInBackground(std::move(group), out);
    return core().Begin(std::move(group), out);
  }
}

}  // namespace prd
