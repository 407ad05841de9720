// How a worker finds its own address and the controller's kind of address. No name server is asked:
// addresses are written out, and localhost is in every host's own table.
#include "worker/host.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "worker/own_process.h"

namespace prd {

int asked_for_later = 0;

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostTest, ANameOfBothKindsIsReachedByIpv4) {
  const Result<std::string> address = AddressTowards("tcp://localhost:5775");
  ASSERT_TRUE(address.ok()) << address.status().ToString();
  EXPECT_TRUE(address->starts_with("127.")) << *address;
}

TEST(HostTest, TheAddressTowardsLoopbackIsLoopback) {
  for (const char* endpoint : {"ipc:///run/prd.sock", "tcp://127.0.0.1:5775"}) {
    const Result<std::string> address = AddressTowards(endpoint);
    ASSERT_TRUE(address.ok()) << address.status().ToString();
    EXPECT_EQ(*address, "127.0.0.1") << endpoint;
  }
  const Result<std::string> ipv6 = AddressTowards("tcp://[::1]:5775");
  if (!ipv6.ok()) GTEST_SKIP() << "this host has no IPv6: " << ipv6.status().ToString();
  EXPECT_EQ(*ipv6, "::1");
}

// A name that DNS has after a while, as that of a service that is just being made.
TEST(HostTest, ANameThatIsNotThereYetIsAskedForAgain) {
  using std::chrono::steady_clock;
  std::vector<std::string> told;
  const auto waits = [&told](const std::string& why) { told.push_back(why); };
  const std::string later = "tcp://later.test:5775";
  asked_for_later = 0;
  const Result<std::string> found =
      AwaitAddressTowards(later, steady_clock::now() + std::chrono::minutes(1), waits);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(*found, "127.0.0.1");
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr(later), HasSubstr("Name or service not known"))));
  // But no longer than it may, and not where the endpoint is wrong.
  asked_for_later = -1'000'000;
  EXPECT_EQ(AwaitAddressTowards(later, steady_clock::now(), waits).status().code(),
            Code::kUnavailable);
  EXPECT_EQ(
      AwaitAddressTowards("tcp://nowhere", steady_clock::now() + std::chrono::minutes(1), waits)
          .status()
          .code(),
      Code::kInvalidArgument);
  EXPECT_EQ(told.size(), 1u);
}

// So that Ctrl-C ends it in Python, whose own handler only takes note.
TEST(HostTest, ASignalEndsTheWaitForAName) {
  struct sigaction take_note {};
  struct sigaction before {};
  take_note.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &take_note, &before), 0);
  asked_for_later = -1'000'000;
  const auto waits = [](const std::string&) { ::ualarm(50'000, 50'000); };
  const Result<std::string> found = AwaitAddressTowards(
      "tcp://later.test:5775", std::chrono::steady_clock::time_point::max(), waits);
  ::ualarm(0, 0);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(found.status().code(), Code::kUnavailable);
}

TEST(HostTest, ErrorsSayWhatWasFound) {
  EXPECT_THAT(AddressTowards("tcp://nowhere").status().ToString(),
              HasSubstr("found \"tcp://nowhere\", needed is tcp://HOST:PORT"));
  EXPECT_THAT(AddressTowards("tcp://localhost:no-port").status().ToString(),
              HasSubstr("found \"tcp://localhost:no-port\", needed is tcp://HOST:PORT"));
}

// A worker beside a controller that is named by its host's name has an address for other hosts.
TEST(HostTest, ALoopbackControllerByNumberIsOfThisHostAlone) {
  for (const char* endpoint :
       {"ipc:///run/prd.sock", "tcp://127.0.0.1:5775", "tcp://127.1:5775", "tcp://[::1]:5775",
        "tcp://localhost:5775", "tcp://localhost.localdomain:5775", "tcp://prd.localhost:5775"}) {
    EXPECT_EQ(AddressOfHost(endpoint), "") << endpoint;
  }
  const std::string address = AddressOfHost("tcp://node1:5775");
  if (address.empty()) GTEST_SKIP() << "this host has no address but loopback";
  EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  EXPECT_TRUE(CheckAddress(address, true).ok()) << address;
}

TEST(HostTest, AddressesThatNobodyReachesAreRefused) {
  for (const char* address : {"0.0.0.0", "::", "[::]", "224.0.0.1", "ff02::1", "255.255.255.255",
                              "eth0", "node1", "[fd77::2", "fd77::2]", ""}) {
    const Status status = CheckAddress(address, false);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << address;
    EXPECT_THAT(status.message(), HasSubstr("numeric address of this host (PRD_ADDRESS)"));
  }
  for (const char* announce : {"0.0.0.0", "0.0.0.0:7", "[::]", "[::]:7", "::", "224.0.0.1",
                               "[fd77::2", "fd77::2]", "fd77::2]:7", "fd77::x"}) {
    const Status status = CheckAnnounced(announce, false);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << announce;
    EXPECT_THAT(status.message(), HasSubstr("(PRD_ANNOUNCE_ADDRESS)"));
  }
  for (const char* fine : {"10.1.2.3", "fd77::2", "[fd77::2]"}) {
    EXPECT_TRUE(CheckAddress(fine, true).ok()) << fine;
    EXPECT_TRUE(CheckAnnounced(fine, true).ok()) << fine;
  }
  for (const char* fine : {"gate", "gate:7000", "10.1.2.3:7", "[fd77::2]:7"}) {
    EXPECT_TRUE(CheckAnnounced(fine, true).ok()) << fine;
  }
  for (const char* own : {"127.0.0.1", "127.8.8.8", "::1", "[::1]"}) {
    EXPECT_TRUE(CheckAddress(own, false).ok()) << own;
    EXPECT_FALSE(CheckAddress(own, true).ok()) << own;
    EXPECT_TRUE(CheckAnnounced(own, false).ok()) << own;
    EXPECT_FALSE(CheckAnnounced(own, true).ok()) << own;
  }
  EXPECT_FALSE(CheckAnnounced("localhost:7", true).ok());
}

// A child that lives on does not keep its parent's connection.
TEST(OwnProcessTest, AChildHasNoCopyOfTheSocket) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  OwnProcess own;
  own.Keep(ends[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    for (;;) ::pause();
  }
  ::close(ends[0]);
  pollfd item{.fd = ends[1], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&item, 1, 60'000), 1);
  EXPECT_NE(item.revents & POLLHUP, 0);
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "it lives";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
}

// The socket is closed, and something else has its number.
TEST(OwnProcessTest, WhatHasItsNumberLaterStaysTheChilds) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  OwnProcess own;
  own.Keep(ends[0]);
  ASSERT_EQ(::dup2(ends[1], ends[0]), ends[0]);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::fcntl(ends[0], F_GETFD) >= 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace prd

// In place of the system's in this program, which asks for no name but localhost and this one.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == nullptr || std::string_view(name) != "later.test") {
    return real(name, service, hints, found);
  }
  if (++prd::asked_for_later < 4) return EAI_NONAME;
  return real("127.0.0.1", service, hints, found);
}
