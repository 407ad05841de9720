// The daemon over time: killed, stopped, reloaded, watched, without room on its disk.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "common/io/clock.h"
#include "server/history/keys.h"
#include "tests/io/raw_zmtp.h"
#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"
#include "tests/server/tcp.h"

namespace prd::daemon_life_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Jobs(const std::string& pattern) {
  return "[[job]]\nname = \"" + pattern +
         "\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n"
         "[job.p-reduce]\ngroup_size = 2\n";
}

// Two workers of one job, past the common start.
struct Pair {
  explicit Pair(const DaemonProcess& daemon, const std::string& job = "job",
                Incarnation incarnation = 11)
      : a(daemon.endpoint(), incarnation), b(daemon.endpoint(), incarnation + 1) {
    a.WaitsFor(&b);
    b.WaitsFor(&a);
    a.Join(job, 0);
    b.Join(job, 1);
    EXPECT_TRUE(a.Reduce() && b.Reduce());
  }
  // Both reduce together once.
  void Round(Iteration iteration) {
    a.Send(Ready{.iteration = iteration});
    b.Send(Ready{.iteration = iteration});
    const auto ga = a.Reduce();
    const auto gb = b.Reduce();
    ASSERT_TRUE(ga && gb);
    EXPECT_EQ(ga->id, gb->id);
  }
  RawWorker a, b;
};

std::vector<Record> RecordsOf(DaemonProcess& daemon, RunId run) {
  const AdminReply reply = daemon.Ask(ReadRecords{.run = run, .max_bytes = 4 << 20});
  const auto* batch = std::get_if<RecordBatch>(&reply);
  return batch == nullptr ? std::vector<Record>() : batch->records;
}

class KilledDaemon : public ::testing::TestWithParam<const char*> {};

// Killed between two signals of a group, twice; with and without snapshots.
TEST_P(KilledDaemon, GoesOnWithWhatItKnew) {
  DaemonProcess daemon(Jobs("*"), GetParam());
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  const RunId run = pair.a.run();
  for (Iteration iteration = 1; iteration <= 6; ++iteration) {
    pair.a.Send(Ready{.iteration = iteration});
    pair.a.Heartbeat();
    ASSERT_TRUE(pair.a.Expect<HeartbeatAck>());  // so the signal is in
    if (iteration % 2 == 0) {
      daemon.Kill();
      ASSERT_TRUE(daemon.Start()) << daemon.log();
      EXPECT_THAT(daemon.log(), HasSubstr("goes on after"));
    }
    pair.b.Send(Ready{.iteration = iteration});
    const auto gb = pair.b.Reduce();
    const auto ga = pair.a.Reduce();
    ASSERT_TRUE(ga && gb) << daemon.log();
    EXPECT_EQ(ga->id, gb->id);
    EXPECT_EQ(ga->iteration, iteration);
  }
  pair.a.Send(Finish{});
  pair.b.Send(Finish{});
  ASSERT_TRUE(pair.a.Reduce() && pair.b.Reduce());
  ASSERT_TRUE(pair.a.Expect<Released>() && pair.b.Expect<Released>());

  const std::vector<Record> records = RecordsOf(daemon, run);
  std::uint64_t formed = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].index, i);
    if (i > 0) {
      EXPECT_GE(records[i].now, records[i - 1].now);
    }
    formed += std::holds_alternative<GroupFormed>(records[i].body) ? 1 : 0;
  }
  EXPECT_EQ(formed, 8u);  // the common start, six rounds, the final average
  ASSERT_FALSE(records.empty());
  EXPECT_TRUE(std::holds_alternative<RunEnded>(records.back().body));
}

INSTANTIATE_TEST_SUITE_P(Snapshots, KilledDaemon,
                         ::testing::Values("", "snapshot_every = 1", "snapshot_every = 7",
                                           "sync = true"));

TEST(DaemonLife, WhoTrainedInAFinishedRunIsRefusedAlsoByTheNextDaemon) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Hello hello = RawWorker::HelloFor("job", 1);
  {
    Pair pair(daemon);
    hello.former = pair.a.identity();
    pair.a.Send(Leave{.reason = "done"});
    pair.b.Send(Leave{.reason = "done"});
    ASSERT_TRUE(pair.a.Expect<Released>() && pair.b.Expect<Released>());
  }
  for (Incarnation incarnation = 71; incarnation < 73; ++incarnation) {
    RawWorker sleeper(daemon.endpoint(), incarnation);
    sleeper.Send(hello);
    const auto refused = sleeper.Expect<Refused>();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code, Code::kFailedPrecondition);
    EXPECT_THAT(refused->reason, HasSubstr("run 1 of job job, in which this worker trained, has "
                                           "ended"));
    daemon.Kill();
    ASSERT_TRUE(daemon.Start()) << daemon.log();
  }
  hello.former = {99, 1};  // not known here: it may go on
  RawWorker other(daemon.endpoint(), 75);
  other.Send(hello);
  EXPECT_TRUE(other.Expect<Welcome>());
}

TEST(DaemonLife, ARunThatDoesNotReplayIsSetAside) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair broken(daemon, "broken", 21);
  Pair whole(daemon, "whole", 31);
  broken.Round(1);
  daemon.Kill();
  {
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const char* name : history::kFamilies) {
      families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    }
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, daemon.state_dir(), families, &handles, &db).ok());
    ASSERT_TRUE(
        db->Delete({}, handles[history::kRecords], history::RecordKey(broken.a.run(), 5)).ok());
    for (auto* handle : handles) delete handle;
    delete db;
  }
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("of job broken cannot be restored and is set aside"));
  EXPECT_THAT(daemon.log(), HasSubstr("record 5: missing"));
  whole.Round(1);
  // Its workers are told to begin anew, and can.
  broken.a.Send(Ready{.iteration = 2});
  const auto refused = broken.a.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kAborted);
  const RunId old = broken.a.run();
  Pair fresh(daemon, "broken", 41);
  EXPECT_GT(fresh.a.run(), old);
  // And it stays aside at the next start, with the new run going on.
  daemon.Kill();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), Not(HasSubstr("set aside")));
  fresh.Round(1);
}

TEST(DaemonLife, SigtermDrainsAndTheNextDaemonGoesOn) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  daemon.Signal(SIGTERM);
  EXPECT_TRUE(daemon.WaitForNotice("STOPPING=1"));
  EXPECT_EQ(daemon.WaitForEnd(), 0);
  EXPECT_THAT(daemon.log(), HasSubstr("1 jobs go on with the next prd"));
  pair.a.Send(Ready{.iteration = 1});
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  pair.b.Send(Ready{.iteration = 1});
  EXPECT_TRUE(pair.b.Reduce() && pair.a.Reduce());
}

TEST(DaemonLife, ReloadsWhatIsRightAndKeepsWhatRunsWhenItIsWrong) {
  DaemonProcess daemon(Jobs("one"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  auto verdict = [&, incarnation = Incarnation{77}](const std::string& job) mutable {
    RawWorker worker(daemon.endpoint(), incarnation++);
    worker.Send(RawWorker::HelloFor(job, 0));
    const auto answer = worker.Next();
    const bool welcome = answer && std::holds_alternative<Welcome>(*answer);
    if (welcome) {
      worker.Send(Leave{.reason = "asked only"});
      EXPECT_TRUE(worker.Expect<Released>());
    }
    return welcome;
  };
  EXPECT_TRUE(verdict("one"));
  EXPECT_FALSE(verdict("two"));

  daemon.WriteConfig(Jobs("two") + "\ngroup_size = 1\n");
  daemon.Signal(SIGHUP);
  ASSERT_TRUE(daemon.WaitForLog("reload refused; the configuration that was running stays"));
  ASSERT_TRUE(daemon.WaitForNotice("RELOADING=1\nMONOTONIC_USEC="));
  ASSERT_TRUE(daemon.WaitForNotice("READY=1"));
  ASSERT_TRUE(daemon.WaitForNotice("; the last reload was refused, see the log"));
  EXPECT_TRUE(verdict("one"));
  EXPECT_FALSE(verdict("two"));

  daemon.WriteConfig(Jobs("two"), "retain_runs = 3\nlisten = \"ipc:///tmp/elsewhere\"");
  daemon.Signal(SIGHUP);
  ASSERT_TRUE(daemon.WaitForLog("only from the next start on: listen"));
  EXPECT_FALSE(verdict("one"));
  EXPECT_TRUE(verdict("two"));
}

// Jobs have any names, and the bound holds at once after a reload.
TEST(DaemonLife, KeepsSoManyEndedRunsInAll) {
  DaemonProcess daemon(Jobs("*"), "retain_runs_in_all = 3");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  for (Incarnation i = 1; i <= 6; ++i) {
    RawWorker worker(daemon.endpoint(), i);
    worker.Join("job-" + std::to_string(i), 0);
    worker.Send(Leave{"done"});
    ASSERT_TRUE(worker.Expect<Released>().has_value());
  }
  const auto names = [&] {
    std::string text;
    const AdminReply reply = daemon.Ask(ListRuns{});
    const auto* list = std::get_if<RunList>(&reply);
    for (const RunInfo& run : list->runs) text += run.job + " ";
    return text;
  };
  EXPECT_EQ(names(), "job-6 job-5 job-4 ");
  EXPECT_EQ(daemon.Counter("history_runs_removed"), 3u);
  daemon.WriteConfig(Jobs("*"), "retain_runs_in_all = 1");
  daemon.Signal(SIGHUP);
  while (names() != "job-6 ") ::usleep(10'000);  // or CTest's time is up
  EXPECT_THAT(daemon.log(), HasSubstr("removed from the history since the start: "));
}

TEST(DaemonLife, AnOperatorRemovesEndedRuns) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  for (Incarnation i = 1; i <= 3; ++i) {
    RawWorker worker(daemon.endpoint(), i);
    worker.Join("job-" + std::to_string(i), 0);
    worker.Send(Leave{"done"});
    ASSERT_TRUE(worker.Expect<Released>().has_value());
  }
  Pair pair(daemon);
  EXPECT_EQ(daemon.Ask(Prune{{1, 3, 4, 77}}), AdminReply(Acted{"2 runs removed"}));
  const AdminReply reply = daemon.Ask(ListRuns{});
  const auto* list = std::get_if<RunList>(&reply);
  ASSERT_TRUE(list != nullptr && list->runs.size() == 2);
  EXPECT_FALSE(list->runs[0].ended);
  EXPECT_EQ(list->runs[1].run, 2u);
  pair.Round(1);
}

// Records behind the last snapshot but one go. The run goes on from the last one after a kill, and
// prdctl says what it does not have.
TEST(DaemonLife, ARunThatNeverEndsIsTrimmed) {
  DaemonProcess daemon(Jobs("*"), "retain_bytes = 1048576\nsnapshot_every = 500");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  const auto info = [&] {
    const AdminReply reply = daemon.Ask(ListRuns{});
    const auto* list = std::get_if<RunList>(&reply);
    return list == nullptr || list->runs.empty() ? RunInfo{} : list->runs.front();
  };
  Iteration round = 0;
  while (info().first == 0) {
    for (int i = 0; i < 100; ++i) ASSERT_NO_FATAL_FAILURE(pair.Round(++round));
  }
  daemon.Kill();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  ASSERT_NO_FATAL_FAILURE(pair.Round(++round));
  const RunInfo trimmed = info();
  EXPECT_FALSE(trimmed.ended);
  EXPECT_GT(trimmed.first, 1u);
  EXPECT_GT(trimmed.records, trimmed.first + 500);
  const AdminReply gone = daemon.Ask(ReadRecords{.run = 1, .from = 2});
  const auto* error = std::get_if<AdminError>(&gone);
  ASSERT_TRUE(error != nullptr);
  EXPECT_EQ(error->code, Code::kNotFound);
  EXPECT_THAT(error->message,
              HasSubstr("the oldest one after them is " + std::to_string(trimmed.first)));
  const AdminReply kept = daemon.Ask(ReadRecords{.run = 1, .from = 0});
  const auto* batch = std::get_if<RecordBatch>(&kept);
  ASSERT_TRUE(batch != nullptr && batch->records.size() > 1);
  EXPECT_TRUE(std::holds_alternative<RunStarted>(batch->records[0].body));
  EXPECT_EQ(batch->records[1].index, trimmed.first);
}

TEST(DaemonLife, TheWatchdogIsFed) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start({{"WATCHDOG_USEC", "200000"}})) << daemon.log();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(daemon.WaitForNotice("WATCHDOG=1"));
}

TEST(DaemonLife, ServesMetrics) {
  const int port = Tcp().FreePort();
  DaemonProcess daemon(Jobs("*"), "metrics = \"127.0.0.1:" + std::to_string(port) + "\"");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  pair.Round(1);
  std::string text;
  const std::int64_t end = MonotonicNs() + kTimeoutMs * kMillisecond;
  while (text.find("prd_groups_formed_total{engine=\"p-reduce\"} 2") == std::string::npos) {
    ASSERT_LT(MonotonicNs(), end) << text;
    text = Tcp().Get(port, "/metrics");
  }
  // By engine and not once more for all, so that a sum over the samples is the number of groups.
  EXPECT_THAT(text, Not(HasSubstr("\nprd_groups_formed_total ")));
  EXPECT_THAT(text, HasSubstr("prd_jobs 1"));
  EXPECT_THAT(text, HasSubstr("prd_workers 2"));
  EXPECT_THAT(text, HasSubstr("prd_history_runs 0"));
  EXPECT_THAT(text, HasSubstr("prd_history_identity_bytes{identity=\"\"} "));
  EXPECT_THAT(text, HasSubstr("prd_links_broken{job=\"job\",engine=\"p-reduce\"} 0"));
  EXPECT_THAT(text, HasSubstr("prd_replicas_differ{job=\"job\",engine=\"p-reduce\"} 0"));
  EXPECT_THAT(text, HasSubstr("prd_nonfinite_steps_total{job=\"job\",engine=\"p-reduce\"} 0"));
  EXPECT_THAT(text, HasSubstr("prd_flush_seconds_count"));
  EXPECT_THAT(text, HasSubstr("prd_rounds_formed_total 0"));
  EXPECT_THAT(text, HasSubstr("prd_updates_dropped_total 0"));
  pair.a.Send(Progressed{.own = {.steps = 3}, .nonfinite = 2});
  EXPECT_TRUE(daemon.WaitForLog("has made 2 steps with values that are not finite"));
  while (text.find("prd_nonfinite_steps_total{job=\"job\",engine=\"p-reduce\"} 2") ==
         std::string::npos) {
    ASSERT_LT(MonotonicNs(), end) << text;
    text = Tcp().Get(port, "/metrics");
  }
}

TEST(DaemonLife, ServesMetricsOverIpv6) {
  const int port = Tcp(true).FreePort();
  DaemonProcess daemon(Jobs("*"), "metrics = \"[::1]:" + std::to_string(port) + "\"");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(Tcp(true).Get(port, "/metrics"), HasSubstr("\nprd_jobs 0\n"));
}

TEST(DaemonLife, SaysWhyMetricsCannotBeServed) {
  Tcp taken;
  const std::string address = "127.0.0.1:" + std::to_string(taken.Listen());
  DaemonProcess daemon(Jobs("*"), "metrics = \"" + address + "\"");
  EXPECT_FALSE(daemon.Start());
  EXPECT_THAT(daemon.log(), HasSubstr("metrics = \"" + address + "\": Address already in use"));
}

// A file system of a few MiB in memory, where the system allows that.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& at) : at_(at) {
    ::mkdir(at.c_str(), 0700);
    mounted_ = ::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=64m,mode=700") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  // But for so many bytes.
  void Fill(std::uintmax_t left = 512 << 10) {
    const std::uintmax_t size = std::filesystem::space(at_).available - left;
    const int fd = ::open((at_ + "/filler").c_str(), O_WRONLY | O_CREAT, 0600);
    EXPECT_EQ(::posix_fallocate(fd, 0, static_cast<off_t>(size)), 0);
    ::close(fd);
  }
  void MakeRoom() { ::unlink((at_ + "/filler").c_str()); }

 private:
  std::string at_;
  bool mounted_ = false;
};

// There may be acknowledgements of before.
bool HearsWhyItWaits(RawWorker* worker, const std::string& why) {
  for (int i = 0; i < 20; ++i) {
    worker->Heartbeat();
    const auto ack = worker->Expect<HeartbeatAck>();
    if (!ack) return false;
    if (ack->waits_for == why) return true;
  }
  return false;
}

TEST(DaemonLife, AFullDiskHoldsDecisionsUpAndLosesNone) {
  const int port = Tcp().FreePort();
  DaemonProcess daemon(Jobs("*"), "metrics = \"127.0.0.1:" + std::to_string(port) + "\"");
  SmallDisk disk(daemon.state_dir());
  if (!disk.mounted()) GTEST_SKIP() << "no file system may be mounted here";
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  pair.Round(1);
  disk.Fill();
  pair.a.Send(Ready{.iteration = 2});
  pair.b.Send(Ready{.iteration = 2});
  ASSERT_TRUE(daemon.WaitForLog("Until that works again nothing is decided or announced"));
  EXPECT_GE(daemon.Counter("history_errors"), 1u);  // it still answers
  const auto status = [&] { return std::get<DaemonStatus>(daemon.Ask(GetStatus{})); };
  EXPECT_GT(status().stalled_ns, 0);
  EXPECT_THAT(status().stalled, HasSubstr("no room for the history"));
  EXPECT_THAT(Tcp().Get(port, "/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("history")));
  EXPECT_THAT(Tcp().Get(port, "/healthz"), StartsWith("HTTP/1.1 200"));
  while (const auto early = pair.a.Receive(100)) {  // acknowledgements of before
    EXPECT_FALSE(std::holds_alternative<Group>(early->body));
  }
  // Whoever says something hears why nothing is decided.
  EXPECT_TRUE(HearsWhyItWaits(&pair.a, "prd cannot write its history now (see its log)"));
  RawWorker third(daemon.endpoint(), 13);
  third.Send(RawWorker::HelloFor("job", 1));
  const auto refused = third.Expect<Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kUnavailable);
  EXPECT_THAT(refused->reason, HasSubstr("prd cannot write its history now"));
  disk.MakeRoom();
  const auto ga = pair.a.Reduce();
  const auto gb = pair.b.Reduce();
  ASSERT_TRUE(ga && gb) << daemon.log();
  EXPECT_EQ(ga->id, gb->id);
  EXPECT_TRUE(daemon.WaitForLog("recording again after"));
  EXPECT_EQ(status().stalled_ns, 0);
  EXPECT_EQ(status().stalled, "");
  EXPECT_THAT(Tcp().Get(port, "/readyz"), StartsWith("HTTP/1.1 200"));
  pair.Round(3);
  daemon.Kill();
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  pair.Round(4);
  EXPECT_THAT(daemon.log(), Not(HasSubstr("set aside")));
}

// libzmq aborts where it finds no descriptor for itself.
TEST(DaemonLife, TooFewDescriptorsAreAnErrorOfTheStart) {
  DaemonProcess daemon(Jobs("*"));
  const pid_t child = ::fork();
  if (child == 0) {  // the limit is the process's
    const rlimit few{.rlim_cur = 80, .rlim_max = 80};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const Ended ended = RunDaemon({"--config", daemon.config()});
    const bool named = ended.output.find("found a limit of 80 descriptors") != std::string::npos;
    ::_exit(ended.code == 1 && named ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// RocksDB aborts where it has no room for its own files.
TEST(DaemonLife, OnAFullDiskItWaitsForRoomAndLosesNothing) {
  const int port = Tcp().FreePort();
  DaemonProcess daemon(Jobs("*"), "metrics = \"127.0.0.1:" + std::to_string(port) + "\"");
  SmallDisk disk(daemon.state_dir());
  if (!disk.mounted()) GTEST_SKIP() << "no file system may be mounted here";
  const auto waits = [&](std::uintmax_t free) {
    disk.Fill(free);
    ASSERT_TRUE(daemon.Launch()) << daemon.log();
    ASSERT_TRUE(daemon.WaitForNotice("EXTEND_TIMEOUT_USEC=")) << daemon.log();
    EXPECT_THAT(daemon.log(), AllOf(HasSubstr("no room for the history in " + daemon.state_dir() +
                                              ": " + std::to_string(free >> 10) + " KiB are free"),
                                    HasSubstr("prd starts once there is room")));
  };
  for (const std::uintmax_t free : {0, 24 << 10, 52 << 10}) {
    waits(free);
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.WaitForEnd(), 0) << daemon.log();
    disk.MakeRoom();
  }
  waits(100 << 10);
  ASSERT_TRUE(daemon.WaitForNotice("EXTEND_TIMEOUT_USEC=")) << "the metrics are published";
  EXPECT_THAT(Tcp().Get(port, "/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("no room")));
  EXPECT_THAT(Tcp().Get(port, "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Tcp().Get(port, "/metrics"), HasSubstr("prd_history_stalled 1"));
  daemon.Signal(SIGHUP);
  disk.MakeRoom();
  ASSERT_TRUE(daemon.WaitForNotice("READY=1")) << daemon.log();
  EXPECT_TRUE(daemon.WaitForNotice("RELOADING=1")) << "asked for while it waited for room";
  EXPECT_THAT(Tcp().Get(port, "/readyz"), StartsWith("HTTP/1.1 200"));
  Pair pair(daemon);
  pair.Round(1);
  daemon.Kill();
  for (const std::uintmax_t free : {0, 24 << 10, 48 << 10}) {
    waits(free);
    EXPECT_TRUE(HearsWhyItWaits(&pair.a, "prd has just started and waits for room on its disk"));
    daemon.Kill();
    disk.MakeRoom();
  }
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  pair.Round(2);
}

// libzmq aborts a process when a peer goes whose messages fill the receive queue, and a heartbeat
// is looked at later: the peer's own among them, or a timer's. Here the disk is full meanwhile.
class PeersOfAStalledDaemon : public ::testing::TestWithParam<const char*> {};

TEST_P(PeersOfAStalledDaemon, MayGoWithHeartbeatsBehindManyMessages) {
  DaemonProcess daemon(Jobs("*"), GetParam());
  SmallDisk disk(daemon.state_dir());
  if (!disk.mounted()) GTEST_SKIP() << "no file system may be mounted here";
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  pair.Round(1);
  disk.Fill();
  pair.a.Send(Ready{.iteration = 2});
  ASSERT_TRUE(daemon.WaitForLog("Until that works again nothing is decided or announced"));
  for (int i = 0; i < 4; ++i) {
    RawZmtp peer(daemon.endpoint());
    ASSERT_TRUE(peer.ShakeHands());
    std::string all;
    for (int k = 0; k < 400; ++k)
      all += RawZmtp::Part("none") + (k % 50 == 0 ? RawZmtp::Ping() : "");
    (void)peer.Send(all);
  }
  ::usleep(500'000);  // so that ZeroMQ has seen them go
  disk.MakeRoom();
  pair.b.Send(Ready{.iteration = 2});
  EXPECT_TRUE(pair.a.Reduce() && pair.b.Reduce()) << daemon.log();
  const AdminReply status = daemon.Ask(GetStatus{});
  EXPECT_TRUE(std::holds_alternative<DaemonStatus>(status)) << daemon.log();
}

INSTANTIATE_TEST_SUITE_P(Endpoints, PeersOfAStalledDaemon,
                         ::testing::Values("", "listen = \"tcp://127.0.0.1:*\""));

// A limit on the size of files stands for a disk that fails.
TEST(DaemonLife, AFailingDiskEndsItAndTheNextOneGoesOn) {
  DaemonProcess daemon(Jobs("*"));
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  Pair pair(daemon);
  pair.Round(1);
  rlimit limit{};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = 256;  // its log file, too, is past that now
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  pair.a.Send(Ready{.iteration = 2});
  pair.b.Send(Ready{.iteration = 2});
  EXPECT_EQ(daemon.WaitForEnd(), 1);
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  const auto ga = pair.a.Reduce();
  const auto gb = pair.b.Reduce();
  ASSERT_TRUE(ga && gb) << daemon.log();
  EXPECT_EQ(ga->id, gb->id);
  pair.Round(3);
}

}  // namespace
}  // namespace prd::daemon_life_test
