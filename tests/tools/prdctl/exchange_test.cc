// Engines without groups (hop, ssp): what prdctl tells of runs whose answer is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "config/config.h"
#include "engines/hop/topology.h"
#include "engines/ssp/options.h"
#include "tests/tools/prdctl/printed.h"
#include "tests/tools/prdctl/simulated.h"
#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/commands.h"
#include "tools/prdctl/export.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/meters.h"
#include "tools/prdctl/present.h"
#include "tools/prdctl/sync.h"

namespace prd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

Story StoryWith(const EngineOptions& engine) {
  JobSpec spec;
  spec.name = "j";
  spec.engine = engine;
  return Story(1, std::string(EngineName(engine)), JobSpecToToml(spec));
}

ExchangeMeter MeterOf(const std::vector<Record>& records) {
  ExchangeMeter meter;
  for (const Record& record : records) meter.Add(record);
  return meter;
}

PaceReport PaceOf(const std::vector<Record>& records) {
  PaceMeter meter;
  for (const Record& record : records) meter.Add(record);
  return meter.Report();
}

const WorkerPace& Of(const PaceReport& report, Rank rank) {
  for (const WorkerPace& worker : report.workers) {
    if (worker.rank == rank) return worker;
  }
  ADD_FAILURE() << "no rank " << rank;
  return report.workers.front();
}

// What each worker would be told of a graph whose edges lead both ways; weights as hop has them.
std::map<Rank, NeighboursSet> GraphOf(int workers,
                                      const std::vector<std::pair<Rank, Rank>>& edges) {
  std::map<Rank, NeighboursSet> graph;
  for (Rank rank = 0; rank < workers; ++rank) graph[rank] = {.rank = rank, .slots = 4};
  for (const auto& [a, b] : edges) {
    graph[a].out.push_back(b);
    graph[b].out.push_back(a);
  }
  for (auto& [rank, set] : graph) {
    std::sort(set.out.begin(), set.out.end());
    for (const Rank from : set.out) {
      const std::size_t degree = std::max(set.out.size(), graph[from].out.size());
      set.in.push_back({.rank = from, .weight = 1 / static_cast<double>(1 + degree)});
      set.own_weight -= set.in.back().weight;
    }
  }
  return graph;
}

// ---- spectral gaps ----

std::vector<std::pair<Rank, Rank>> RingBased() {
  std::vector<std::pair<Rank, Rank>> edges;
  for (Rank rank = 0; rank < 8; ++rank) edges.emplace_back(rank, (rank + 1) % 8);
  for (Rank rank = 0; rank < 4; ++rank) edges.emplace_back(rank, rank + 4);
  return edges;
}

// Complete within hosts of 4, 2 and 2 workers.
std::vector<std::pair<Rank, Rank>> WithinHosts(std::vector<std::pair<Rank, Rank>> between) {
  for (Rank a = 0; a < 4; ++a) {
    for (Rank b = a + 1; b < 4; ++b) between.emplace_back(a, b);
  }
  between.emplace_back(4, 5);
  between.emplace_back(6, 7);
  return between;
}

// Hop, Figure 21: "Spectral gaps: (a) 0.6667, (b) 0.2682, and (c) 0.2688."
TEST(GraphGapTest, Figure21) {
  EXPECT_NEAR(GapOf(GraphOf(8, RingBased()))->of_walk, 0.6667, 5e-5);
  EXPECT_NEAR(GapOf(GraphOf(8, WithinHosts({{0, 4}, {4, 6}, {0, 6}})))->of_walk, 0.2682, 5e-5);
  EXPECT_NEAR(GapOf(GraphOf(8, WithinHosts({{0, 4}, {5, 6}, {1, 7}})))->of_walk, 0.2688, 5e-5);
}

// Those that hop itself makes, of 8 workers on hosts of 4, 2 and 2.
TEST(GraphGapTest, Figure21AsHopMakesThem) {
  const std::vector<std::int32_t> hosts = {0, 0, 0, 0, 1, 1, 2, 2};
  const auto gap = [&](Graph::Kind kind) {
    std::vector<HopPlace> present;
    for (Rank rank = 0; rank < 8; ++rank) {
      present.push_back({.rank = rank, .host = hosts[static_cast<std::size_t>(rank)]});
    }
    std::map<Rank, NeighboursSet> graph;
    for (const Topology::Node& node : TopologyOf({.graph = {.kind = kind}}, present).nodes) {
      NeighboursSet& set = graph[node.rank] = {.rank = node.rank, .own_weight = node.own_weight};
      for (const Topology::In& in : node.in) set.in.push_back({in.rank, in.weight, 0});
    }
    return GapOf(graph).value();
  };
  EXPECT_NEAR(gap(Graph::Kind::kRingBased).of_walk, 0.6667, 5e-5);
  EXPECT_NEAR(gap(Graph::Kind::kHierarchical).of_walk, 0.2682, 5e-5);
  EXPECT_TRUE(gap(Graph::Kind::kHierarchical).symmetric);
}

// All of degree 3: W has 1/4 for itself and each neighbour, and eigenvalues
// (1 + 2 cos(pi k / 4) + (-1)^k) / 4, the second largest of which is 1/2.
TEST(GraphGapTest, OfTheWeightsOfARingBasedGraph) {
  const GraphGap gap = GapOf(GraphOf(8, RingBased())).value();
  EXPECT_NEAR(gap.of_weights, 0.5, 1e-9);
  EXPECT_TRUE(gap.symmetric);
  EXPECT_EQ(gap.workers, 8u);
}

// A ring of three leads one way: the walk has the third roots of unity, whose real parts
// below 1 are -1/2; W = (I + P) / 2 has moduli |1 + w| / 2 = 1/2.
TEST(GraphGapTest, EdgesThatLeadOneWay) {
  std::map<Rank, NeighboursSet> graph;
  for (Rank rank = 0; rank < 3; ++rank) {
    graph[rank] = {.rank = rank,
                   .in = {{.rank = (rank + 2) % 3, .weight = 0.5}},
                   .out = {(rank + 1) % 3},
                   .own_weight = 0.5};
  }
  const GraphGap gap = GapOf(graph).value();
  EXPECT_NEAR(gap.of_walk, 1.5, 1e-9);
  EXPECT_NEAR(gap.of_weights, 0.5, 1e-9);
  EXPECT_FALSE(gap.symmetric);
}

TEST(GraphGapTest, NoGraphNoGap) {
  EXPECT_EQ(GapOf({}).status().code(), Code::kFailedPrecondition);
}

// ---- hop ----

// Three workers in a line, 0 - 1 - 2, with max_ig = 2; all join at 0 ms.
Story Line(int backups = 0) {
  Story story = StoryWith(HopOptions{
      .graph = {.kind = Graph::Kind::kRing}, .max_iteration_gap = 2, .backups = backups});
  for (Rank rank = 0; rank < 3; ++rank) story.Join(rank);
  for (const auto& [rank, set] : GraphOf(3, {{0, 1}, {1, 2}})) story.Write(set);
  return story;
}

TEST(NeighboursTest, TokensAreDifferencesOfIterations) {
  Story story = Line();
  story.At(10).Signal(0, 1, 10).Answer(0, 1);
  const ExchangeMeter meter = MeterOf(story.records());
  EXPECT_EQ(meter.workers().at(0).iteration, 1);
  EXPECT_EQ(meter.FewestTokens(0)->count, 1);
  EXPECT_EQ(meter.FewestTokens(0)->of, 1);
  EXPECT_EQ(meter.FewestTokens(1)->count, 2);  // of rank 2; of rank 0 there are 3
  EXPECT_EQ(meter.FewestTokens(1)->of, 2);
  EXPECT_THAT(meter.UpdatesMissing(0), ElementsAre(1));
  EXPECT_THAT(meter.UpdatesMissing(1), IsEmpty());
  EXPECT_THAT(meter.HeldBy(0), IsEmpty());
}

TEST(NeighboursTest, WhoseTokenIsMissingHoldsUp) {
  Story story = Line();
  story.At(10).Signal(0, 1, 10).Answer(0, 1);
  story.At(20).Signal(0, 2, 10).Answer(0, 2);
  story.At(30).Signal(0, 3, 10);
  EXPECT_THAT(MeterOf(story.records()).HeldBy(0), ElementsAre(1));
  // What rank 0 waits from 30 ms on is rank 1's; the last two are the controller's.
  story.At(70).Signal(1, 1, 70).Answer(1, 1);
  story.At(72).Answer(0, 3);
  const PaceReport report = PaceOf(story.records());
  EXPECT_EQ(Of(report, 0).waited_ns, 40 * kMs);
  EXPECT_EQ(Of(report, 1).cost_ns, 40 * kMs);
  EXPECT_EQ(report.waited_ns, 40 * kMs);
  EXPECT_EQ(report.controller_ns, 2 * kMs);
  EXPECT_THAT(Of(report, 0).exchange.ahead, ElementsAre(Pair(1, 1), Pair(2, 2)));
}

// Rank 1 needs both neighbours' update 1; it has computed at 20 ms, rank 0 enters iteration 1 at
// 30 ms and rank 2 at 50 ms.
TEST(NeighboursTest, WhoseUpdateIsMissingOwesTheWait) {
  Story story = Line();
  story.At(10).Signal(1, 1, 10).Answer(1, 1);
  story.At(30).Signal(0, 1, 30).Answer(0, 1);
  story.At(50).Signal(2, 1, 50).Answer(2, 1);
  story.At(53).Say(
      1, Ready{.iteration = 2, .step_ns = 10 * kMs, .queued = 3, .dropped = 2, .suppressed = 1});
  const PaceReport report = PaceOf(story.records());
  EXPECT_EQ(Of(report, 1).waited_ns, 30 * kMs);
  EXPECT_EQ(Of(report, 0).cost_ns, 5 * kMs);
  EXPECT_EQ(Of(report, 2).cost_ns, 25 * kMs);
  EXPECT_EQ(report.moving_ns, 3 * kMs);
  EXPECT_EQ(Of(report, 1).exchange.queued, 3u);
  EXPECT_EQ(Of(report, 1).exchange.dropped, 2u);
  EXPECT_EQ(Of(report, 1).exchange.suppressed, 1u);
}

// With one backup, rank 1 waits for the first of its two neighbours, as long as both are missing.
TEST(NeighboursTest, AWaitEndsWhereBackupsDo) {
  Story story = Line(1);
  story.At(10).Signal(1, 1, 10).Answer(1, 1);
  EXPECT_THAT(MeterOf(story.records()).UpdatesMissing(1), ElementsAre(0, 2));
  story.At(30).Signal(0, 1, 30).Answer(0, 1);
  EXPECT_THAT(MeterOf(story.records()).UpdatesMissing(1), IsEmpty());
  story.At(34).Signal(1, 2, 10);
  const PaceReport report = PaceOf(story.records());
  EXPECT_EQ(Of(report, 1).waited_ns, 10 * kMs);
  EXPECT_EQ(Of(report, 0).cost_ns, 5 * kMs);
  EXPECT_EQ(Of(report, 2).cost_ns, 5 * kMs);
  EXPECT_EQ(report.moving_ns, 4 * kMs);
}

TEST(NeighboursTest, JumpsCountTheIterationsSkipped) {
  Story story = Line();
  story.At(90).Signal(2, 1, 90).Answer(2, 1, 4).Signal(2, 5, 90).Answer(2, 5);
  const ExchangeMeter meter = MeterOf(story.records());
  EXPECT_EQ(meter.workers().at(2).iteration, 5);
  EXPECT_EQ(meter.workers().at(2).jumps, 1u);
  EXPECT_EQ(meter.workers().at(2).skipped, 3u);
}

TEST(NeighboursTest, TheGraphInForceOrOfAnEndedRunTheFullest) {
  Story story = Line();
  story.At(500).Write(WorkerLeft{.rank = 2, .why = LeftReason::kFinished});
  story.At(504);
  for (const auto& [rank, set] : GraphOf(2, {{0, 1}})) story.Write(set);
  // The run is ending: who has finished is shown as before, and as such.
  EXPECT_EQ(MeterOf(story.records()).graph().size(), 3u);
  EXPECT_EQ(MeterOf(story.records()).graph().at(1).in.size(), 2u);
  MemorySource ending = SourceOf(story.records());
  EXPECT_THAT(Text([&](auto& c) { return ShowGraph(ending, "", 0, true, c); }),
              HasSubstr("has finished, or is gone\n"));
  {
    Story late = story;  // another one joins: it is not ending any more
    late.At(600).Join(3);
    EXPECT_EQ(MeterOf(late.records()).graph().size(), 2u);
  }
  story.At(9000);  // longer than the full one was
  for (Rank rank = 0; rank < 2; ++rank) story.Write(WorkerLeft{.rank = rank});
  story.At(9001).Write(RunEnded{});
  EXPECT_EQ(MeterOf(story.records()).graph().size(), 3u);
  EXPECT_EQ(MeterOf(story.records()).graph().at(1).in.size(), 2u);
}

TEST(NeighboursTest, TheGraphIsDrawnWithWhoWaits) {
  Story story = Line();
  for (Iteration k = 1; k <= 2; ++k) story.At(10 * k).Signal(0, k, 10).Answer(0, k);
  story.At(30).Signal(0, 3, 10);
  MemorySource source = SourceOf(story.records());
  const std::string dot = Text([&](auto& c) { return ShowGraph(source, "", 0, false, c); });
  EXPECT_THAT(dot, HasSubstr("  0 [label=\"0\\nat 2\", color=red];\n"));
  EXPECT_THAT(dot, HasSubstr("  1 [label=\"1\\nat 0\"];\n"));
  EXPECT_THAT(dot, HasSubstr("  0 -> 1 [label=\"0.333\"];\n"));
  EXPECT_THAT(dot, HasSubstr("  1 -> 0 [label=\"no token\", style=dashed, color=red];\n"));
  const std::string table = Text([&](auto& c) { return ShowGraph(source, "", 0, true, c); });
  EXPECT_THAT(table, HasSubstr("asks for 3: tokens of rank 1\n"));
  EXPECT_THAT(table, HasSubstr("0 (0.333), 2 (0.333)"));
  const Json json = Printed([&](auto& c) { return ShowGraph(source, "", 0, false, c); });
  EXPECT_EQ(json["edges"].size(), 4u);
  EXPECT_EQ(json["workers"][0]["held_by"], Json::array({1}));
  EXPECT_EQ(json["workers"][0]["tokens"], 0);
  EXPECT_EQ(json["workers"][1]["tokens"], 2);
  EXPECT_NEAR(json["workers"][1]["own_weight"].get<double>(), 1 / 3., 1e-9);
}

TEST(NeighboursTest, TheGapIsToldBothWays) {
  Story story = StoryWith(HopOptions{});
  for (const auto& [rank, set] : GraphOf(8, RingBased())) story.Join(rank).Write(set);
  MemorySource source = SourceOf(story.records());
  const std::string text = Text([&](auto& c) { return ShowSpectralGap(source, "", 0, c); });
  EXPECT_THAT(text, HasSubstr("spectral gap 0.5000 of the weights of 8 workers\n"));
  EXPECT_THAT(text, HasSubstr("spectral gap 0.6667 as Hop (Figure 21)"));
  const Json json = Printed([&](auto& c) { return ShowSpectralGap(source, "", 0, c); });
  EXPECT_NEAR(json["rho"].get<double>(), 0.5, 1e-9);
}

TEST(NeighboursTest, StragglersTellSkipsAndUpdatesNotUsed) {
  Story story = Line();
  story.At(90).Signal(2, 1, 90).Answer(2, 1, 4);
  story.Say(1, Ready{.iteration = 1, .dropped = 5, .suppressed = 7});
  MemorySource source = SourceOf(story.records());
  const Json json = Printed([&](auto& c) { return ShowStragglers(source, "", 1.5, c); });
  for (const Json& worker : json["workers"]) {
    const bool jumped = worker["rank"] == 2;
    EXPECT_EQ(worker["skipped_iterations"], jumped ? 3 : 0);
    EXPECT_EQ(worker["dropped_updates"], worker["rank"] == 1 ? 5 : 0);
    EXPECT_EQ(worker["suppressed_updates"], worker["rank"] == 1 ? 7 : 0);
  }
  const std::string text = Text([&](auto& c) { return ShowStragglers(source, "", 1.5, c); });
  EXPECT_THAT(text, HasSubstr("SKIPPED  UPDATES DROPPED  SUPPRESSED"));
  EXPECT_THAT(text, HasSubstr("for updates that were sent to get there"));
  EXPECT_THAT(Text([&](auto& c) { return ShowGroups(source, "", {}, c); }),
              HasSubstr("no groups train under this engine"));
}

// ---- ssp ----

Story Store(int staleness) {
  Story story = StoryWith(SspOptions{.staleness = staleness, .shards = 2});
  for (Rank rank = 0; rank < 3; ++rank) story.Join(rank);
  const std::vector<ShardPlace> shards = {{.owner = 0, .holders = {1}},
                                          {.owner = 1, .holders = {2}}};
  story.At(1).Write(PlacementSet{.epoch = 1,
                                 .members = {0, 1, 2},
                                 .at = {0, 0, 0},
                                 .shards = SharedList<ShardPlace>(shards),
                                 .reason = "the start"});
  return story;
}

// When a worker came to the step that it ends is in a record that was removed.
TEST(ShardsTest, OfATrimmedRunNothingIsCountedFromBeforeItsRecords) {
  Story story = Store(1);
  story.At(90'000).Signal(0, 1, 10).Answer(0, 1, 2).At(90'030).Signal(0, 2, 10);
  std::vector<Record> records = story.records();
  records.erase(records.begin() + 1, records.begin() + 5);  // three joins, and the placement
  const PaceReport report = PaceOf(records);
  EXPECT_EQ(report.moving_ns, 20 * kMillisecond);
  EXPECT_EQ(Of(report, 0).steps, 2u);
}

TEST(ShardsTest, WhereTheyAreAndWhetherTheyAreOpen) {
  Story story = Store(1);
  MemorySource closed = SourceOf(story.records());
  EXPECT_THAT(Text([&](auto& c) { return ShowGraph(closed, "", 0, true, c); }),
              HasSubstr("placement 1, closed: shards are on their way, set at 0.001 s: the start"));
  story.At(5).Write(PlacementOpened{.epoch = 1, .members = {0, 1, 2}});
  MemorySource source = SourceOf(story.records());
  const std::string table = Text([&](auto& c) { return ShowGraph(source, "", 0, true, c); });
  EXPECT_THAT(table, HasSubstr("placement 1, open, set at 0.001 s, opened 4.0 ms later"));
  EXPECT_THAT(table, HasSubstr("    1      1  2        the owner's replica"));
  EXPECT_THAT(Text([&](auto& c) { return ShowGraph(source, "", 0, false, c); }),
              HasSubstr("  0 -> 1 [label=\"0\"];\n  1 -> 2 [label=\"1\"];\n"));
  const Json json = Printed([&](auto& c) { return ShowGraph(source, "", 0, true, c); });
  EXPECT_EQ(json["open"], true);
  EXPECT_EQ(json["shards"][1]["owner"], 1);
  EXPECT_EQ(json["workers"][1]["shards_owned"], 1);
  EXPECT_EQ(json["workers"][2]["shards_held"], 1);
}

// Without a limit on staleness a fast worker is ahead by another number at each clock.
TEST(ShardsTest, ManyValuesAreToldByTheirQuantiles) {
  Story story = Store(-1);
  story.At(5).Write(PlacementOpened{.epoch = 1, .members = {0, 1, 2}});
  for (Iteration clock = 1; clock <= 1000; ++clock) {
    story.At(10 * clock).Signal(0, clock, 10).Answer(0, clock);
  }
  MemorySource source = SourceOf(story.records());
  EXPECT_THAT(Text([&](auto& c) { return ShowStragglers(source, "", 1.5, c); }),
              HasSubstr("median 500, 90% up to 900, at most 1000"));
  const Json json = Printed([&](auto& c) { return ShowStragglers(source, "", 1.5, c); });
  EXPECT_LT(json.dump().size(), 8000u);
}

// s = 1: rank 0 is at clock 1, and may not go on to 2 before all are at 1.
TEST(ShardsTest, TheSlowestClocksHoldUp) {
  Story story = Store(1);
  story.At(5).Write(PlacementOpened{.epoch = 1, .members = {0, 1, 2}});
  story.At(10).Signal(0, 1, 10).Answer(0, 1);
  story.At(20).Signal(0, 2, 10);
  EXPECT_THAT(MeterOf(story.records()).HeldBy(0), ElementsAre(1, 2));
  story.At(30).Signal(1, 1, 30).Answer(1, 1);
  EXPECT_THAT(MeterOf(story.records()).HeldBy(0), ElementsAre(2));
  story.At(60).Signal(2, 1, 60).Answer(2, 1);
  story.At(61).Answer(0, 2);
  const PaceReport report = PaceOf(story.records());
  EXPECT_EQ(Of(report, 0).waited_ns, 40 * kMs);
  EXPECT_EQ(Of(report, 1).cost_ns, 5 * kMs);
  EXPECT_EQ(Of(report, 2).cost_ns, 35 * kMs);
  EXPECT_EQ(report.controller_ns, 1 * kMs);
  EXPECT_THAT(Of(report, 0).exchange.ahead, ElementsAre(Pair(1, 2)));
  EXPECT_THAT(Of(report, 2).exchange.ahead, ElementsAre(Pair(0, 1)));
  MemorySource source = SourceOf(story.records());
  EXPECT_THAT(Text([&](auto& c) { return ShowStragglers(source, "", 1.5, c); }),
              HasSubstr("1: 100%"));
  const Json json = Printed([&](auto& c) { return ShowStragglers(source, "", 1.5, c); });
  for (const Json& worker : json["workers"]) {
    if (worker["rank"] == 0) {
      EXPECT_EQ(worker["ahead"], (Json{{"median", 1}, {"p90", 1}, {"max", 1}}));
    }
  }
  EXPECT_THAT(Text([&](auto& c) { return ShowSpectralGap(source, "", 0, c); }),
              HasSubstr("no spectral gap: the workers share one set of parameters"));
}

// s = 0: who has stored its update holds nobody up, although it is let go with all others.
TEST(ShardsTest, WhoHasStoredItsUpdateOwesNothing) {
  Story story = Store(0);
  story.At(5).Write(PlacementOpened{.epoch = 1, .members = {0, 1, 2}});
  story.At(10).Signal(0, 1, 10).At(20).Signal(1, 1, 20);
  EXPECT_THAT(MeterOf(story.records()).HeldBy(0), ElementsAre(2));
  story.At(50).Signal(2, 1, 50).Answer(0, 1).Answer(1, 1).Answer(2, 1);
  const PaceReport report = PaceOf(story.records());
  EXPECT_EQ(report.waited_ns, (40 + 30) * kMs);
  EXPECT_EQ(Of(report, 1).cost_ns, 5 * kMs);
  EXPECT_EQ(Of(report, 2).cost_ns, 65 * kMs);
}

TEST(ShardsTest, WithoutABoundNobodyHoldsUp) {
  Story story = Store(-1);
  for (Iteration k = 1; k <= 9; ++k) story.At(10 * k).Signal(0, k, 10).Answer(0, k);
  story.At(100).Signal(0, 10, 10);
  const ExchangeMeter meter = MeterOf(story.records());
  EXPECT_THAT(meter.HeldBy(0), IsEmpty());
  EXPECT_EQ(meter.waited_ns(), 0);
}

// ---- traces ----

Json TraceOf(const std::vector<Record>& records) {
  std::ostringstream out;
  TraceExporter exporter(&out);
  for (const Record& record : records) exporter.Add(record);
  exporter.Finish();
  return Json::parse(out.str())["traceEvents"];
}

// Name, begin and length in ms of rank 0's slices and instants.
std::vector<std::string> RankZero(const Json& trace) {
  std::vector<std::string> shown;
  for (const Json& event : trace) {
    if (event["ph"] == "M" || event["tid"] != 0) continue;
    std::ostringstream text;
    text << event["name"].get<std::string>() << ' ' << event["ts"].get<double>() / 1e3;
    if (event["ph"] == "X") text << '+' << event["dur"].get<double>() / 1e3;
    shown.push_back(text.str());
  }
  return shown;
}

TEST(ExchangeTraceTest, AStepIsComputingReceivingAndWaiting) {
  Story story = Line();
  story.At(15).Signal(0, 1, 10).At(17).Answer(0, 1, 3);
  EXPECT_THAT(RankZero(TraceOf(story.records())),
              ElementsAre("joined 0", "neighbours 0", "compute 0+10", "receive 10+5", "wait 15+2",
                          "jump 17"));
}

TEST(ExchangeTraceTest, AStepIsComputingPushingAndWaiting) {
  Story story = Store(0);
  story.At(5).Write(PlacementOpened{.epoch = 1, .members = {0, 1, 2}});
  story.At(15).Signal(0, 1, 10).At(17).Answer(0, 1);
  EXPECT_THAT(RankZero(TraceOf(story.records())),
              ElementsAre("joined 0", "placement 1", "placement opened 5", "compute 0+10",
                          "push 10+5", "wait 15+2"));
}

// ---- runs that the simulator made ----

class ExchangeRuns : public ::testing::TestWithParam<EngineOptions> {};

TEST_P(ExchangeRuns, EveryCommandWorksAtAnyMoment) {
  const std::vector<Record> all = Simulated(GetParam(), true);
  std::set<std::string> states;
  for (std::size_t part = 1; part <= 12; ++part) {
    const std::size_t length = std::max<std::size_t>(1, all.size() * part / 12);
    const std::vector<Record> records(all.begin(),
                                      all.begin() + static_cast<std::ptrdiff_t>(length));
    MemorySource source = SourceOf(records);
    const Result<Present> present = LoadPresent(source, InfoOf(records));
    ASSERT_TRUE(present.ok()) << present.status().ToString();
    for (const WorkerRow& worker : present->workers) {
      EXPECT_FALSE(worker.why.empty());
      states.insert(worker.state);
    }
    for (const bool table : {true, false}) {
      EXPECT_GT(Text([&](auto& c) { return ShowGraph(source, "", 0, table, c); }).size(), 20u);
      EXPECT_TRUE(
          Printed([&](auto& c) { return ShowGraph(source, "", 0, table, c); }).contains("workers"));
    }
    const std::string workers = Text([&](auto& c) { return ShowWorkers(source, "", c); });
    EXPECT_THAT(workers, Not(HasSubstr("DATA_LOSS")));
    for (const Json& worker :
         Printed([&](auto& c) { return ShowWorkers(source, "", c); })["workers"]) {
      if (worker["tokens"].is_number()) {
        EXPECT_GE(worker["tokens"], 0);
      }
      if (worker["ahead"].is_number()) {
        EXPECT_GE(worker["ahead"], 0);
      }
    }
    EXPECT_GT(Text([&](auto& c) { return Explain(source, "", std::nullopt, c); }).size(), 20u);
    EXPECT_GT(Text([&](auto& c) { return ShowGroups(source, "", {}, c); }).size(), 20u);
    EXPECT_GT(Text([&](auto& c) { return ShowStragglers(source, "", 1.5, c); }).size(), 20u);
    EXPECT_GT(Text([&](auto& c) { return ShowSpectralGap(source, "", 0, c); }).size(), 20u);
  }
  EXPECT_TRUE(states.contains("computing"));
}

TEST_P(ExchangeRuns, TraceTracksDoNotOverlap) {
  std::map<int, double> busy;
  std::set<std::string> names;
  for (const Json& event : TraceOf(Simulated(GetParam()))) {
    if (event["ph"] != "X") continue;
    names.insert(event["name"].get<std::string>());
    double& until = busy[event["tid"].get<int>()];
    EXPECT_GE(event["ts"].get<double>(), until - 1e-3);
    until = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(busy.size(), 4u);
  EXPECT_TRUE(names.contains("compute"));
}

// All wait for the slow worker, within what the engine lets them be ahead.
TEST_P(ExchangeRuns, TheSlowWorkerIsFoundAndOwesTheWaiting) {
  const PaceReport report = PaceOf(Simulated(GetParam()));
  const WorkerPace& slow = report.workers.front();
  EXPECT_EQ(slow.rank, 0);
  EXPECT_NEAR(slow.factor, 5, 0.5);
  EXPECT_EQ(slow.steps, 30u);
  EXPECT_GT(slow.cost_ns, 0.9 * static_cast<double>(report.waited_ns));
  EXPECT_GT(report.waited_ns, 0);
  DurationNs waited = 0;
  for (const WorkerPace& worker : report.workers) waited += worker.waited_ns;
  EXPECT_EQ(waited, report.waited_ns);
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeRuns,
                         testing::Values(HopOptions{}, HopOptions{.staleness = 2},
                                         HopOptions{.order = HopOptions::Order::kSerial},
                                         HopOptions{.backups = 1, .max_jump = 4}, SspOptions{},
                                         SspOptions{.staleness = 0}),
                         [](const auto& engine) {
                           std::string name(EngineName(engine.param));
                           return name + std::to_string(engine.index);
                         });

}  // namespace
}  // namespace prd::ctl
