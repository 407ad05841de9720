// Hop's statements (Luo et al., ASPLOS 2019), held against the engine with workers that go on
// whenever the rules let them.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engines/engine_watch.h"
#include "engines/hop/hop.h"
#include "engines/hop/topology.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engines/neighbour_driver.h"

namespace prd::hop_paper_test {
namespace {

using Edges = std::vector<Graph::Edge>;

Graph List(Edges edges) { return {.kind = Graph::Kind::kEdges, .edges = std::move(edges)}; }

Edges RingTo(Rank workers) {
  Edges edges;
  for (Rank rank = 0; rank < workers; ++rank) edges.emplace_back(rank, (rank + 1) % workers);
  return edges;
}

std::vector<HopPlace> Ranks(Rank workers) {
  std::vector<HopPlace> places;
  for (Rank rank = 0; rank < workers; ++rank) places.push_back({.rank = rank});
  return places;
}

// An engine and its workers, started.
struct Started {
  Started(const HopOptions& options, Rank workers, std::uint64_t seed = 1)
      : engine(MakeEngine(options), options), world(&engine, seed, workers) {
    EXPECT_TRUE(Validate(options, workers).ok()) << Validate(options, workers).message();
    for (Rank rank = 0; rank < workers; ++rank) EXPECT_EQ(world.Join(rank), "");
    EXPECT_EQ(world.PassDeadline(), "");
  }

  // Everybody but `slow` goes on, as far as that is possible; in no more than `signals`.
  void Exhaust(Rank slow, int signals = 100'000) {
    while (signals-- > 0) {
      std::vector<Rank> able = world.WhoCanSignal();
      std::erase(able, slow);
      if (able.empty()) return;
      // Whoever is least far: it lets others go on.
      const Rank next = *std::min_element(
          able.begin(), able.end(), [&](Rank a, Rank b) { return world.Iter(a) < world.Iter(b); });
      ASSERT_EQ(world.Signal(next), "");
    }
  }

  Iteration Gap(Rank i, Rank j) const { return world.Iter(i) - world.Iter(j); }

  EngineWatch engine;
  NeighbourDriver world;
};

constexpr Iteration kNoBound = 1'000'000'000;

// length(Path i -> j), by Floyd and Warshall.
std::vector<std::vector<Iteration>> Paths(const HopOptions& options, Rank workers) {
  const auto n = static_cast<std::size_t>(workers);
  std::vector<std::vector<Iteration>> length(n, std::vector<Iteration>(n, kNoBound));
  for (const Topology::Node& node : TopologyOf(options, Ranks(workers)).nodes) {
    const auto from = static_cast<std::size_t>(node.rank);
    length[from][from] = 0;
    for (const Rank to : node.out) length[from][static_cast<std::size_t>(to)] = 1;
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        length[i][j] = std::min(length[i][j], length[i][k] + length[k][j]);
      }
    }
  }
  return length;
}

// Table 1: min(b0 x length(Path j -> i), max_ig x length(Path i -> j)).
Iteration Bound(const HopOptions& options, Iteration there, Iteration back) {
  const Iteration b0 = options.backups > 0 ? kNoBound : options.staleness + 1;
  const Iteration ig = options.max_iteration_gap == 0 ? kNoBound : options.max_iteration_gap;
  return std::min(b0 * there, ig * back);
}

// In random order, one of the workers being slow.
void ExpectNeverBeyondTable1(const HopOptions& options, Rank workers) {
  const auto paths = Paths(options, workers);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Started run(options, workers);
    Prng random(seed);
    const auto slow = static_cast<Rank>(random.Below(static_cast<std::uint64_t>(workers)));
    for (int i = 0; i < 1500; ++i) {
      const std::vector<Rank> able = run.world.WhoCanSignal();
      ASSERT_FALSE(able.empty());
      const Rank next = able[random.Below(able.size())];
      if (next == slow && able.size() > 1 && random.Below(20) > 0) continue;
      ASSERT_EQ(run.world.Signal(next), "");
      for (Rank a = 0; a < workers; ++a) {
        for (Rank b = 0; b < workers; ++b) {
          const auto x = static_cast<std::size_t>(a);
          const auto y = static_cast<std::size_t>(b);
          ASSERT_LE(run.Gap(a, b), Bound(options, paths[y][x], paths[x][y]));
        }
      }
    }
  }
}

// While one worker stands still, each other comes as far ahead of it as the table allows.
void ExpectReachesTable1(const HopOptions& options, Rank workers) {
  const auto paths = Paths(options, workers);
  for (Rank j = 0; j < workers; ++j) {
    Started run(options, workers);
    run.Exhaust(j);
    for (Rank i = 0; i < workers; ++i) {
      const auto x = static_cast<std::size_t>(i);
      const auto y = static_cast<std::size_t>(j);
      EXPECT_EQ(run.Gap(i, j), Bound(options, paths[y][x], paths[x][y])) << i << " over " << j;
    }
  }
}

struct Row {
  const char* name;
  int max_iteration_gap;
  int staleness;
};
// The rows of Table 1 that have a bound of their own, each without and with token queues.
constexpr Row kRows[] = {{"standard", 0, 0},      {"staleness", 0, 3},  {"notify-ack", 2, 0},
                         {"tokens", 5, 0},        {"few tokens", 1, 0}, {"tokens, staleness", 5, 3},
                         {"tokens below s", 2, 3}};

TEST(HopPaperTest, Table1OnUndirectedGraphs) {
  const Graph graphs[] = {{.kind = Graph::Kind::kRing, .edges = {}},
                          {.kind = Graph::Kind::kRingBased, .edges = {}},
                          {.kind = Graph::Kind::kDoubleRing, .edges = {}},
                          {.kind = Graph::Kind::kComplete, .edges = {}},
                          List({{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {1, 7}})};
  for (const Row& row : kRows) {
    for (const Graph& graph : graphs) {
      SCOPED_TRACE(std::string(row.name) + ", " + ToText(graph));
      const HopOptions options{
          .graph = graph, .max_iteration_gap = row.max_iteration_gap, .staleness = row.staleness};
      ExpectNeverBeyondTable1(options, 8);
      ExpectReachesTable1(options, 8);
    }
  }
}

// "we must ensure that -2 <= Iter(u) - Iter(v) <= +1" (section 3.3) for notify-ack; Theorems 1 and
// 2: the two paths between two workers differ.
TEST(HopPaperTest, Table1OnDirectedRings) {
  for (const Row& row : kRows) {
    for (const Rank workers : {2, 3, 5, 9}) {
      SCOPED_TRACE(std::string(row.name) + ", " + std::to_string(workers));
      const HopOptions options{.graph = List(RingTo(workers)),
                               .directed = true,
                               .max_iteration_gap = row.max_iteration_gap,
                               .staleness = row.staleness};
      ExpectNeverBeyondTable1(options, workers);
      ExpectReachesTable1(options, workers);
    }
  }
}

// Rows "backup worker" and "hybrid": b0 has no bound, so that the gap is what token queues make of
// it ("bounding the iteration gap is a must for the correct execution", section 4.3).
TEST(HopPaperTest, WithBackupsOnlyTokensBoundTheGap) {
  for (const int staleness : {0, 2}) {
    for (const int gap : {1, 5, 200}) {
      HopOptions options{.graph = {.kind = Graph::Kind::kRing, .edges = {}},
                         .max_iteration_gap = gap,
                         .backups = 1,
                         .staleness = staleness};
      if (gap < 10) ExpectNeverBeyondTable1(options, 6);
      Started run(options, 6);
      run.Exhaust(0);
      EXPECT_EQ(run.Gap(1, 0), gap);
      EXPECT_EQ(run.Gap(2, 0), 2 * gap);
    }
  }
  EXPECT_THAT(
      Validate(HopOptions{.max_iteration_gap = 0, .backups = 1}, 8).message(),
      testing::StartsWith("max_iteration_gap: found 0, allowed is 1 to 10000 with backups"));
}

// Figure 5: A sends nothing to B, B's updates to A pile up as far as the path from A to B is long;
// a token queue at A for B bounds them to 1 + max_ig (section 4.2).
TEST(HopPaperTest, Figure5) {
  const auto run_ring = [](Rank workers, int max_iteration_gap) {
    const HopOptions options{
        .graph = List(RingTo(workers)), .directed = true, .max_iteration_gap = max_iteration_gap};
    Started run(options, workers);
    run.Exhaust(0);  // A is rank 0, B the last
    return std::pair(run.Gap(workers - 1, 0), run.world.most_queued());
  };
  EXPECT_EQ(run_ring(4, 0), std::pair(Iteration{3}, std::size_t{4}));  // (1)
  EXPECT_EQ(run_ring(5, 0), std::pair(Iteration{4}, std::size_t{5}));  // (2)
  EXPECT_EQ(run_ring(5, 3), std::pair(Iteration{3}, std::size_t{4}));
}

// "the required size of UpdateQ(i) is upper-bounded by (1 + max_ig) |N_in(i)|", which is what each
// worker is told to keep; without token queues, what Theorem 1 gives.
TEST(HopPaperTest, QueuesAreAsLongAsTheGapAllows) {
  const auto slots = [](const HopOptions& options, Rank workers) {
    Started run(options, workers);
    std::set<std::uint32_t> all;
    for (const Effect& effect : run.world.applied().back().effects) {
      all.insert(std::get<NeighboursSet>(effect).slots);
    }
    EXPECT_EQ(all.size(), 1u);
    run.Exhaust(0);
    EXPECT_LE(run.world.most_queued(), options.staleness > 0 ? 1000 : *all.begin());
    return *all.begin();
  };
  const Graph ring = List(RingTo(7));
  EXPECT_EQ(slots({.max_iteration_gap = 5, .backups = 1}, 8), 6u);
  EXPECT_EQ(slots({.max_iteration_gap = 0}, 8), 2u);
  EXPECT_EQ(slots({.graph = ring, .directed = true, .max_iteration_gap = 3}, 7), 4u);
  EXPECT_EQ(slots({.graph = ring, .directed = true, .max_iteration_gap = 0}, 7), 7u);
  EXPECT_EQ(slots({.staleness = 3}, 8), 1u);
}

// Figure 10 (b): "Worker B and C are blocked because of the bounded iteration gap ensured by the
// token queues. [...] with A jumping to the 10th iteration, they can train non-stop for another 5".
TEST(HopPaperTest, Figure10WithBackups) {
  Started run({.graph = {.kind = Graph::Kind::kComplete, .edges = {}},
               .max_iteration_gap = 5,
               .backups = 1,
               .max_jump = 10},
              3);
  const Rank a = 0;
  for (const Iteration at : {5, 10, 15}) {
    run.Exhaust(a);
    EXPECT_EQ(run.world.Iter(1), at);
    EXPECT_EQ(run.world.Iter(2), at);
    EXPECT_TRUE(run.world.Waits(1));
    EXPECT_EQ(run.engine.Explain({}, 1), "waiting for a token of rank 0, at iteration " +
                                             std::to_string(at - 5) +
                                             ", 5 behind (max_iteration_gap 5)");
    ASSERT_EQ(run.world.Signal(a), "");
    EXPECT_EQ(run.world.Iter(a), at);
  }
}

// Figure 10 (a): "Worker B and C are blocked from advancing because of the staleness bound of 4."
TEST(HopPaperTest, Figure10WithStaleness) {
  Started run({.graph = {.kind = Graph::Kind::kComplete, .edges = {}},
               .max_iteration_gap = 100,
               .staleness = 4,
               .max_jump = 10},
              3);
  for (const Iteration at : {5, 10}) {
    run.Exhaust(0);
    EXPECT_EQ(run.world.Iter(1), at);
    EXPECT_FALSE(run.world.CanSignal(1));
    EXPECT_EQ(run.engine.Explain({}, 1), "computing, or waiting for updates of iteration " +
                                             std::to_string(at - 4) + " or later of rank 0");
    ASSERT_EQ(run.world.Signal(0), "");
    EXPECT_EQ(run.world.Iter(0), at);
  }
}

// Section 5: "the maximum number of iterations that a worker can skip in one jump, as well as the
// condition to trigger the jump", and never beyond those who get its updates.
TEST(HopPaperTest, JumpsAreBoundedAndTriggered) {
  const auto jump_to = [](int max_jump, int skip_behind) {
    Started run({.graph = {.kind = Graph::Kind::kComplete, .edges = {}},
                 .max_iteration_gap = 6,
                 .backups = 1,
                 .max_jump = max_jump,
                 .skip_behind = skip_behind},
                4);
    run.Exhaust(0);
    EXPECT_EQ(run.world.Signal(0), "");
    return run.world.Iter(0);
  };
  EXPECT_EQ(jump_to(0, 1), 1);
  EXPECT_EQ(jump_to(4, 6), 4);
  EXPECT_EQ(jump_to(4, 7), 1);
  EXPECT_EQ(jump_to(100, 2), 6);
}

// Section 4.3, Figure 3 (a): with a backup worker "B and C can progress [...] depending only on the
// updates of one another, while their common neighbor A stays in iteration 0"; without, they wait.
TEST(HopPaperTest, OneSlowNeighbourAndABackup) {
  for (const int backups : {0, 1}) {
    Started run({.graph = {.kind = Graph::Kind::kComplete, .edges = {}},
                 .max_iteration_gap = 50,
                 .backups = backups},
                3);
    run.Exhaust(0);
    EXPECT_EQ(run.world.Iter(1), backups > 0 ? 50 : 1);
    if (backups == 0) {
      EXPECT_EQ(run.engine.Explain({}, 1),
                "computing, or waiting for updates of iteration 1 of rank 0");
    }
  }
}

// ---- graphs and weights ----

// "W has to be doubly stochastic" (section 3.1); and every path leads everywhere.
void ExpectDoublyStochasticAndConnected(const Topology& topology) {
  std::map<Rank, double> sent;
  for (const Topology::Node& node : topology.nodes) {
    double got = node.own_weight;
    EXPECT_GT(node.own_weight, 0);
    sent[node.rank] += node.own_weight;
    for (const Topology::In& in : node.in) {
      EXPECT_GT(in.weight, 0);
      got += in.weight;
      sent[in.rank] += in.weight;
      const std::vector<Rank>& out = topology.Of(in.rank).out;
      EXPECT_TRUE(std::binary_search(out.begin(), out.end(), node.rank));
    }
    EXPECT_NEAR(got, 1, 1e-12);
  }
  for (const auto& [rank, sum] : sent) EXPECT_NEAR(sum, 1, 1e-9) << rank;
  for (const Topology::Node& start : topology.nodes) {
    std::set<Rank> reached = {start.rank};
    std::vector<Rank> open = {start.rank};
    while (!open.empty()) {
      const Rank rank = open.back();
      open.pop_back();
      for (const Rank next : topology.Of(rank).out) {
        if (reached.insert(next).second) open.push_back(next);
      }
    }
    EXPECT_EQ(reached.size(), topology.nodes.size());
  }
}

TEST(HopPaperTest, GraphsStayDoublyStochasticAndConnectedAsWorkersGo) {
  Prng random(3);
  for (int run = 0; run < 60; ++run) {
    HopOptions options{.workers_per_host = static_cast<int>(random.Below(4))};
    const auto workers = static_cast<Rank>(2 + random.Below(15));
    options.graph.kind = static_cast<Graph::Kind>(run % 6);
    std::set<Graph::Edge> edges;
    if (options.graph.kind == Graph::Kind::kEdges && random.Below(2) == 0) {
      options.directed = true;  // a regular one: each to those so many ranks further
      for (const std::uint64_t step : {std::uint64_t{1}, 1 + random.Below(5)}) {
        for (Rank rank = 0; rank < workers; ++rank) {
          const Rank to = (rank + static_cast<Rank>(step)) % workers;
          if (to != rank) edges.emplace(rank, to);
        }
      }
    } else if (options.graph.kind == Graph::Kind::kEdges) {
      for (Rank rank = 1; rank < workers; ++rank) {
        edges.emplace(static_cast<Rank>(random.Below(static_cast<std::uint64_t>(rank))), rank);
      }
    }
    options.graph.edges.assign(edges.begin(), edges.end());
    ASSERT_TRUE(Validate(options, workers).ok()) << Validate(options, workers).message();
    std::vector<HopPlace> present = Ranks(workers);
    for (HopPlace& place : present) place.host = static_cast<std::int32_t>(random.Below(3));
    while (!present.empty()) {
      SCOPED_TRACE(ToText(options.graph) + " of " + std::to_string(present.size()));
      ExpectDoublyStochasticAndConnected(TopologyOf(options, present));
      if (HasFailure()) return;
      present.erase(present.begin() + static_cast<std::ptrdiff_t>(random.Below(present.size())));
    }
  }
}

// Equation 1 on regular graphs: 1 / |N_in(j)|, where j is in N_in(j).
TEST(HopPaperTest, Equation1) {
  const Topology ring_based = TopologyOf({}, Ranks(8));
  for (const Topology::Node& node : ring_based.nodes) {
    EXPECT_EQ(node.out.size(), 3u);
    EXPECT_DOUBLE_EQ(node.own_weight, 0.25);
    for (const Topology::In& in : node.in) EXPECT_DOUBLE_EQ(in.weight, 0.25);
  }
  const HopOptions directed{.graph = List(RingTo(4)), .directed = true};
  EXPECT_DOUBLE_EQ(TopologyOf(directed, Ranks(4)).nodes[2].own_weight, 0.5);
  // Rank 0 has more to it than from it.
  const HopOptions uneven{.graph = List({{0, 1}, {1, 0}, {1, 2}, {2, 0}}), .directed = true};
  EXPECT_THAT(Validate(uneven, 3).message(), testing::HasSubstr("not doubly stochastic"));
  const HopOptions one_way{.graph = List({{0, 1}, {1, 2}}), .directed = true};
  EXPECT_EQ(Validate(one_way, 3).message(),
            "graph: found no path from rank 1 to rank 0, allowed is a connected graph");
}

// 1 - the second largest eigenvalue of the random walk on a graph, by power iteration on
// (D^-1/2 A D^-1/2 + 1) / 2 beside its first eigenvector.
double Gap(const Topology& topology) {
  const std::size_t n = topology.nodes.size();
  std::vector<double> first(n), v(n);
  double edges = 0;
  for (const Topology::Node& node : topology.nodes) edges += static_cast<double>(node.out.size());
  for (std::size_t i = 0; i < n; ++i) {
    first[i] = std::sqrt(static_cast<double>(topology.nodes[i].out.size()) / edges);
    v[i] = std::sin(static_cast<double>(3 * i + 1));
  }
  double value = 0;
  for (int round = 0; round < 5000; ++round) {
    double along = 0;
    for (std::size_t i = 0; i < n; ++i) along += v[i] * first[i];
    for (std::size_t i = 0; i < n; ++i) v[i] -= along * first[i];
    std::vector<double> next(n);
    double norm = 0;
    for (std::size_t i = 0; i < n; ++i) {
      next[i] = v[i];
      for (const Rank other : topology.nodes[i].out) {
        const auto j = static_cast<std::size_t>(other);
        next[i] += v[j] / std::sqrt(static_cast<double>(topology.nodes[i].out.size() *
                                                        topology.nodes[j].out.size()));
      }
      norm += next[i] * next[i];
    }
    value = std::sqrt(norm);
    for (std::size_t i = 0; i < n; ++i) v[i] = next[i] / value;
  }
  return 1 - (value - 1);
}

// Figure 21: "Spectral gaps: (a) 0.6667, (b) 0.2682, and (c) 0.2688", which are of W without
// self-loops.
TEST(HopPaperTest, Figure21) {
  EXPECT_NEAR(Gap(TopologyOf({}, Ranks(8))), 0.6667, 5e-5);
  std::vector<HopPlace> hosts = Ranks(8);
  for (HopPlace& place : hosts) place.host = place.rank < 4 ? 0 : place.rank < 6 ? 1 : 2;
  const HopOptions b{.graph = {.kind = Graph::Kind::kHierarchical, .edges = {}}};
  EXPECT_NEAR(Gap(TopologyOf(b, hosts)), 0.2682, 5e-5);
  const HopOptions c{.graph = List({{0, 1},
                                    {0, 2},
                                    {0, 3},
                                    {1, 2},
                                    {1, 3},
                                    {2, 3},
                                    {4, 5},
                                    {6, 7},
                                    {0, 4},
                                    {5, 6},
                                    {1, 7}})};
  EXPECT_NEAR(Gap(TopologyOf(c, Ranks(8))), 0.2688, 5e-5);
}

// Figure 11: a ring has two neighbours; ring-based one more, the most distant; double-ring one more
// in the other half. With few or an odd number of workers too, nobody is its own neighbour.
TEST(HopPaperTest, Figure11) {
  const auto out = [](Graph::Kind kind, Rank workers, Rank rank) {
    const HopOptions options{.graph = {.kind = kind, .edges = {}}};
    return TopologyOf(options, Ranks(workers)).Of(rank).out;
  };
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(out(Graph::Kind::kRing, 16, 0), ElementsAre(1, 15));
  EXPECT_THAT(out(Graph::Kind::kRingBased, 16, 3), ElementsAre(2, 4, 11));
  EXPECT_THAT(out(Graph::Kind::kRingBased, 7, 0), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(out(Graph::Kind::kDoubleRing, 16, 2), ElementsAre(1, 3, 6, 10));
  EXPECT_THAT(out(Graph::Kind::kDoubleRing, 5, 2), ElementsAre(0, 1, 4));
  for (const Graph::Kind kind :
       {Graph::Kind::kRing, Graph::Kind::kRingBased, Graph::Kind::kDoubleRing,
        Graph::Kind::kHierarchical, Graph::Kind::kComplete}) {
    EXPECT_THAT(out(kind, 1, 0), IsEmpty());
    EXPECT_THAT(out(kind, 2, 0), ElementsAre(1));
    EXPECT_THAT(out(kind, 3, 1), ElementsAre(0, 2));
  }
}

// ---- workers that come and go ----

TEST(HopPaperTest, AJoinerStartsWhereTheLastOfTheOthersIs) {
  Started run({.graph = {.kind = Graph::Kind::kRing, .edges = {}}}, 4);
  for (int i = 0; i < 40; ++i) {
    for (const Rank rank : run.world.WhoCanSignal()) ASSERT_EQ(run.world.Signal(rank), "");
  }
  const Iteration at = run.world.Iter(0);
  ASSERT_GT(at, 5);
  ASSERT_EQ(run.world.Join(4, 2), "");
  EXPECT_EQ(run.engine.Explain({}, 4), "waiting for its neighbours to be set");
  ASSERT_EQ(run.world.PassDeadline(), "");
  EXPECT_EQ(run.world.Iter(4), at);
  const Effects& told = run.world.applied().back().effects;
  ASSERT_EQ(told.size(), 3u);  // its neighbours and itself
  EXPECT_EQ(std::get<NeighboursSet>(told[0]).rank, 0);
  EXPECT_THAT(std::get<NeighboursSet>(told[0]).reason, testing::HasSubstr("neighbours changed"));
  EXPECT_EQ(std::get<NeighboursSet>(told[2]).at, at);
}

// Nobody waits for a token of one that is gone, nor, once told, for its updates.
TEST(HopPaperTest, TheOthersGoOnWithoutOneThatIsGone) {
  Started run(
      {.graph = {.kind = Graph::Kind::kRing, .edges = {}}, .max_iteration_gap = 2, .backups = 1},
      5);
  run.Exhaust(0);
  ASSERT_TRUE(run.world.Waits(1));
  ASSERT_EQ(run.world.Leave(0), "");
  EXPECT_FALSE(run.world.Waits(1));
  ASSERT_EQ(run.world.PassDeadline(), "");
  run.Exhaust(kNoRank, 300);
  EXPECT_GT(run.world.Iter(1), 30);
}

// On a directed graph a jump may leave out nothing that an out-neighbour needs to end its own.
TEST(HopPaperTest, JumpsOnDirectedGraphsWaitForNobodyForEver) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Edges edges;
    for (Rank rank = 0; rank < 9; ++rank) {
      edges.emplace_back(rank, (rank + 1) % 9);
      edges.emplace_back(rank, (rank + 3) % 9);
    }
    Started run({.graph = List(edges),
                 .directed = true,
                 .max_iteration_gap = 4,
                 .backups = static_cast<int>(seed % 2),
                 .max_jump = 6,
                 .skip_behind = 1},
                9, seed);
    ASSERT_EQ(run.world.Calm(200), "") << seed;
  }
}

}  // namespace
}  // namespace prd::hop_paper_test
