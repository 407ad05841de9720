// FollowsSchedule: this worker's groups from the newest Schedule, slot by slot
// (common/base/static_schedule.h). No message says that they begin or end.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "worker/core/overlap_protocol.h"

namespace prd {

// What is wrong with the schedule, or empty.
std::string OverlapProtocol::CheckSchedule(const Schedule& schedule) const {
  if (schedule.first <= ctx().standing.last_group) return "its ids are not above those before";
  if (schedule.first > std::numeric_limits<GroupId>::max() - kScheduleSpan) {
    return "its ids are out of range";
  }
  const std::size_t count = schedule.members.size();
  if (count == 0 || count > ctx().max_members()) {
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
  if (!members.contains(ctx().link.incarnation())) return "this worker is not in it";
  return {};
}

void OverlapProtocol::OnSchedule(const Schedule& schedule, Actions* out) {
  if (ctx().aim() == Aim::kLeave) return;
  const std::string wrong = CheckSchedule(schedule);
  if (!wrong.empty()) {
    return ctx().Over(Status(Code::kDataLoss, "the controller set a schedule, but " + wrong), out);
  }
  if (ctx().work.reduces() && ctx().work.group().kind == GroupKind::kTrain) {
    ctx().work.Cancel(out);
    ctx().step.outcome.reduced += ctx().now - ctx().work.at();
    ctx().step.idle_at = ctx().now;
  }
  if (ctx().beside.runs()) {
    ctx().beside.End(ctx().now);
    ctx().beside.Drop(out);
  }
  schedule_ = schedule;
  self_ = static_cast<std::size_t>(std::find_if(schedule.members.begin(), schedule.members.end(),
                                                [this](const GroupMember& m) {
                                                  return m.incarnation == ctx().link.incarnation();
                                                }) -
                                   schedule.members.begin());
  slots_ = outstanding_ = 0;
  // A step that waits takes a slot again. A step that adds the inbox is about to end.
  due_ = ctx().aim() == Aim::kStep && !ctx().work.applies();
  ctx().BeginHeld(out);
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
              .iteration = ctx().step.iteration,
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

// Begins the first slot that is taken and not over. Slots without a group of this worker are over
// at once.
void OverlapProtocol::RunSlots(Actions* out) {
  if (!schedule_ || !ctx().is_member() || ctx().call.cancelled() || ctx().aim() == Aim::kLeave) {
    return;
  }
  if (ctx().beside.runs() || ctx().work.reduces() || ctx().work.fetches()) return;
  if (HoldsSlots()) return;
  for (; outstanding_ > 0; --outstanding_) {
    const std::uint64_t slot = slots_ - outstanding_;
    const StaticMembers members = StaticGroup(schedule_->hosts, slot, self_);
    if (members.empty()) continue;
    Group group = SlotGroup(slot, members);
    if (group.id == kNoGroup) {
      return ctx().Over(Status(Code::kResourceExhausted, "the schedule's group ids are used up"),
                        out);
    }
    if (InBackground()) return BeginInBackground(std::move(group), out);
    return ctx().Begin(std::move(group), out);
  }
}

}  // namespace prd
