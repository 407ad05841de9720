// First packets that are dropped bring no connection, and everybody else's do. Time is the test's.
#include "common/io/arrival_limit.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/base/time.h"
#include "common/io/syn_filter.h"

namespace prd::arrival_limit_test {
namespace {

constexpr int kDeadlineMs = 60'000;

sockaddr_in6 AddressOf(const char* text) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  (void)::inet_pton(AF_INET6, text, &address.sin6_addr);
  return address;
}

class Socket {
 public:
  explicit Socket(const char* own) : fd_(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    const sockaddr_in6 address = AddressOf(own);
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(std::exchange(fd_, -1));
    }
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Listens for both kinds of addresses.
class ArrivalTest : public testing::Test {
 protected:
  void SetUp() override {
    if (listener_.fd() < 0) GTEST_SKIP() << "no IPv6 here";
    ASSERT_EQ(::listen(listener_.fd(), 16), 0);
    socklen_t size = sizeof at_;
    ASSERT_EQ(::getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&at_), &size), 0);
  }
  // A connection that has been begun: its first packet has come, or was dropped.
  Socket Begin(const char* from, const char* to) {
    Socket socket(from);
    sockaddr_in6 target = AddressOf(to);
    target.sin6_port = at_.sin6_port;
    (void)::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&target), sizeof target);
    return socket;
  }
  Socket Begin4(int host) {
    return Begin(("::ffff:127.0.0." + std::to_string(host)).c_str(), "::ffff:127.0.0.1");
  }
  Socket Begin6() { return Begin("::1", "::1"); }
  static std::string Source4(int host) {
    return std::string("4\x7f\0\0", 4) + static_cast<char>(host);
  }
  static std::string Source6() { return "6" + std::string(8, '\0'); }  // the first half of ::1
  static bool Made(const Socket& socket, int wait_ms = kDeadlineMs) {
    pollfd item{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
    return ::poll(&item, 1, wait_ms) == 1 && (item.revents & (POLLERR | POLLHUP)) == 0;
  }

  Socket listener_{"::"};
  sockaddr_in6 at_{};
};

TEST_F(ArrivalTest, FirstPacketsOfAllAreDroppedAndComeAgain) {
  const Socket before = Begin4(1);
  ASSERT_TRUE(Made(before));
  const int accepted = ::accept(listener_.fd(), nullptr, nullptr);
  ASSERT_TRUE(DropAllSyns(listener_.fd()));
  const Socket v4 = Begin4(1);
  const Socket v6 = Begin6();
  EXPECT_FALSE(Made(v4, 100));
  EXPECT_FALSE(Made(v6, 0));
  // Connections that there are go on.
  char byte = 'x';
  ASSERT_EQ(::send(before.fd(), &byte, 1, 0), 1);
  ASSERT_EQ(::recv(accepted, &byte, 1, 0), 1);
  ::close(accepted);
  ASSERT_TRUE(DropNoSyns(listener_.fd()));
  EXPECT_TRUE(Made(v4));
  EXPECT_TRUE(Made(v6));
  EXPECT_TRUE(DropNoSyns(listener_.fd()));
}

TEST_F(ArrivalTest, FirstPacketsOfSomeSourcesAloneAreDropped) {
  ASSERT_TRUE(DropSynsFrom(listener_.fd(), {Source4(9), Source4(2), "no source"}));
  const Socket second = Begin4(2);
  EXPECT_TRUE(Made(Begin4(1)));
  EXPECT_TRUE(Made(Begin6()));
  EXPECT_FALSE(Made(second, 0));

  // As many as may be, the last of them too.
  std::vector<std::string> many(kMaxSynSources - 2, Source4(9));
  many.push_back(Source6());
  many.push_back(Source4(3));
  ASSERT_TRUE(DropSynsFrom(listener_.fd(), many));
  const Socket third = Begin4(3);
  const Socket sixth = Begin6();
  EXPECT_TRUE(Made(Begin4(1)));
  EXPECT_FALSE(Made(third, 0));
  EXPECT_FALSE(Made(sixth, 0));
}

TEST_F(ArrivalTest, WhoMakesManyWaitsAndWhoMakesFewGetsIn) {
  ArrivalLimit limit(10);  // 40 at once
  limit.Watch(listener_.fd());
  std::int64_t now = kSecond;
  for (int i = 0; i < 40; ++i) limit.Arrived(now, i % 2 == 0 ? Source4(2) : Source6());
  EXPECT_FALSE(limit.dropping());
  limit.Arrived(now, Source4(3));
  EXPECT_TRUE(limit.dropping());
  const Socket second = Begin4(2);
  const Socket sixth = Begin6();
  EXPECT_TRUE(Made(Begin4(3)));
  EXPECT_TRUE(Made(Begin4(1)));
  EXPECT_FALSE(Made(second, 0));
  EXPECT_FALSE(Made(sixth, 0));
  // Ten may come at once before anything is let in again.
  now += kSecond;
  limit.Tick(now);
  EXPECT_TRUE(limit.dropping());
  now += kSecond / 5;
  limit.Tick(now);
  EXPECT_FALSE(limit.dropping());
  EXPECT_TRUE(Made(second));
  EXPECT_TRUE(Made(sixth));
}

TEST_F(ArrivalTest, TooManySourcesAllWait) {
  ArrivalLimit limit(10);
  limit.Watch(listener_.fd());
  std::int64_t now = kSecond;
  const auto arrive = [&](int count) {
    for (int i = 0; i < count; ++i) limit.Arrived(now, i % 2 == 0 ? Source4(9) : "gone");
  };
  arrive(41);
  EXPECT_TRUE(Made(Begin4(1)));  // sources are dropped
  now += kSecond / 10;
  arrive(25);
  const Socket first = Begin4(1);
  EXPECT_FALSE(Made(first, 0));
  now += 4 * kSecond;
  limit.Tick(now);
  EXPECT_TRUE(Made(first));
}

TEST_F(ArrivalTest, WithoutABoundNobodyWaits) {
  ArrivalLimit limit(0);
  limit.Watch(listener_.fd());
  for (int i = 0; i < 10'000; ++i) limit.Arrived(kSecond, Source4(1));
  EXPECT_FALSE(limit.dropping());
  EXPECT_TRUE(Made(Begin4(1)));
}

}  // namespace
}  // namespace prd::arrival_limit_test
