#include "engines/link_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/run_limits.h"

namespace prd {
namespace {

using testing::ElementsAre;

GroupFormed Of(std::initializer_list<Rank> ranks) {
  GroupFormed form{.id = 1, .kind = GroupKind::kTrain};
  for (const Rank rank : ranks) form.members.push_back({.rank = rank});
  return form;
}

TEST(LinkTableTest, TheWorkerThatAsksProbesUntilTheLinkIsMended) {
  LinkTable links;
  links.Break(2, 0, {1}, "why");
  EXPECT_TRUE(links.Probes(2, 0));
  EXPECT_FALSE(links.Probes(0, 2));
  EXPECT_THAT(links.ProbedBy(2), ElementsAre(0));
  EXPECT_TRUE(links.broken().Has(0, 2));
  EXPECT_EQ(links.WordsOf({1 + kSecond}, 0),
            "; the link between ranks 0 and 2 is broken for 1.0 s (why)");
  links.Mend(0, 2);
  EXPECT_TRUE(links.all().empty());
  EXPECT_TRUE(links.broken().empty());
}

TEST(LinkTableTest, AWorkerThatHasGoneIsProbedNoMore) {
  LinkTable links;
  links.Break(2, 0, {1}, "a");
  links.Break(1, 2, {1}, "b");
  links.Break(0, 1, {1}, "c");
  EXPECT_THAT(links.Forget(2), ElementsAre(1));
  EXPECT_EQ(links.all().size(), 1u);
}

TEST(LinkTableTest, AWorkerProbesSoManyAtMost) {
  LinkTable links;
  const auto most = static_cast<Rank>(kMaxBrokenLinks);
  for (Rank rank = 1; rank < most; ++rank) links.Break(0, rank, {100 - rank}, "");
  EXPECT_FALSE(links.OldestInExcess(0));
  links.Break(0, most, {100}, "");
  EXPECT_EQ(links.OldestInExcess(0), most - 1);
  EXPECT_FALSE(links.OldestInExcess(most));
}

TEST(LinkTableTest, LoadedLinksMustFitTheWorkers) {
  LinkTable links;
  links.Break(1, 3, {1}, "why");
  const std::string saved = SaveState(links);
  LinkTable loaded;
  StateArchive ar = StateArchive::Loader(saved);
  loaded.Archive(ar);
  EXPECT_FALSE(loaded.Restore([](Rank rank) { return rank != 3; }));
  EXPECT_TRUE(loaded.Restore([](Rank) { return true; }));
  EXPECT_TRUE(loaded.broken().Has(1, 3));
}

TEST(ArrangeAsRingTest, MembersThatDoNotReachEachOtherAreNotAdjacent) {
  LinkTable links;
  links.Break(0, 1, {1}, "");
  bool ring_only = false;
  GroupFormed four = Of({0, 1, 2, 3});
  ASSERT_TRUE(ArrangeAsRing(links.broken(), &four, &ring_only));
  EXPECT_TRUE(ring_only);
  const std::vector<Rank> ring = RanksOf(four);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(links.broken().Has(ring[i], ring[(i + 1) % 4]));
  }
  GroupFormed two = Of({0, 1});
  EXPECT_FALSE(ArrangeAsRing(links.broken(), &two, &ring_only));
  ring_only = false;
  GroupFormed others = Of({0, 2, 3});
  EXPECT_TRUE(ArrangeAsRing(links.broken(), &others, &ring_only));
  EXPECT_FALSE(ring_only);
}

}  // namespace
}  // namespace prd
