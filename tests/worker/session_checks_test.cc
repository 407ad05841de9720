#include "worker/session_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/io/curve.h"

namespace prd::session_checks_test {
namespace {

using ::testing::HasSubstr;

struct Keys {
  std::string server, own, secret;
};

Status Settle(const Keys& keys, SessionOptions* options) {
  options->curve_server_key = keys.server;
  options->curve_public_key = keys.own;
  options->curve_secret_key = keys.secret;
  return SettleKeys(options);
}

TEST(SessionChecks, ThePublicKeyFollowsFromTheSecretOne) {
  const CurveKeys server = NewCurveKeys().value();
  const CurveKeys own = NewCurveKeys().value();
  SessionOptions options;
  EXPECT_TRUE(Settle({}, &options).ok());
  EXPECT_EQ(options.curve_public_key, "");
  for (const std::string& given : {std::string(), own.public_key, own.public_key + "\n"}) {
    const Status status =
        Settle({server.public_key + "\n", given, " " + own.secret_key + "\r\n"}, &options);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(options.curve_server_key, server.public_key);
    EXPECT_EQ(options.curve_public_key, own.public_key);
    EXPECT_EQ(options.curve_secret_key, own.secret_key);
  }
}

TEST(SessionChecks, AKeyThatIsWrongIsNamed) {
  const std::string key = NewCurveKeys()->public_key;
  const CurveKeys own = NewCurveKeys().value();
  SessionOptions options;
  const auto wrong = [&options](const Keys& keys) {
    const Status status = Settle(keys, &options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(wrong({"daemon.pub", own.public_key, own.secret_key}),
              HasSubstr("curve_server_key (PRD_CURVE_SERVER_KEY): found 10 characters"));
  EXPECT_THAT(wrong({key, "x", own.secret_key}), HasSubstr("PRD_CURVE_PUBLIC_KEY): found 1"));
  EXPECT_THAT(wrong({key, "", "x"}), HasSubstr("curve_secret_key (PRD_CURVE_SECRET_KEY): found 1"));
  EXPECT_THAT(wrong({"", "", own.secret_key}), HasSubstr("curve_server_key: found none"));
  EXPECT_THAT(wrong({key, "", ""}), HasSubstr("curve_secret_key: found none"));
  EXPECT_THAT(wrong({key, key, own.secret_key}),
              ::testing::AllOf(HasSubstr("curve_public_key: found another key than"),
                               HasSubstr(own.public_key), HasSubstr("PRD_CURVE_PUBLIC_KEY"),
                               HasSubstr("PRD_CURVE_SECRET_KEY_FILE")));
}

}  // namespace
}  // namespace prd::session_checks_test
