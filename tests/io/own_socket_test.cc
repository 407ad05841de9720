// Where daemons and workers meet when nothing is said, for users other than root.
#include "common/io/own_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/server/scratch_dir.h"

namespace prd::own_socket_test {
namespace {

using ::testing::HasSubstr;

class OwnSocketTest : public ::testing::Test {
 protected:
  static constexpr uid_t kUser = 65'533;
  void SetUp() override {
    ::unsetenv("RUNTIME_DIRECTORY");
    if (::geteuid() == 0) {
      // As somebody else, who may come back.
      ASSERT_EQ(::chown(dir_.path().c_str(), kUser, kUser), 0);
      ASSERT_EQ(::seteuid(kUser), 0);
      root_ = true;
    }
    ::setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("XDG_RUNTIME_DIR");
    ASSERT_TRUE(!root_ || ::seteuid(0) == 0);
  }

  const ScratchDir dir_;
  bool root_ = false;
};

TEST_F(OwnSocketTest, IsInTheSessionsFolder) {
  const Result<std::string> made = MakeOwnEndpoint();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(*made, "ipc://" + (dir_ / "prd/workers"));
  struct stat info {};
  ASSERT_EQ(::stat((dir_ / "prd").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(*MakeOwnEndpoint(), *made);  // again
  std::ofstream(dir_ / "prd/workers") << "";
  EXPECT_EQ(*FindOwnEndpoint(), *made);
}

TEST_F(OwnSocketTest, IsNotInAFolderThatOthersMayWrite) {
  ASSERT_EQ(::mkdir((dir_ / "prd").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((dir_ / "prd").c_str(), 0777), 0);
  std::ofstream(dir_ / "prd/workers") << "";  // a squatter's
  EXPECT_THAT(MakeOwnEndpoint().status().message(), HasSubstr("not this user's alone"));
  EXPECT_THAT(FindOwnEndpoint().status().message(), HasSubstr("not this user's alone"));
  ASSERT_EQ(::rename((dir_ / "prd").c_str(), (dir_ / "elsewhere").c_str()), 0);
  std::filesystem::create_directory_symlink(dir_ / "elsewhere", dir_ / "prd");
  EXPECT_FALSE(MakeOwnEndpoint().ok());
}

TEST_F(OwnSocketTest, IsWhereSystemdSays) {
  ::setenv("RUNTIME_DIRECTORY", "/run/prd@mnist:/run/other", 1);
  EXPECT_EQ(*MakeOwnEndpoint(), "ipc:///run/prd@mnist/workers");
  ::unsetenv("RUNTIME_DIRECTORY");
}

}  // namespace
}  // namespace prd::own_socket_test
