#include "tools/sim/schedule_book.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/static_schedule.h"
#include "engines/violation.h"

namespace prd::sim {
namespace {

[[noreturn]] void WrongGroup(Rank rank, const Group& group, const std::string& what) {
  throw Violation("schedule",
                  RankName(rank) + " begins group " + std::to_string(group.id) + ", " + what);
}

// The ranks that the schedule puts together with `rank`, ascending.
std::vector<Rank> Due(const ScheduleSet& set, std::uint64_t slot, Rank rank) {
  const auto self = std::lower_bound(set.members.begin(), set.members.end(), rank);
  std::vector<Rank> ranks;
  if (self == set.members.end() || *self != rank) return ranks;
  const auto place = static_cast<std::size_t>(self - set.members.begin());
  for (const std::size_t member : StaticGroup(set.hosts, slot, place)) {
    ranks.push_back(set.members[member]);
  }
  return ranks;
}

}  // namespace

void ScheduleBook::Begins(RunId run, Rank rank, const Group& group) {
  const std::map<GroupId, ScheduleSet>& known = schedules_[run];
  auto schedule = known.upper_bound(group.id);
  if (schedule == known.begin()) WrongGroup(rank, group, "and no schedule in the history has it");
  const ScheduleSet& set = (--schedule)->second;
  const std::uint64_t slot = (group.id - set.first) / set.members.size();

  std::vector<Rank> ranks;
  bool equal = true;
  Incarnation self = 0;
  for (const GroupMember& member : group.members) {
    ranks.push_back(member.rank);
    if (member.rank == rank) self = member.incarnation;
    equal = equal && member.weight == group.members[0].weight;
  }
  std::sort(ranks.begin(), ranks.end());
  if (ranks != Due(set, slot, rank))
    WrongGroup(rank, group, "which is another one in the schedule");
  if (!equal) WrongGroup(rank, group, "whose weights differ");

  Begun& own = begun_[{run, self}];
  if (own.first == set.first && own.slot >= slot) {
    WrongGroup(rank, group,
               "of slot " + std::to_string(slot) + ", after slot " + std::to_string(own.slot));
  }
  own = {.first = set.first, .slot = slot, .group = group.id};
  for (const GroupMember& member : group.members) {
    const auto other = begun_.find({run, member.incarnation});
    if (other == begun_.end() || other->second.first != set.first) continue;
    if (other->second.slot == slot && other->second.group != group.id) {
      WrongGroup(rank, group,
                 "while rank " + std::to_string(member.rank) + " has begun group " +
                     std::to_string(other->second.group) + " of the same slot");
    }
  }
}

}  // namespace prd::sim
