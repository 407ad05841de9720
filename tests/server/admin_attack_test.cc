// Users of this host who mean harm to the admin socket: strangers, and one who may look at jobs of
// its own. The daemon goes on, and what they cost it is bounded.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/io/codec.h"
#include "tests/io/raw_zmtp.h"
#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::admin_attack_test {
namespace {

constexpr uid_t kTenant = 65'534;
constexpr uid_t kStranger = 65'533;
constexpr const char* kConfig =
    "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n"
    "[job.p-reduce]\ngroup_size = 2\n"
    "[[identity]]\nname = \"tenant\"\nusers = [\"65534\"]\njobs = [\"t-*\"]\n";

class AdminAttack : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act for another user";
    ASSERT_EQ(::chmod(daemon_.dir().path().c_str(), 0755), 0);
  }
  void Start() { ASSERT_TRUE(daemon_.Start()) << daemon_.log(); }

  // As that user, in a process of its own.
  static int As(uid_t user, const std::function<int()>& act) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setgroups(0, nullptr);
      if (::setresgid(user, user, user) != 0 || ::setresuid(user, user, user) != 0) ::_exit(99);
      ::_exit(act());
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static std::string Asking(const AdminRequest& request) {
    return RawZmtp::Part("", true) + RawZmtp::Part(Encode(request));
  }
  std::int64_t MemoryMb() const {
    std::ifstream file("/proc/" + std::to_string(daemon_.pid()) + "/status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("VmRSS:")) return std::stol(line.substr(6)) / 1024;
    }
    return -1;
  }
  // The daemon has grown by less. A sanitizer keeps what is freed.
  void ExpectGrownByLess([[maybe_unused]] std::int64_t before, [[maybe_unused]] int mb) const {
#if !defined(PRD_ADDRESS_SANITIZER) && !defined(PRD_THREAD_SANITIZER)
    EXPECT_LT(MemoryMb(), before + mb);
#endif
  }
  // A run of the tenant with records of some MiB.
  RunId WriteHistory() {
    RawWorker a(daemon_.endpoint(), 11);
    RawWorker b(daemon_.endpoint(), 12);
    a.WaitsFor(&b);
    b.WaitsFor(&a);
    a.Join("t-1", 0);
    b.Join("t-1", 1);
    EXPECT_TRUE(a.Reduce() && b.Reduce());
    for (Iteration i = 1; i <= 6000; ++i) {
      a.Send(Ready{.iteration = i});
      b.Send(Ready{.iteration = i});
      if (!a.Reduce() || !b.Reduce()) return kNoRun;
    }
    const RunId run = a.run();
    a.Send(Leave{.reason = "done"});
    b.Send(Leave{.reason = "done"});
    EXPECT_TRUE(a.Expect<Released>() && b.Expect<Released>());
    return run;
  }
  void ExpectAlive() {
    EXPECT_GE(daemon_.Counter("messages"), 0u);
    RawWorker worker(daemon_.endpoint(), 91);
    worker.Join("root-1", 0);
  }

  DaemonProcess daemon_{kConfig};
};

// libzmq ends the process that has no descriptor for a local connection.
TEST_F(AdminAttack, HalfGreetingsWithoutEndTakeNoDescriptors) {
  const rlimit few{.rlim_cur = 1024, .rlim_max = 1024};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Start();
  const std::string admin = daemon_.admin();
  for (const uid_t user : {kStranger, kTenant}) {
    EXPECT_EQ(As(user,
                 [&] {
                   std::vector<RawZmtp> held;
                   for (int i = 0; i < 1500; ++i) {
                     RawZmtp one(admin);
                     if (one.connected() && one.Send(RawZmtp::Greeting().substr(0, 10))) {
                       held.push_back(std::move(one));
                     }
                     if (held.size() > 900) held.erase(held.begin());
                   }
                   return 0;
                 }),
              0);
    ExpectAlive();
  }
  EXPECT_GE(daemon_.Counter("connections_refused"), 1000u);  // others found no room to wait in
}

TEST_F(AdminAttack, PartsWithoutEndAreCut) {
  Start();
  const std::int64_t before = MemoryMb();
  const std::string admin = daemon_.admin();
  EXPECT_EQ(As(kTenant,
               [&] {
                 RawZmtp bad(admin);
                 if (!bad.ShakeHands()) return 1;
                 std::uint64_t sent = 0;
                 while (sent < (800u << 20) && bad.SendPart(4000)) sent += 4000;
                 return sent < (800u << 20) ? 0 : 2;
               }),
            0);
  ExpectGrownByLess(before, 100);
  EXPECT_GE(daemon_.Counter("connections_cut"), 1u);
  ExpectAlive();
}

TEST_F(AdminAttack, WhoReadsNoAnswerIsOwedFew) {
  Start();
  const RunId run = WriteHistory();
  ASSERT_NE(run, kNoRun);
  const std::int64_t before = MemoryMb();
  const std::string admin = daemon_.admin();
  EXPECT_EQ(As(kTenant,
               [&] {
                 std::vector<RawZmtp> hogs;
                 for (int i = 0; i < 12; ++i) {
                   hogs.emplace_back(admin);
                   if (!hogs.back().ShakeHands()) return 1;
                   for (int k = 0; k < 100; ++k) {
                     (void)hogs.back().Send(Asking(ReadRecords{.run = run, .max_bytes = 8 << 20}));
                   }
                 }
                 ::usleep(1'000'000);  // for the daemon to answer as it likes
                 return 0;
               }),
            0);
  ExpectGrownByLess(before, 100);
  ExpectAlive();
}

TEST_F(AdminAttack, AClientHasOneRequestAtATime) {
  Start();
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  socket.connect(daemon_.admin());
  RawWorker worker(daemon_.endpoint(), 11);
  worker.Join("root-1", 0);
  const auto ask = [&](const AdminRequest& request) {
    socket.send(zmq::message_t(), zmq::send_flags::sndmore);
    socket.send(zmq::buffer(Encode(request)), zmq::send_flags::none);
  };
  const auto answer = [&] {
    zmq::message_t part;
    do {
      EXPECT_TRUE(socket.recv(part));
    } while (part.more());
    return DecodeAdminReply(part.to_string_view()).value();
  };
  ask(ReadRecords{.run = worker.run(), .from = 1000, .wait_ms = 500});
  ask(GetStatus{});
  const AdminReply first = answer();
  ASSERT_TRUE(std::holds_alternative<AdminError>(first));
  EXPECT_EQ(std::get<AdminError>(first).code, Code::kResourceExhausted);
  EXPECT_TRUE(std::holds_alternative<RecordBatch>(answer()));
  ask(GetStatus{});
  EXPECT_TRUE(std::holds_alternative<DaemonStatus>(answer()));
}

TEST_F(AdminAttack, HistoriesAreReadInPages) {
  Start();
  const RunId run = WriteHistory();
  ASSERT_NE(run, kNoRun);
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::req);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  socket.connect(daemon_.admin());
  std::uint64_t from = 0;
  std::size_t answers = 0;
  while (true) {
    socket.send(zmq::buffer(Encode(
                    AdminRequest(ReadRecords{.run = run, .from = from, .max_bytes = 64 << 20}))),
                zmq::send_flags::none);
    zmq::message_t answer;
    ASSERT_TRUE(socket.recv(answer));
    EXPECT_LT(answer.size(), 3u << 20);  // 1 MiB of the history, whose records are written out
    const AdminReply reply = DecodeAdminReply(answer.to_string_view()).value();
    ASSERT_TRUE(std::holds_alternative<RecordBatch>(reply));
    if (std::get<RecordBatch>(reply).records.empty()) break;
    from += std::get<RecordBatch>(reply).records.size();
    ++answers;
  }
  EXPECT_GT(from, 6000u);
  EXPECT_GE(answers, 2u);
}

TEST_F(AdminAttack, ListsComeInPages) {
  Start();
  constexpr int kRuns = 40;
  for (int i = 0; i < kRuns; ++i) {
    RawWorker a(daemon_.endpoint(), 100 + 2 * i);
    RawWorker b(daemon_.endpoint(), 101 + 2 * i);
    a.WaitsFor(&b);
    b.WaitsFor(&a);
    a.Join((i % 2 == 0 ? "t-" : "r-") + std::to_string(i), 0);
    b.Join((i % 2 == 0 ? "t-" : "r-") + std::to_string(i), 1);
  }
  const AdminReply all = daemon_.Ask(ListRuns{});
  ASSERT_TRUE(std::holds_alternative<RunList>(all));
  const std::vector<RunInfo> runs = std::get<RunList>(all).runs;
  ASSERT_EQ(runs.size(), static_cast<std::size_t>(kRuns));
  EXPECT_EQ(runs.front().run, static_cast<RunId>(kRuns));
  EXPECT_EQ(std::get<RunList>(all).next, kNoRun);
  const AdminReply below = daemon_.Ask(ListRuns{.before = 5});
  ASSERT_EQ(std::get<RunList>(below).runs.size(), 4u);
  EXPECT_EQ(std::get<RunList>(below).runs.front().run, 4u);
  EXPECT_TRUE(std::get<RunList>(daemon_.Ask(ListRuns{.before = 1})).runs.empty());
  const auto live = [&] {
    return std::get<RunList>(daemon_.Ask(ListRuns{.before = 0, .live = true})).runs.size();
  };
  const std::size_t ended = static_cast<std::size_t>(
      std::count_if(runs.begin(), runs.end(), [](const RunInfo& run) { return run.ended; }));
  EXPECT_EQ(live(), runs.size() - ended);
}

}  // namespace
}  // namespace prd::admin_attack_test
