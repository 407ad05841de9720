// A session's options from the environment: prd's own variables, and the launchers'.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/io/curve.h"
#include "prd/session.h"
#include "tests/server/scratch_dir.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

// Sets these variables and unsets all others that count, for its life.
class EnvironmentTest : public ::testing::Test {
 protected:
  EnvironmentTest() {
    for (const char* name : kNames) unsetenv(name);
  }
  ~EnvironmentTest() override {
    for (const char* name : kNames) unsetenv(name);
  }
  static Result<SessionOptions> With(
      const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    return Session::OptionsFromEnvironment();
  }

 private:
  static constexpr const char* kNames[] = {"PRD_CONTROLLER",
                                           "PRD_JOB",
                                           "TORCHELASTIC_RUN_ID",
                                           "SLURM_JOB_NAME",
                                           "PRD_RANK",
                                           "RANK",
                                           "SLURM_PROCID",
                                           "OMPI_COMM_WORLD_RANK",
                                           "PMI_RANK",
                                           "PRD_WORLD_SIZE",
                                           "WORLD_SIZE",
                                           "SLURM_NTASKS",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "PMI_SIZE",
                                           "PRD_TIMEOUT_MS",
                                           "PRD_PATIENCE_MS",
                                           "PRD_REDUCE_TIMEOUT_MS",
                                           "PRD_MAX_COMMUNICATORS",
                                           "PRD_START_TIMEOUT_MS",
                                           "PRD_LAUNCH",
                                           "SLURM_JOB_ID",
                                           "SLURM_STEP_ID",
                                           "SLURM_RESTART_COUNT",
                                           "PMIX_NAMESPACE",
                                           "OMPI_MCA_ess_base_jobid",
                                           "PRD_GOAL_STEPS",
                                           "PRD_GOAL_SAMPLES",
                                           "PRD_CHECK_TENSORS",
                                           "PRD_ROWS_ON_HOST",
                                           "PRD_CURVE_SERVER_KEY",
                                           "PRD_CURVE_PUBLIC_KEY",
                                           "PRD_CURVE_SECRET_KEY",
                                           "PRD_CURVE_SECRET_KEY_FILE",
                                           "CREDENTIALS_DIRECTORY",
                                           "PRD_ADDRESS",
                                           "PRD_MESH_PORTS",
                                           "PRD_ANNOUNCE_ADDRESS"};
};

TEST_F(EnvironmentTest, WhereAWorkerListensAndWhatItAnnounces) {
  const SessionOptions options = With({{"PRD_ADDRESS", "0.0.0.0"},
                                       {"PRD_MESH_PORTS", "40000-40100"},
                                       {"PRD_ANNOUNCE_ADDRESS", "gate:7000"}})
                                     .value();
  EXPECT_EQ(options.address, "0.0.0.0");
  EXPECT_EQ(options.mesh_ports, "40000-40100");
  EXPECT_EQ(options.announce_address, "gate:7000");
}

TEST_F(EnvironmentTest, NothingSetGivesTheDefaults) {
  const SessionOptions options = With({}).value();
  const SessionOptions defaults{};
  EXPECT_EQ(options.controller, defaults.controller);
  EXPECT_EQ(options.rank, -1);
  EXPECT_EQ(options.timeout, defaults.timeout);
  EXPECT_EQ(options.max_communicators, 64);
}

TEST_F(EnvironmentTest, EachVariableIsItsOption) {
  const SessionOptions options = With({{"PRD_CONTROLLER", "ipc:///x"},
                                       {"PRD_JOB", "job"},
                                       {"PRD_RANK", "3"},
                                       {"PRD_WORLD_SIZE", "8"},
                                       {"PRD_TIMEOUT_MS", "0"},
                                       {"PRD_REDUCE_TIMEOUT_MS", "250"},
                                       {"PRD_MAX_COMMUNICATORS", "16"},
                                       {"PRD_START_TIMEOUT_MS", "900"},
                                       {"PRD_LAUNCH", "third"},
                                       {"PRD_GOAL_STEPS", "1000"},
                                       {"PRD_GOAL_SAMPLES", "64000"},
                                       {"PRD_CHECK_TENSORS", "1"},
                                       {"PRD_ROWS_ON_HOST", "1"}})
                                     .value();
  EXPECT_EQ(options.controller, "ipc:///x");
  EXPECT_EQ(options.job, "job");
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world_size, 8);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(0));
  EXPECT_EQ(options.reduce_timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(options.max_communicators, 16);
  EXPECT_EQ(options.start_timeout, std::chrono::milliseconds(900));
  EXPECT_EQ(options.launch, "third");
  EXPECT_EQ(options.goal_steps, 1000);
  EXPECT_EQ(options.goal_samples, 64000);
  EXPECT_TRUE(options.check_tensors);
  EXPECT_TRUE(options.rows_on_host);
}

TEST_F(EnvironmentTest, ASecretKeyComesFromAFile) {
  const ScratchDir dir;
  const CurveKeys keys = NewCurveKeys().value();
  const std::string file = dir / "prd-secret-key";
  std::ofstream(file) << keys.secret_key << "\n";
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  const SessionOptions named = With({{"PRD_CURVE_SECRET_KEY_FILE", file.c_str()}}).value();
  EXPECT_EQ(named.curve_secret_key, keys.secret_key);
  EXPECT_THAT(With({{"PRD_CURVE_SECRET_KEY", "x"}}).status().message(),
              HasSubstr("allowed is one of them"));
  unsetenv("PRD_CURVE_SECRET_KEY");
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  EXPECT_THAT(With({}).status().message(), HasSubstr("chmod 600 it"));
  unsetenv("PRD_CURVE_SECRET_KEY_FILE");
  // What systemd hands over counts for who connects with keys.
  EXPECT_EQ(With({{"CREDENTIALS_DIRECTORY", dir.path().c_str()}})->curve_secret_key, "");
  EXPECT_EQ(With({{"PRD_CURVE_SERVER_KEY", "x"}})->curve_secret_key, keys.secret_key);
}

TEST_F(EnvironmentTest, AKeyFileThatCannotBeReadIsNamedWithItsVariable) {
  EXPECT_THAT(With({{"PRD_CURVE_SECRET_KEY_FILE", "/nonexistent"}}).status().message(),
              HasSubstr("PRD_CURVE_SECRET_KEY_FILE: /nonexistent: cannot be read"));
}

// Kubernetes puts a file's bytes into a variable as they are, its newline included.
TEST_F(EnvironmentTest, AKeyMayEndWithANewline) {
  const std::string server = NewCurveKeys()->public_key + "\n";
  const std::string secret = " " + NewCurveKeys()->secret_key + "\r\n";
  Result<SessionOptions> options = With({{"PRD_CONTROLLER", "tcp://127.0.0.1:1"},
                                         {"PRD_JOB", "job"},
                                         {"PRD_CURVE_SERVER_KEY", server.c_str()},
                                         {"PRD_CURVE_SECRET_KEY", secret.c_str()}});
  ASSERT_TRUE(options.ok());
  EXPECT_TRUE(Session::Create(*options).ok());
}

TEST_F(EnvironmentTest, AWorkerWithACredentialAloneMissesTheServerKeyOverTcp) {
  const ScratchDir dir;
  std::ofstream(dir / "prd-secret-key") << NewCurveKeys()->secret_key;
  ASSERT_EQ(::chmod((dir / "prd-secret-key").c_str(), 0400), 0);
  Result<SessionOptions> options = With({{"PRD_CONTROLLER", "tcp://127.0.0.1:1"},
                                         {"PRD_JOB", "job"},
                                         {"CREDENTIALS_DIRECTORY", dir.path().c_str()}});
  ASSERT_TRUE(options.ok());
  EXPECT_THAT(Session::Create(*options).status().message(), HasSubstr("PRD_CURVE_SERVER_KEY"));
}

TEST_F(EnvironmentTest, TheLaunchIsWhatTheLauncherStarted) {
  EXPECT_EQ(With({}).value().launch, "");
  EXPECT_EQ(With({{"OMPI_MCA_ess_base_jobid", "77"}}).value().launch, "77");
  EXPECT_EQ(With({{"PMIX_NAMESPACE", "prterun-1"}}).value().launch, "prterun-1");
  EXPECT_EQ(With({{"SLURM_JOB_ID", "12"}}).value().launch, "slurm-12");
  EXPECT_EQ(With({{"SLURM_STEP_ID", "0"}}).value().launch, "slurm-12.0");
  EXPECT_EQ(With({{"SLURM_RESTART_COUNT", "1"}}).value().launch, "slurm-12.0.1");
  EXPECT_EQ(With({{"PRD_LAUNCH", "own"}}).value().launch, "own");
}

TEST_F(EnvironmentTest, TorchrunsDefaultIsNoNameOfAJob) {
  EXPECT_EQ(With({{"TORCHELASTIC_RUN_ID", "none"}}).value().job, "");
  EXPECT_EQ(With({{"SLURM_JOB_NAME", "slurm"}}).value().job, "slurm");
  EXPECT_EQ(With({{"TORCHELASTIC_RUN_ID", "mine"}}).value().job, "mine");
}

TEST_F(EnvironmentTest, LaunchersAreUnderstoodAndPrdsOwnComeFirst) {
  EXPECT_EQ(With({{"SLURM_PROCID", "5"}}).value().rank, 5);
  EXPECT_EQ(With({{"RANK", "6"}}).value().rank, 6);
  EXPECT_EQ(With({{"PRD_RANK", "7"}}).value().rank, 7);
  EXPECT_EQ(With({{"PRD_RANK", ""}}).value().rank, 6) << "an empty one is not set";
}

TEST_F(EnvironmentTest, TheOldNameOfTheTimeoutCountsUnlessTheNewOneIsSet) {
  EXPECT_EQ(With({{"PRD_PATIENCE_MS", "70"}}).value().timeout, std::chrono::milliseconds(70));
  EXPECT_EQ(With({{"PRD_TIMEOUT_MS", "80"}}).value().timeout, std::chrono::milliseconds(80));
}

TEST_F(EnvironmentTest, WhatIsNoNumberInRangeIsNamed) {
  for (const char* wrong : {"0", "-1", "many", "1x", "99999999999999999999"}) {
    const Status status = With({{"PRD_MAX_COMMUNICATORS", wrong}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("PRD_MAX_COMMUNICATORS"));
    EXPECT_THAT(status.message(), HasSubstr(wrong));
    EXPECT_THAT(status.message(), HasSubstr("allowed is a number from 1"));
  }
}

TEST_F(EnvironmentTest, AnAddressThatNoHelloCanCarryIsRefused) {
  Result<SessionOptions> options =
      With({{"PRD_CONTROLLER", "tcp://127.0.0.1:1"}, {"PRD_JOB", "job"}});
  ASSERT_TRUE(options.ok());
  options->announce_address = std::string(244, 'h');
  EXPECT_TRUE(Session::Create(*options).ok());
  options->announce_address = std::string(245, 'h');
  EXPECT_THAT(Session::Create(*options).status().message(), HasSubstr("PRD_ANNOUNCE_ADDRESS"));
}

TEST_F(EnvironmentTest, OptionsGivenByHandAreCheckedToo) {
  SessionOptions options;
  options.job = "job";
  options.max_communicators = 0;
  const Status status = Session::Create(options).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("max_communicators: found 0"));
}

}  // namespace
}  // namespace prd
