#include "worker/session_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

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

TEST(SessionChecks, AJobHasANameThatTheDaemonTakes) {
  SessionOptions options;
  options.controller = "tcp://127.0.0.1:1";
  for (const std::string& job : {std::string("a b*"), std::string(200, 'j')}) {
    options.job = job;
    EXPECT_TRUE(CheckOptions(options).ok()) << job;
  }
  for (const std::string& job : {std::string(), std::string(201, 'j'), std::string("a\nb"),
                                 std::string("a\0b", 3), std::string("\xff\xfe")}) {
    options.job = job;
    const Status status = CheckOptions(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << job;
    EXPECT_THAT(status.message(), HasSubstr("(PRD_JOB)"));
  }
}

TEST(SessionChecks, AGradientOfAnotherShapeIsNamed) {
  std::array<double, 8> one{}, two{};
  const std::vector<Tensor> parameters = {{one.data(), 8, DType::kF64},
                                          {two.data(), 8, DType::kF16}};
  std::vector<Tensor> gradients = parameters;
  EXPECT_TRUE(CheckGradients(parameters, gradients).ok());
  gradients[1].dtype = DType::kBF16;
  EXPECT_EQ(CheckGradients(parameters, gradients).message(),
            "gradients[1]: found 8 of bf16, needed are 8 of f16, as parameters[1] has");
  gradients[0].count = 7;
  EXPECT_EQ(CheckGradients(parameters, gradients).message(),
            "gradients[0]: found 7 of f64, needed are 8 of f64, as parameters[0] has");
  gradients.pop_back();
  EXPECT_THAT(CheckGradients(parameters, gradients).message(), HasSubstr("found 1 tensors"));
}

}  // namespace
}  // namespace prd::session_checks_test
