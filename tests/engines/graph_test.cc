#include "engines/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/prng.h"

namespace prd::graph_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string Wrong(std::vector<Graph::Edge> edges, int workers = 0) {
  return Validate({Graph::Kind::kEdges, std::move(edges)}, workers).message();
}

TEST(GraphTest, SaysWhatIsWrongWithAList) {
  EXPECT_EQ(Wrong({}), "graph: found 0 edges, allowed is 1 to 1000000");
  EXPECT_EQ(Wrong({{0, 1}, {-1, 2}}), "graph: found [-1, 2], allowed is ranks from 0 to 999999");
  EXPECT_EQ(Wrong({{0, 1000000}}), "graph: found [0, 1000000], allowed is ranks from 0 to 999999");
  EXPECT_EQ(Wrong({{2, 2}}), "graph: found [2, 2], allowed is an edge between two ranks");
  EXPECT_EQ(Wrong({{0, 1}, {1, 0}}), "graph: found [1, 0] twice, allowed is each edge once");
  EXPECT_EQ(Wrong({{0, 1}, {2, 5}}),
            "graph: found no path from rank 0 to rank 2, allowed is a connected graph");
  EXPECT_EQ(Wrong({{0, 1}, {1, 2}}, 4),
            "graph: found no edge of rank 3, allowed is a list that names all 4 workers");
  EXPECT_TRUE(Validate({Graph::Kind::kEdges, {{0, 1}, {1, 2}, {2, 3}}}, 4).ok());
  EXPECT_TRUE(Validate({Graph::Kind::kRing, {}}, 4).ok());
}

TEST(GraphTest, ADirectedListHasPathsBothWays) {
  const auto wrong = [](std::vector<Graph::Edge> edges) {
    return Validate({Graph::Kind::kEdges, std::move(edges)}, 3, true).message();
  };
  EXPECT_EQ(wrong({{0, 1}, {1, 0}, {1, 2}, {2, 1}}), "");  // an edge and the one back are two
  EXPECT_EQ(wrong({{0, 1}, {0, 1}}), "graph: found [0, 1] twice, allowed is each edge once");
  EXPECT_EQ(wrong({{0, 1}, {1, 0}, {0, 2}}),
            "graph: found no path from rank 2 to rank 0, allowed is a connected graph");
  EXPECT_EQ(wrong({{0, 1}, {1, 0}, {2, 0}}),
            "graph: found no path from rank 0 to rank 2, allowed is a connected graph");
}

TEST(GraphTest, ReadsAsItIsWritten) {
  EXPECT_EQ(ToText({Graph::Kind::kRingBased, {}}), "ring-based");
  EXPECT_EQ(ToText({Graph::Kind::kDoubleRing, {}}), "double-ring");
  EXPECT_EQ(ToText({Graph::Kind::kHierarchical, {}}), "hierarchical");
  EXPECT_EQ(ToText({Graph::Kind::kRing, {}}), "ring");
  EXPECT_EQ(ToText({Graph::Kind::kComplete, {}}), "complete");
  EXPECT_EQ(ToText({Graph::Kind::kEdges, {{0, 1}, {2, 1}}}), "[[0, 1], [2, 1]]");
}

TEST(NeighboursTest, ARingClosesOverWhoIsPresent) {
  Neighbours ring(Graph{});
  ring.Join(7);
  EXPECT_THAT(ring.Of(7), IsEmpty());
  ring.Join(2);
  EXPECT_THAT(ring.Of(7), ElementsAre(2));
  EXPECT_THAT(ring.Of(2), ElementsAre(7));
  ring.Join(4);
  ring.Join(0);
  EXPECT_THAT(ring.Of(0), ElementsAre(2, 7));
  EXPECT_THAT(ring.Of(4), ElementsAre(2, 7));
  ring.Leave(4);
  EXPECT_THAT(ring.Of(2), ElementsAre(0, 7));
}

TEST(NeighboursTest, AListKnowsOnlyItsEdges) {
  Neighbours line({Graph::Kind::kEdges, {{0, 1}, {1, 2}}});
  for (const Rank rank : {0, 1, 2, 9}) line.Join(rank);
  EXPECT_THAT(line.Of(1), ElementsAre(0, 2));
  EXPECT_THAT(line.Of(9), IsEmpty());
  line.Leave(1);
  EXPECT_THAT(line.Of(0), IsEmpty());
}

// Against the definition, while workers come and go; and a loaded table answers as the saved one.
TEST(NeighboursTest, AgreeWithTheDefinition) {
  Prng random(5);
  std::vector<Graph::Edge> edges;
  for (Rank rank = 1; rank < 12; ++rank) {
    edges.emplace_back(rank, static_cast<Rank>(random.Below(static_cast<std::uint64_t>(rank))));
  }
  for (const Graph::Kind kind : {Graph::Kind::kRing, Graph::Kind::kComplete, Graph::Kind::kEdges}) {
    const Graph graph{kind, kind == Graph::Kind::kEdges ? edges : std::vector<Graph::Edge>{}};
    Neighbours table(graph);
    std::vector<Rank> present;  // ascending
    for (int step = 0; step < 400; ++step) {
      const Rank rank = static_cast<Rank>(random.Below(12));
      const auto at = std::lower_bound(present.begin(), present.end(), rank);
      if (table.Has(rank)) {
        table.Leave(rank);
        present.erase(at);
      } else {
        table.Join(rank);
        present.insert(at, rank);
      }
      StateArchive saved = StateArchive::Saver();
      table.Archive(saved, 12);
      Neighbours loaded(graph);
      StateArchive loader = StateArchive::Loader(saved.bytes());
      loaded.Archive(loader, 12);
      ASSERT_TRUE(loader.ok() && loader.AtEnd());
      for (std::size_t i = 0; i < present.size(); ++i) {
        std::set<Rank> expected;
        if (kind == Graph::Kind::kRing) {
          expected = {present[(i + 1) % present.size()],
                      present[(i + present.size() - 1) % present.size()]};
        } else if (kind == Graph::Kind::kComplete) {
          expected = {present.begin(), present.end()};
        } else {
          for (const auto& [a, b] : edges) {
            if (a == present[i] && table.Has(b)) expected.insert(b);
            if (b == present[i] && table.Has(a)) expected.insert(a);
          }
        }
        expected.erase(present[i]);
        ASSERT_THAT(table.Of(present[i]), testing::ElementsAreArray(expected));
        ASSERT_EQ(loaded.Count(present[i]), expected.size());
        for (std::size_t k = 0; k < expected.size(); ++k) {
          ASSERT_EQ(loaded.At(present[i], k), table.At(present[i], k));
        }
      }
    }
  }
}

TEST(NeighboursTest, RefusesADamagedState) {
  Neighbours ring(Graph{});
  ring.Join(3);
  StateArchive saved = StateArchive::Saver();
  ring.Archive(saved, 4);
  StateArchive loader = StateArchive::Loader(saved.bytes());
  Neighbours small(Graph{});
  small.Archive(loader, 3);
  EXPECT_FALSE(loader.ok());
}

}  // namespace
}  // namespace prd::graph_test
