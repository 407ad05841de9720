// How a worker finds its own address and the controller's kind of address. No name server is asked:
// addresses are written out, and localhost is in every host's own table.
#include "worker/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prd {
namespace {

using ::testing::HasSubstr;

TEST(HostTest, OnlyAnIpv6AddressIsReachedByIpv6) {
  EXPECT_TRUE(IsReachedByIpv6("tcp://[::1]:5775"));
  EXPECT_TRUE(IsReachedByIpv6("tcp://[fd00::7]:5775"));
  EXPECT_TRUE(IsReachedByIpv6("tcp://[fe80::1%eth0]:5775"));
  EXPECT_FALSE(IsReachedByIpv6("tcp://127.0.0.1:5775"));
  EXPECT_FALSE(IsReachedByIpv6("tcp://10.1.2.3:5775"));
  EXPECT_FALSE(IsReachedByIpv6("ipc:///run/[odd]/prd.sock"));
  EXPECT_FALSE(IsReachedByIpv6("ipc:///run/prd.sock"));
  EXPECT_FALSE(IsReachedByIpv6("tcp://localhost:no-port"));
  EXPECT_FALSE(IsReachedByIpv6("tcp://"));
}

TEST(HostTest, ANameOfBothKindsIsReachedByIpv4) {
  EXPECT_FALSE(IsReachedByIpv6("tcp://localhost:5775"));
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
              HasSubstr("found \"tcp://localhost:no-port\": "));
}

}  // namespace
}  // namespace prd
