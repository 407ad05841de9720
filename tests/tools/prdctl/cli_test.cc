// The program itself, on a history written as the daemon writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <zmq.hpp>

#include "common/io/codec.h"
#include "server/history/rocks_history.h"
#include "tests/server/scratch_dir.h"
#include "tests/tools/prdctl/story.h"

namespace prd::ctl {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

struct Done {
  int code = -1;
  std::string out;  // and errors, in the order in which they were written
};

Done Shell(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  Done done;
  std::array<char, 4096> chunk;
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    done.out.append(chunk.data(), got);
  }
  const int status = pclose(pipe);
  done.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  return done;
}

const std::string kProgram = std::string(PRD_BIN_DIR) + "/prdctl ";

Done Prdctl(const std::string& arguments) { return Shell(kProgram + arguments + " 2>&1"); }

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Two runs of one job: the first has ended, the second goes on.
class CliTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new ScratchDir();
    auto history = RocksHistory::Open(State(), {}).value();
    ended_ = MakeRun(1, PReduceSpec(3), {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 20});
    going_ = MakeRun(2, PReduceSpec(3),
                     {.step_ns = {10 * kMs, 11 * kMs, 40 * kMs}, .steps = 99, .until_ms = 500});
    ASSERT_TRUE(history->Append(ended_).ok());
    ASSERT_TRUE(history->Append(going_).ok());
  }
  static void TearDownTestSuite() { delete scratch_; }
  static std::string State() { return *scratch_ / "state"; }

  static Done FromFiles(const std::string& arguments) {
    return Prdctl("--state-dir " + State() + " " + arguments);
  }
  static json JsonFromFiles(const std::string& arguments) {
    const Done done = FromFiles("--json " + arguments);
    EXPECT_EQ(done.code, 0) << done.out;
    return json::parse(done.out);
  }

  static inline ScratchDir* scratch_ = nullptr;
  static inline std::vector<Record> ended_, going_;
};

TEST_F(CliTest, EveryCommandReadsTheFilesOfAStoppedDaemon) {
  for (const char* command : {"jobs",
                              "workers",
                              "workers 1",
                              "workers --run mnist",
                              "groups",
                              "groups 1 --kind train",
                              "group 1",
                              "group 3 1",
                              "explain",
                              "explain 2",
                              "explain --run 1",
                              "explain mnist",
                              "explain mnist 2",
                              "explain 2 mnist",
                              "links",
                              "links 1",
                              "stragglers",
                              "graph",
                              "graph --last 5",
                              "spectral-gap",
                              "export",
                              "export --format csv",
                              "export --format trace",
                              "replay",
                              "replay 1"}) {
    const Done done = FromFiles(command);
    EXPECT_EQ(done.code, 0) << command << "\n" << done.out;
    EXPECT_GT(done.out.size(), 10u) << command;
  }
}

TEST_F(CliTest, WhatTheyTell) {
  const json jobs = JsonFromFiles("jobs")["runs"];
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]["job"], "mnist");
  EXPECT_EQ(jobs[0]["engine"], "p-reduce");
  EXPECT_EQ(jobs[0]["ended"], true);
  EXPECT_EQ(jobs[0]["state"], "finished");
  EXPECT_EQ(jobs[0]["end"], "the last worker has gone, rank 2: the job is done");
  EXPECT_EQ(jobs[1]["ended"], false);
  EXPECT_EQ(jobs[1]["state"], "running");
  EXPECT_EQ(jobs[1]["end"], nullptr);
  EXPECT_THAT(FromFiles("jobs").out, HasSubstr("finished"));
  EXPECT_EQ(JsonFromFiles("jobs --options")["runs"][0]["options"], "group_size=2,alpha=0.25");
  EXPECT_THAT(FromFiles("jobs --options").out, HasSubstr("OPTIONS"));
  EXPECT_EQ(JsonFromFiles("workers")["workers"].size(), 3u);
  EXPECT_EQ(JsonFromFiles("explain mnist"), JsonFromFiles("explain --run mnist"));
  EXPECT_EQ(JsonFromFiles("explain mnist 2"), JsonFromFiles("explain 2 --run mnist"));
  EXPECT_EQ(JsonFromFiles("explain 2 1"), JsonFromFiles("explain 2 --run 1"));
  EXPECT_EQ(JsonFromFiles("stragglers")["workers"][0]["rank"], 2);
  EXPECT_EQ(JsonFromFiles("stragglers")["workers"][0]["slow"], true);
  EXPECT_EQ(JsonFromFiles("stragglers --factor 9")["workers"][0]["slow"], false);
  const double rho = JsonFromFiles("spectral-gap 1")["rho"].get<double>();
  EXPECT_GT(rho, 0.5);
  EXPECT_LT(rho, 1);
  EXPECT_EQ(JsonFromFiles("graph --last 5")["groups"], 5);
  EXPECT_EQ(JsonFromFiles("replay")["not_recorded"], 0);
  EXPECT_EQ(JsonFromFiles("groups --last 7")["groups"].size(), 7u);
  EXPECT_THAT(FromFiles("graph").out, HasSubstr("graph sync {"));
  EXPECT_THAT(FromFiles("replay 1").out, HasSubstr("hash of the controller's state after them: "));
}

TEST_F(CliTest, ExitCodesAndMessages) {
  const auto expect = [](const Done& done, int code, const std::string& message) {
    EXPECT_EQ(done.code, code) << done.out;
    EXPECT_THAT(done.out, HasSubstr(message));
  };
  expect(Prdctl("--help"), 0, "Exit codes:");
  expect(Prdctl("groups --help"), 0, "--follow");
  expect(Prdctl("stragglers --help"), 0, "PASSED OVER");
  expect(Prdctl("workers --help"), 0, "suppressed_updates");
  expect(Prdctl("--version"), 0, "prdctl ");
  expect(Prdctl(""), 2, "no command");
  expect(Prdctl("jbos"), 2, "jbos");
  expect(FromFiles("groups --kind odd"), 2, "--kind");
  expect(FromFiles("groups --since 3x"), 2, "--since: found \"3x\", allowed is a time like 250ms");
  expect(FromFiles("groups --rank -3"), 2, "--rank");
  expect(FromFiles("groups --last -1"), 2, "--last: found \"-1\", allowed is 0, 1, ...");
  expect(FromFiles("group 18446744073709551616"), 2, "allowed is 0, 1, ...");
  // What is left of an unset variable.
  for (const char* empty : {"prune --before ''", "prune '' --dry-run", "prune --keep=", "''"}) {
    expect(FromFiles(empty), 2, "found nothing in it, allowed is a word");
  }
  expect(FromFiles("prune --keep -1"), 2, "--keep: found \"-1\"");
  expect(FromFiles("pause mnist --reason " + std::string(257, 'x')), 2, "found 257 bytes");
  EXPECT_EQ(JsonFromFiles("jobs")["runs"].size(), 2u);
  expect(FromFiles("workers 7"), 3, "run: found \"7\", there are runs 1 to 2 of the jobs mnist");
  expect(FromFiles("explain 7"), 3, "rank: found 7");
  expect(FromFiles("explain minst"), 3, "run: found \"minst\"");
  expect(FromFiles("explain mnist two"), 2, "rank: found \"two\", allowed is a worker's rank");
  expect(FromFiles("group 70000"), 3, "group: found 70000");
  expect(FromFiles("groups --rank 9"), 3, "rank: found 9, in run 2 there are ranks 0, 1, 2\n");
  expect(FromFiles("groups --rank 2"), 0, "GROUP");
  for (const char* factor : {"0", "-1", "x", "nan"}) {
    expect(FromFiles(std::string("stragglers --factor ") + factor), 2,
           std::string("--factor: found \"") + factor + "\", allowed is a number above 0\n");
  }
  expect(FromFiles("status"), 1, "only a running daemon");
  expect(FromFiles("groups --follow"), 1, "only a running daemon");
  expect(FromFiles("--admin ipc:///x jobs"), 2, "--admin excludes --state-dir");
  expect(Prdctl("--state-dir " + (*scratch_ / "nothing") + " jobs"), 3, "nothing");
  expect(Prdctl("--admin ipc://" + (*scratch_ / "none.sock") + " jobs"), 4, "no daemon answers");
  expect(Prdctl("--admin nonsense jobs"), 2, "admin endpoint: found \"nonsense\"");
  expect(FromFiles("export -o /nowhere/x"), 1, "/nowhere/x: cannot be written: No such file");
}

TEST_F(CliTest, AReaderThatGoesAwayIsNoError) {
  const std::string all = kProgram + "--state-dir " + State() + " export";
  const std::string errors = *scratch_ / "errors";
  const std::string code = *scratch_ / "code";
  Shell("( " + all + " 2> " + errors + "; echo $? > " + code + " ) | head -c 10");
  EXPECT_EQ(Read(errors), "");
  EXPECT_EQ(Read(code), "0\n");
  EXPECT_EQ(Shell(all + " > /dev/full 2> " + errors).code, 1);
  EXPECT_THAT(Read(errors), HasSubstr("the output cannot be written: No space left"));
}

TEST_F(CliTest, ExportsToAFileThatIsWhole) {
  const std::string file = *scratch_ / "trace.json";
  ASSERT_EQ(FromFiles("export --format trace -o " + file).code, 0);
  EXPECT_GT(json::parse(Read(file))["traceEvents"].size(), 50u);
  EXPECT_FALSE(std::ifstream(file + ".part").good());
}

TEST_F(CliTest, AnExportReplacesFilesAlone) {
  namespace fs = std::filesystem;
  const std::string file = *scratch_ / "linked.jsonl", link = *scratch_ / "link";
  std::ofstream(file) << "old";
  fs::create_symlink(file, link);
  ASSERT_EQ(FromFiles("export -o " + link).code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_GT(fs::file_size(file), 1000u);
  const std::string device = *scratch_ / "device";
  fs::create_symlink("/dev/full", device);
  const Done full = FromFiles("export -o " + device);
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.out, HasSubstr("cannot be written: No space left"));
  EXPECT_TRUE(fs::is_character_file(device));
  const std::string pipe = *scratch_ / "pipe", read = *scratch_ / "read";
  ASSERT_EQ(Shell("mkfifo " + pipe).code, 0);
  ASSERT_EQ(Shell("cat " + pipe + " > " + read + " & " + kProgram + "--state-dir " + State() +
                  " export -o " + pipe + " && wait")
                .code,
            0);
  EXPECT_EQ(Read(read), Read(file));
}

TEST_F(CliTest, DamageInTheHistoryIsExitCode5) {
  ScratchDir scratch;
  std::vector<Record> wrong = ended_;
  for (Record& record : wrong) {
    if (auto* formed = std::get_if<GroupFormed>(&record.body)) formed->iteration += 1;
  }
  {
    auto history = RocksHistory::Open(scratch / "s", {}).value();
    ASSERT_TRUE(history->Append(wrong).ok());
  }
  const Done done = Prdctl("--state-dir " + (scratch / "s") + " replay");
  EXPECT_EQ(done.code, 5);
  EXPECT_THAT(done.out, HasSubstr("the replay decides otherwise"));
}

TEST_F(CliTest, KeysAreNewPairsThatAreNeverOverwritten) {
  const std::string name = *scratch_ / "worker";
  const Done done = Prdctl("--json keygen " + name);
  ASSERT_EQ(done.code, 0) << done.out;
  struct stat info {};
  ASSERT_EQ(stat((name + ".key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
  const std::string secret = Read(name + ".key"), open = Read(name + ".pub");
  ASSERT_EQ(secret.size(), 41u);
  ASSERT_EQ(open.size(), 41u);
  std::array<char, 41> derived{};
  ASSERT_EQ(zmq_curve_public(derived.data(), secret.substr(0, 40).c_str()), 0);
  EXPECT_EQ(derived.data() + std::string("\n"), open);
  EXPECT_EQ(json::parse(done.out)["public_key"], derived.data());
  EXPECT_THAT(done.out, ::testing::Not(HasSubstr(secret.substr(0, 40))));
  EXPECT_EQ(Prdctl("keygen " + name).code, 1);
  EXPECT_EQ(Read(name + ".key"), secret);
  // With them a daemon elsewhere is asked. A name that no host may have: no name server is.
  const std::string with = " --key " + name + ".key --server-key '" + open.substr(0, 40) + "'";
  const Done far = Prdctl("--admin tcp://no..host:5776" + with + " jobs");
  EXPECT_EQ(far.code, 4);
  EXPECT_THAT(far.out, HasSubstr("admin: found \"tcp://no..host:5776\": "));
}

TEST_F(CliTest, AnAddressThatIsTakenIsNoDaemonThatIsAway) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Done done = FromFiles("serve --listen 127.0.0.1:" + port);
  close(taken);
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.out, HasSubstr("cannot be listened on; is the port taken?"));
}

// ---- a daemon that answers as it is told ----

class FakeDaemon {
 public:
  // Answers `replies` in order, one request each; calls `unanswered` at the one after them.
  FakeDaemon(const std::string& endpoint, std::vector<std::string> replies,
             std::function<void()> unanswered = nullptr)
      : socket_(context_, zmq::socket_type::rep) {
    socket_.set(zmq::sockopt::rcvtimeo, 10'000);
    socket_.bind(endpoint);
    thread_ = std::thread([this, replies = std::move(replies), unanswered] {
      for (const std::string& reply : replies) {
        zmq::message_t request;
        if (!socket_.recv(request)) return;
        requests_.push_back(DecodeAdminRequest(request.to_string_view()).value());
        socket_.send(zmq::buffer(reply), zmq::send_flags::none);
      }
      zmq::message_t last;
      if (unanswered && socket_.recv(last)) unanswered();
    });
  }
  const std::vector<AdminRequest>& Requests() {
    if (thread_.joinable()) thread_.join();
    return requests_;
  }
  ~FakeDaemon() { Requests(); }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::vector<AdminRequest> requests_;
  std::thread thread_;
};

std::string Reply(AdminReply reply) { return Encode(reply); }

TEST_F(CliTest, AsksADaemon) {
  const std::string endpoint = "ipc://" + (*scratch_ / "admin.sock");
  {
    FakeDaemon daemon(
        endpoint, {Reply(RunList{{InfoOf(going_)}}), Reply(Snapshot{}), Reply(RecordBatch{going_}),
                   Reply(RecordBatch{}),
                   Reply(DaemonStatus{
                       .version = "9", .now = going_.back().now, .counters = {}, .silences = {}})});
    const Done done = Prdctl("--admin " + endpoint + " --json workers");
    EXPECT_EQ(done.code, 0) << done.out;
    EXPECT_EQ(json::parse(done.out)["workers"].size(), 3u);
    ASSERT_EQ(daemon.Requests().size(), 5u);
    EXPECT_EQ(std::get<ReadRecords>(daemon.Requests()[3]).from, going_.size());
  }
  {
    FakeDaemon daemon(endpoint,
                      {Reply(DaemonStatus{.version = "9", .counters = {{"messages", 7}}})});
    EXPECT_THAT(Prdctl("--admin " + endpoint + " status").out, HasSubstr("messages"));
  }
  {
    FakeDaemon daemon(endpoint, {Reply(DaemonStatus{.version = "9"})});
    const Done done = Prdctl("--admin " + endpoint + " status");
    EXPECT_THAT(done.out, HasSubstr("counters are for operators"));
    EXPECT_THAT(done.out, Not(HasSubstr("COUNTER")));
  }
  {
    FakeDaemon daemon(endpoint, {Reply(AdminError{Code::kNotFound, "no such thing"})});
    const Done done = Prdctl("--admin " + endpoint + " jobs");
    EXPECT_EQ(done.code, 3);
    EXPECT_THAT(done.out, HasSubstr("no such thing"));
  }
  {
    FakeDaemon daemon(endpoint, {Reply(AdminError{Code::kUnavailable, "the history is stalled"})});
    EXPECT_EQ(Prdctl("--admin " + endpoint + " jobs").code, 1) << "a daemon has answered";
  }
  {
    FakeDaemon daemon(endpoint, {"garbage"});
    EXPECT_EQ(Prdctl("--admin " + endpoint + " jobs").code, 5);
  }
  {
    FakeDaemon daemon(endpoint, {Reply(Snapshot{})});
    const Done done = Prdctl("--admin " + endpoint + " jobs");
    EXPECT_EQ(done.code, 5);
    EXPECT_THAT(done.out, HasSubstr("answered another question"));
  }
}

TEST_F(CliTest, FollowEndsCleanlyOnCtrlC) {
  const std::string endpoint = "ipc://" + (*scratch_ / "follow.sock");
  const std::string pid_file = *scratch_ / "pid";
  const auto next = going_.begin() + static_cast<std::ptrdiff_t>(going_.size()) - 40;
  FakeDaemon daemon(endpoint,
                    {Reply(RunList{{InfoOf(going_)}}), Reply(DaemonStatus{}),
                     Reply(RecordBatch{{going_.begin(), next}}), Reply(RecordBatch{}),
                     Reply(RecordBatch{{next, going_.end()}})},
                    [&] { kill(std::stoi(Read(pid_file)), SIGINT); });
  const Done done = Shell("echo $$ > " + pid_file + "; exec " + kProgram + "--admin " + endpoint +
                          " --json groups --follow --last 1 2>&1");
  EXPECT_EQ(done.code, 0) << done.out;
  std::istringstream lines(done.out);
  std::size_t formed = 0, told = 0;
  for (std::string line; std::getline(lines, line);) {
    if (json::parse(line)["event"] == "formed") ++formed;
  }
  for (auto record = next; record != going_.end(); ++record) {
    if (std::holds_alternative<GroupFormed>(record->body)) ++told;
  }
  EXPECT_GE(told, 2u);
  EXPECT_EQ(formed, told + 1);  // the last one before, and all after
  EXPECT_GT(std::get<ReadRecords>(daemon.Requests().back()).wait_ms, 0u);
}

TEST_F(CliTest, ServeMayBeEndedBeforeTheDaemonAnswers) {
  const std::string endpoint = "ipc://" + (*scratch_ / "serve.sock");
  const std::string pid_file = *scratch_ / "pid";
  FakeDaemon daemon(endpoint, {}, [&] { kill(std::stoi(Read(pid_file)), SIGINT); });
  const Done done = Shell("echo $$ > " + pid_file + "; exec " + kProgram + "--admin " + endpoint +
                          " --timeout-ms 60000 serve --listen 127.0.0.1:0 2>&1");
  EXPECT_EQ(done.code, 0) << done.out;
  EXPECT_EQ(done.out, "");
}

TEST_F(CliTest, ADaemonThatDoesNotAnswerIsExitCode4) {
  const std::string endpoint = "ipc://" + (*scratch_ / "mute.sock");
  FakeDaemon daemon(endpoint, {});
  const Done done = Prdctl("--admin " + endpoint + " --timeout-ms 2000 jobs");
  EXPECT_EQ(done.code, 4);
  EXPECT_THAT(done.out, HasSubstr("does not answer within 2000 ms"));
  EXPECT_THAT(done.out, HasSubstr("max_read_bytes_per_s"));
}

}  // namespace
}  // namespace prd::ctl
