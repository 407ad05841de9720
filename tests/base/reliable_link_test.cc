#include "common/base/reliable_link.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/prng.h"

namespace prd {
namespace {

constexpr ResendLimits kSmall{.first = 100, .longest = 350, .messages = 3, .bytes = 10};

class ResendsTest : public testing::Test {
 protected:
  std::vector<Seq> SendAgain(std::int64_t now, Seq up_to) {
    std::vector<Seq> sent;
    resends_.SendAgain({now}, link_, up_to, [&sent](Seq seq, const std::string& body) {
      sent.push_back(seq);
      return body.size();
    });
    return sent;
  }
  std::vector<Seq> SendAgain(std::int64_t now) { return SendAgain(now, link_.last_out()); }

  using Seqs = std::vector<Seq>;
  LinkEnd<std::string> link_;
  Resends<kSmall> resends_;
};

TEST_F(ResendsTest, PausesDoubleUntilThePeerAcknowledgesMore) {
  EXPECT_EQ(SendAgain(-5), Seqs()) << "there is nothing";
  EXPECT_EQ(resends_.in_vain(), 0);
  link_.Push("a");
  std::vector<std::int64_t> times;
  for (std::int64_t now = -5; now < 1200; ++now) {
    if (!SendAgain(now).empty()) times.push_back(now);
  }
  EXPECT_EQ(times, (std::vector<std::int64_t>{-5, 95, 295, 645, 995}));
  EXPECT_EQ(resends_.in_vain(), 5);
  resends_.Restart({1200}, 0);
  EXPECT_EQ(resends_.in_vain(), 0);
  EXPECT_EQ(SendAgain(1200), Seqs{1});
  EXPECT_EQ(resends_.due(), Instant{1300});
}

TEST_F(ResendsTest, AWaitCountsAsTheFirstPause) {
  link_.Push("a");
  resends_.Restart({1000}, 100);
  EXPECT_EQ(SendAgain(1099), Seqs());
  EXPECT_EQ(SendAgain(1100), Seqs{1});
  EXPECT_EQ(resends_.due(), Instant{1300});
  resends_.Restart({1100}, 20);
  EXPECT_EQ(resends_.due(), Instant{1120});
  EXPECT_EQ(SendAgain(1120), Seqs{1});
  EXPECT_EQ(resends_.due(), Instant{1320});
}

TEST_F(ResendsTest, SendsSoManyMessagesAndBytesAtOnce) {
  for (int i = 0; i < 5; ++i) link_.Push("abc");
  EXPECT_EQ(SendAgain(0), (Seqs{1, 2, 3}));
  link_.OnAck(2);
  resends_.Restart({0}, 0);
  EXPECT_EQ(SendAgain(0, 2), Seqs()) << "these have arrived";
  EXPECT_EQ(SendAgain(0, 3), Seqs{3}) << "the others may be on their way";
  link_.OnAck(5);
  resends_.Restart({0}, 0);
  link_.Push("a");
  link_.Push("more than ten");
  link_.Push("a");
  EXPECT_EQ(SendAgain(0), (Seqs{6, 7}));
}

// Messages of the worker's way, which looks at the clock, over a network that loses two in three:
// all arrive in order, and the pauses bound what is sent.
TEST_F(ResendsTest, AllArrivesOverANetworkThatLoses) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng prng(seed);
    link_ = {};
    resends_ = {};
    LinkEnd<std::string> peer;
    std::size_t sent = 0;
    const auto send = [&](Seq seq, const std::string&) {
      ++sent;
      if (prng.Below(3) == 0) peer.OnReceive(seq);
      return std::size_t{1};
    };
    std::int64_t now = 0;
    for (; peer.last_in() < 50 && now < 100'000; ++now) {
      if (link_.last_out() < 50 && prng.Below(20) == 0) {
        if (link_.unacked().empty()) resends_.Restart({now}, kSmall.first);
        const auto& [seq, body] = link_.Push("x");
        send(seq, body);
      }
      resends_.SendAgain({now}, link_, link_.last_out(), send);
      const Seq oldest = link_.oldest();
      if (prng.Below(3) == 0) link_.OnAck(peer.last_in());
      if (link_.oldest() != oldest) resends_.Restart({now}, kSmall.first);
    }
    ASSERT_EQ(peer.last_in(), 50u) << "seed " << seed;
    const auto turns = static_cast<std::size_t>(now / kSmall.first) + 1;
    EXPECT_LE(sent, 50 + kSmall.messages * turns) << "seed " << seed;
  }
}

}  // namespace
}  // namespace prd
