#include "common/io/http_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/prng.h"

namespace prd::http_places_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Instant kStart{100 * kSecond};

HttpPlaces Four() { return HttpPlaces({.in_all = 4, .per_peer = 3}); }

TEST(HttpPlaces, TheLargestPeersOldestGoesForANewcomer) {
  HttpPlaces places = Four();
  EXPECT_EQ(places.Enter(1, "few", kStart), std::nullopt);
  EXPECT_EQ(places.Enter(2, "many", kStart), std::nullopt);
  EXPECT_EQ(places.Enter(3, "many", kStart), std::nullopt);
  EXPECT_EQ(places.Enter(4, "many", kStart), std::nullopt);
  EXPECT_EQ(places.Enter(5, "third", kStart), 2);
  EXPECT_EQ(places.Enter(6, "third", kStart), 3) << "two each, and it is the oldest";
  EXPECT_EQ(places.size(), 4u);
}

TEST(HttpPlaces, OfPeersWithAsManyTheSilentGoFirst) {
  HttpPlaces places = Four();
  for (const int fd : {1, 2, 3, 4}) (void)places.Enter(fd, std::to_string(fd), kStart);
  for (const int fd : {1, 3, 4}) places.Asked(fd, kStart);
  places.Answered(3, kStart);
  EXPECT_EQ(places.Enter(5, "5", kStart), 2) << "has brought nothing";
  places.Asked(5, kStart);
  EXPECT_EQ(places.Enter(6, "6", kStart), 3) << "rests";
  places.Asked(6, kStart);
  EXPECT_EQ(places.Enter(7, "7", kStart), 1) << "the oldest";
}

TEST(HttpPlaces, OfOnePeerTheSilentGoThenTheRestingThenTheOldest) {
  HttpPlaces places = Four();
  for (const int fd : {1, 2, 3}) EXPECT_EQ(places.Enter(fd, "a", kStart), std::nullopt);
  places.Asked(1, kStart);
  places.Asked(2, kStart);
  places.Answered(2, kStart);
  EXPECT_EQ(places.Enter(4, "a", kStart), 3) << "has brought nothing";
  places.Asked(4, kStart);
  EXPECT_EQ(places.Enter(5, "a", kStart), 2) << "rests";
  places.Asked(5, kStart);
  EXPECT_EQ(places.Enter(6, "a", kStart), 1) << "the oldest of those that take an answer";
}

TEST(HttpPlaces, BytesMoveNoDeadlineAndRequestsAndAnswersDo) {
  HttpPlaces places({.head = 5 * kSecond, .answer = 30 * kSecond});
  EXPECT_EQ(places.next_deadline(), std::nullopt);
  (void)places.Enter(1, "a", kStart);
  (void)places.Enter(2, "a", kStart + kSecond);
  EXPECT_EQ(places.next_deadline(), kStart + 5 * kSecond);
  places.Asked(1, kStart + 4 * kSecond);
  EXPECT_EQ(places.next_deadline(), kStart + 6 * kSecond);
  EXPECT_THAT(places.TakeLate(kStart + 6 * kSecond - 1), IsEmpty());
  EXPECT_THAT(places.TakeLate(kStart + 6 * kSecond), ElementsAre(2));
  EXPECT_EQ(places.next_deadline(), kStart + 34 * kSecond);
  places.Answered(1, kStart + 10 * kSecond);
  EXPECT_EQ(places.next_deadline(), kStart + 15 * kSecond);
  EXPECT_THAT(places.TakeLate(kStart + 15 * kSecond), ElementsAre(1));
  EXPECT_EQ(places.size(), 0u);
}

TEST(HttpPlaces, ForWantOfDescriptorsOnlyTheSilentGo) {
  HttpPlaces places = Four();
  EXPECT_EQ(places.TakeSilent(), std::nullopt);
  (void)places.Enter(1, "a", kStart);
  places.Asked(1, kStart);
  EXPECT_EQ(places.TakeSilent(), std::nullopt);
  (void)places.Enter(2, "a", kStart);
  (void)places.Enter(3, "b", kStart);
  (void)places.Enter(4, "b", kStart);
  places.Asked(4, kStart);
  EXPECT_EQ(places.TakeSilent(), 2) << "of two peers with two";
  EXPECT_EQ(places.TakeSilent(), 3);
  EXPECT_EQ(places.TakeSilent(), std::nullopt);
  EXPECT_EQ(places.size(), 2u);
}

// Whatever many peers do: never too many places, a newcomer always has one, and while a peer has
// fewer places than another, none of them is taken.
TEST(HttpPlaces, APeerWithFewLosesNone) {
  Prng prng(1);
  HttpPlaces places({.in_all = 16, .per_peer = 8});
  std::map<int, std::string> there;
  std::map<std::string, std::size_t> counts;
  int next_fd = 0;
  int ended = 0;
  for (int step = 0; step < 20'000; ++step) {
    const int any =
        there.empty()
            ? -1
            : std::next(there.begin(), static_cast<long>(prng.Below(there.size())))->first;
    switch (prng.Below(6)) {
      case 0:
        places.Asked(any, kStart);
        break;
      case 1:
        places.Answered(any, kStart);
        break;
      case 2:
        if (any >= 0 && prng.Below(4) == 0) {
          places.Leave(any);
          --counts[there[any]];
          there.erase(any);
        }
        break;
      default: {
        const std::string peer = prng.Below(3) > 0 ? "many" : std::to_string(prng.Below(9));
        const auto ends = places.Enter(++next_fd, peer, kStart);
        if (ends) {
          ++ended;
          ASSERT_TRUE(there.contains(*ends));
          for (const auto& [name, count] : counts) {
            if (counts[peer] == 8) continue;
            ASSERT_LE(count, counts[there[*ends]]) << name;
          }
          ASSERT_TRUE(counts[peer] < 8 || there[*ends] == peer);
          --counts[there[*ends]];
          there.erase(*ends);
        }
        there[next_fd] = peer;
        ++counts[peer];
      }
    }
    ASSERT_EQ(places.size(), there.size());
    ASSERT_LE(places.size(), 16u);
  }
  EXPECT_GT(ended, 1000);
}

}  // namespace
}  // namespace prd::http_places_test
