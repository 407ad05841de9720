#include "common/io/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "common/io/file_access.h"
#include "tests/server/scratch_dir.h"

namespace prd::curve_test {
namespace {

using ::testing::HasSubstr;

std::string WriteFile(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  return path;
}

TEST(Curve, ThePublicKeyFollowsFromTheSecretOne) {
  const CurveKeys keys = NewCurveKeys().value();
  EXPECT_EQ(keys.public_key.size(), 40u);
  EXPECT_EQ(CurveKeysOf(keys.secret_key)->public_key, keys.public_key);
  EXPECT_NE(NewCurveKeys()->public_key, keys.public_key);
}

// systemd expands it in Environment=.
TEST(Curve, AFreshKeyHasNoPercentSign) {
  for (int i = 0; i < 40; ++i) {
    const CurveKeys keys = NewCurveKeys().value();
    EXPECT_EQ((keys.public_key + keys.secret_key).find('%'), std::string::npos);
  }
}

TEST(Curve, ReadsFilesWithCommentsAndSpace) {
  const ScratchDir dir;
  const CurveKeys a = NewCurveKeys().value();
  const CurveKeys b = NewCurveKeys().value();
  const auto secret =
      ReadSecretKeyFile(WriteFile(dir / "secret", "# prd's own\n\n " + a.secret_key + " \n"));
  ASSERT_TRUE(secret.ok()) << secret.status().ToString();
  EXPECT_EQ(secret->public_key, a.public_key);
  const auto keys = ReadPublicKeyFile(
      WriteFile(dir / "keys", a.public_key + "  rank 0\r\n#\n" + b.public_key, 0644));
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_THAT(*keys, ::testing::ElementsAre(a.public_key, b.public_key));
}

TEST(Curve, SaysWhatIsWrongWithAFile) {
  const ScratchDir dir;
  const CurveKeys keys = NewCurveKeys().value();
  EXPECT_THAT(ReadSecretKeyFile(dir / "none").status().message(), HasSubstr("cannot be read"));
  EXPECT_THAT(ReadSecretKeyFile(WriteFile(dir / "a", "# nothing\n")).status().message(),
              HasSubstr("found 0 keys, allowed is one"));
  EXPECT_THAT(ReadSecretKeyFile(WriteFile(dir / "b", keys.secret_key, 0644)).status().message(),
              HasSubstr("everybody can read"));
  EXPECT_THAT(
      ReadPublicKeyFile(WriteFile(dir / "c", keys.public_key + "\nhello\n")).status().message(),
      HasSubstr("c:2: found a word of 5 characters"));
  EXPECT_FALSE(CurveKeysOf("short").ok());
}

TEST(Curve, RefusesFilesThatOthersMayChangeOrReadSecretsFrom) {
  const ScratchDir dir;
  const CurveKeys keys = NewCurveKeys().value();
  const auto secret = [&](mode_t mode) {
    return ReadSecretKeyFile(WriteFile(dir / "secret", keys.secret_key, mode)).status().message();
  };
  const auto list = [&](mode_t mode) {
    return ReadPublicKeyFile(WriteFile(dir / "list", keys.public_key, mode)).status().message();
  };
  EXPECT_EQ(secret(0600), "");
  EXPECT_EQ(secret(0400), "");
  EXPECT_THAT(secret(0640), HasSubstr("its group can read this secret key; chmod 600 it"));
  EXPECT_THAT(secret(0604), HasSubstr("everybody can read this secret key; chmod 600 it"));
  EXPECT_THAT(secret(0620), HasSubstr("its group can write it; chmod go-w it"));
  EXPECT_EQ(list(0644), "");
  EXPECT_THAT(list(0664), HasSubstr((dir / "list") + ": its group can write it; chmod go-w it"));
  EXPECT_THAT(list(0646), HasSubstr("everybody can write it; chmod go-w it"));
  EXPECT_THAT(ReadPublicKeyFile(dir.path()).status().message(), HasSubstr("cannot be read"));
}

TEST(Curve, RefusesFilesOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const ScratchDir dir;
  const std::string file = WriteFile(dir / "list", NewCurveKeys()->public_key);
  ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
  EXPECT_THAT(ReadPublicKeyFile(file).status().message(),
              HasSubstr("its owner is user 65534, who may change it; chown 0 it"));
}

TEST(Curve, TakesWhatSystemdHandsOver) {
  const ScratchDir dir;
  const CurveKeys keys = NewCurveKeys().value();
  EXPECT_EQ(CredentialFile("key"), "");
  ASSERT_EQ(::setenv("CREDENTIALS_DIRECTORY", dir.path().c_str(), 1), 0);
  EXPECT_EQ(CredentialFile("key"), "");
  const std::string file = WriteFile(dir / "key", keys.secret_key, 0440);
  EXPECT_EQ(CredentialFile("key"), file);
  EXPECT_EQ(ReadSecretKeyFile(file)->public_key, keys.public_key);
  ASSERT_EQ(::unsetenv("CREDENTIALS_DIRECTORY"), 0);
  EXPECT_FALSE(ReadSecretKeyFile(file).ok());
}

TEST(FileAccess, AFolderIsForItsOwnerAlone) {
  const ScratchDir dir;
  EXPECT_TRUE(CheckPrivateFolder("state_dir", dir.path()).ok());
  for (const mode_t mode : {0777, 0750, 0701}) {
    ASSERT_EQ(::chmod(dir.path().c_str(), mode), 0);
    EXPECT_THAT(CheckPrivateFolder("state_dir", dir.path()).message(),
                ::testing::AllOf(HasSubstr("state_dir " + dir.path() + ": others may enter it"),
                                 HasSubstr("chmod 700 it")));
  }
  WriteFile(dir / "file", "");
  EXPECT_FALSE(CheckPrivateFolder("state_dir", dir / "file").ok());
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(::chmod(dir.path().c_str(), 0700), 0);
  ASSERT_EQ(::chown(dir.path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(CheckPrivateFolder("state_dir", dir.path()).message(),
              HasSubstr("its owner is user 65534"));
  EXPECT_TRUE(CheckClosedFolder("state_dir", dir.path()).ok());
}

}  // namespace
}  // namespace prd::curve_test
