#include "common/io/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/server/scratch_dir.h"

namespace prd {
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

}  // namespace
}  // namespace prd
