// Rings around broken links (engines/links.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/links.h"

namespace prd {
namespace {

// Tries all orders.
bool AnyRing(std::vector<Rank> ranks, const BrokenLinks& broken) {
  std::sort(ranks.begin(), ranks.end());
  do {
    bool whole = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      whole = whole && !broken.Has(ranks[i], ranks[(i + 1) % ranks.size()]);
    }
    if (whole) return true;
  } while (std::next_permutation(ranks.begin() + 1, ranks.end()));
  return false;
}

TEST(RingAroundTest, FindsARingWhereThereIsOne) {
  Prng random(1);
  int found = 0;
  int none = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto n = static_cast<Rank>(1 + random.Below(7));
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < n; ++rank) ranks.push_back(rank * 3);
    BrokenLinks broken;
    for (std::uint64_t left = random.Below(10); left > 0; --left) {
      const Rank a = ranks[random.Below(ranks.size())];
      const Rank b = ranks[random.Below(ranks.size())];
      if (a != b) broken.Set(a, b, false);
    }
    const std::vector<Rank> ring = RingAround(ranks, broken);
    ASSERT_EQ(ring.empty(), !AnyRing(ranks, broken)) << n << " ranks, try " << i;
    (ring.empty() ? none : found) += 1;
    if (ring.empty()) continue;
    EXPECT_THAT(ring, testing::UnorderedElementsAreArray(ranks));
    for (std::size_t at = 0; at < ring.size(); ++at) {
      ASSERT_FALSE(broken.Has(ring[at], ring[(at + 1) % ring.size()]));
    }
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(none, 200);
}

TEST(RingAroundTest, KeepsTheOrderThatWorksAndIsQuickInLargeGroups) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < 2000; ++rank) ranks.push_back(rank);
  BrokenLinks broken;
  broken.Set(7, 9, false);
  EXPECT_EQ(RingAround(ranks, broken), ranks);
  for (Rank rank = 0; rank < 40; ++rank) broken.Set(rank, rank + 1, false);
  const std::vector<Rank> ring = RingAround(ranks, broken);
  ASSERT_EQ(ring.size(), ranks.size());
  for (std::size_t at = 0; at < ring.size(); ++at) {
    ASSERT_FALSE(broken.Has(ring[at], ring[(at + 1) % ring.size()]));
  }
}

std::vector<Rank> Few(const std::vector<std::string>& hosts,
                      const std::vector<std::pair<Rank, Rank>>& broken) {
  BrokenLinks links;
  for (const auto& [a, b] : broken) links.Set(a, b, false);
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < std::ssize(hosts); ++rank) ranks.push_back(rank);
  return FewInTheWay(ranks, hosts, links);
}

TEST(FewInTheWayTest, TheHostThatReachesTheFewestOthersGoesAsAWhole) {
  const std::vector<std::string> hosts = {"a", "b", "c", "d", "d"};
  EXPECT_THAT(Few(hosts, {{0, 3}, {2, 4}}), testing::ElementsAre(3, 4));
  EXPECT_THAT(Few(hosts, {{0, 3}, {1, 3}, {2, 3}, {0, 4}}), testing::ElementsAre(3, 4));
  EXPECT_THAT(Few({"a", "b", "c", "d", "e", "f"}, {{0, 5}, {1, 5}, {2, 5}, {0, 4}, {1, 4}, {2, 4}}),
              testing::UnorderedElementsAre(4, 5))
      << "two, of which neither reaches the others";
}

TEST(FewInTheWayTest, OfTwoHostsTheOneWithFewerWorkersGoes) {
  EXPECT_THAT(Few({"a", "b", "b"}, {{0, 1}}), testing::ElementsAre(0));
}

TEST(FewInTheWayTest, OnOneHostWorkersGo) {
  EXPECT_THAT(Few({"a", "a", "a", "a"}, {{0, 2}, {1, 2}}), testing::ElementsAre(2));
}

TEST(FewInTheWayTest, NobodyGoesWhereMostWouldHaveTo) {
  EXPECT_THAT(Few({"a", "b"}, {{0, 1}}), testing::IsEmpty());
  EXPECT_THAT(Few({"a", "a", "b", "b"}, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}), testing::IsEmpty());
  EXPECT_THAT(Few({"a", "b", "c"}, {{0, 1}, {0, 2}, {1, 2}}), testing::IsEmpty());
  EXPECT_THAT(Few({"a", "b", "c"}, {}), testing::IsEmpty()) << "no link is in the way";
}

}  // namespace
}  // namespace prd
