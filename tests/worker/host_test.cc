// How a worker finds its own address and the controller's kind of address. No name server is asked:
// addresses are written out, and localhost is in every host's own table.
#include "worker/host.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "worker/own_process.h"

namespace prd {
namespace {

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
