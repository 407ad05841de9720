// The server on real sockets: who is let in, and what it does without descriptors.
#include "common/io/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace prd::http_server_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uid_t kNobody = 65534;
constexpr const char* kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr int kDeadlineMs = 20'000;

class Client {
 public:
  // As this user, which takes root if it is another.
  explicit Client(bool ipv6 = false, uid_t user = ::geteuid()) : ipv6_(ipv6) {
    const int before = ::setfsuid(user);
    fd_ = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::setfsuid(static_cast<uid_t>(before));
  }
  ~Client() { Close(); }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  bool Connect(int port) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = v4.sin_port;
    v6.sin6_addr = in6addr_loopback;
    return ipv6_ ? ::connect(fd_, reinterpret_cast<sockaddr*>(&v6), sizeof v6) == 0
                 : ::connect(fd_, reinterpret_cast<sockaddr*>(&v4), sizeof v4) == 0;
  }
  void Send(const std::string& bytes) {
    (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool Readable(int timeout_ms = kDeadlineMs) const {
    pollfd fd{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
  }
  // What comes first; empty: the connection ended, or nothing came.
  std::string Read() {
    char buffer[4096];
    if (!Readable()) return "";
    const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
    return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : "";
  }
  std::string Ask(int port) {
    if (!Connect(port)) return "not connected";
    Send(kRequest);
    return Read();
  }
  int fd() const { return fd_; }

 private:
  const bool ipv6_;
  int fd_ = -1;
};

std::optional<HttpAnswer> Small(const HttpRequest& /*request*/) {
  return HttpAnswer{.body = std::string("small\n")};
}

std::unique_ptr<HttpServer> Started(const std::string& address,
                                    const HttpServer::Options& options = {},
                                    const HttpHandler& handler = Small) {
  auto server = HttpServer::Listen(address);
  EXPECT_TRUE(server.ok()) << server.status().message();
  if (!server.ok()) return nullptr;
  EXPECT_TRUE((*server)->Start(handler, options).ok());
  return std::move(*server);
}

TEST(HttpServer, ListensOnBothFamiliesAndTellsWhatIsWrong) {
  for (const char* address : {"127.0.0.1:0", "[::1]:0", "localhost:0", "*:0", "[::]:0"}) {
    const auto server = Started(address);
    ASSERT_NE(server, nullptr) << address;
    const std::string at = address;
    if (at != "[::1]:0") {
      EXPECT_THAT(Client().Ask(server->port()), StartsWith("HTTP/1.1 200")) << at;
    }
    if (at.front() == '[') {
      EXPECT_THAT(Client(true).Ask(server->port()), StartsWith("HTTP/1.1 200")) << at;
    }
  }
  for (const char* address : {"127.0.0.1", "127.0.0.1:x", "no.such.host.invalid:1", "[::1:1"}) {
    EXPECT_FALSE(HttpServer::Listen(address).ok()) << address;
  }
}

TEST(HttpServer, APortIsOneServers) {
  const auto first = Started("127.0.0.1:0");
  ASSERT_NE(first, nullptr);
  const std::string address = "127.0.0.1:" + std::to_string(first->port());
  const auto second = HttpServer::Listen(address);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("Address already in use"));
}

TEST(HttpServer, ItsThreadTakesNoSignals) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  const auto server = Started("127.0.0.1:0", {}, [&](const HttpRequest& request) {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return Small(request);
  });
  EXPECT_THAT(Client().Ask(server->port()), StartsWith("HTTP/1.1 200"));
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGALRM, SIGUSR1}) {
    EXPECT_EQ(::sigismember(&blocked, signal), 1) << signal;
  }
  sigset_t own;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(::sigismember(&own, SIGTERM), 0) << "the mask of who started it is as it was";
}

TEST(HttpServer, EndsItsConnectionsWhenItEnds) {
  auto server = Started("127.0.0.1:0", {}, [](const HttpRequest&) { return std::nullopt; });
  Client silent, waits;
  ASSERT_TRUE(silent.Connect(server->port()) && waits.Connect(server->port()));
  waits.Send(kRequest);
  server.reset();
  EXPECT_TRUE(silent.Readable() && waits.Readable());
  EXPECT_EQ(silent.Read(), "");
  EXPECT_EQ(waits.Read(), "");
}

TEST(HttpServer, OtherUsersEndBeforeTheyAreReadWhereOnlyTheOwnIsLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  std::atomic<int> asked = 0;
  const auto count = [&](const HttpRequest& request) {
    ++asked;
    return Small(request);
  };
  for (const char* address : {"127.0.0.1:0", "[::1]:0"}) {
    const bool ipv6 = address[0] == '[';
    const auto own = Started(address, {.own_user_only = true}, count);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(Client(ipv6, kNobody).Ask(own->port()), "");
    EXPECT_EQ(asked, 0);
    EXPECT_THAT(Client(ipv6).Ask(own->port()), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(asked.exchange(0), 1);
    EXPECT_THAT(Client(ipv6, kNobody).Ask(Started(address)->port()), StartsWith("HTTP/1.1 200"));
  }
}

// While this lives, a descriptor can be opened only in the place of one that is closed.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    for (int i = 0; i < 100; ++i) fillers_.push_back(::dup(STDERR_FILENO));  // into all gaps
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(fillers_.back() + 1);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_LT(::dup(STDERR_FILENO), 0);
  }
  ~NoDescriptors() {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    for (const int fd : fillers_) ::close(fd);
  }

 private:
  rlimit before_{};
  std::vector<int> fillers_;
};

TEST(HttpServer, WithoutDescriptorsTheSilentEndAndElseItWaits) {
  const auto server = Started("127.0.0.1:0", {.loop = {.places = {.head = 600 * kSecond}}});
  Client silent, rests, first, second, third;
  ASSERT_TRUE(silent.Connect(server->port()));
  silent.Send("GET ");
  EXPECT_THAT(rests.Ask(server->port()), StartsWith("HTTP/1.1 200"));  // both are accepted
  {
    const NoDescriptors none;
    EXPECT_THAT(first.Ask(server->port()), StartsWith("HTTP/1.1 200"));
    EXPECT_TRUE(silent.Readable()) << "that was in its place";
    EXPECT_EQ(silent.Read(), "");
    ASSERT_TRUE(second.Connect(server->port()) && third.Connect(server->port()));
    second.Send(kRequest);
    third.Send(kRequest);
    EXPECT_FALSE(second.Readable(300)) << "there is no descriptor for it";
    rests.Send(kRequest);
    EXPECT_THAT(rests.Read(), StartsWith("HTTP/1.1 200")) << "who has one goes on";
  }
  EXPECT_THAT(second.Read(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(third.Read(), StartsWith("HTTP/1.1 200"));
}

// ---- PeerLookup ----

class Listener {
 public:
  explicit Listener(const in6_addr* at) : family_(at == nullptr ? AF_INET : AF_INET6) {
    fd_ = ::socket(family_, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at == nullptr) {
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&v4), sizeof v4), 0);
    } else {
      sockaddr_in6 v6{};
      v6.sin6_family = AF_INET6;
      v6.sin6_addr = *at;
      EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&v6), sizeof v6), 0);
    }
    EXPECT_EQ(::listen(fd_, 8), 0);
  }
  ~Listener() { ::close(fd_); }
  int fd() const { return fd_; }
  int port() const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);  // at the same place in both
  }

 private:
  int family_;
  int fd_;
};

class PeerLookupTest : public ::testing::TestWithParam<std::pair<const in6_addr*, bool>> {};

TEST_P(PeerLookupTest, TheKernelTellsTheUserOfAConnectionFromThisHost) {
  const auto& [at, over_ipv6] = GetParam();
  const Listener listener(at);
  const PeerLookup lookup(listener.fd());
  if (!lookup.tells_users()) GTEST_SKIP() << "this kernel does not tell users";
  const uid_t other = ::geteuid() == 0 ? kNobody : ::geteuid();
  for (const uid_t user : {::geteuid(), other}) {
    Client client(over_ipv6, user);
    ASSERT_TRUE(client.Connect(listener.port()));
    const int accepted = ::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(accepted, 0);
    SocketPeer peer = lookup.Of(accepted);
    EXPECT_TRUE(peer.here);
    EXPECT_FALSE(peer.gone);
    EXPECT_EQ(peer.user, user);
    EXPECT_EQ(peer.name, "user " + std::to_string(user));
    ::shutdown(client.fd(), SHUT_WR);
    EXPECT_EQ(lookup.Of(accepted).user, user) << "it may still read";
    client.Close();
    peer = lookup.Of(accepted);
    EXPECT_TRUE(peer.gone) << "and is nobody: the kernel says root of what no process has";
    EXPECT_EQ(peer.user, std::nullopt);
    ::close(accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PeerLookupTest,
                         ::testing::Values(std::pair{nullptr, false},
                                           std::pair{&in6addr_loopback, true},
                                           std::pair{&in6addr_any, false},
                                           std::pair{&in6addr_any, true}));

}  // namespace
}  // namespace prd::http_server_test
