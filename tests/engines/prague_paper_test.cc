// Sentences of Prague (Luo et al., ASPLOS 2020), one test each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/static_schedule.h"
#include "engines/prague/prague.h"

namespace prd::prague_paper_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Generator = PragueOptions::Generator;

// Workers in a Group Generator's hands; what it forms runs until Finish.
class Cluster {
 public:
  Cluster(const PragueOptions& options, int workers, int per_host = 1'000) : engine_(options) {
    for (Rank rank = 0; rank < workers; ++rank) {
      Step(JoinedEvent{.rank = rank, .host = "host" + std::to_string(rank / per_host)});
    }
  }

  // The groups that this request draws, formed or not.
  std::vector<std::vector<Rank>> Ask(Rank rank) {
    const GroupId before = next_group_;
    Step(ReadyEvent{.rank = rank, .ready = {.iteration = ++iterations_[rank]}});
    std::vector<std::vector<Rank>> drawn;
    for (GroupId id = before; id < next_group_; ++id) drawn.push_back(MembersOf(id));
    return drawn;
  }
  // Workers that have not asked do so, and all are through with it.
  void Finish(GroupId id) {
    const GroupFormed group = running_.at(id);
    for (const GroupShare& member : group.members) {
      if (!engine_.Explain(now_, member.rank).empty()) continue;
      Step(ReadyEvent{.rank = member.rank, .ready = {.iteration = ++iterations_[member.rank]}});
    }
    running_.erase(id);
    for (const GroupShare& member : group.members) {
      Step(FinishedEvent{.rank = member.rank, .group = id, .ok = true});
    }
    Step(EndedEvent{.group = id, .ok = true});
  }
  void FinishAll() {
    while (!running_.empty()) Finish(running_.begin()->first);
  }

  const std::map<GroupId, GroupFormed>& running() const { return running_; }
  const GroupFormed& newest() const { return newest_; }
  const Prague& engine() const { return engine_; }
  std::string Explain(Rank rank) const { return engine_.Explain(now_, rank); }
  std::vector<Rank> MembersOf(GroupId id) const {
    std::vector<Rank> ranks;
    const auto found = running_.find(id);
    if (found != running_.end()) {
      for (const GroupShare& member : found->second.members) ranks.push_back(member.rank);
    }
    for (const Engine::Drawn& drawn : engine_.DrawnGroups()) {
      if (drawn.id != id) continue;
      for (const GroupShare& member : drawn.members) ranks.push_back(member.rank);
    }
    return ranks;
  }

 private:
  void Step(const Event& event) {
    Effects effects;
    ++now_.ns;
    engine_.Step(now_, event, &next_group_, &effects);
    for (const GroupFormed& group : GroupsOf(effects)) running_[group.id] = newest_ = group;
  }

  Prague engine_;
  Instant now_;
  GroupId next_group_ = 1;
  std::map<Rank, Iteration> iterations_;
  std::map<GroupId, GroupFormed> running_;
  GroupFormed newest_;
};

std::set<Rank> Union(const std::vector<std::vector<Rank>>& groups) {
  std::set<Rank> all;
  for (const std::vector<Rank>& group : groups) all.insert(group.begin(), group.end());
  return all;
}

bool Share(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](Rank rank) { return std::find(b.begin(), b.end(), rank) != b.end(); });
}

PragueOptions Random(std::int64_t seed) {
  return {.generator = Generator::kRandom, .request_ahead = false, .seed = seed};
}

// Section 3.2: a group's entries are 1/|G|. Section 7.1.3: "In random GG, the group size is 3."
TEST(PraguePaperTest, PartialAllReduceIsTheMeanOfItsMembers) {
  Cluster cluster(Random(1), 9);
  ASSERT_THAT(cluster.Ask(0), ElementsAre(SizeIs(3)));
  for (const GroupShare& member : cluster.newest().members) EXPECT_EQ(member.weight, 1.0 / 3);
}

// Section 4.1, Figure 8: the group of W7's request overlaps that of W0's: it is stored in a pending
// group queue, and performed when the locks of the first are released. With the group [0, 4, 5] of
// W0 and [4, 5, 7] of W7, or any other two that share workers.
TEST(PraguePaperTest, AnOverlappingGroupIsPendingUntilTheLocksAreReleased) {
  int overlapping = 0;
  int apart = 0;
  for (std::int64_t seed = 1; seed <= 200; ++seed) {
    Cluster cluster(Random(seed), 9);
    const std::vector<Rank> first = cluster.Ask(0).at(0);
    const std::vector<Rank> second = cluster.Ask(7).at(0);
    EXPECT_THAT(cluster.running(), testing::Contains(testing::Key(1)));
    EXPECT_EQ(cluster.running().contains(2), !Share(first, second));
    if (!Share(first, second)) {
      ++apart;  // the two execute concurrently (section 3.2)
      EXPECT_FALSE(cluster.newest().conflict);
      continue;
    }
    ++overlapping;
    ASSERT_THAT(cluster.engine().DrawnGroups(), SizeIs(1));
    EXPECT_TRUE(cluster.engine().DrawnGroups()[0].pending);
    EXPECT_THAT(cluster.Explain(7), HasSubstr("group 1"));
    cluster.Finish(1);
    ASSERT_TRUE(cluster.running().contains(2));
    const GroupFormed& form = cluster.running().at(2);
    EXPECT_TRUE(form.conflict);
    EXPECT_THAT(form.reason, HasSubstr("drawn for rank 7; waited behind group 1"));
  }
  EXPECT_GT(overlapping, 50);
  EXPECT_GT(apart, 20);
}

// Figure 7, step 3: each worker "can randomly generate a group ... as long as it contains itself".
TEST(PraguePaperTest, ARandomGroupHasItsCallerAndEverybodyElseEquallyOften) {
  std::map<Rank, int> times;
  for (std::int64_t seed = 1; seed <= 800; ++seed) {
    Cluster cluster(Random(seed), 9);
    const std::vector<Rank> group = cluster.Ask(4).at(0);
    EXPECT_EQ(std::set<Rank>(group.begin(), group.end()).size(), 3u);
    for (const Rank rank : group) ++times[rank];
  }
  EXPECT_EQ(times[4], 800);
  for (Rank rank = 0; rank < 9; ++rank) {
    if (rank == 4) continue;
    EXPECT_NEAR(times[rank], 200, 60) << rank;  // 2 of 8, five standard deviations
  }
}

// Section 3.1: a conflict is that two workers both select a third; "they have to be executed
// sequentially", in the order in which the lock is acquired.
TEST(PraguePaperTest, TwoWorkersThatSelectAThirdAreServedOneAfterTheOther) {
  for (std::int64_t seed = 1; seed <= 50; ++seed) {
    PragueOptions options = Random(seed);
    options.group_size = 2;
    Cluster cluster(options, 3);
    const std::vector<Rank> first = cluster.Ask(0).at(0);
    const std::vector<Rank> second = cluster.Ask(1).at(0);  // of three, any two pairs share one
    ASSERT_TRUE(Share(first, second));
    EXPECT_THAT(cluster.running(), SizeIs(1));
    cluster.Finish(1);
    EXPECT_TRUE(cluster.running().contains(2)) << "the order of the requests";
  }
}

// Section 4.1: "each worker can request a group at the beginning of an iteration".
TEST(PraguePaperTest, AGroupCanBeThereBeforeItsWorkerAsks) {
  PragueOptions options = Random(1);
  options.request_ahead = true;
  Prague engine(options);
  GroupId next_group = 1;
  Effects effects;
  for (Rank rank = 0; rank < 9; ++rank) {
    engine.Step({}, JoinedEvent{.rank = rank, .host = "h"}, &next_group, &effects);
  }
  EXPECT_THAT(effects, IsEmpty()) << "not of the first few";
  ASSERT_TRUE(engine.NextDeadline());
  engine.Step(*engine.NextDeadline(), DeadlineEvent{}, &next_group, &effects);
  EXPECT_EQ(next_group, 10u) << "one for each";
  EXPECT_EQ(engine.NextDeadline(), std::nullopt);
}

// Figure 9 for 16 workers on 4 hosts, by the rules of Figure 10: phase 0 joins the local workers 0
// of all hosts ("W0, W4, W8 and W12 ... in the same group in the (4k)-th iteration", section 4.2)
// and L.W. 2 with 3; phases 1 and 3 all of a host; phase 2 L.W. 0 with 3, and L.W. 1 with that of
// the opposite host; "W2, W6, W10 and W14 do not participate in any group in the (4k+2)-th".
TEST(PraguePaperTest, TheStaticScheduleIsThatOfFigure9) {
  std::vector<std::int32_t> hosts;
  for (int worker = 0; worker < 16; ++worker) hosts.push_back(worker / 4);
  const std::vector<StaticMembers> local = {
      {0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}};
  const std::vector<std::vector<StaticMembers>> phases = {
      {{0, 4, 8, 12}, {2, 3}, {6, 7}, {10, 11}, {14, 15}},
      local,
      {{0, 3}, {1, 9}, {4, 7}, {5, 13}, {8, 11}, {12, 15}},
      local};
  for (std::uint64_t slot = 0; slot < 12; ++slot) {
    EXPECT_EQ(StaticGroups(hosts, slot), phases[slot % 4]) << "cycle length 4";
  }
}

// Section 5.1, Figure 11: W0's request divides all four workers; W3's then finds its group in its
// buffer, and is in no conflict.
TEST(PraguePaperTest, AGlobalDivisionGivesEveryIdleWorkerOneGroup) {
  std::set<std::vector<Rank>> partners;
  for (std::int64_t seed = 1; seed <= 60; ++seed) {
    Cluster cluster({.group_size = 2, .seed = seed}, 4);
    const std::vector<std::vector<Rank>> groups = cluster.Ask(0);
    ASSERT_THAT(groups, SizeIs(2));
    EXPECT_THAT(groups, Each(SizeIs(2)));
    EXPECT_THAT(Union(groups), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(cluster.running(), SizeIs(2)) << "they do not share a worker";
    partners.insert(Share(groups[0], {0}) ? groups[0] : groups[1]);
    EXPECT_THAT(cluster.Ask(3), IsEmpty()) << "its buffer was not empty";
    for (const auto& [id, group] : cluster.running()) EXPECT_FALSE(group.conflict);
  }
  EXPECT_THAT(partners, SizeIs(3)) << "a random partition";
}

// Section 5.1: "a GD only generates groups for the current 'idle' workers (including the caller)
// that are not assigned to any group": "for just a subset of workers".
TEST(PraguePaperTest, ADivisionLeavesThoseInGroupsAlone) {
  Cluster cluster({.group_size = 2}, 6);
  const std::vector<std::vector<Rank>> first = cluster.Ask(0);
  const std::vector<Rank> done = first.at(0);
  const std::vector<Rank> other = first.at(1);
  cluster.Finish(1);
  cluster.Finish(2);
  std::set<Rank> idle(done.begin(), done.end());
  idle.insert(other.begin(), other.end());
  EXPECT_EQ(Union(cluster.Ask(done.front())), idle);
}

// Section 5.2, Figure 12: "two groups are inserted into the GB of each worker", "one is mainly
// among Head Workers in different nodes ..., the other is purely among local workers"; workers that
// are not heads are "assigned to groups with only local workers in the same node".
TEST(PraguePaperTest, InterIntraHasOneHeadWorkerOfEachHost) {
  for (std::int64_t seed = 1; seed <= 60; ++seed) {
    Cluster cluster({.group_size = 2, .seed = seed}, 16, 4);
    const std::vector<std::vector<Rank>> groups = cluster.Ask(5);
    std::map<Rank, int> count;
    std::set<Rank> heads;
    int intra = 0;
    for (const std::vector<Rank>& group : groups) {
      std::set<Rank> hosts;
      for (const Rank rank : group) {
        ++count[rank];
        hosts.insert(rank / 4);
      }
      if (hosts.size() > 1) {
        EXPECT_EQ(hosts.size(), group.size());
        heads.insert(group.begin(), group.end());
      }
      intra += hosts.size() == 1 && group.size() == 4 ? 1 : 0;
    }
    EXPECT_THAT(heads, SizeIs(4));
    std::set<Rank> of_hosts;
    for (const Rank head : heads) of_hosts.insert(head / 4);
    EXPECT_THAT(of_hosts, SizeIs(4)) << "one head on each host";
    EXPECT_EQ(intra, 4) << "a P-Reduce among all the workers in the same node";
    EXPECT_THAT(count, SizeIs(16));
    for (const auto& [rank, times] : count) EXPECT_EQ(times, 2) << rank;
  }
}

// The same: "Following the Inter phase": nobody's intra group runs before its inter group is done.
TEST(PraguePaperTest, TheIntraPhaseFollowsTheInterPhase) {
  Cluster cluster({.group_size = 2}, 8, 4);
  cluster.Ask(0);
  std::map<Rank, std::vector<bool>> across;  // by rank, in the order in which they run
  while (!cluster.running().empty()) {
    const auto [id, group] = *cluster.running().begin();
    for (const GroupShare& member : group.members) {
      across[member.rank].push_back(group.reason.find("inter:") != std::string::npos);
    }
    cluster.Finish(id);
    if (across.size() == 8 && cluster.engine().DrawnGroups().empty()) break;
  }
  for (const auto& [rank, order] : across) EXPECT_TRUE(order.front()) << rank;
}

// Makes `slow` fall behind by `requests`, on a cluster of pairs with no overlap of groups: the
// workers in its pair and it keep their group while the others go on.
GroupId FallBehind(Cluster* cluster, Rank slow, std::int64_t requests) {
  cluster->Ask((slow + 1) % 4);
  GroupId held = kNoGroup;
  for (const auto& [id, group] : cluster->running()) {
    const std::vector<Rank> members = cluster->MembersOf(id);
    if (Share(members, {slow})) held = id;
  }
  const std::vector<Rank> pair = cluster->MembersOf(held);
  Rank fast = 0;
  while (Share(pair, {fast})) ++fast;
  for (std::int64_t i = 0; i < requests; ++i) {
    if (cluster->Explain(fast).empty()) cluster->Ask(fast);
    for (auto it = cluster->running().begin(); it != cluster->running().end();) {
      const GroupId id = (it++)->first;
      if (id != held) cluster->Finish(id);
    }
  }
  return held;
}

// Section 5.3, Figure 13: "c_i - c_w < C_thres": a division by a fast worker takes no slow one in;
// one by the slow worker takes in everybody whose buffer is empty.
TEST(PraguePaperTest, AFastWorkersDivisionExcludesTheSlowAndASlowOnesTakesAll) {
  Cluster cluster({.group_size = 2, .slowdown_threshold = 3, .seed = 1}, 4);
  const GroupId held = FallBehind(&cluster, 3, 4);
  const std::vector<Rank> slow = cluster.MembersOf(held);
  cluster.Finish(held);
  std::set<Rank> fast = {0, 1, 2, 3};
  for (const Rank rank : slow) fast.erase(rank);
  // The fast ones have requested 4 groups, and 5 with this one; the slow ones 1.
  EXPECT_EQ(Union(cluster.Ask(*fast.begin())), fast);
  EXPECT_THAT(cluster.newest().reason, HasSubstr("excluded as slow"));
  EXPECT_THAT(cluster.newest().reason, HasSubstr("(c=5)"));
  cluster.FinishAll();
  EXPECT_THAT(Union(cluster.Ask(slow.front())), ElementsAre(0, 1, 2, 3));
}

// The same: "W2 is also excluded because its group buffer is not empty"; the slow worker leaves it
// out, too.
TEST(PraguePaperTest, WhoHasAGroupIsInNobodysDivision) {
  Cluster cluster({.group_size = 2, .slowdown_threshold = 3, .seed = 1}, 4);
  const GroupId held = FallBehind(&cluster, 3, 4);
  const std::vector<Rank> slow = cluster.MembersOf(held);
  cluster.Finish(held);
  std::set<Rank> fast = {0, 1, 2, 3};
  for (const Rank rank : slow) fast.erase(rank);
  cluster.Ask(*fast.begin());  // the fast ones have a group that runs
  const std::set<Rank> rest(slow.begin(), slow.end());
  EXPECT_EQ(Union(cluster.Ask(slow.front())), rest);
}

// The same rule at its edge: a difference of C_thres is too much, one less is not.
TEST(PraguePaperTest, TheThresholdIsStrict) {
  for (const std::int64_t threshold : {4, 5}) {
    Cluster cluster({.group_size = 2, .slowdown_threshold = threshold, .seed = 1}, 4);
    const GroupId held = FallBehind(&cluster, 3, 4);
    const std::vector<Rank> slow = cluster.MembersOf(held);
    cluster.Finish(held);
    Rank fast = 0;
    while (Share(slow, {fast})) ++fast;
    const std::set<Rank> divided = Union(cluster.Ask(fast));  // c = 5 beside 1
    EXPECT_THAT(divided, SizeIs(threshold == 4 ? 2 : 4));
  }
}

}  // namespace
}  // namespace prd::prague_paper_test
