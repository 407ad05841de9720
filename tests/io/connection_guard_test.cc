// Connections that would cost too much are ended, and nobody else notices.
#include "common/io/connection_guard.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/io/clock.h"
#include "common/io/curve.h"
#include "tests/io/raw_zmtp.h"

namespace prd::connection_guard_test {
namespace {

constexpr int kDeadlineMs = 60'000;

using Raw = RawZmtp;

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
        std::uint64_t bytes = 0;
        while (part.more()) {
          (void)socket_.recv(part, zmq::recv_flags::none);
          bytes += ConnectionGuard::OnWire(part.size(), false);
        }
        if (!guard_->Delivered(part, bytes, true, group_, 2)) ++surplus_;
        ++messages_;
      }
      if (!any) guard_->Drained();
      (void)::poll(nullptr, 0, 2);
    }
    return true;
  }
  // What is read from now on is of the connections that are open.
  void Drain() {
    EXPECT_TRUE(Until([drained = 0]() mutable { return ++drained > 3; }));
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

// By its number, once, and no other one's. Each connection gets the descriptor of the one before,
// and speaks at once: mostly before the guard has heard of it, or of that one's end.
TEST_F(GuardTest, WhoseHandshakeIsRefusedIsTold) {
  socket_.set(zmq::sockopt::curve_server, true);
  socket_.set(zmq::sockopt::curve_secretkey, NewCurveKeys()->secret_key);
  std::mutex mutex;
  std::vector<std::pair<std::string, int>> told;
  Listen({.denied = [&](const std::string& from, int why) {
    const std::lock_guard lock(mutex);
    told.emplace_back(from, why);
  }});
  Raw silent = Connect("127.0.0.2");
  Raw plain = Connect("127.0.0.3");
  ASSERT_TRUE(plain.Send(Raw::Greeting()));  // without keys
  ASSERT_TRUE(Until([&] { return guard_->counters().denied > 0; }));
  ASSERT_TRUE(Until([&] {
    const std::lock_guard lock(mutex);
    return !told.empty();
  }));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0],
            std::pair(std::string("127.0.0.3"), ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH));
}

TEST(ConnectionFacts, APeerHasATextForPeople) {
  EXPECT_EQ(TextOf({.name = "4\x0a\x01\x02\x03", .tcp = true}), "10.1.2.3");
  EXPECT_EQ(TextOf({.name = std::string("6\x20\x01\x0d\xb8\0\0\0\0", 9), .tcp = true}),
            "2001:db8::/64");
  EXPECT_EQ(TextOf({.name = "u1000"}), "user 1000");
  EXPECT_EQ(TextOf({.name = "unknown"}), "unknown");
  EXPECT_EQ(TextOf({.name = "gone", .gone = true}), "unknown");
  EXPECT_EQ(TextOf({}), "user " + std::to_string(::geteuid()));
}

// However many are left: it does not wait for a socket that it could not make.
TEST_F(GuardTest, WithoutDescriptorsItIsNotMade) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(0);
  ASSERT_GE(lowest, 0);
  ::close(lowest);
  int refused = 0;
  for (int left = 0;; ++left) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(lowest + left);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto guard = ConnectionGuard::Make(context_, socket_, {});
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    if (guard.ok()) break;
    EXPECT_EQ(guard.status().code(), Code::kResourceExhausted) << guard.status().ToString();
    ++refused;
  }
  EXPECT_GE(refused, 3);
}

TEST_F(GuardTest, TheEndOfAConnectionThatIsClaimedIsTold) {
  for (const std::string& at :
       {std::string("tcp://127.0.0.1:*"), "ipc:///tmp/prd-guard-" + std::to_string(::getpid())}) {
    SCOPED_TRACE(at);
    guard_.reset();
    socket_ = zmq::socket_t(context_, zmq::socket_type::router);
    Listen({}, at);
    std::uint64_t claims = 0;
    std::vector<std::uint64_t> told;
    const auto wait = [&](const std::function<bool()>& done) {
      const std::int64_t end = MonotonicNs() + kDeadlineMs * kMillisecond;
      while (MonotonicNs() < end && !done()) {
        zmq::message_t part;
        while (socket_.recv(part, zmq::recv_flags::dontwait)) {
          while (part.more()) (void)socket_.recv(part, zmq::recv_flags::none);
          guard_->Claim(part, ++claims);
        }
        for (const std::uint64_t claim : guard_->TakeEnded()) told.push_back(claim);
      }
      return done();
    };
    const auto speak = [&](Raw& raw) {
      const std::uint64_t next = claims + 1;
      return raw.Say("hello") && wait([&] { return claims == next; });
    };
    Raw stays(endpoint_);
    ASSERT_TRUE(stays.ShakeHands() && speak(stays));
    std::vector<std::uint64_t> expected;
    for (int round = 0; round < 50; ++round) {
      Raw raw(endpoint_);
      ASSERT_TRUE(raw.ShakeHands() && speak(raw));
      expected.push_back(claims);
    }
    ASSERT_TRUE(wait([&] { return told.size() >= expected.size(); }));
    std::sort(told.begin(), told.end());
    EXPECT_EQ(told, expected);
    ASSERT_TRUE(speak(stays));  // claimed anew: the number before is void
    expected.push_back(claims);
    pollfd readable{.fd = guard_->ended(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&readable, 1, 0), 0);
    stays.Close();
    EXPECT_EQ(::poll(&readable, 1, kDeadlineMs), 1);
    ASSERT_TRUE(wait([&] { return told.size() >= expected.size(); }));
    std::sort(told.begin(), told.end());
    EXPECT_EQ(told, expected);
  }
}

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

// As the kernel counts them, for each user but this process's own.
TEST_F(GuardTest, PartsWithoutEndOfAnotherUserAreCutOverALocalSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act for another user";
  Listen({.max_unread = 1 << 20}, "ipc://@prd-guard-test-" + std::to_string(::getpid()));
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::setresuid(65'534, 65'534, 65'534) != 0) ::_exit(2);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    endpoint_.copy(address.sun_path, endpoint_.size() - 6, 6);
    address.sun_path[0] = '\0';
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + endpoint_.size() - 6);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) ::_exit(3);
    Raw bad(fd);
    if (!bad.ShakeHands()) ::_exit(4);
    std::uint64_t sent = 0;
    while (sent < (1u << 30) && bad.SendPart()) sent += 8192;
    ::_exit(sent >= (1u << 20) && sent < (1u << 30) ? 0 : 5);
  }
  EXPECT_TRUE(Until([&] { return guard_->counters().cut == 1; }));
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A reader that is behind. Those whose messages pile up are cut; what was read does not count.
TEST_F(GuardTest, MessagesThatNobodyReadsAreBounded) {
  socket_.set(zmq::sockopt::rcvhwm, 0);
  Listen({.max_unread = 64 << 20, .max_backlog = 128 << 10});
  Raw good = Connect();
  ASSERT_TRUE(good.ShakeHands());
  ASSERT_TRUE(Says(good));
  Raw bad = Connect();
  ASSERT_TRUE(bad.ShakeHands());
  ASSERT_TRUE(Says(bad));
  const std::string text(250, 'x');
  for (int i = 0; i < 2000; ++i) {  // 500 kB, of which half is read meanwhile
    ASSERT_TRUE(good.Say(text));
    if (i % 200 == 0) {
      ASSERT_TRUE(Until([&] { return messages_ >= 2 + i; }));
    }
  }
  std::uint64_t sent = 0;
  while (sent < (256u << 20) && bad.Say(text)) sent += text.size();  // and nothing is read
  EXPECT_LT(sent, 256u << 20);
  EXPECT_EQ(guard_->counters().cut, 1u);
  EXPECT_FALSE(good.Ended());
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

// A connection that brings all that it has before the guard first looks at it is no better off.
TEST_F(GuardTest, WhatCameBeforeTheFirstLookCounts) {
  Listen({.max_unread_silent = 64 << 10});
  Raw good = Connect();  // beside one the guard looks twice a second, and when the process grows
  ASSERT_TRUE(good.ShakeHands());
  ASSERT_TRUE(Says(good));
  const std::uint64_t looks = guard_->looks();
  EXPECT_TRUE(Until([&] { return guard_->looks() >= looks + 2; }));
  Raw bad(endpoint_);
  ASSERT_TRUE(bad.ShakeHands());
  for (int i = 0; i < 64 && bad.SendPart();) ++i;
  EXPECT_TRUE(Until([&] { return guard_->counters().cut == 1; }));
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

// The monitor tells of a connection in its own time, which may be after its first message.
TEST_F(GuardTest, AConnectionCountsForItsGroupThoughItsMessageOutranItsEvent) {
  Listen({});
  std::atomic<bool> over = false;
  std::vector<std::thread> busy;  // keep the guard's thread from its lock
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back([&] {
      while (!over) (void)guard_->counters();
    });
  }
  std::vector<Raw> raws;
  constexpr int kGroups = 30;
  for (int group = 0; group < kGroups; ++group) {
    group_ = "group " + std::to_string(group);
    for (int i = 0; i < 4; ++i) {
      raws.emplace_back(endpoint_);
      ASSERT_TRUE(raws.back().ShakeHands());
      ASSERT_TRUE(Says(raws.back()));
    }
  }
  over = true;
  for (std::thread& thread : busy) thread.join();
  EXPECT_EQ(surplus_, 2 * kGroups);
  EXPECT_TRUE(Until([&] { return guard_->counters().open == 2 * kGroups; }));
  Drain();
  for (std::size_t i = raws.size() - 4; i < raws.size(); ++i) {
    if (!raws[i].Ended()) {
      ASSERT_TRUE(Says(raws[i]));
    }
  }
  guard_->End(group_);
  EXPECT_TRUE(Until([&] { return guard_->counters().open == 2 * kGroups - 2; }));
}

TEST_F(GuardTest, AGroupThatIsNotWantedAnyMoreEndsAtOnce) {
  Listen({});
  std::vector<Raw> some, others;
  for (std::vector<Raw>* each : {&some, &others}) {
    group_ = each == &some ? "some" : "others";
    for (int i = 0; i < 2; ++i) {
      each->push_back(Connect());
      Drain();
      ASSERT_TRUE(each->back().ShakeHands());
      ASSERT_TRUE(Says(each->back()));
    }
  }
  guard_->End("none");
  EXPECT_EQ(guard_->counters().open, 4u);
  guard_->End("some");
  EXPECT_EQ(guard_->counters().open, 2u);
  for (Raw& raw : some) EXPECT_TRUE(Until([&] { return raw.Ended(); }));
  for (Raw& raw : others) EXPECT_TRUE(Says(raw));
  guard_->End("some");
  EXPECT_EQ(guard_->counters().open, 2u);
}

// A message is read when its connection is over and another has its descriptor. That one is not of
// the message's group, which ends.
TEST_F(GuardTest, AMessageThatIsReadLateEndsNoOtherConnection) {
  Listen({});
  const auto open = [this](std::size_t connections) {
    const std::int64_t end = MonotonicNs() + kDeadlineMs * kMillisecond;
    while (guard_->counters().open != connections && MonotonicNs() < end) ::poll(nullptr, 0, 2);
    return guard_->counters().open == connections;
  };
  const auto read = [this] {
    zmq::message_t part;
    EXPECT_TRUE(socket_.recv(part, zmq::recv_flags::none));
    while (part.more()) EXPECT_TRUE(socket_.recv(part, zmq::recv_flags::none));
    return part;
  };
  Raw gone(endpoint_);
  ASSERT_TRUE(open(1) && gone.ShakeHands() && gone.Say("hello"));
  gone.Close();
  ASSERT_TRUE(open(0));
  Raw later(endpoint_);
  ASSERT_TRUE(open(1) && later.ShakeHands());
  const zmq::message_t late = read();
  guard_->Delivered(late, 0, true, "over");
  guard_->End("over");
  EXPECT_EQ(guard_->counters().open, 1u);
  for (int i = 0; i < 3; ++i) {
    group_ = i == 2 ? "over" : "others";
    ASSERT_TRUE(Says(later));
    Drain();
  }
  guard_->End("others");
  EXPECT_EQ(guard_->counters().open, 1u);
  guard_->End("over");
  EXPECT_TRUE(Until([&] { return later.Ended(); }));
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
}  // namespace prd::connection_guard_test
