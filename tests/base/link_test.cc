#include "common/base/link.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/prng.h"

namespace prd {
namespace {

using Link = LinkEnd<std::string>;

TEST(Link, DeliversInOrderAndOnce) {
  Link link;
  EXPECT_EQ(link.OnReceive(2), Link::Verdict::kGap);
  EXPECT_EQ(link.OnReceive(1), Link::Verdict::kDeliver);
  EXPECT_EQ(link.OnReceive(1), Link::Verdict::kDuplicate);
  EXPECT_EQ(link.OnReceive(2), Link::Verdict::kDeliver);
  EXPECT_EQ(link.last_in(), 2u);
}

TEST(Link, KeepsUntilAcknowledged) {
  Link link;
  link.Push("a");
  link.Push("b");
  link.OnAck(7);  // of messages never sent
  EXPECT_EQ(link.unacked().size(), 2u);
  link.OnAck(1);
  ASSERT_EQ(link.unacked().size(), 1u);
  EXPECT_EQ(link.unacked().front().second, "b");
}

// Two ends over a network that loses, duplicates and reorders, sending again what is not
// acknowledged: everything arrives, in order, once.
TEST(Link, NothingIsLostOrSeenTwice) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    Link a;
    Link b;
    std::vector<Link::Entry> wire;
    std::vector<std::string> received;
    int pushed = 0;
    while (received.size() < 50) {
      if (pushed < 50 && prng.Below(2) == 0) wire.push_back(a.Push(std::to_string(pushed++)));
      if (prng.Below(4) == 0) wire.insert(wire.end(), a.unacked().begin(), a.unacked().end());
      if (!wire.empty()) {
        const std::size_t at = prng.Below(wire.size());
        const Link::Entry entry = wire[at];
        if (prng.Below(3) != 0) wire.erase(wire.begin() + static_cast<std::ptrdiff_t>(at));
        if (prng.Below(3) != 0 && b.OnReceive(entry.first) == Link::Verdict::kDeliver) {
          received.push_back(entry.second);
        }
        if (prng.Below(3) != 0) a.OnAck(b.last_in());
      }
      if (wire.size() > 500) wire.clear();
    }
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(received[static_cast<std::size_t>(i)], std::to_string(i));
  }
}

}  // namespace
}  // namespace prd
