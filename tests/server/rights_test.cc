// Rights: the attacks on a controller that were tried, and how they end.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "tests/server/daemon_process.h"
#include "tests/server/raw_worker.h"

namespace prd::rights_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kJobs =
    "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 60000\n";

// bin/prdctl with these flags, until it ends; `as` is put before it.
Ended Prdctl(const std::string& flags, const std::string& as = "") {
  const std::string command = as + PRD_BIN_DIR "/prdctl" + flags + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  Ended ended;
  char chunk[4096];
  while (std::size_t got = std::fread(chunk, 1, sizeof chunk, pipe)) {
    ended.output.append(chunk, got);
  }
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

// Two workers of a job that trains, and a process that knows all of worker 0 but its token, as
// every peer does.
class Impostor : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.Start()) << daemon_.log(); }
  void Begin() {
    victim_.Join("job", 0);
    other_.Join("job", 1);
    ASSERT_TRUE(victim_.Reduce() && other_.Reduce());  // the common start
    impostor_.Show({7, 7});
    impostor_.Pretend(victim_);
  }
  void ExpectTheVictimTrainsOn() {
    victim_.Send(Ready{.iteration = 1});
    other_.Send(Ready{.iteration = 1});
    EXPECT_TRUE(victim_.Reduce().has_value());
    EXPECT_TRUE(other_.Reduce().has_value());
    EXPECT_FALSE(impostor_.Receive(0)) << "what was meant for the victim, or an answer";
  }

  DaemonProcess daemon_{kJobs};
  RawWorker victim_{"ipc://" + (daemon_.dir() / "workers.sock"), 11};
  RawWorker other_{"ipc://" + (daemon_.dir() / "workers.sock"), 22};
  RawWorker impostor_{"ipc://" + (daemon_.dir() / "workers.sock"), 11};
};

TEST_F(Impostor, GetsNothingThatIsMeantForTheWorker) {
  Begin();
  for (int i = 0; i < 10; ++i) impostor_.Heartbeat();
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  ExpectTheVictimTrainsOn();
  EXPECT_GE(daemon_.Counter("messages_foreign"), 1u);
}

TEST_F(Impostor, CannotMakeTheWorkerLeave) {
  Begin();
  for (Seq seq = 1; seq < 10; ++seq) {
    impostor_.SendEnvelope({.run = victim_.run(),
                            .identity = victim_.identity(),
                            .rank = 0,
                            .incarnation = 11,
                            .seq = seq,
                            .ack = 1,
                            .token = {7, 7},
                            .body = Leave{"said by somebody else"}});
  }
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  ExpectTheVictimTrainsOn();
  EXPECT_EQ(daemon_.log().find("said by somebody else"), std::string::npos);
}

TEST_F(Impostor, IsNotFasterThanTheWorkerAfterARestart) {
  Begin();
  daemon_.Kill();
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  impostor_.Heartbeat();
  impostor_.Send(RawWorker::HelloFor("job", 0));
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  victim_.WaitsFor(&other_);
  victim_.Send(Ready{.iteration = 1});
  other_.Send(Ready{.iteration = 1});
  EXPECT_TRUE(victim_.Reduce().has_value());
  EXPECT_FALSE(impostor_.Receive(0));
}

// A worker that joins a running job is told a source to copy from, and may say anything on its own
// connection.
TEST_F(Impostor, MayBeAMemberThatWasToldOfTheWorker) {
  Begin();
  RawWorker member(daemon_.endpoint(), 33);
  member.Join("job", 2);
  const std::optional<Adopt> adopt = member.Expect<Adopt>();
  ASSERT_TRUE(adopt.has_value());
  const Incarnation told = adopt->source.incarnation;
  ASSERT_TRUE(told == 11 || told == 22);
  for (Seq seq = 0; seq < 10; ++seq) {
    member.SendEnvelope(
        {.run = member.run(),
         .identity = member.identity(),
         .rank = adopt->source.rank,
         .incarnation = told,
         .seq = seq,
         .ack = 1,
         .token = {1, 33},  // its own
         .body = seq == 0 ? WorkerBody(Heartbeat{}) : WorkerBody(Leave{"said by somebody else"})});
  }
  ASSERT_TRUE(daemon_.WaitForLog("with the token of another process"));
  ExpectTheVictimTrainsOn();
  while (const auto envelope = member.Receive(0)) EXPECT_EQ(envelope->incarnation, 33u);
  EXPECT_EQ(daemon_.log().find("said by somebody else"), std::string::npos);
}

TEST_F(Impostor, FindsNoTokenInTheHistory) {
  const LinkToken token{0x0123456789abcdef, 0xfedcba9876543210};
  victim_.Show(token);
  victim_.Join("job", 0);
  const AdminReply reply = daemon_.Ask(ReadRecords{.run = victim_.run()});
  const auto* batch = std::get_if<RecordBatch>(&reply);
  ASSERT_TRUE(batch != nullptr);
  int hellos = 0;
  for (const Record& record : batch->records) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    if (from == nullptr) continue;
    ++hellos;
    EXPECT_NE(from->envelope.token, LinkToken{});
    EXPECT_NE(from->envelope.token, token);
  }
  EXPECT_EQ(hellos, 1);
}

// Alice and bob train, carol looks at alice's jobs, dave operates the daemon, erin bob's jobs. Each
// has a key.
class Tenants : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteFile("secret", server_.secret_key);
    WriteConfig();
    ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  }
  void WriteFile(const std::string& name, const std::string& text) {
    std::ofstream(daemon_.dir() / name) << text << "\n";
    ASSERT_EQ(::chmod((daemon_.dir() / name).c_str(), 0600), 0);
  }
  static std::string Identity(const std::string& name, const std::string& keys,
                              const std::string& more) {
    return "[[identity]]\nname = \"" + name + "\"\nkeys = [" + keys + "]\n" + more + "\n";
  }
  static std::string Quoted(const CurveKeys& keys) { return "\"" + keys.public_key + "\""; }
  void WriteConfig() {
    daemon_.WriteConfig(
        "[[job]]\nname = \"*-brief\"\nengine = \"p-reduce\"\nworkers = 2\nlease_ms = 1000\n"
        "heartbeat_ms = 100\n" +
            std::string(kJobs) +
            Identity("alice", alice_keys_, "jobs = [\"alice-*\"]\n" + alice_more_) +
            Identity("bob", Quoted(bob_), "jobs = [\"bob-*\"]\n" + bob_more_) +
            Identity("carol", Quoted(carol_), "jobs = [\"alice-*\"]\nrole = \"viewer\"") +
            Identity("dave", Quoted(dave_), "jobs = [\"*\"]\nrole = \"operator\"") +
            Identity("erin", Quoted(erin_), "jobs = [\"bob-*\"]\nrole = \"operator\""),
        "listen = \"tcp://127.0.0.1:*\"\nadmin = \"" + admin_ + "\"\ncurve_secret_key_file = \"" +
            (daemon_.dir() / "secret") + "\"\naudit_log = \"" + (daemon_.dir() / "audit") + "\"");
  }
  void Reload() {
    WriteConfig();
    daemon_.Signal(SIGHUP);
    ASSERT_TRUE(daemon_.WaitForLog("reloaded"));
  }
  std::unique_ptr<RawWorker> Worker(const CurveKeys& keys, Incarnation incarnation) {
    return std::make_unique<RawWorker>(daemon_.endpoint(), incarnation,
                                       std::pair(keys, server_.public_key));
  }
  AdminReply Ask(const CurveKeys& keys, const AdminRequest& request) {
    return daemon_.Ask(request, std::pair(keys, server_.public_key));
  }
  std::string Audit() const {
    std::ifstream in(daemon_.dir() / "audit");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void WaitForAudit(const std::string& text) const {
    while (Audit().find(text) == std::string::npos) ::usleep(10'000);  // or CTest's time is up
  }
  // What the worker is told, once it is refused.
  static std::string WhyRefused(RawWorker& worker) {
    const std::optional<Refused> refused = worker.Expect<Refused>();
    return refused ? std::string(CodeName(refused->code)) + ": " + refused->reason : "nothing";
  }
  void BeginAlicesJob() {
    first_ = Worker(alice_, 11);
    second_ = Worker(alice_, 22);
    first_->Join("alice-1", 0);
    second_->Join("alice-1", 1);
    ASSERT_TRUE(first_->Reduce() && second_->Reduce());  // the common start
  }
  // With short leases; none is renewed.
  void JoinABriefJob() {
    first_ = Worker(alice_, 11);
    second_ = Worker(alice_, 22);
    first_->Join("alice-brief", 0);
    second_->Join("alice-brief", 1);
  }
  void ExpectAlicesJobGoesOn() {
    first_->WaitsFor(second_.get());
    first_->Send(Ready{.iteration = 1});
    second_->Send(Ready{.iteration = 1});
    EXPECT_TRUE(first_->Reduce().has_value());
    EXPECT_TRUE(second_->Reduce().has_value());
  }

  const CurveKeys server_ = NewCurveKeys().value();
  const CurveKeys alice_ = NewCurveKeys().value();
  const CurveKeys bob_ = NewCurveKeys().value();
  const CurveKeys carol_ = NewCurveKeys().value();
  const CurveKeys dave_ = NewCurveKeys().value();
  const CurveKeys erin_ = NewCurveKeys().value();
  const CurveKeys stranger_ = NewCurveKeys().value();
  std::string alice_keys_ = Quoted(alice_);
  std::string alice_more_, bob_more_;
  DaemonProcess daemon_{kJobs};
  std::string admin_ = "ipc://" + (daemon_.dir() / "admin.sock");
  std::unique_ptr<RawWorker> first_, second_;
};

TEST_F(Tenants, AKeyJoinsNoJobOfAnother) {
  BeginAlicesJob();
  const auto bob = Worker(bob_, 33);
  bob->Send(RawWorker::HelloFor("alice-1", 2));
  EXPECT_EQ(WhyRefused(*bob), "failed precondition: identity bob: it may not train in job alice-1");
  const auto own = Worker(bob_, 44);
  own->Join("bob-1", 0);
  ExpectAlicesJobGoesOn();
  EXPECT_THAT(Audit(), HasSubstr("refused \"identity bob\" as \"key:" + bob_.public_key +
                                 "\" from \"127.0.0.1\": \"train in job alice-1\": \"it may not "
                                 "train in job alice-1\""));
  EXPECT_THAT(Audit(), HasSubstr("let in \"identity alice\""));
  EXPECT_EQ(daemon_.Counter("messages_forbidden"), 1u);
}

TEST_F(Tenants, AKeyFixesNoModelOfAnothersJob) {
  const auto squatter = Worker(bob_, 33);
  Hello hello = RawWorker::HelloFor("alice-1", 0);
  hello.model_hash = 666;
  hello.world_size = 1;
  squatter->Send(hello);
  EXPECT_THAT(WhyRefused(*squatter), HasSubstr("it may not train in job alice-1"));
  BeginAlicesJob();
  ExpectAlicesJobGoesOn();
}

// Bob knows what a member of the job knows of another one, the token excepted; and also with it.
TEST_F(Tenants, AKeyActsForNoWorkerOfAnother) {
  BeginAlicesJob();
  const auto bob = Worker(bob_, 11);
  bob->Pretend(*first_);
  bob->Show({7, 7});
  bob->Heartbeat();
  EXPECT_THAT(WhyRefused(*bob), HasSubstr("it may not train in job alice-1"));
  bob->Show({1, 11});
  for (Seq seq = 1; seq < 10; ++seq) {
    bob->SendEnvelope({.run = first_->run(),
                       .identity = first_->identity(),
                       .rank = 0,
                       .incarnation = 11,
                       .seq = seq,
                       .ack = 1,
                       .token = {1, 11},
                       .body = Leave{"said by somebody else"}});
    EXPECT_THAT(WhyRefused(*bob), HasSubstr("it may not train in job alice-1"));
  }
  ExpectAlicesJobGoesOn();
  EXPECT_EQ(daemon_.log().find("said by somebody else"), std::string::npos);
}

TEST_F(Tenants, AWorkerIsWhoItsKeyIsAndNotWhoItSays) {
  const auto alice = Worker(alice_, 11);
  Hello hello = RawWorker::HelloFor("alice-1", 0);
  hello.identity = "root";
  alice->Send(hello);
  ASSERT_TRUE(alice->Expect<Welcome>().has_value());
  const AdminReply reply = daemon_.Ask(ReadRecords{.run = alice->run()});
  const auto* batch = std::get_if<RecordBatch>(&reply);
  ASSERT_TRUE(batch != nullptr);
  std::string names;
  for (const Record& record : batch->records) {
    const auto* from = std::get_if<FromWorker>(&record.body);
    const auto* said = from == nullptr ? nullptr : std::get_if<Hello>(&from->envelope.body);
    if (said != nullptr) names += said->identity;
  }
  EXPECT_EQ(names, "alice");
}

TEST_F(Tenants, OneRevokedKeyIsGone) {
  const CurveKeys other = NewCurveKeys().value();
  alice_keys_ = Quoted(alice_) + ", " + Quoted(other);
  Reload();
  const auto kept = Worker(other, 33);
  kept->Join("alice-2", 0);
  JoinABriefJob();
  alice_keys_ = Quoted(other);
  Reload();
  first_->Heartbeat();
  EXPECT_THAT(WhyRefused(*first_), HasSubstr("the daemon's config does not let it in any more"));
  ASSERT_TRUE(daemon_.WaitForLog("run " + std::to_string(first_->run()) + " ended"))
      << daemon_.log();
  kept->Heartbeat();
  EXPECT_TRUE(kept->Expect<HeartbeatAck>().has_value());
}

TEST_F(Tenants, AKeyThatIsRevokedWhileItsReaderWaitsIsInTheAuditLog) {
  daemon_.Signal(SIGTERM);
  ASSERT_EQ(daemon_.WaitForEnd(), 0);
  admin_ = "tcp://127.0.0.1:*";
  const CurveKeys look = NewCurveKeys().value();
  alice_keys_ = Quoted(alice_) + ", " + Quoted(look);
  WriteConfig();
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  first_ = Worker(alice_, 11);
  first_->Join("alice-1", 0);
  zmq::context_t context;
  zmq::socket_t reader(context, zmq::socket_type::req);
  reader.set(zmq::sockopt::linger, 0);
  reader.set(zmq::sockopt::curve_publickey, look.public_key);
  reader.set(zmq::sockopt::curve_secretkey, look.secret_key);
  reader.set(zmq::sockopt::curve_serverkey, server_.public_key);
  reader.connect(daemon_.admin());
  zmq::message_t reply;
  reader.send(zmq::buffer(Encode(AdminRequest(ListRuns{}))), zmq::send_flags::none);
  ASSERT_TRUE(reader.recv(reply));
  reader.send(zmq::buffer(Encode(AdminRequest(
                  ReadRecords{.run = first_->run(), .from = 1'000'000, .wait_ms = 10'000}))),
              zmq::send_flags::none);
  for (int i = 0; i < 3; ++i) (void)Ask(dave_, GetStatus{});  // the request is there by then
  alice_keys_ = Quoted(alice_);
  Reload();
  ASSERT_TRUE(reader.recv(reply));
  EXPECT_THAT(Audit(),
              HasSubstr("key:" + look.public_key + "\" from \"127.0.0.1\": \"ask with prdctl"));
}

// It is evicted, and the workers that know it hear so; that of another key of the identity stays.
TEST_F(Tenants, ARevokedKeyIsOutForTheOthersAtOnce) {
  const CurveKeys other = NewCurveKeys().value();
  alice_keys_ = Quoted(alice_) + ", " + Quoted(other);
  Reload();
  first_ = Worker(alice_, 11);
  second_ = Worker(other, 22);
  first_->Join("alice-1", 0);
  second_->Join("alice-1", 1);
  ASSERT_TRUE(first_->Reduce() && second_->Reduce());
  alice_keys_ = Quoted(other);
  Reload();
  const std::optional<Gone> gone = second_->Expect<Gone>();
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->incarnations, std::vector<Incarnation>{11});
  EXPECT_TRUE(daemon_.WaitForLog("key " + alice_.public_key + " of identity alice may not train"))
      << daemon_.log();
  const std::optional<Released> released = first_->Expect<Released>();
  ASSERT_TRUE(released.has_value());
  EXPECT_THAT(released->reason, HasSubstr("evicted by a reload of"));
  EXPECT_THAT(released->reason,
              HasSubstr("identity alice: the daemon's config does not let it in any more"));
  const AdminReply reply = daemon_.Ask(ReadRecords{.run = second_->run()});
  const auto* batch = std::get_if<RecordBatch>(&reply);
  ASSERT_TRUE(batch != nullptr);
  std::vector<std::string> left;
  for (const Record& record : batch->records) {
    const auto* of = std::get_if<WorkerLeft>(&record.body);
    if (of != nullptr) left.push_back(std::to_string(of->rank) + ": " + of->reason);
  }
  ASSERT_EQ(left.size(), 1u);
  EXPECT_THAT(left[0], HasSubstr("0: evicted by a reload of"));
}

// What its connection may do was asked before, and is asked again.
TEST_F(Tenants, ARevokedKeyCountsNoMoreWhereItWasUsedOften) {
  BeginAlicesJob();
  for (int i = 0; i < 5; ++i) {
    first_->Heartbeat();
    ASSERT_TRUE(first_->Expect<HeartbeatAck>().has_value());
  }
  alice_keys_.clear();
  Reload();
  first_->Send(Leave{"whose key was revoked"});
  EXPECT_THAT(WhyRefused(*first_), HasSubstr("the daemon's config does not let it in any more"));
  EXPECT_EQ(daemon_.log().find("whose key was revoked"), std::string::npos);
}

TEST_F(Tenants, AllRevokedKeysAreGone) {
  JoinABriefJob();
  const auto bob = Worker(bob_, 33);
  bob->Join("bob-1", 0);
  alice_keys_.clear();
  Reload();
  first_->Heartbeat();
  second_->Heartbeat();
  EXPECT_THAT(WhyRefused(*first_), HasSubstr("does not let it in any more"));
  EXPECT_THAT(WhyRefused(*second_), HasSubstr("does not let it in any more"));
  ASSERT_TRUE(daemon_.WaitForLog("run " + std::to_string(first_->run()) + " ended"))
      << daemon_.log();
  bob->Heartbeat();
  EXPECT_TRUE(bob->Expect<HeartbeatAck>().has_value());
  const auto again = Worker(alice_, 44);
  again->Send(RawWorker::HelloFor("alice-brief", 0));
  WaitForAudit("connect as a worker");
  EXPECT_FALSE(again->Receive(0));
}

TEST_F(Tenants, JobsThatAreTakenAwayAreGoneToo) {
  BeginAlicesJob();
  alice_more_ = "colour = 1\n";  // the reload is refused
  WriteConfig();
  daemon_.Signal(SIGHUP);
  ASSERT_TRUE(daemon_.WaitForLog("reload refused"));
  ExpectAlicesJobGoesOn();
  alice_more_ = "role = \"viewer\"\n";
  Reload();
  EXPECT_TRUE(daemon_.WaitForLog("identity alice may not train in it any more; its 2 workers"));
  first_->Heartbeat();
  EXPECT_THAT(WhyRefused(*first_), HasSubstr("it may not train in job alice-1"));
}

TEST_F(Tenants, AFileThatOthersMayWriteGivesNoRights) {
  BeginAlicesJob();
  ASSERT_EQ(::chmod(daemon_.config().c_str(), 0666), 0);
  daemon_.Signal(SIGHUP);
  EXPECT_TRUE(daemon_.WaitForLog("prd.toml: everybody can write it; chmod go-w it"));
  EXPECT_EQ(RunDaemon({"--check-config", "--config", daemon_.config()}).code, 2);
  ExpectAlicesJobGoesOn();
}

TEST_F(Tenants, QuotasAreKept) {
  alice_more_ = "max_jobs = 2\nmax_workers = 3\n";
  Reload();
  BeginAlicesJob();
  const auto third = Worker(alice_, 33);
  third->Join("alice-2", 0);
  const auto fourth = Worker(alice_, 44);
  fourth->Send(RawWorker::HelloFor("alice-1", kNoRank));
  EXPECT_EQ(WhyRefused(*fourth),
            "unavailable: identity alice: it has all its 3 workers (max_workers)");
  third->Send(Leave{"done"});
  ASSERT_TRUE(third->Expect<Released>().has_value());
  fourth->Join("alice-1");

  alice_more_ = "max_jobs = 1\n";
  Reload();
  const auto fifth = Worker(alice_, 55);
  fifth->Send(RawWorker::HelloFor("alice-3", 0));
  EXPECT_EQ(WhyRefused(*fifth), "unavailable: identity alice: it has all its 1 jobs (max_jobs)");
  const auto sixth = Worker(alice_, 66);
  sixth->Join("alice-1");  // a job that it has
}

TEST_F(Tenants, RunsAreBegunAtARate) {
  bob_more_ = "max_runs_per_minute = 2\n";
  Reload();
  for (const std::string job : {"bob-1", "bob-2"}) {
    const auto worker = Worker(bob_, 33 + job.back());
    worker->Join(job, 0);
    worker->Send(Leave{"done"});
    ASSERT_TRUE(worker->Expect<Released>().has_value());
  }
  const auto third = Worker(bob_, 55);
  third->Send(RawWorker::HelloFor("bob-3", 0));
  EXPECT_EQ(WhyRefused(*third),
            "unavailable: identity bob: it has begun its 2 runs of this minute "
            "(max_runs_per_minute)");
  BeginAlicesJob();  // others may
  ExpectAlicesJobGoesOn();
  bob_more_ = "";
  Reload();
  third->Join("bob-3", 0);
}

TEST_F(Tenants, ConnectionsOverTheirNumberAreToldSoAndEnded) {
  bob_more_ = "max_connections = 2\n";
  Reload();
  const auto first = Worker(bob_, 33);
  first->Join("bob-1", 0);
  auto second = Worker(bob_, 44);
  second->Join("bob-1", 1);
  auto third = Worker(bob_, 55);
  third->Send(RawWorker::HelloFor("bob-1", 2));
  EXPECT_EQ(WhyRefused(*third),
            "unavailable: identity bob: it has all its 2 connections (max_connections)");
  while (daemon_.Counter("connections_refused") == 0) ::usleep(10'000);  // or CTest's time is up
  BeginAlicesJob();
  ExpectAlicesJobGoesOn();
  first->Heartbeat();
  EXPECT_TRUE(first->Expect<HeartbeatAck>().has_value());
  second.reset();
  third.reset();
  Worker(bob_, 66)->Join("bob-1");  // once there is room
}

TEST_F(Tenants, AFloodOfMessagesIsItsOwnersOwnLoss) {
  bob_more_ = "max_messages_per_s = 50\n";
  Reload();
  const auto bob = Worker(bob_, 33);
  bob->Join("bob-1", 0);
  for (int i = 0; i < 2000; ++i) bob->Heartbeat();
  BeginAlicesJob();
  ExpectAlicesJobGoesOn();
  EXPECT_GE(daemon_.Counter("messages_over_quota"), 1u);
}

TEST_F(Tenants, EachSeesItsOwnJobs) {
  BeginAlicesJob();
  const auto bob = Worker(bob_, 33);
  bob->Join("bob-1", 0);
  daemon_.Signal(SIGTERM);
  ASSERT_EQ(daemon_.WaitForEnd(), 0);
  admin_ = "tcp://127.0.0.1:*";
  WriteConfig();
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  const auto jobs = [&](const CurveKeys& keys) {
    const AdminReply reply = Ask(keys, ListRuns{});
    const auto* list = std::get_if<RunList>(&reply);
    std::string names;
    if (list == nullptr) return std::string("no list");
    for (const RunInfo& run : list->runs) names += run.job + " ";
    return names;
  };
  EXPECT_EQ(jobs(alice_), "alice-1 ");
  EXPECT_EQ(jobs(bob_), "bob-1 ");
  EXPECT_EQ(jobs(carol_), "alice-1 ");
  EXPECT_EQ(jobs(dave_), "bob-1 alice-1 ");
  for (const AdminRequest& request : {AdminRequest(ReadRecords{.run = bob->run()}),
                                      AdminRequest(ReadSnapshot{.run = bob->run()})}) {
    const AdminReply none = Ask(carol_, request);
    ASSERT_TRUE(std::holds_alternative<AdminError>(none));
    EXPECT_EQ(std::get<AdminError>(none).code, Code::kNotFound);
    EXPECT_FALSE(std::holds_alternative<AdminError>(Ask(dave_, request)));
  }
  EXPECT_TRUE(std::get<DaemonStatus>(Ask(carol_, GetStatus{})).counters.empty());
  EXPECT_EQ(std::get<DaemonStatus>(Ask(carol_, GetStatus{})).silences.size(), 2u);
  EXPECT_FALSE(std::get<DaemonStatus>(Ask(dave_, GetStatus{})).counters.empty());

  // As prdctl tells it.
  WriteFile("carol.key", carol_.secret_key);
  WriteFile("stranger.key", stranger_.secret_key);
  const std::string prdctl = " --admin " + daemon_.admin() + " --server-key '" +
                             server_.public_key + "' --key " + daemon_.dir().path() + "/";
  EXPECT_THAT(Prdctl(prdctl + "carol.key jobs").output, HasSubstr("alice-1"));
  const Ended denied = Prdctl(prdctl + "stranger.key jobs");
  EXPECT_EQ(denied.code, 1);
  EXPECT_THAT(denied.output, HasSubstr("permission denied: the daemon at " + daemon_.admin() +
                                       " does not let key " + stranger_.public_key + " in"));
  EXPECT_THAT(Prdctl(" --admin " + daemon_.admin() + " jobs").output, HasSubstr("--server-key"));
  const auto with = [&](const std::string& server_key) {
    return Prdctl(" --admin " + daemon_.admin() + " --server-key '" + server_key + "' --key " +
                  (daemon_.dir() / "carol.key") + " jobs");
  };
  EXPECT_EQ(with(server_.public_key + "\n").code, 0) << "as Kubernetes puts a file into a variable";
  const Ended fooled = with(stranger_.public_key);
  EXPECT_EQ(fooled.code, 4);
  EXPECT_THAT(fooled.output,
              HasSubstr("--server-key (" + stranger_.public_key + ") is not its public key"));
  const Ended file = with("daemon.pub");
  EXPECT_EQ(file.code, 2);
  EXPECT_THAT(file.output, HasSubstr("--server-key (PRD_CURVE_SERVER_KEY): found 10 characters"));
}

TEST_F(Tenants, WhoMayOnlyLookTrainsNowhere) {
  const auto carol = Worker(carol_, 33);
  carol->Send(RawWorker::HelloFor("alice-1", 0));
  WaitForAudit("its role is to look, not to train");
  EXPECT_FALSE(carol->Receive(0));
}

// Alice's job, with prdctl's socket on tcp, where a key says who asks.
class Operators : public Tenants {
 protected:
  Operators() { admin_ = "tcp://127.0.0.1:*"; }
  // All that an operator can do.
  static std::vector<OperatorActed> All() {
    return {{.verb = OperatorVerb::kEvict, .rank = 0},
            {.verb = OperatorVerb::kDrain, .host = "host"},
            {.verb = OperatorVerb::kEnd},
            {.verb = OperatorVerb::kPause},
            {.verb = OperatorVerb::kResume},
            {.verb = OperatorVerb::kSwitch, .spec = "all-reduce"}};
  }
  // How the daemon answers.
  std::string Act(const CurveKeys& keys, OperatorActed what, const std::string& job = "alice-1") {
    const AdminReply reply = Ask(keys, prd::Act{.job = job, .what = std::move(what)});
    if (const auto* acted = std::get_if<Acted>(&reply)) return acted->text;
    const auto* error = std::get_if<AdminError>(&reply);
    return error == nullptr ? "?" : std::string(CodeName(error->code)) + ": " + error->message;
  }
  // Records of what operators did to alice's job.
  std::vector<OperatorActed> Recorded() {
    std::vector<OperatorActed> acts;
    const AdminReply reply = Ask(dave_, ReadRecords{.run = first_->run()});
    const auto* batch = std::get_if<RecordBatch>(&reply);
    if (batch == nullptr) return {{.reason = "no records"}};
    for (const Record& record : batch->records) {
      if (const auto* acted = std::get_if<OperatorActed>(&record.body)) acts.push_back(*acted);
    }
    return acts;
  }
};

TEST_F(Operators, NobodyElseActsOnJobs) {
  BeginAlicesJob();
  for (const OperatorActed& act : All()) {
    // The job's own identity that trains; one that may look at it; one that trains elsewhere.
    for (const CurveKeys& keys : {alice_, carol_, bob_}) {
      EXPECT_THAT(Act(keys, act), HasSubstr("permission denied: only an operator may " +
                                            std::string(VerbName(act.verb))));
    }
    // An operator of other jobs does not even learn that this one is there.
    EXPECT_EQ(Act(erin_, act), "not found: no run of job alice-1 goes on");
    EXPECT_EQ(Act(erin_, act, "alice-2"), "not found: no run of job alice-2 goes on");
  }
  EXPECT_EQ(Act(erin_, All()[1], ""), "not found: no job has a worker on host host");
  WriteFile("stranger.key", stranger_.secret_key);
  EXPECT_THAT(Prdctl(" --admin " + daemon_.admin() + " --server-key '" + server_.public_key +
                     "' --key " + (daemon_.dir() / "stranger.key") + " pause alice-1")
                  .output,
              HasSubstr("permission denied"));
  EXPECT_EQ(Recorded().size(), 0u);
  ExpectAlicesJobGoesOn();
  for (const char* words :
       {"refused \"identity alice\"", "\"evict rank 0 of job alice-1\"",
        "refused \"identity carol\"", "\"drain host host of job alice-1\"",
        "refused \"identity erin\"", "\"end job alice-1\": ", "\"pause job alice-1\": "}) {
    EXPECT_THAT(Audit(), HasSubstr(words));
  }
  EXPECT_EQ(Audit().find("done for"), std::string::npos);
}

TEST_F(Operators, NobodyElseRemovesRuns) {
  {
    const auto worker = Worker(alice_, 33);
    worker->Join("alice-9", 0);
    worker->Send(Leave{"done"});
    ASSERT_TRUE(worker->Expect<Released>().has_value());
  }
  BeginAlicesJob();
  const auto answer = [&](const CurveKeys& keys) {
    const AdminReply reply = Ask(keys, Prune{{1, 2}});
    const auto* error = std::get_if<AdminError>(&reply);
    return error != nullptr ? error->message : std::get<Acted>(reply).text;
  };
  for (const CurveKeys& keys : {alice_, carol_, bob_}) {
    EXPECT_EQ(answer(keys), "permission denied: only an operator may prune");
  }
  EXPECT_EQ(answer(erin_), "run 1 is not in the history");
  EXPECT_EQ(answer(dave_), "1 runs removed");  // the other one goes on
  EXPECT_THAT(Audit(), HasSubstr("done for \"identity dave\""));
  ExpectAlicesJobGoesOn();
}

TEST_F(Operators, NobodySaysInAnothersNameWhoActed) {
  BeginAlicesJob();
  EXPECT_THAT(Act(dave_, {.verb = OperatorVerb::kPause, .by = "identity alice"}),
              HasSubstr("is paused"));
  const std::vector<OperatorActed> acts = Recorded();
  ASSERT_EQ(acts.size(), 1u);
  EXPECT_EQ(acts[0].by, "identity dave");
  EXPECT_THAT(Audit(), HasSubstr("done for \"identity dave\" as \"key:" + dave_.public_key));
}

TEST_F(Operators, AReasonIsTextAndNothingElse) {
  BeginAlicesJob();
  const std::string reason =
      "=HYPERLINK(\"x\")\n2026 done for \"identity alice\"\r\x1b[2J\xc2\x9b"
      "31m\xe2\x80\xae\xff";
  EXPECT_THAT(Act(dave_, {.verb = OperatorVerb::kPause, .reason = reason}), HasSubstr("is paused"));
  EXPECT_THAT(Act(dave_, {.verb = OperatorVerb::kEvict, .rank = 0, .reason = reason}),
              HasSubstr("is removed"));
  WriteFile("dave.key", dave_.secret_key);
  const std::string prdctl = " --admin " + daemon_.admin() + " --server-key '" +
                             server_.public_key + "' --key " + (daemon_.dir() / "dave.key");
  const std::string shown = Prdctl(prdctl + " explain").output;
  EXPECT_THAT(shown, HasSubstr("=HYPERLINK"));
  const std::string table = Prdctl(prdctl + " export alice-1 --format csv").output;
  const std::string lines = Prdctl(prdctl + " export alice-1 --format jsonl").output;
  EXPECT_THAT(lines, HasSubstr("operator_acted"));
  for (const std::string& text : {shown, table, lines, Audit(), daemon_.log()}) {
    for (const char* obeyed : {"\x1b", "\xc2\x9b", "\xe2\x80\xae", "\n2026 done"}) {
      EXPECT_EQ(text.find(obeyed), std::string::npos) << text;
    }
    for (const char* formula : {"\n=", ",=", ",\"="}) {
      EXPECT_EQ(text.find(formula), std::string::npos) << text;
    }
  }
  EXPECT_THAT(Act(dave_, {.verb = OperatorVerb::kPause, .reason = std::string(3000, 'x')}),
              HasSubstr("invalid argument: a reason, and a host, have 256 bytes at most"));
}

// The numbers of users of this host, which ipc tells.
class Users : public ::testing::Test {
 protected:
  static constexpr uid_t kOther = 65'534;
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act for another user";
    ASSERT_EQ(::chmod(daemon_.dir().path().c_str(), 0755), 0);  // whose own folder it is not
  }
  // As the other user, in a process of its own; before there are threads in this one.
  static int InChild(const std::function<int()>& act) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setgroups(0, nullptr);
      if (::setresgid(kOther, kOther, kOther) != 0 || ::setresuid(kOther, kOther, kOther) != 0) {
        ::_exit(99);
      }
      ::_exit(act());
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // The error of connecting to a socket file; 0: it is open.
  static int ConnectTo(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected =
        ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    const int error = connected ? 0 : errno;
    ::close(fd);
    return error;
  }
  std::string workers() const { return daemon_.dir() / "workers.sock"; }

  DaemonProcess daemon_{kJobs};
};

TEST_F(Users, NobodyElseGetsInUnlessTheConfigNamesThem) {
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  for (const std::string& path : {workers(), daemon_.dir() / "admin.sock"}) {
    EXPECT_EQ(InChild([&] { return ConnectTo(path); }), EACCES) << path;
  }
  const Ended asked = Prdctl(" --admin " + daemon_.admin() + " jobs", "setpriv --reuid 65534 ");
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.output, HasSubstr("permission denied: the daemon at " + daemon_.admin() +
                                      " does not let user 65534 in"));
  RawWorker own(daemon_.endpoint(), 11);
  own.Join("job", 0);
}

TEST(OwnSocket, IsWhereADaemonListensThatIsToldNothing) {
  DaemonProcess daemon(kJobs, "listen = \"\"");
  ASSERT_TRUE(daemon.Start({{"RUNTIME_DIRECTORY", daemon.dir().path()}})) << daemon.log();
  EXPECT_EQ(daemon.endpoint(), "ipc://" + (daemon.dir() / "workers"));
  struct stat info {};
  ASSERT_EQ(::stat((daemon.dir() / "workers").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  RawWorker worker(daemon.endpoint(), 11);
  worker.Join("job", 0);
}

TEST(Connections, AreAsManyAsTheConfigSays) {
  DaemonProcess daemon(kJobs, "listen = \"tcp://127.0.0.1:*\"\nmax_connections_per_host = 3\n");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  RawWorker worker(daemon.endpoint(), 11);
  worker.Join("job", 0);
  zmq::context_t context;
  std::vector<zmq::socket_t> idle;
  for (int i = 0; i < 3; ++i) {
    idle.emplace_back(context, zmq::socket_type::dealer);
    idle.back().set(zmq::sockopt::linger, 0);
    idle.back().set(zmq::sockopt::reconnect_ivl, -1);
    idle.back().connect(daemon.endpoint());
  }
  while (daemon.Counter("connections_refused") == 0) ::usleep(10'000);  // or CTest's time is up
  worker.Heartbeat();
  EXPECT_TRUE(worker.Expect<HeartbeatAck>().has_value());
  EXPECT_EQ(daemon.Counter("connections_refused"), 1u);

  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.WaitForEnd(), 0);
  daemon.WriteConfig(kJobs, "max_connections = 1000000");
  EXPECT_THAT(RunDaemon({"--config", daemon.config()}).output,
              HasSubstr("max_connections: found 1000000, and the limit of"));
}

TEST(OwnSocket, TcpWithoutKeysIsForEverybodyAndSaysSo) {
  DaemonProcess daemon(kJobs, "listen = \"tcp://127.0.0.1:*\"");
  ASSERT_TRUE(daemon.Start()) << daemon.log();
  EXPECT_THAT(daemon.log(), HasSubstr("every user of this host can train along"));
  RawWorker worker(daemon.endpoint(), 11);
  worker.Join("job", 0);
}

TEST_F(Users, AUserHasTheJobsOfItsIdentity) {
  daemon_.WriteConfig(std::string(kJobs) +
                      "[[identity]]\nname = \"other\"\nusers = [\"65534\"]\njobs = [\"o-*\"]\n");
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  const std::string endpoint = daemon_.endpoint();
  EXPECT_EQ(InChild([&] {
              RawWorker worker(endpoint, 11);
              worker.Send(RawWorker::HelloFor("o-1", 0));
              if (!worker.Expect<Welcome>()) return 1;
              RawWorker wrong(endpoint, 22);
              wrong.Send(RawWorker::HelloFor("root-1", 0));
              return wrong.Expect<Refused>() ? 0 : 2;
            }),
            0);
  const std::string admin = " --admin " + daemon_.admin() + " jobs";
  EXPECT_THAT(Prdctl(admin, "setpriv --reuid 65534 ").output, HasSubstr("o-1"));
  for (const char* act : {"evict o-1 0", "drain host", "end o-1", "pause o-1", "resume o-1"}) {
    const Ended acted = Prdctl(" --admin " + daemon_.admin() + " " + act, "setpriv --reuid 65534 ");
    EXPECT_EQ(acted.code, 1);
    EXPECT_THAT(acted.output, HasSubstr("permission denied: only an operator may"));
  }
  // Another one may open the file, and is refused for its number before it holds a descriptor.
  const Ended third = Prdctl(admin, "setpriv --reuid 65533 ");
  EXPECT_EQ(third.code, 1);
  EXPECT_THAT(third.output, HasSubstr("does not let user 65533 in"));
  EXPECT_GE(daemon_.Counter("connections_refused"), 3u);
}

TEST_F(Users, AReloadLetsUsersInAndKeepsConnections) {
  const std::string other = "[[identity]]\nname = \"other\"\njobs = [\"o-*\"]\n";
  daemon_.WriteConfig(std::string(kJobs) + other + "users = [\"65533\"]\n");
  ASSERT_TRUE(daemon_.Start()) << daemon_.log();
  RawWorker own(daemon_.endpoint(), 11);
  own.Join("job", 0);
  const std::string admin = " --admin " + daemon_.admin() + " jobs";
  EXPECT_THAT(Prdctl(admin, "setpriv --reuid 65534 ").output, HasSubstr("does not let user"));
  for (const char* users : {"65534", "*", "65534"}) {
    daemon_.WriteConfig(std::string(kJobs) + other + "users = [\"" + users + "\"]\n");
    daemon_.Signal(SIGHUP);
    ASSERT_TRUE(daemon_.WaitForNotice("READY=1"));
    while (Prdctl(admin, "setpriv --reuid 65534 ").code != 0) ::usleep(10'000);  // or time is up
    own.Heartbeat();
    EXPECT_TRUE(own.Expect<HeartbeatAck>().has_value());
    const bool all = std::string(users) == "*";
    EXPECT_EQ(Prdctl(admin, "setpriv --reuid 65533 ").code, all ? 0 : 1) << users;
  }
}

}  // namespace
}  // namespace prd::rights_test
