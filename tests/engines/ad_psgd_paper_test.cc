// Sentences about AD-PSGD (Lian et al., ICML 2018) as Prague (Luo et al., ASPLOS 2020) tells them,
// one test each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "common/base/prng.h"
#include "engines/ad_psgd/ad_psgd.h"
#include "tests/plans.h"

namespace prd::ad_psgd_paper_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Workers with a number each for a model. A group that is formed runs until Finish.
class Toy {
 public:
  Toy(const Graph& graph, int workers, std::int64_t seed = 1)
      : engine_({.graph = graph, .seed = seed}) {
    for (Rank rank = 0; rank < workers; ++rank) {
      models_.push_back(rank);
      Step(JoinedEvent{.rank = rank, .host = "h"});
    }
  }
  void Ask(Rank rank) {
    Step(ReadyEvent{.rank = rank, .ready = {.iteration = ++iterations_[rank]}});
  }
  // Figure 3, step 4, for the i-th of the running groups.
  GroupFormed Finish(std::size_t i = 0) {
    const GroupFormed group = running_.at(i);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    double& a = models_[static_cast<std::size_t>(group.members.at(0).rank)];
    double& b = models_[static_cast<std::size_t>(group.members.at(1).rank)];
    a = b = group.members[0].weight * a + group.members[1].weight * b;
    for (const GroupShare& member : group.members) {
      Step(FinishedEvent{.rank = member.rank, .group = group.id, .ok = true});
    }
    Step(EndedEvent{.group = group.id, .ok = true});
    return group;
  }
  const std::deque<GroupFormed>& running() const { return running_; }
  const std::vector<double>& models() const { return models_; }
  const AdPsgd& engine() const { return engine_; }

 private:
  void Step(const Event& event) {
    Effects effects;
    ++now_.ns;
    engine_.Step(now_, event, &next_group_, &effects);
    for (const GroupFormed& group : GroupsOf(effects)) running_.push_back(group);
  }
  AdPsgd engine_;
  Instant now_;
  GroupId next_group_ = 1;
  std::map<Rank, Iteration> iterations_;
  std::vector<double> models_;
  std::deque<GroupFormed> running_;
};

Graph List(std::vector<Graph::Edge> edges) {
  return {.kind = Graph::Kind::kEdges, .edges = std::move(edges)};
}

Rank CallerOf(const GroupFormed& group) { return group.members[group.members[0].passive].rank; }
Rank OtherOf(const GroupFormed& group) { return group.members[!group.members[0].passive].rank; }

// Figure 3, step 3: "randomly select a neighbor j".
TEST(AdPsgdPaperTest, ANeighbourIsDrawnAndAllAreEquallyLikely) {
  constexpr int kDraws = 3000;
  Toy star(List({{0, 1}, {0, 2}, {0, 3}, {3, 4}}), 5);
  std::map<Rank, int> drawn;
  for (int i = 0; i < kDraws; ++i) {
    star.Ask(0);
    ++drawn[OtherOf(star.Finish())];
  }
  ASSERT_EQ(drawn.size(), 3u) << "rank 4 is no neighbour of rank 0";
  for (const auto& [rank, times] : drawn) {
    EXPECT_GE(rank, 1);
    EXPECT_NEAR(times, kDraws / 3, 150) << rank;  // about 6 standard deviations
  }
}

// Figure 3, step 4: x_i, x_j <- (x_i + x_j) / 2; the selected neighbor's model is updated, too.
TEST(AdPsgdPaperTest, BothModelsBecomeTheirMean) {
  Toy pair(List({{0, 1}}), 2);
  pair.Ask(1);
  const GroupFormed group = pair.Finish();
  EXPECT_EQ(CallerOf(group), 1);
  EXPECT_EQ(OtherOf(group), 0);
  EXPECT_THAT(pair.models(), ElementsAre(0.5, 0.5));
}

// Section 2.2: "regardless of whether they are in the same iteration or not": the neighbour need
// not have asked, and need not wait.
TEST(AdPsgdPaperTest, TheNeighbourMayCompute) {
  Toy ring(Graph{}, 4);
  ring.Ask(2);
  ASSERT_EQ(ring.running().size(), 1u);
  EXPECT_EQ(ring.engine().Explain({}, OtherOf(ring.running()[0])), "");
  EXPECT_TRUE(AveragesInBackground(ring.engine().plan()));
}

// Section 2.3: two averages are serialized if they involve the same worker; section 3.1: a conflict
// is when i and j both select u.
TEST(AdPsgdPaperTest, TwoWhoSelectTheSameTakeTurns) {
  Toy star(List({{0, 1}, {0, 2}}), 3);
  star.Ask(1);
  star.Ask(2);
  ASSERT_EQ(star.running().size(), 1u);
  EXPECT_FALSE(star.running()[0].conflict);
  EXPECT_THAT(star.engine().Explain({9}, 2), HasSubstr("rank 0 is in group 1 of ranks 1, 0"));
  star.Finish();
  ASSERT_EQ(star.running().size(), 1u);
  EXPECT_TRUE(star.running()[0].conflict);
  EXPECT_EQ(CallerOf(star.Finish()), 2);
  // X W_1 W_2, one after the other: 0 and 1 first.
  EXPECT_THAT(star.models(), ElementsAre(1.25, 0.5, 1.25));
}

// Section 2.3: "AD-PSGD ... will incur deadlock if all workers are allowed to initiate model
// averaging or if the graph is not bipartite". Figure 2(a) is a circle of waits. Here all ask at
// once, on graphs that are bipartite and not, and all are answered.
TEST(AdPsgdPaperTest, NoGraphDeadlocksWhoeverAsks) {
  const std::vector<Graph> graphs = {
      Graph{},  // 5 workers: an odd circle
      {.kind = Graph::Kind::kComplete, .edges = {}},
      List({{0, 1}, {1, 2}, {2, 0}, {2, 3}, {3, 4}}),
      List({{0, 1}, {0, 2}, {0, 3}, {0, 4}}),
  };
  for (const Graph& graph : graphs) {
    for (std::int64_t seed = 0; seed < 100; ++seed) {
      Toy toy(graph, 5, seed);
      Prng random(static_cast<std::uint64_t>(seed));
      for (Rank rank = 0; rank < 5; ++rank) toy.Ask(rank);
      std::set<Rank> answered;
      while (!toy.running().empty()) {
        std::set<Rank> busy;
        for (const GroupFormed& group : toy.running()) {
          for (const GroupShare& member : group.members) {
            ASSERT_TRUE(busy.insert(member.rank).second) << "in two groups at once";
          }
        }
        answered.insert(CallerOf(toy.Finish(random.Below(toy.running().size()))));
      }
      EXPECT_EQ(answered.size(), 5u) << ToText(graph) << ", seed " << seed;
      EXPECT_TRUE(toy.engine().DrawnGroups().empty());
    }
  }
}

// Section 3.3 (requirements of AD-PSGD): W_k is doubly stochastic, so that the mean stays, and the
// models of a connected graph come together.
TEST(AdPsgdPaperTest, ModelsComeTogetherAtTheirMean) {
  for (const Graph& graph : {Graph{}, Graph{.kind = Graph::Kind::kComplete, .edges = {}},
                             List({{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}})}) {
    Toy toy(graph, 6);
    Prng random(4);
    for (int turn = 0; turn < 300; ++turn) {
      for (Rank rank = 0; rank < 6; ++rank) toy.Ask(rank);
      while (!toy.running().empty()) toy.Finish(random.Below(toy.running().size()));
    }
    for (const double model : toy.models()) EXPECT_NEAR(model, 2.5, 1e-9) << ToText(graph);
  }
}

// Section 2.1: a slow worker drags others only if it is selected: while it is in a pair, those that
// drew others go on.
TEST(AdPsgdPaperTest, WhoIsNotInTheSlowPairGoesOn) {
  Toy line(List({{0, 1}, {1, 2}, {2, 3}, {3, 4}}), 5);
  line.Ask(0);  // draws 1; this pair is slow and never ends below
  for (int i = 0; i < 20; ++i) {
    line.Ask(4);
    ASSERT_EQ(line.running().size(), 2u);
    EXPECT_EQ(CallerOf(line.Finish(1)), 4);
  }
}

// Section 2.2 and 7.2: how often models are averaged is the worker's matter; overlap, too.
TEST(AdPsgdPaperTest, ThePlanSaysWhenToAsk) {
  const Plan plan = AdPsgd({.section_length = 4, .overlap_steps = 3}).plan();
  EXPECT_EQ(plan, plans::Every(4, plans::Background(0, Membership::kAhead)));
  EXPECT_EQ(RunAhead(AdPsgd({.overlap = true, .overlap_steps = 3}).plan()), 3u);
}

}  // namespace
}  // namespace prd::ad_psgd_paper_test
