// Prague's static scheduler (Luo et al., ASPLOS 2020, section 4.2, Figures 9 and 10): a function of
// the workers, their hosts and the number of the synchronisation, which every worker computes for
// itself with the same result; so no message is needed, and no two groups of a slot overlap.
//
// Figure 10 gives the rules for 4 workers on each of 4 hosts. Here they are for any numbers. With m
// local workers (L.W. 0 to m-1, by rank) on each of H hosts (numbered by their lowest rank), slot s
// is of phase s mod 4:
//   0: the L.W. 0 of all hosts together. L.W. 1 does not synchronise. L.W. 2 with 3, 4 with 5, ...
//   1: all local workers of a host together.
//   2: L.W. 1 (L.W. 0 where it is alone) with that of the opposite host on the ring: host h with
//      h + H/2 (rounded down), for h < H/2 rounded down; with an odd H the last host's does not
//      synchronise. L.W. 0 with L.W. m-1, if m > 2. L.W. 2 does not; L.W. 3 with 4, 5 with 6, ...
//      up to m-2.
//   3: as phase 1.
// A worker that is left over, or would be alone, does not synchronise in that slot. Phases 0 and 1
// connect all workers. Pure.
#ifndef PRD_COMMON_BASE_STATIC_SCHEDULE_H_
#define PRD_COMMON_BASE_STATIC_SCHEDULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"

namespace prd {

inline constexpr int kStaticPhases = 4;

// Ids that one schedule has for itself: more than any job gets through.
inline constexpr GroupId kScheduleSpan = GroupId{1} << 44;

// Members as indices into `hosts`, ascending.
using StaticMembers = std::vector<std::size_t>;

namespace static_schedule_internal {

// The local workers of each host, hosts in the order of their lowest workers.
inline std::vector<StaticMembers> ByHost(std::span<const std::int32_t> hosts) {
  std::map<std::int32_t, std::size_t> order;
  std::vector<StaticMembers> locals;
  for (std::size_t worker = 0; worker < hosts.size(); ++worker) {
    const auto [at, first] = order.emplace(hosts[worker], locals.size());
    if (first) locals.emplace_back();
    locals[at->second].push_back(worker);
  }
  return locals;
}

class Slot {
 public:
  void Add(StaticMembers members) {
    if (members.size() < 2) return;
    std::sort(members.begin(), members.end());
    groups_.push_back(std::move(members));
  }
  // locals[first] with the next, and so on, while both are below `end`.
  void AddPairs(const StaticMembers& locals, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i + 1 < end; i += 2) Add({locals[i], locals[i + 1]});
  }
  std::vector<StaticMembers> Take() {
    std::sort(groups_.begin(), groups_.end());
    return std::move(groups_);
  }

 private:
  std::vector<StaticMembers> groups_;
};

// Phase 0.
inline void AddHeads(const std::vector<StaticMembers>& hosts, Slot* slot) {
  StaticMembers heads;
  for (const StaticMembers& locals : hosts) {
    heads.push_back(locals.front());
    slot->AddPairs(locals, 2, locals.size());
  }
  slot->Add(std::move(heads));
}

// Phase 2.
inline void AddOpposites(const std::vector<StaticMembers>& hosts, Slot* slot) {
  const auto second = [](const StaticMembers& locals) {
    return locals[std::min<std::size_t>(1, locals.size() - 1)];
  };
  const std::size_t half = hosts.size() / 2;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const StaticMembers& locals = hosts[h];
    if (h < half) slot->Add({second(locals), second(hosts[h + half])});
    if (locals.size() <= 2) continue;
    slot->Add({locals.front(), locals.back()});
    slot->AddPairs(locals, 3, locals.size() - 1);
  }
}

}  // namespace static_schedule_internal

// The groups of a slot, by their lowest members. `hosts` says for each worker, in the order of
// ranks, on which host it is: equal numbers share one. O(workers).
inline std::vector<StaticMembers> StaticGroups(std::span<const std::int32_t> hosts,
                                               std::uint64_t slot) {
  const std::vector<StaticMembers> by_host = static_schedule_internal::ByHost(hosts);
  static_schedule_internal::Slot groups;
  switch (slot % kStaticPhases) {
    case 0:
      static_schedule_internal::AddHeads(by_host, &groups);
      break;
    case 2:
      static_schedule_internal::AddOpposites(by_host, &groups);
      break;
    default:
      for (const StaticMembers& locals : by_host) groups.Add(locals);
  }
  return groups.Take();
}

// The group of one worker in a slot; empty: it does not synchronise. REQUIRES: self <
// hosts.size().
inline StaticMembers StaticGroup(std::span<const std::int32_t> hosts, std::uint64_t slot,
                                 std::size_t self) {
  PRD_CHECK(self < hosts.size());
  for (StaticMembers& members : StaticGroups(hosts, slot)) {
    if (std::binary_search(members.begin(), members.end(), self)) return std::move(members);
  }
  return {};
}

// The id of the group with these members. The ids of a worker's groups ascend with the slots.
// kNoGroup when the schedule's span is used up.
inline GroupId StaticGroupId(GroupId first, std::size_t workers, std::uint64_t slot,
                             const StaticMembers& members) {
  PRD_CHECK(!members.empty() && members.front() < workers);
  if (slot >= kScheduleSpan / workers) return kNoGroup;
  return first + slot * workers + members.front();
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_STATIC_SCHEDULE_H_
