// What the names of connections are, what each may do, and what the audit log tells.
#include "server/access.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "common/io/curve.h"
#include "server/audit_log.h"
#include "tests/server/scratch_dir.h"

namespace prd::access_test {
namespace {

using ::testing::HasSubstr;

TEST(Access, AConnectionIsNamedByItsKeyOrItsUser) {
  const CurveKeys keys = NewCurveKeys().value();
  std::uint8_t raw[32];
  ASSERT_NE(::zmq_z85_decode(raw, keys.public_key.c_str()), nullptr);
  const std::string_view bytes(reinterpret_cast<const char*>(raw), sizeof raw);
  EXPECT_EQ(NameOf("CURVE", bytes, "10.0.0.1"), "key:" + keys.public_key);
  EXPECT_EQ(NameOf("CURVE", bytes.substr(1), "10.0.0.1"), "");
  EXPECT_EQ(NameOf("PLAIN", "root", "10.0.0.1"), "");
  EXPECT_EQ(NameOf("NULL", "", "localhost:1000:100:77"), "uid:1000");
  for (const char* address : {"127.0.0.1", "::1", "2001:db8::1:2:3", "::1:2:3", "::2:3", "",
                              "localhost:1:2:x", "localhost:4294967296:2:3"}) {
    EXPECT_EQ(NameOf("NULL", "", address), "tcp") << address;
  }
}

class Identities : public ::testing::Test {
 protected:
  const Rights* Find(const std::string& who) {
    access_ = std::make_unique<Access>(Access::Load(config_).value());
    return access_->Find(who);
  }
  const ScratchDir dir_;
  Config config_;
  std::unique_ptr<Access> access_;
};

TEST_F(Identities, WithoutAnyTheOwnUserMayDoEverything) {
  const Rights* own = Find("uid:" + std::to_string(::geteuid()));
  ASSERT_TRUE(own != nullptr);
  EXPECT_TRUE(own->trains && own->operates && own->Covers("any"));
  EXPECT_NE(Find("uid:0"), nullptr);
  EXPECT_NE(Find("tcp"), nullptr);
  EXPECT_EQ(Find("uid:65531"), nullptr);
  EXPECT_EQ(Find("key:" + std::string(40, 'k')), nullptr);
  EXPECT_EQ(Find(""), nullptr);
  EXPECT_EQ(access_->local_users(), LocalUsers(std::set<std::uint32_t>()));
}

TEST_F(Identities, AUserIsInOneOfThemHoweverItIsWritten) {
  config_.identities = {{.name = "one", .users = {"0", "root"}, .jobs = {"a"}},
                        {.name = "two", .users = {"root"}, .jobs = {"b"}}};
  const Status status = Access::Load(config_).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("found \"root\", user 0, in identity \"two\""));
  EXPECT_THAT(status.message(), HasSubstr("identity \"one\" has that user, too"));
  config_.identities.pop_back();
  EXPECT_EQ(Find("uid:0")->name, "one");
}

TEST_F(Identities, WithKeysNobodyComesWithout) {
  config_.daemon.curve_secret_key_file = "/k";
  EXPECT_EQ(Find("tcp"), nullptr);
}

TEST_F(Identities, SayWhatTheirsMayDo) {
  const std::string key(40, 'k');
  config_.identities = {{.name = "alice", .keys = {key}, .users = {"65531"}, .jobs = {"a-*", "b"}},
                        {.name = "all", .users = {"*"}, .jobs = {"p"}, .role = Role::kViewer},
                        {.name = "ops", .users = {"0"}, .jobs = {"*"}, .role = Role::kOperator}};
  const Rights* alice = Find("key:" + key);
  ASSERT_TRUE(alice != nullptr);
  EXPECT_EQ(alice->name, "alice");
  EXPECT_EQ(access_->Find("uid:65531"), alice);
  EXPECT_EQ(access_->Named("alice"), alice);
  EXPECT_TRUE(alice->trains && !alice->operates);
  EXPECT_TRUE(alice->Covers("a-1") && alice->Covers("b") && !alice->Covers("b1"));
  EXPECT_EQ(access_->Find("uid:65530")->name, "all");
  EXPECT_FALSE(access_->Find("uid:65530")->trains);
  EXPECT_TRUE(access_->Find("uid:0")->operates);
  EXPECT_FALSE(access_->Find("uid:0")->trains) << "an identity that names root counts";
  EXPECT_EQ(access_->Named("bob"), nullptr);
  EXPECT_EQ(access_->local_users(), std::nullopt);
  config_.identities.erase(config_.identities.begin() + 1);  // without "*"
  Find("");
  EXPECT_EQ(access_->local_users(), LocalUsers(std::set<std::uint32_t>{65531, 0}));
  config_.identities[0].users = {"no-such-user-here"};
  config_.identities[0].line = 7;
  EXPECT_THAT(Access::Load(config_).status().message(),
              HasSubstr(":7: identity.users: found \"no-such-user-here\", which is no user"));
}

TEST_F(Identities, GiveAListedKeyNoMoreThanTheySay) {
  const CurveKeys one = NewCurveKeys().value();
  const CurveKeys other = NewCurveKeys().value();
  std::ofstream(dir_ / "list") << one.public_key << "\n" << other.public_key << "\n";
  ASSERT_EQ(::chmod((dir_ / "list").c_str(), 0644), 0);
  config_.daemon.curve_secret_key_file = "/k";
  config_.daemon.curve_authorized_keys_file = dir_ / "list";
  config_.identities = {{.name = "bob", .keys = {one.public_key}, .jobs = {"b"}}};
  EXPECT_EQ(Find("key:" + one.public_key)->name, "bob");
  const Rights* listed = access_->Find("key:" + other.public_key);
  ASSERT_TRUE(listed != nullptr);
  EXPECT_TRUE(listed->trains && !listed->operates && listed->Covers("any"));
}

std::string Read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(AuditLog, TellsWhoFromWhereWhatAndWhyOnOneLine) {
  const ScratchDir dir;
  AuditLog log;
  ASSERT_TRUE(log.Open(dir / "audit").ok());
  struct stat info {};
  ASSERT_EQ(::stat((dir / "audit").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const Rights alice{.name = "alice"};
  log.Admitted({.who = "key:K", .address = "10.0.0.7"}, &alice, "train in job a");
  log.Refused({.who = "uid:7", .address = "x"}, nullptr, "train in job \n\x1b[2J\xc2\x9b\"b",
              "it may not");
  const std::string text = Read(dir / "audit");
  EXPECT_THAT(text, HasSubstr("Z let in \"identity alice\" as \"key:K\" from \"10.0.0.7\": \"train "
                              "in job a\"\n"));
  EXPECT_THAT(text, HasSubstr("Z refused \"user 7\" as \"uid:7\" from \"x\": \"train in job "
                              "\\u000A\\u001B[2J??\\\"b\": \"it may not\"\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(log.refused(), 1u);
}

TEST(AuditLog, EachHostThatIsRefusedHasALine) {
  const ScratchDir dir;
  AuditLog log;
  ASSERT_TRUE(log.Open(dir / "audit").ok());
  for (int i = 0; i < 8; ++i) {
    const std::string address = "10.0.0." + std::to_string(i % 4);
    log.Refused({.who = "key:K", .address = address}, nullptr, "train in job a", "no");
    const std::string process = "localhost:7:7:" + std::to_string(i);  // each of one user
    log.Refused({.who = "uid:7", .address = process}, nullptr, "train in job a", "no");
  }
  const std::string text = Read(dir / "audit");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  for (const char* host : {"0", "1", "2", "3"}) {
    EXPECT_THAT(text, HasSubstr("from \"10.0.0." + std::string(host) + "\""));
  }
}

TEST(AuditLog, AFloodOfRefusalsFillsNoDisk) {
  const ScratchDir dir;
  AuditLog log;
  ASSERT_TRUE(log.Open(dir / "audit").ok());
  for (int i = 0; i < 20'000; ++i) {
    // One party again and again, and ever new ones.
    log.Refused({.who = "tcp", .address = "127.0.0.1"}, nullptr, "train in job a", "no");
    const std::string who = "key:" + std::to_string(i);
    log.Refused({.who = who, .address = "127.0.0.1"}, nullptr, "connect", "no");
    log.Refused({.who = "tcp", .address = std::to_string(i)}, nullptr, "connect", "no");
  }
  EXPECT_EQ(log.refused(), 60'000u);
  EXPECT_LT(Read(dir / "audit").size(), 1u << 20);
  ASSERT_TRUE(log.Open("").ok());
  const std::string before = Read(dir / "audit");
  log.Admitted({.who = "tcp", .address = "127.0.0.1"}, nullptr, "train in job a");
  EXPECT_EQ(Read(dir / "audit"), before);
  EXPECT_THAT(log.Open("/nowhere/audit").message(), HasSubstr("audit_log = \"/nowhere/audit\""));
}

TEST(AuditLog, APipeStopsNobody) {
  const ScratchDir dir;
  AuditLog log;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(log.Open(dir / "pipe").message(), HasSubstr("cannot be written"));
  const int reader = ::open((dir / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(log.Open(dir / "pipe").code(), Code::kInvalidArgument);
  ::close(reader);
}

}  // namespace
}  // namespace prd::access_test
