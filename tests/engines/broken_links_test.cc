// Engines that choose who is in a group, or who are neighbours, where some workers do not reach
// each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine_watch.h"
#include "engines/hop/topology.h"
#include "engines/prague/division.h"
#include "engines/registry.h"
#include "tests/engines/engine_driver.h"

namespace prd::broken_links_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// An engine, event by event, held to its invariants.
class World {
 public:
  World(const EngineOptions& options, Rank workers)
      : engine_(std::make_unique<EngineWatch>(MakeEngine(options), options)) {
    for (Rank rank = 0; rank < workers; ++rank) Step(JoinedEvent{.rank = rank, .host = "h"});
  }
  void Step(const Event& event) {
    effects_.clear();
    engine_->Step(++now_, event, &next_, &effects_);
  }
  void Break(Rank a, Rank b) { Step(LinkEvent{.a = a, .b = b, .works = false}); }
  void Mend(Rank a, Rank b) { Step(LinkEvent{.a = a, .b = b, .works = true}); }
  void BeReady(Rank rank) {
    Step(ReadyEvent{.rank = rank, .ready = {.iteration = ++iterations_[rank]}});
  }
  void Leave(Rank rank) { Step(LeftEvent{.rank = rank}); }
  void PassDeadline() { Step(DeadlineEvent{}); }
  void Through(const GroupFormed& group) {
    for (const GroupShare& share : group.members) {
      Step(FinishedEvent{.rank = share.rank, .group = group.id, .ok = true});
    }
    Step(EndedEvent{.group = group.id, .ok = true});
  }
  // Groups that the last event formed: their members, ascending.
  std::vector<std::vector<Rank>> Formed() const {
    std::vector<std::vector<Rank>> all;
    for (const GroupFormed& group : GroupsOf(effects_)) {
      std::vector<Rank>& ranks = all.emplace_back();
      for (const GroupShare& share : group.members) ranks.push_back(share.rank);
      std::sort(ranks.begin(), ranks.end());
    }
    return all;
  }
  std::string Reason() const {
    for (const Effect& effect : effects_) {
      if (const auto* group = std::get_if<GroupFormed>(&effect)) return group->reason;
      if (const auto* answer = std::get_if<QueryAnswered>(&effect)) return answer->reason;
    }
    return "";
  }
  const Effects& effects() const { return effects_; }
  GroupFormed Group() const { return GroupsOf(effects_).at(0); }
  std::string Explain(Rank rank) const { return engine_->Explain(now_, rank); }

 private:
  struct Clock {
    Instant at;
    Instant operator++() { return at = at + kMillisecond; }
    operator Instant() const { return at; }  // NOLINT
  };
  std::unique_ptr<EngineWatch> engine_;
  Clock now_;
  GroupId next_ = 1;
  Effects effects_;
  std::map<Rank, Iteration> iterations_;
};

TEST(PReduceLinksTest, TheNextWhoReachesTheFirstTakesItsPlace) {
  World world(PReduceOptions{.group_size = 2}, 4);
  world.Break(1, 2);
  world.BeReady(1);
  world.BeReady(2);
  EXPECT_THAT(world.Formed(), IsEmpty());
  EXPECT_EQ(world.Explain(1), "waiting: 1 of 2 ready that reach each other");
  world.BeReady(3);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(1, 3)));
  EXPECT_EQ(world.Reason(), "2 of 2 ready that reach each other");
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 2)));
}

TEST(PReduceLinksTest, OnceTheLinkWorksWhoWaitsIsGrouped) {
  World world(PReduceOptions{.group_size = 2}, 4);
  world.Break(1, 2);
  world.BeReady(1);
  world.BeReady(2);
  world.Mend(1, 2);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(1, 2)));
}

TEST(PReduceLinksTest, WhoReachesNobodyTrainsAlone) {
  World world(PReduceOptions{.group_size = 2}, 3);
  world.Break(0, 2);
  world.BeReady(2);
  EXPECT_THAT(world.Formed(), IsEmpty()) << "rank 1 computes, and will come";
  world.Break(1, 2);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(2)));
  EXPECT_EQ(world.Reason(), "rank 2 reaches nobody: trains alone");
  EXPECT_EQ(world.Group().members[0].weight, 1);
}

TEST(PReduceLinksTest, FewerAreAGroupWhenNobodyElseCanCome) {
  World world(PReduceOptions{.group_size = 3}, 4);
  world.Break(1, 2);
  world.Break(1, 3);
  world.BeReady(1);
  world.BeReady(2);
  EXPECT_THAT(world.Formed(), IsEmpty());
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(world.Reason(), "2 of 3: nobody else whom rank 1 reaches");
  world.Leave(1);
  EXPECT_THAT(world.Formed(), IsEmpty());
  EXPECT_EQ(world.Explain(2), "waiting: 1 of 3 ready") << "the links went with rank 1";
}

// Rank 0 reaches ranks 1 and 2 alone, which are taken by others whenever they come.
TEST(PReduceLinksTest, NobodyIsPassedOverForEver) {
  World world(PReduceOptions{.group_size = 3}, 6);
  for (const Rank other : {3, 4, 5}) world.Break(0, other);
  world.BeReady(0);
  int passed = 0;
  for (; passed < 10; ++passed) {
    world.BeReady(3);
    world.BeReady(4);
    if (world.Formed().empty()) world.BeReady(1);
    ASSERT_THAT(world.Formed(), SizeIs(1));
    const GroupFormed group = world.Group();
    if (world.Formed()[0] != std::vector<Rank>{1, 3, 4}) break;
    world.Through(group);
  }
  EXPECT_EQ(passed, 2) << "as many groups as take all six once";
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(world.Reason(), "2 of 3: rank 0 was passed over 2 times");
}

TEST(AdPsgdLinksTest, DrawsAmongNeighboursThatItReaches) {
  World world(AdPsgdOptions{.graph = {.kind = Graph::Kind::kRing, .edges = {}}}, 4);
  world.Break(0, 1);
  for (int i = 0; i < 20; ++i) {
    world.BeReady(0);
    ASSERT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 3)));
    world.Through(world.Group());
  }
  world.Break(0, 3);
  world.BeReady(0);
  EXPECT_EQ(world.Reason(), "reaches no neighbour: goes on alone");
  world.Mend(0, 1);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 1)));
}

TEST(AdPsgdLinksTest, APairWhoseTurnHasNotComeIsDrawnAgain) {
  World world(
      AdPsgdOptions{.graph = {.kind = Graph::Kind::kEdges, .edges = {{0, 1}, {1, 2}, {2, 3}}}}, 4);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 1)));
  const GroupFormed first = world.Group();
  world.Break(2, 3);
  world.BeReady(2);  // draws rank 1, which is busy
  EXPECT_THAT(world.Formed(), IsEmpty());
  world.Mend(2, 3);
  world.Break(1, 2);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(2, 3)));
  EXPECT_THAT(world.Reason(), HasSubstr("again, as the link of group 2 is broken"));
  world.Through(first);
}

TEST(PragueLinksTest, ARandomGroupHasWhoReachesAll) {
  const PragueOptions options{
      .generator = PragueOptions::Generator::kRandom, .group_size = 3, .request_ahead = false};
  World world(options, 5);
  for (const Rank other : {1, 2}) world.Break(0, other);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 3, 4)));
  world.Through(world.Group());
  world.Break(0, 3);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 4)));
  EXPECT_THAT(world.Reason(), HasSubstr("no others reach all of them"));
  world.Through(world.Group());
  world.Break(0, 4);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(world.Reason(), HasSubstr("reaches nobody: trains alone"));
}

TEST(PragueLinksTest, ADivisionPartsWhoDoNotReachEachOther) {
  const PragueOptions options{.generator = PragueOptions::Generator::kSmart, .group_size = 2};
  World world(options, 2);
  world.Break(0, 1);
  world.BeReady(0);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(world.Reason(), HasSubstr("alone: reaches nobody who is idle"));
  world.Through(world.Group());
  world.Mend(0, 1);
  world.BeReady(1);
  EXPECT_THAT(world.Formed(), ElementsAre(ElementsAre(0, 1)));
}

TEST(PragueLinksTest, PartingMovesWhoItCan) {
  BrokenLinks broken;
  broken.Set(0, 1, false);
  std::vector<std::vector<Rank>> groups = {{0, 1, 2}, {3, 4}};
  Part(&groups, broken);
  EXPECT_THAT(groups, ElementsAre(ElementsAre(0, 2), ElementsAre(3, 4, 1)));
  for (const Rank other : {3, 4}) broken.Set(1, other, false);
  groups = {{0, 1}, {3, 4}};
  Part(&groups, broken);
  EXPECT_THAT(groups, ElementsAre(ElementsAre(3, 4, 0))) << "rank 1 is in none";
}

// ---- hop ----

// The edges along which updates go, after the last event.
std::map<Rank, std::vector<Rank>> ToldOut(const World& world) {
  std::map<Rank, std::vector<Rank>> told;
  for (const Effect& effect : world.effects()) {
    if (const auto* set = std::get_if<NeighboursSet>(&effect)) told[set->rank] = set->out;
  }
  return told;
}

HopOptions Ring() { return {.graph = {.kind = Graph::Kind::kRing, .edges = {}}}; }

TEST(HopLinksTest, ARingGoesAroundABrokenLinkUntilItWorks) {
  World world(Ring(), 4);
  world.PassDeadline();
  EXPECT_THAT(ToldOut(world).at(1), ElementsAre(0, 2));
  world.Break(1, 2);
  EXPECT_THAT(ToldOut(world), IsEmpty());
  world.PassDeadline();
  EXPECT_THAT(ToldOut(world).at(1), ElementsAre(0));
  EXPECT_THAT(ToldOut(world).at(2), ElementsAre(3));
  world.Mend(1, 2);
  world.PassDeadline();
  EXPECT_THAT(ToldOut(world).at(1), ElementsAre(0, 2));
}

TEST(HopLinksTest, NobodyWaitsForATokenOverALinkThatIsLeftOut) {
  HopOptions options = Ring();
  options.max_iteration_gap = 1;
  World world(options, 4);
  world.PassDeadline();
  for (const Rank rank : {0, 1, 3}) world.BeReady(rank);
  for (const Rank rank : {1, 3}) world.BeReady(rank);
  for (const Rank rank : {1, 3}) {
    EXPECT_THAT(world.Explain(rank), HasSubstr("waiting for a token of rank 2,"));
  }
  world.Break(1, 2);
  world.PassDeadline();
  EXPECT_EQ(world.Reason(), "has its tokens") << "rank 1 goes on";
  EXPECT_THAT(world.Explain(1), Not(HasSubstr("token")));
  EXPECT_THAT(world.Explain(3), HasSubstr("waiting for a token of rank 2,"));
  world.Break(2, 3);  // rank 2 gets another neighbour
  world.PassDeadline();
  EXPECT_THAT(world.Explain(3), Not(HasSubstr("token")));
}

TEST(HopLinksTest, OthersTakeTheirPlaceWhereAGraphWouldFallApart) {
  std::vector<HopPlace> present;
  for (Rank rank = 0; rank < 5; ++rank) present.push_back({.rank = rank});
  BrokenLinks broken;
  broken.Set(1, 2, false);
  broken.Set(2, 3, false);
  EXPECT_THAT(TopologyOf(Ring(), present, broken).Of(2).out, ElementsAre(0));
  broken.Set(0, 2, false);
  EXPECT_THAT(TopologyOf(Ring(), present, broken).Of(2).out, ElementsAre(4));
  broken.Set(2, 4, false);
  EXPECT_THAT(TopologyOf(Ring(), present, broken).Of(2).out, IsEmpty()) << "it reaches nobody";
  EXPECT_EQ(TopologyOf(Ring(), present, broken).Of(2).own_weight, 1);
  const HopOptions directed{
      .graph = {.kind = Graph::Kind::kEdges, .edges = {{0, 1}, {1, 2}, {2, 0}}}, .directed = true};
  EXPECT_THAT(TopologyOf(directed, present, broken).Of(1).out, ElementsAre(2));
}

// Is not told of links.
class DeafEngine final : public Engine {
 public:
  explicit DeafEngine(const EngineOptions& options) : engine_(MakeEngine(options)) {}
  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override {
    if (!std::holds_alternative<LinkEvent>(event)) engine_->Step(now, event, next_group, out);
  }
  std::optional<Instant> NextDeadline() const override { return engine_->NextDeadline(); }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  std::vector<Drawn> DrawnGroups() const override { return engine_->DrawnGroups(); }
  void Archive(StateArchive& ar) override { engine_->Archive(ar); }

 private:
  std::unique_ptr<Engine> engine_;
};

TEST(LinkRuleTest, FindsGroupsOfTwoThatDoNotReachEachOther) {
  for (const EngineOptions& options :
       {EngineOptions(PReduceOptions{}), EngineOptions(AdPsgdOptions{}),
        EngineOptions(PragueOptions{}),
        EngineOptions(PragueOptions{.generator = PragueOptions::Generator::kRandom})}) {
    int found = 0;
    for (std::uint64_t seed = 2; seed < 60; seed += 3) {
      EngineWatch engine(std::make_unique<DeafEngine>(options), options);
      const std::string wrong = MakeDriver(&engine, seed, 6)->Storm(2000);
      EXPECT_NE(wrong, "") << EngineName(options) << ", seed " << seed;
      found += wrong.starts_with("broken-link") ? 1 : 0;
    }
    EXPECT_GT(found, 0) << EngineName(options);
  }
}

TEST(LinkRuleTest, FindsAGraphThatKeepsBrokenLinks) {
  const EngineOptions options = HopOptions{};
  for (std::uint64_t seed = 2; seed < 20; seed += 3) {
    EngineWatch engine(std::make_unique<DeafEngine>(options), options);
    EXPECT_THAT(MakeDriver(&engine, seed, 6)->Storm(2000), HasSubstr("graph")) << "seed " << seed;
  }
}

}  // namespace
}  // namespace prd::broken_links_test
