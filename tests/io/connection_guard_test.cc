// Connections that would cost too much are ended, and nobody else notices.
#include "common/io/connection_guard.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "common/io/clock.h"

namespace prd {
namespace {

constexpr int kDeadlineMs = 60'000;

// A TCP connection without ZeroMQ.
class Raw {
 public:
  explicit Raw(const std::string& endpoint, const char* from = "127.0.0.1")
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    (void)::inet_pton(AF_INET, from, &address.sin_addr);
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) Close();
  }
  Raw(Raw&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Raw() { Close(); }

  bool Send(const std::string& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t some = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some <= 0) return false;
      sent += static_cast<std::size_t>(some);
    }
    return true;
  }
  bool Take(std::string* bytes) {
    return ::recv(fd_, bytes->data(), bytes->size(), MSG_WAITALL) == std::ssize(*bytes);
  }
  // ZMTP 3.0 without keys, as a DEALER.
  bool ShakeHands() {
    std::string greeting = std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
    greeting.resize(64);
    std::string answer(66, '\0');  // a greeting, and the beginning of a READY: its size is last
    if (!Send(greeting) ||
        !Send(std::string("\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                          "DEALER",
                          30)) ||
        !Take(&answer)) {
      return false;
    }
    answer.resize(static_cast<unsigned char>(answer.back()));
    return Take(&answer);
  }
  // A message of one part.
  bool Say(const std::string& text) {
    return Send(std::string(1, '\0') + static_cast<char>(text.size()) + text);
  }
  // A part of 8 KiB, with more to come.
  bool SendPart() {
    std::string part(9 + 8192, '\0');
    part[0] = 3;
    part[7] = 32;
    return Send(part);
  }
  // Whether the other side has ended the connection.
  bool Ended() {
    pollfd item{.fd = fd_, .events = POLLIN | POLLRDHUP, .revents = 0};
    return ::poll(&item, 1, 0) > 0 && (item.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }

 private:
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int fd_;
};

class GuardTest : public testing::Test {
 protected:
  void Listen(const ConnectionGuard::Options& options,
              const std::string& at = "tcp://127.0.0.1:*") {
    auto guard = ConnectionGuard::Make(context_, socket_, options);
    ASSERT_TRUE(guard.ok()) << guard.status().message();
    guard_ = std::move(*guard);
    socket_.bind(at);
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
  }
  // Reads messages until it is so. As a daemon: each part is told to the guard.
  bool Until(const std::function<bool()>& done) {
    const std::int64_t end = MonotonicNs() + kDeadlineMs * kMillisecond;
    while (!done()) {
      if (MonotonicNs() > end) return false;
      zmq::message_t part;
      bool any = false;
      while (socket_.recv(part, zmq::recv_flags::dontwait)) {
        any = true;
        if (!guard_->Delivered(part, true, group_, 2)) ++surplus_;
        while (socket_.get(zmq::sockopt::rcvmore)) {
          (void)socket_.recv(part, zmq::recv_flags::none);
        }
        ++messages_;
      }
      if (!any) guard_->Drained();
      (void)::poll(nullptr, 0, 2);
    }
    return true;
  }
  // A connection that the guard has heard of: it does so in a thread of its own, and takes one that
  // speaks before for silent.
  Raw Connect(const char* from = "127.0.0.1") {
    const auto seen = [this] {
      const ConnectionGuard::Counters now = guard_->counters();
      return now.open + now.refused;
    };
    const std::uint64_t before = seen();
    Raw raw(endpoint_, from);
    EXPECT_TRUE(Until([&] { return seen() > before; }));
    return raw;
  }
  bool Says(Raw& raw) {
    const int before = messages_;
    return raw.Say("hello") && Until([&] { return messages_ > before; });
  }

  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::router};
  std::unique_ptr<ConnectionGuard> guard_;
  std::string endpoint_;
  int messages_ = 0;
  std::string group_;  // of which all messages are
  int surplus_ = 0;    // messages of connections that were too many for it
};

TEST_F(GuardTest, PartsWithoutEndAreCutAndOthersGoOn) {
  Listen({.max_unread = 1 << 20});
  Raw good = Connect();
  ASSERT_TRUE(good.ShakeHands());
  ASSERT_TRUE(Says(good));
  Raw bad(endpoint_);
  ASSERT_TRUE(bad.ShakeHands());
  std::uint64_t sent = 0;
  while (sent < (1u << 30) && bad.SendPart()) sent += 8192;
  EXPECT_GE(sent, 1u << 20);
  EXPECT_LT(sent, 1u << 30);
  EXPECT_TRUE(Until([&] { return guard_->counters().open == 1; }));
  EXPECT_EQ(guard_->counters().cut, 1u);
  EXPECT_TRUE(Says(good));
}

TEST_F(GuardTest, ManyThatBringALittleAreCutTogether) {
  Listen({.max_unread = 64 << 20, .max_unread_in_all = 4 << 20});
  std::vector<Raw> many;
  for (int i = 0; i < 50; ++i) {
    many.emplace_back(endpoint_);
    ASSERT_TRUE(many.back().ShakeHands());
  }
  const auto send = [&] {
    for (Raw& raw : many) {
      for (int i = 0; i < 16 && !raw.Ended(); ++i) (void)raw.SendPart();
    }
    return guard_->counters().cut > 0;
  };
  EXPECT_TRUE(Until(send));
  EXPECT_EQ(messages_, 0);
}

TEST_F(GuardTest, ThoseThatHaveBroughtNothingHaveLess) {
  Listen(
      {.max_unread = 64 << 20, .max_unread_silent_in_all = 1 << 20, .max_unread_in_all = 64 << 20});
  Raw good = Connect();
  ASSERT_TRUE(good.ShakeHands());
  ASSERT_TRUE(Says(good));
  Raw bad(endpoint_);
  ASSERT_TRUE(bad.ShakeHands());
  const auto send = [&] {
    for (int i = 0; i < 16; ++i) {
      EXPECT_TRUE(good.SendPart());
      (void)bad.SendPart();
    }
    return guard_->counters().cut > 0;
  };
  EXPECT_TRUE(Until(send));
  EXPECT_TRUE(Until([&] { return bad.Ended(); }));
  EXPECT_FALSE(good.Ended());
  guard_->Allow(0, 1 << 10);
  EXPECT_TRUE(Until([&] { return good.Ended(); }));
}

TEST_F(GuardTest, SoManyMayHaveBroughtNothingYet) {
  Listen({.max_silent = 4});
  std::vector<Raw> good;
  for (int i = 0; i < 6; ++i) {
    good.push_back(Connect());
    ASSERT_TRUE(good.back().ShakeHands());
    ASSERT_TRUE(Says(good.back()));
  }
  std::vector<Raw> idle;
  for (int i = 0; i < 20; ++i) idle.emplace_back(endpoint_);
  EXPECT_TRUE(Until([&] { return guard_->counters().refused == 16; }));
  EXPECT_EQ(guard_->counters().open, 10u);
  for (Raw& raw : good) EXPECT_TRUE(Says(raw));
}

TEST_F(GuardTest, WhoSpeaksIsNotCutForAllThatItEverSaid) {
  Listen({.max_unread = 256 << 10});
  Raw good = Connect();
  ASSERT_TRUE(good.ShakeHands());
  const std::string text(250, 'x');
  for (int i = 0; i < 8000; ++i) {  // 2 MB
    ASSERT_TRUE(good.Say(text));
    if (i % 100 == 0) {
      ASSERT_TRUE(Until([&] { return messages_ > i - 1; }));
    }
  }
  EXPECT_TRUE(Until([&] { return messages_ == 8000; }));
  EXPECT_EQ(guard_->counters().cut, 0u);
}

TEST_F(GuardTest, IdleConnectionsGiveWayAndThoseThatSpokeStay) {
  Listen({.max_connections = 8});
  std::vector<Raw> good;
  for (int i = 0; i < 3; ++i) {
    good.push_back(Connect());
    ASSERT_TRUE(good.back().ShakeHands());
    ASSERT_TRUE(Says(good.back()));
  }
  std::vector<Raw> idle;
  for (int i = 0; i < 40; ++i) idle.emplace_back(endpoint_);
  EXPECT_TRUE(Until([&] { return guard_->counters().refused == 35; }));
  EXPECT_EQ(guard_->counters().open, 8u);
  for (int i = 0; i < 35; ++i) {
    EXPECT_TRUE(Until([&, i] { return idle[static_cast<std::size_t>(i)].Ended(); })) << i;
  }
  Raw late = Connect();
  ASSERT_TRUE(late.ShakeHands());
  EXPECT_TRUE(Says(late));
  for (Raw& raw : good) EXPECT_TRUE(Says(raw));
  idle.clear();
  EXPECT_TRUE(Until([&] { return guard_->counters().open == 4; }));
}

TEST_F(GuardTest, OneHostHasSoMany) {
  Listen({.max_connections = 100, .max_per_peer = 5});
  std::vector<Raw> many;
  for (int i = 0; i < 20; ++i) many.emplace_back(endpoint_);
  EXPECT_TRUE(Until([&] { return guard_->counters().refused == 15; }));
  EXPECT_EQ(guard_->counters().open, 5u);
}

TEST_F(GuardTest, OfManySilentOnesTheHostThatHasMostLosesItsOldest) {
  Listen({.max_silent = 6});
  std::vector<Raw> speaks;
  for (int i = 0; i < 5; ++i) {
    speaks.push_back(Connect());
    ASSERT_TRUE(speaks.back().ShakeHands());
    ASSERT_TRUE(Says(speaks.back()));
  }
  Raw alone = Connect("127.0.0.9");
  std::vector<Raw> many;
  for (int i = 0; i < 20; ++i) many.emplace_back(endpoint_);
  EXPECT_TRUE(Until([&] { return guard_->counters().refused == 15; }));
  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_TRUE(Until([&, i] { return many[i].Ended(); })) << i;
  }
  EXPECT_FALSE(alone.Ended()) << "though it is the oldest of all";
  ASSERT_TRUE(alone.ShakeHands());
  EXPECT_TRUE(Says(alone));
  for (Raw& raw : speaks) EXPECT_TRUE(Says(raw));
}

TEST_F(GuardTest, AGroupHasSoManyThatSpeakAndOthersEndSoon) {
  Listen({.max_connections = 100});
  group_ = "some";
  std::vector<Raw> two;
  for (int i = 0; i < 2; ++i) {
    two.push_back(Connect());
    ASSERT_TRUE(two.back().ShakeHands());
    ASSERT_TRUE(Says(two.back()));
  }
  EXPECT_EQ(surplus_, 0);
  Raw third = Connect();
  ASSERT_TRUE(third.ShakeHands());
  ASSERT_TRUE(Says(third));
  EXPECT_EQ(surplus_, 1);
  EXPECT_TRUE(Until([&] { return third.Ended(); }));
  EXPECT_EQ(guard_->counters().refused, 1u);
  for (Raw& raw : two) EXPECT_TRUE(Says(raw));
  group_ = "others";
  Raw other = Connect();
  ASSERT_TRUE(other.ShakeHands());
  EXPECT_TRUE(Says(other));
  group_ = "some";
  two.pop_back();
  EXPECT_TRUE(Until([&] { return guard_->counters().open == 2; }));
  Raw late = Connect();
  ASSERT_TRUE(late.ShakeHands());
  EXPECT_TRUE(Says(late));
  EXPECT_EQ(surplus_, 1);
}

TEST_F(GuardTest, WhoConnectsTooFastGetsInLater) {
  Listen({.max_new_per_s = 25});  // 100 at once
  Raw first = Connect();
  ASSERT_TRUE(first.ShakeHands());
  std::vector<Raw> many;
  while (guard_->counters().rushes == 0) many.emplace_back(endpoint_);
  Raw late = Connect();
  ASSERT_TRUE(late.ShakeHands());
  EXPECT_TRUE(Says(late));
  EXPECT_TRUE(Says(first));
  EXPECT_EQ(guard_->counters().refused, 0u);
}

TEST_F(GuardTest, ThisUserMayConnectLocallyAsItLikes) {
  Listen({.max_connections = 100, .max_per_peer = 2},
         "ipc://@prd-guard-test-" + std::to_string(::getpid()));
  std::vector<zmq::socket_t> many;
  for (int i = 0; i < 10; ++i) {
    many.emplace_back(context_, zmq::socket_type::dealer);
    many.back().set(zmq::sockopt::linger, 0);
    many.back().connect(endpoint_);
    (void)many.back().send(zmq::str_buffer("hello"), zmq::send_flags::none);
  }
  EXPECT_TRUE(Until([&] { return messages_ == 10 && guard_->counters().open == 10; }));
  EXPECT_EQ(guard_->counters().refused, 0u);
}

}  // namespace
}  // namespace prd
