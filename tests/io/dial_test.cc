// No name server is asked: addresses are written out, and localhost is in every host's own table.
#include "common/io/dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prd {
namespace {

using ::testing::HasSubstr;

TEST(DialTest, ANumberIsOfItsOwnKind) {
  for (const auto& [endpoint, ipv6] : {std::pair("tcp://127.0.0.1:5775", false),
                                       {"tcp://10.1.2.3:5775", false},
                                       {"tcp://[::1]:5775", true},
                                       {"tcp://[fd00::7]:5775", true},
                                       {"tcp://fd00::7:5775", true}}) {
    const Result<std::vector<TcpWay>> ways = WaysTo(endpoint);
    ASSERT_TRUE(ways.ok()) << ways.status().ToString();
    ASSERT_EQ(ways->size(), 1U) << endpoint;
    EXPECT_EQ(ways->front().ipv6, ipv6) << endpoint;
  }
  EXPECT_EQ(WaysTo("tcp://127.0.0.1:5775")->front().own, "127.0.0.1");
}

TEST(DialTest, OfANameIpv4IsTriedFirst) {
  const Result<std::vector<TcpWay>> ways = WaysTo("tcp://localhost:5775");
  ASSERT_TRUE(ways.ok()) << ways.status().ToString();
  EXPECT_FALSE(ways->front().ipv6);
  EXPECT_TRUE(ways->front().own.starts_with("127.")) << ways->front().own;
  EXPECT_LE(ways->size(), 2U);
}

TEST(DialTest, ErrorsSayWhatWasFoundAndWhatIsNeeded) {
  const std::pair<const char*, const char*> wrong[] = {
      {"ipc:///run/prd.sock", ", needed is tcp://HOST:PORT"},
      {"tcp://nowhere", ", needed is tcp://HOST:PORT"},
      {"tcp://localhost:no-port", ", needed is tcp://HOST:PORT with a port from 1 to 65535"},
      {"tcp://localhost:0", "a port from 1 to 65535"},
      {"tcp://localhost:65536", "a port from 1 to 65535"},
      {"tcp://[fd00::1:5775", "an IPv6 address stands in brackets, as in tcp://[fd00::1]:5775"},
      {"tcp://[fd00::1]x:5775", "an IPv6 address stands in brackets"},
  };
  for (const auto& [endpoint, why] : wrong) {
    const Status status = WaysTo(endpoint).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << endpoint;
    EXPECT_THAT(status.message(), HasSubstr(std::string("found \"") + endpoint + "\""));
    EXPECT_THAT(status.message(), HasSubstr(why));
  }
}

TEST(DialTest, AHostThatIsNotFoundMayBeLater) {
  const Status status = WaysTo("tcp://no..host:5775").status();  // a name that no host may have
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("found \"tcp://no..host:5775\": "));
}

}  // namespace
}  // namespace prd
