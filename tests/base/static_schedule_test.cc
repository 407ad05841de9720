// The static schedule for any numbers of hosts and workers; that it is the paper's for 4 times 4
// stands in tests/engines/prague_paper_test.cc.
#include "common/base/static_schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "common/base/prng.h"
#include "gtest/gtest.h"

namespace prd {
namespace {

using Hosts = std::vector<std::int32_t>;

// 1 to 12 hosts with 1 to 9 workers each, whose ranks are mixed, under numbers of any kind.
Hosts RandomHosts(Prng* random) {
  Hosts hosts;
  const auto count = static_cast<std::int32_t>(1 + random->Below(12));
  for (std::int32_t host = 0; host < count; ++host) {
    hosts.insert(hosts.end(), 1 + random->Below(9), host * 7 % 13);
  }
  const bool mixed = random->Below(2) == 0;
  for (std::size_t i = hosts.size(); mixed && i > 1; --i) {
    std::swap(hosts[i - 1], hosts[random->Below(i)]);
  }
  return hosts;
}

bool Connected(std::size_t workers, const std::vector<StaticMembers>& groups) {
  std::vector<std::size_t> root(workers);
  std::iota(root.begin(), root.end(), 0u);
  const std::function<std::size_t(std::size_t)> find = [&](std::size_t i) {
    return root[i] == i ? i : find(root[i]);
  };
  for (const StaticMembers& group : groups) {
    for (const std::size_t member : group) root[find(member)] = find(group.front());
  }
  for (std::size_t i = 0; i < workers; ++i) {
    if (find(i) != find(0)) return false;
  }
  return true;
}

template <typename Check>
void ForRandomHosts(const Check& check) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Prng random(seed);
    const Hosts hosts = RandomHosts(&random);
    SCOPED_TRACE("seed " + std::to_string(seed));
    check(hosts);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(StaticScheduleTest, EveryWorkerSeesTheSameGroups) {
  ForRandomHosts([](const Hosts& hosts) {
    for (std::uint64_t slot = 0; slot < kStaticPhases; ++slot) {
      std::set<StaticMembers> seen;
      for (std::size_t self = 0; self < hosts.size(); ++self) {
        const StaticMembers group = StaticGroup(hosts, slot, self);
        if (group.empty()) continue;
        ASSERT_TRUE(std::binary_search(group.begin(), group.end(), self));
        for (const std::size_t other : group) ASSERT_EQ(StaticGroup(hosts, slot, other), group);
        seen.insert(group);
      }
      const std::vector<StaticMembers> all = StaticGroups(hosts, slot);
      ASSERT_EQ(seen, std::set<StaticMembers>(all.begin(), all.end()));
    }
  });
}

TEST(StaticScheduleTest, NoTwoGroupsOfASlotShareAWorker) {
  ForRandomHosts([](const Hosts& hosts) {
    for (std::uint64_t slot = 0; slot < kStaticPhases; ++slot) {
      std::set<std::size_t> taken;
      for (const StaticMembers& group : StaticGroups(hosts, slot)) {
        ASSERT_GE(group.size(), 2u);
        ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
        for (const std::size_t member : group) {
          ASSERT_LT(member, hosts.size());
          ASSERT_TRUE(taken.insert(member).second) << "slot " << slot;
        }
      }
    }
  });
}

TEST(StaticScheduleTest, FourSlotsConnectAllWorkers) {
  ForRandomHosts([](const Hosts& hosts) {
    for (std::uint64_t start = 0; start < kStaticPhases; ++start) {
      std::vector<StaticMembers> groups;
      for (std::uint64_t slot = start; slot < start + kStaticPhases; ++slot) {
        for (const StaticMembers& group : StaticGroups(hosts, slot)) groups.push_back(group);
      }
      ASSERT_TRUE(Connected(hosts.size(), groups));
    }
  });
}

TEST(StaticScheduleTest, TrafficBetweenHostsIsTheHeadsAndTheOpposites) {
  ForRandomHosts([](const Hosts& hosts) {
    for (std::uint64_t slot = 0; slot < kStaticPhases; ++slot) {
      std::map<std::int32_t, int> crossing;
      for (const StaticMembers& group : StaticGroups(hosts, slot)) {
        std::set<std::int32_t> spans;
        for (const std::size_t member : group) spans.insert(hosts[member]);
        if (spans.size() == 1) continue;
        ASSERT_EQ(spans.size(), group.size()) << "one worker of each host";
        ASSERT_TRUE(slot == 0 || (slot == 2 && group.size() == 2));
        for (const std::int32_t host : spans) ASSERT_EQ(++crossing[host], 1);
      }
      const auto all =
          static_cast<std::size_t>(std::set<std::int32_t>(hosts.begin(), hosts.end()).size());
      const std::size_t expected = slot == 0 && all > 1 ? all : slot == 2 ? all / 2 * 2 : 0;
      ASSERT_EQ(crossing.size(), expected);
    }
  });
}

TEST(StaticScheduleTest, AWorkersIdsAscendAndAreTheGroupsOwn) {
  ForRandomHosts([](const Hosts& hosts) {
    constexpr GroupId kFirst = 17;
    std::map<GroupId, std::pair<std::uint64_t, StaticMembers>> owner;
    for (std::size_t self = 0; self < hosts.size(); ++self) {
      GroupId last = kFirst - 1;
      for (std::uint64_t slot = 0; slot < 12; ++slot) {
        const StaticMembers group = StaticGroup(hosts, slot, self);
        if (group.empty()) continue;
        const GroupId id = StaticGroupId(kFirst, hosts.size(), slot, group);
        ASSERT_GT(id, last);
        ASSERT_LT(id, kFirst + kScheduleSpan);
        last = id;
        const auto known = owner.emplace(id, std::pair(slot, group)).first;
        ASSERT_EQ(known->second, std::pair(slot, group));
      }
    }
  });
}

TEST(StaticScheduleTest, TheSpanEnds) {
  const StaticMembers group = {0, 2};
  const std::uint64_t slots = kScheduleSpan / 3;
  EXPECT_EQ(StaticGroupId(1, 3, slots - 1, group), 1 + (slots - 1) * 3);
  EXPECT_LE(StaticGroupId(1, 3, slots - 1, {2}), kScheduleSpan);
  EXPECT_EQ(StaticGroupId(1, 3, slots, group), kNoGroup);
}

TEST(StaticScheduleTest, OneWorkerAloneReducesWithNobody) {
  for (std::uint64_t slot = 0; slot < kStaticPhases; ++slot) {
    EXPECT_TRUE(StaticGroups(Hosts{5}, slot).empty());
  }
}

}  // namespace
}  // namespace prd
