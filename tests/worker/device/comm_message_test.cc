// What workers say about communicators, as bytes; and bytes that they did not say.
#include <gtest/gtest.h>

#include "common/base/prng.h"
#include "tests/worker/device/random_comm_message.h"
#include "worker/device/communicators.h"

namespace prd {
namespace {

CommMessage Random(Prng* random) {
  return RandomCommMessage(*random, random->Below(kCommKinds), CommMessage::kMaxMembers);
}

TEST(CommMessageTest, ComesBackAsItWas) {
  Prng random(1);
  for (int i = 0; i < 2000; ++i) {
    const CommMessage message = Random(&random);
    const auto back = DecodeCommMessage(EncodeCommMessage(message));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, message);
  }
}

TEST(CommMessageTest, AnyOtherLengthIsRefused) {
  Prng random(2);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> bytes = EncodeCommMessage(Random(&random));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeCommMessage(std::span(bytes).first(size)));
    }
    bytes.push_back({});
    EXPECT_FALSE(DecodeCommMessage(bytes));
  }
}

// What is taken says the same when it is said again; counts that do not fit are never allocated.
TEST(CommMessageTest, DamagedBytesAreRefusedOrAMessage) {
  Prng random(3);
  int taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes = EncodeCommMessage(Random(&random));
    if (bytes.size() > 400) continue;
    for (std::uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      const std::size_t at = random.Below(random.Below(2) == 0 ? 40 : bytes.size());
      bytes[at] ^= static_cast<std::byte>(1 + random.Below(255));
    }
    const auto message = DecodeCommMessage(bytes);
    if (!message) continue;
    ++taken;
    EXPECT_EQ(DecodeCommMessage(EncodeCommMessage(*message)), message);
    EXPECT_LE(message->members.size(), CommMessage::kMaxMembers);
    EXPECT_LE(message->reason.size(), CommMessage::kMaxReason);
    for (const char c : message->reason) EXPECT_TRUE(c >= ' ' && c <= '~') << int{c};
  }
  EXPECT_GT(taken, 1000);
}

TEST(CommMessageTest, ALongReasonIsCut) {
  CommMessage message{.kind = CommMessage::Kind::kDecline};
  message.reason.assign(5000, 'y');
  EXPECT_EQ(DecodeCommMessage(EncodeCommMessage(message))->reason.size(), CommMessage::kMaxReason);
}

}  // namespace
}  // namespace prd
