// The protocol against the real daemon: who is let in, who is refused and why, and what garbage
// does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "common/base/prng.h"
#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::daemon_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kJobs =
    "[[job]]\nname = \"mnist-*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n"
    "[job.p-reduce]\ngroup_size = 2\n";

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() : daemon_(kJobs) {}
  void SetUp() override { ASSERT_TRUE(daemon_.Start()) << daemon_.log(); }
  std::string endpoint() const { return daemon_.endpoint(); }
  DaemonProcess daemon_;
};

TEST_F(DaemonTest, TwoWorkersTrainToTheEnd) {
  RawWorker a(endpoint(), 11);
  RawWorker b(endpoint(), 22);
  a.Join("mnist-1", 0);
  b.Join("mnist-1", 1);
  EXPECT_EQ(a.run(), b.run());
  const auto start = a.Reduce();
  ASSERT_TRUE(start);
  EXPECT_EQ(start->kind, GroupKind::kInitial);
  ASSERT_TRUE(b.Reduce());
  for (Iteration iteration = 1; iteration <= 3; ++iteration) {
    a.Send(Ready{.iteration = iteration, .step_ns = 1000});
    b.Send(Ready{.iteration = iteration, .step_ns = 1000});
    const auto ga = a.Reduce();
    const auto gb = b.Reduce();
    ASSERT_TRUE(ga && gb);
    EXPECT_EQ(*ga, *gb);
    EXPECT_EQ(ga->members.size(), 2u);
    EXPECT_EQ(ga->iteration, iteration);
    EXPECT_FALSE(ga->reason.empty());
  }
  a.Send(Finish{});
  b.Send(Finish{});
  const auto end = a.Reduce();
  ASSERT_TRUE(end && b.Reduce());
  EXPECT_EQ(end->kind, GroupKind::kFinal);
  EXPECT_TRUE(a.Expect<Released>());
  EXPECT_TRUE(b.Expect<Released>());
  const AdminReply reply = daemon_.Ask(ListRuns{});
  const auto* runs = std::get_if<RunList>(&reply);
  ASSERT_TRUE(runs != nullptr && runs->runs.size() == 1);
  EXPECT_TRUE(runs->runs[0].ended);
}

TEST_F(DaemonTest, AnUnknownJobIsRefusedWithThePatternsThereAre) {
  RawWorker worker(endpoint());
  worker.Send(RawWorker::HelloFor("imagenet", 0));
  const auto refused = worker.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kNotFound);
  EXPECT_THAT(refused->reason, HasSubstr("imagenet"));
  EXPECT_THAT(refused->reason, HasSubstr("mnist-*"));
}

TEST_F(DaemonTest, RefusalsAreInTheLogAndNamedToThoseWhoWait) {
  RawWorker stranger(endpoint(), 33);
  stranger.Send(RawWorker::HelloFor("imagenet", 0));
  ASSERT_TRUE(stranger.Expect<Refused>());
  EXPECT_TRUE(daemon_.WaitForLog("job imagenet: rank 0 (pid 42 on host) is refused: "));
  RawWorker waits(endpoint(), 11);
  waits.Join("mnist-1", 0);
  RawWorker other(endpoint(), 22);
  Hello hello = RawWorker::HelloFor("mnist-1", 1);
  hello.model_hash = 2;
  other.Send(hello);
  ASSERT_TRUE(other.Expect<Refused>());
  const std::string refused = "rank 1 (pid 42 on host)";
  EXPECT_TRUE(daemon_.WaitForLog("run 1: " + refused + " is refused: the model differs"));
  waits.Heartbeat();
  const auto ack = waits.Expect<HeartbeatAck>();
  ASSERT_TRUE(ack);
  EXPECT_THAT(ack->waits_for, HasSubstr("; refused: " + refused + ": the model differs"));
}

TEST_F(DaemonTest, ARankIsHeldByOneWorker) {
  RawWorker first(endpoint(), 11);
  first.Join("mnist-1", 0);
  RawWorker second(endpoint(), 22);
  second.Send(RawWorker::HelloFor("mnist-1", 0));
  const auto refused = second.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kUnavailable);
  EXPECT_GT(refused->retry_ms, 0u);
  EXPECT_THAT(refused->reason, HasSubstr("rank 0 of job mnist-1 is held by pid 42 on host, this "
                                         "process's own number (has it attached already?)"));
}

TEST_F(DaemonTest, AnotherProtocolVersionIsRefused) {
  RawWorker worker(endpoint());
  Hello hello = RawWorker::HelloFor("mnist-1", 0);
  hello.version = 99;
  worker.Send(hello);
  const auto refused = worker.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kInvalidArgument);
  EXPECT_THAT(refused->reason, HasSubstr("found 99"));
}

TEST_F(DaemonTest, AStrangerToARunIsToldToBeginAnew) {
  RawWorker worker(endpoint());
  worker.SendEnvelope(
      {.run = 77, .rank = 0, .incarnation = 1, .seq = 5, .body = Ready{.iteration = 1}});
  const auto refused = worker.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kAborted);
}

TEST_F(DaemonTest, GarbageIsRefusedCountedAndHarmless) {
  RawWorker good(endpoint(), 11);
  good.Join("mnist-1", 0);
  RawWorker bad(endpoint(), 22);
  Prng prng(7);
  std::vector<std::vector<std::string>> garbage{
      {""}, {"hello"}, {"a", "b"}, {"", "", ""}, {std::string(60'000, 'x')}};
  for (int i = 0; i < 200; ++i) {
    std::string noise(prng.Below(400), '\0');
    for (char& c : noise) c = static_cast<char>(prng.Next());
    garbage.push_back({noise});
  }
  for (const auto& parts : garbage) {
    bad.SendParts(parts);
    const auto refused = bad.Receive();
    ASSERT_TRUE(refused && std::holds_alternative<Refused>(refused->body));
    EXPECT_FALSE(std::get<Refused>(refused->body).reason.empty());
  }
  EXPECT_EQ(daemon_.Counter("messages_malformed"), garbage.size());
  good.Heartbeat();
  EXPECT_TRUE(good.Expect<HeartbeatAck>());
}

TEST_F(DaemonTest, AnOversizedMessageEndsItsConnectionOnly) {
  RawWorker good(endpoint(), 11);
  good.Join("mnist-1", 0);
  RawWorker bad(endpoint(), 22);
  bad.SendParts({std::string(1 << 20, 'x')});
  bad.Join("mnist-1", 1);  // it has reconnected
  ASSERT_TRUE(good.Reduce() && bad.Reduce());
  EXPECT_EQ(daemon_.Counter("messages_malformed"), 0u);
}

// More ways to strangers than it keeps: those to its workers stay.
TEST_F(DaemonTest, ManyStrangersDoNotDisplaceAWorker) {
  RawWorker good(endpoint(), 11);
  good.Join("mnist-1", 0);
  RawWorker stranger(endpoint(), 22);
  const int strangers = 6000;
  for (int i = 0; i < strangers; ++i) {
    stranger.SendEnvelope({.incarnation = 1000 + static_cast<Incarnation>(i),
                           .seq = 1,
                           .body = RawWorker::HelloFor("unknown", 0)});
    if (i % 500 != 499) continue;
    for (int answered = 0; answered < 500; ++answered) ASSERT_TRUE(stranger.Receive());
  }
  EXPECT_EQ(daemon_.Counter("messages_refused"), static_cast<std::uint64_t>(strangers));
  RawWorker other(endpoint(), 33);
  other.Join("mnist-1", 1);
  EXPECT_TRUE(good.Reduce() && other.Reduce());
}

TEST_F(DaemonTest, ADeadWorkersLeaseRunsOut) {
  daemon_.WriteConfig(
      "[[job]]\nname = \"short\"\nengine = \"p-reduce\"\nworkers = 1\n"
      "lease_ms = 100\nheartbeat_ms = 20\n");
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("reloaded"));
  {
    RawWorker worker(endpoint(), 11);
    worker.Join("short", 0);
  }
  EXPECT_TRUE(daemon_.WaitForLog("rank 0 was lost"));
  EXPECT_EQ(daemon_.Counter("leases_expired"), 1u);
}

TEST(DaemonStart, APortInUseIsSaid) {
  DaemonProcess first(kJobs, "listen = \"tcp://127.0.0.1:*\"");
  ASSERT_TRUE(first.Start()) << first.log();
  RawWorker worker(first.endpoint(), 11);
  worker.Join("mnist-1", 0);
  DaemonProcess second(kJobs, "listen = \"" + first.endpoint() + "\"");
  EXPECT_FALSE(second.Start());
  EXPECT_EQ(second.WaitForEnd(), 1);
  EXPECT_THAT(second.log(), HasSubstr("listen = \"" + first.endpoint() + "\": Address already in"));
  EXPECT_THAT(second.log(), HasSubstr("is another prd running?"));
}

TEST(DaemonStart, AStateDirectoryHasOneDaemon) {
  DaemonProcess first(kJobs);
  ASSERT_TRUE(first.Start()) << first.log();
  DaemonProcess second(kJobs);
  second.WriteConfig(kJobs);
  std::filesystem::remove_all(second.state_dir());
  std::filesystem::create_directory_symlink(first.state_dir(), second.state_dir());
  EXPECT_FALSE(second.Start());
  EXPECT_EQ(second.WaitForEnd(), 1);
  EXPECT_THAT(second.log(), HasSubstr("in use by another prd"));
}

TEST(DaemonStart, AnAdminSocketIsNotTakenAway) {
  DaemonProcess first(kJobs);
  ASSERT_TRUE(first.Start()) << first.log();
  DaemonProcess second(kJobs);
  std::filesystem::create_symlink(first.dir() / "admin.sock", second.dir() / "admin.sock");
  EXPECT_FALSE(second.Start());
  EXPECT_EQ(second.WaitForEnd(), 1);
  EXPECT_THAT(second.log(), HasSubstr("another process answers there"));
  EXPECT_EQ(first.Counter("messages"), 0u);
}

TEST(DaemonStart, AFileThatIsNoSocketStays) {
  DaemonProcess daemon(kJobs);
  std::ofstream(daemon.dir() / "admin.sock") << "precious";
  EXPECT_FALSE(daemon.Start());
  EXPECT_EQ(daemon.WaitForEnd(), 1);
  EXPECT_THAT(daemon.log(), HasSubstr("something else than a socket is there"));
  std::string text;
  std::ifstream(daemon.dir() / "admin.sock") >> text;
  EXPECT_EQ(text, "precious");
}

TEST(DaemonFlags, AConfigIsCheckedByLine) {
  const ScratchDir dir;
  const Ended good = RunDaemon({"--check-config", "--config", PRD_SOURCE_DIR "/config/prd.toml"});
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(good.output, HasSubstr(": ok"));
  std::ofstream(dir / "slow.toml") << "[[job]]\nname = \"fast\"\nengine = \"p-reduce\"\n"
                                      "[[job]]\nname = \"ring\"\nengine = \"hop\"\n"
                                      "[job.hop]\nmax_jump = 5\n";
  const Ended slow = RunDaemon({"--check-config", "--config", dir / "slow.toml"});
  EXPECT_EQ(slow.code, 0) << slow.output;
  EXPECT_THAT(slow.output, HasSubstr("slow.toml:4: job ring: backups 0 and staleness 0"));
  EXPECT_THAT(slow.output, ::testing::Not(HasSubstr("job fast")));
  std::ofstream(dir / "bad.toml") << "[daemon]\nlistn = \"x\"\n[[job]]\nname = \"*\"\n"
                                     "engine = \"p-reduce\"\n[job.p-reduce]\ngroup_size = 1\n";
  const Ended bad = RunDaemon({"--check-config", "--config", dir / "bad.toml"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.output, HasSubstr("bad.toml:2"));
  EXPECT_THAT(bad.output, HasSubstr("bad.toml:7"));
  const Ended open = [&] {
    std::ofstream(dir / "open.toml") << "[daemon]\nlisten = \"tcp://0.0.0.0:5775\"\n[[job]]\n"
                                        "name = \"*\"\nengine = \"p-reduce\"\n";
    return RunDaemon({"--config", dir / "open.toml"});
  }();
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.output, HasSubstr("prdctl keygen"));
}

// The folders that the unit makes may be missing.
TEST(DaemonFlags, AFolderThatIsMissingIsFoundBeforeAStart) {
  const ScratchDir dir;
  const auto check = [&](const std::string& line) {
    std::ofstream(dir / "prd.toml") << "[daemon]\n"
                                    << line << "\n[[job]]\nname = \"*\"\nengine = \"p-reduce\"\n";
    return RunDaemon({"--check-config", "--config", dir / "prd.toml"});
  };
  const std::string none = dir / "none";
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"audit_log", none + "/log"},
                                   {"admin", "ipc://" + none + "/a.sock"},
                                   {"listen", "ipc://" + none + "/w.sock"}}) {
    const Ended ended = check(key + " = \"" + value + "\"");
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("prd.toml: daemon." + key + ": found \"" + value +
                                        "\", and there is no folder " + none));
  }
  EXPECT_EQ(check("audit_log = \"" + dir.path() + "/log\"").code, 0);
  EXPECT_EQ(check("audit_log = \"/var/log/prd/log\"\nadmin = \"ipc:///run/prd/x.sock\"").code, 0);
}

TEST(DaemonFlags, AStateDirThatOthersMayEnterIsFoundBeforeAStart) {
  const ScratchDir dir;
  const std::string state = dir / "state";
  std::ofstream(dir / "prd.toml") << "[daemon]\nstate_dir = \"" << state
                                  << "\"\n[[job]]\nname = \"*\"\nengine = \"p-reduce\"\n";
  const auto check = [&] { return RunDaemon({"--check-config", "--config", dir / "prd.toml"}); };
  EXPECT_EQ(check().code, 0);
  ASSERT_EQ(::mkdir(state.c_str(), 0700), 0);
  EXPECT_EQ(check().code, 0);
  ASSERT_EQ(::chmod(state.c_str(), 0755), 0);
  const Ended ended = check();
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.output, HasSubstr("prd.toml: daemon.state_dir " + state +
                                      ": others may enter it (its mode is 755)"));
}

TEST(DaemonFlags, OutputThatCannotBeWrittenIsAnError) {
  for (const std::string flags : {"--list-keys", "--engines-json",
                                  "--check-config --config " PRD_SOURCE_DIR "/config/prd.toml"}) {
    const int status =
        std::system((PRD_BIN_DIR "/prd " + flags + " > /dev/full 2> /dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << flags;
  }
}

TEST(DaemonFlags, TellWhatToDo) {
  const Ended none = RunDaemon({"--config", "/nonexistent/prd.toml"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.output, HasSubstr("commented sample"));
  const Ended version = RunDaemon({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.output, HasSubstr("prd 0."));
  const Ended help = RunDaemon({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("--check-config"));
  EXPECT_EQ(RunDaemon({"--nonsense"}).code, 2);
  EXPECT_THAT(RunDaemon({"--list-keys"}).output, HasSubstr("daemon.listen"));
  EXPECT_THAT(RunDaemon({"--engines-json"}).output, HasSubstr("\"key\": \"group_size\""));
}

}  // namespace
}  // namespace prd::daemon_test
