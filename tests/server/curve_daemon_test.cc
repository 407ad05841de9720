// With CURVE keys: who is listed gets in, nobody else does.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <string>

#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::curve_daemon_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kJobs =
    "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n";

class CurveDaemon : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteKey("secret", server_.secret_key);
    WriteKey("authorized", "# workers\n" + worker_.public_key + " host 7");
    daemon_.WriteConfig(kJobs, "listen = \"tcp://127.0.0.1:*\"\ncurve_secret_key_file = \"" +
                                   (daemon_.dir() / "secret") +
                                   "\"\ncurve_authorized_keys_file = \"" +
                                   (daemon_.dir() / "authorized") + "\"");
  }
  void WriteKey(const std::string& name, const std::string& text) {
    std::ofstream(daemon_.dir() / name) << text << "\n";
    ASSERT_EQ(::chmod((daemon_.dir() / name).c_str(), 0600), 0);
  }

  const CurveKeys server_ = NewCurveKeys().value();
  const CurveKeys worker_ = NewCurveKeys().value();
  const CurveKeys stranger_ = NewCurveKeys().value();
  DaemonProcess daemon_{kJobs};
};

// Whether a process of the daemon's user, without capabilities, can open its memory.
bool OthersReadMemoryOf(pid_t pid) {
  const std::string file = "/proc/" + std::to_string(pid) + "/mem";
  const pid_t child = ::fork();
  if (child == 0) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    const std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
    if (::syscall(SYS_capset, &header, none.data()) != 0) ::_exit(2);
    ::_exit(::open(file.c_str(), O_RDONLY) >= 0 ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
  return WEXITSTATUS(status) == 1;
}

// So that no core has its secret key either: the kernel makes one of no such process.
TEST_F(CurveDaemon, NobodyReadsItsMemory) {
  // Nobody reads the memory of who has capabilities that he lacks; so root's daemon has none here.
  (void)::prctl(PR_SET_SECUREBITS, SECBIT_NOROOT);
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  EXPECT_FALSE(OthersReadMemoryOf(daemon_.pid()));
  DaemonProcess open{kJobs};
  ASSERT_TRUE(open.Start()) << open.log();
  if (!OthersReadMemoryOf(open.pid()))
    GTEST_SKIP() << "this kernel lets nobody read others' memory";
}

TEST_F(CurveDaemon, LetsListedKeysInAndNobodyElse) {
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  RawWorker stranger(daemon_.endpoint(), 33, std::pair(stranger_, server_.public_key));
  RawWorker plain(daemon_.endpoint(), 44);
  RawWorker fooled(daemon_.endpoint(), 55, std::pair(worker_, stranger_.public_key));
  for (RawWorker* worker : {&stranger, &plain, &fooled}) {
    worker->Send(RawWorker::HelloFor("job", 1));
  }
  RawWorker listed(daemon_.endpoint(), 11, std::pair(worker_, server_.public_key));
  listed.Join("job", 0);
  EXPECT_TRUE(daemon_.WaitForLog("its key is not authorized"));
  EXPECT_GE(daemon_.Counter("connections_denied"), 1u);  // the admin socket works as ever
  const AdminReply reply = daemon_.Ask(GetStatus{});
  const auto* status = std::get_if<DaemonStatus>(&reply);
  ASSERT_TRUE(status != nullptr);
  EXPECT_EQ(status->silences.size(), 1u);  // of the one worker there is
  for (RawWorker* worker : {&stranger, &plain, &fooled}) EXPECT_FALSE(worker->Receive(0));

  // Listed at a reload, it gets in.
  WriteKey("authorized", worker_.public_key + "\n" + stranger_.public_key);
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("reloaded"));
  RawWorker later(daemon_.endpoint(), 66, std::pair(stranger_, server_.public_key));
  later.Join("job");
}

// Nobody is asked about it: its handshake fails before.
TEST_F(CurveDaemon, WhoHasAnotherServerKeyIsInTheLogWithItsAddress) {
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  RawWorker fooled(daemon_.endpoint(), 55, std::pair(worker_, stranger_.public_key));
  fooled.Send(RawWorker::HelloFor("job", 1));
  EXPECT_TRUE(
      daemon_.WaitForLog("refused \"somebody\" from \"127.0.0.1\": \"connect as a worker\": \"it "
                         "has another server key"))
      << daemon_.log();
  EXPECT_GE(daemon_.Counter("connections_denied"), 1u);
}

TEST_F(CurveDaemon, AnEmptyListLetsNobodyIn) {
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  RawWorker listed(daemon_.endpoint(), 11, std::pair(worker_, server_.public_key));
  listed.Join("job", 0);
  WriteKey("authorized", "");
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("reloaded"));
  RawWorker again(daemon_.endpoint(), 22, std::pair(worker_, server_.public_key));
  again.Send(RawWorker::HelloFor("job", 1));
  EXPECT_TRUE(daemon_.WaitForLog("its key is not authorized"));
  EXPECT_FALSE(again.Receive(0));
}

TEST_F(CurveDaemon, AReloadTellsWhatTheNextStartMakesOfItsKey) {
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("reloaded"));
  WriteKey("secret", stranger_.secret_key);
  daemon_.Signal(SIGHUP);
  EXPECT_TRUE(daemon_.WaitForLog("changed, but only from the next start on: the key in " +
                                 (daemon_.dir() / "secret")))
      << daemon_.log();
  EXPECT_THAT(daemon_.log(), ::testing::Not(HasSubstr("the next start will fail")));
  ASSERT_EQ(::chmod((daemon_.dir() / "secret").c_str(), 0644), 0);
  daemon_.Signal(SIGHUP);
  EXPECT_TRUE(daemon_.WaitForLog(
      "the next start will fail: curve_secret_key_file: " + (daemon_.dir() / "secret") +
      ": everybody can read this secret key"))
      << daemon_.log();
}

TEST_F(CurveDaemon, FilesOpenToOthersAreRefused) {
  ASSERT_EQ(::chmod((daemon_.dir() / "authorized").c_str(), 0666), 0);
  EXPECT_THAT(RunDaemon({"--check-config", "--config", daemon_.config()}).output,
              HasSubstr("authorized: everybody can write it; chmod go-w it"));
  ASSERT_EQ(::chmod((daemon_.dir() / "authorized").c_str(), 0644), 0);
  ASSERT_EQ(::chmod((daemon_.dir() / "secret").c_str(), 0640), 0);
  EXPECT_THAT(RunDaemon({"--config", daemon_.config()}).output,
              HasSubstr("secret: its group can read this secret key; chmod 600 it"));
}

TEST_F(CurveDaemon, WrongKeyFilesAreNamed) {
  WriteKey("authorized", "not a key");
  const Ended ended = RunDaemon({"--check-config", "--config", daemon_.config()});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.output, HasSubstr("authorized:1: found a word of 3 characters"));
  ASSERT_EQ(::unlink((daemon_.dir() / "secret").c_str()), 0);
  EXPECT_THAT(RunDaemon({"--config", daemon_.config()}).output,
              AllOf(HasSubstr("prd.toml: daemon.curve_secret_key_file: "),
                    HasSubstr("secret: cannot be read")));
}

}  // namespace
}  // namespace prd::curve_daemon_test
