// The pump: order of appending and sending, retransmission, leases, and what it accepts as history.
#include "engines/pump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/all_reduce/options.h"
#include "engines/p_reduce/options.h"
#include "engines/replay.h"

namespace prd {
namespace {

using testing::HasSubstr;

class Ports : public History, public Transport {
 public:
  Status Append(std::span<const Record> batch) override {
    if (!disk.ok()) return disk;
    ++appends;
    records.insert(records.end(), batch.begin(), batch.end());
    return Status::Ok();
  }
  Status SaveSnapshot(RunId, std::uint64_t index, std::string_view state) override {
    snapshot = {index, std::string(state)};
    return Status::Ok();
  }
  void Send(const ControllerEnvelope& envelope) override { sent.push_back(envelope); }

  template <typename T>
  int Count() const {
    int n = 0;
    for (const ControllerEnvelope& e : sent) n += std::holds_alternative<T>(e.body) ? 1 : 0;
    return n;
  }

  Status disk;
  int appends = 0;
  std::vector<Record> records;
  std::pair<std::uint64_t, std::string> snapshot;
  std::vector<ControllerEnvelope> sent;
};

class PumpTest : public testing::Test {
 protected:
  static JobSpec Spec(const std::string& name = "toy") {
    JobSpec spec;
    spec.name = name;
    spec.engine = PReduceOptions{.group_size = 2};
    spec.workers = 2;
    spec.lease_ms = 1000;
    spec.heartbeat_ms = 250;
    return spec;
  }
  std::unique_ptr<Pump> Make(std::uint64_t snapshot_every = 1000) {
    return std::make_unique<Pump>(
        Pump::Options{.snapshot_every = snapshot_every, .random = [this] { return ++drawn_; }},
        [](const std::string& name) -> Result<JobSpec> {
          if (name == "toy") return Spec();
          return Status(Code::kNotFound, "no job matches " + name);
        },
        &ports_, &ports_);
  }
  void Receive(std::int64_t ms, const WorkerEnvelope& envelope) {
    pump_->Receive({ms * kMillisecond}, 0, envelope);
    ASSERT_TRUE(pump_->Flush().ok());
  }
  void Tick(std::int64_t ms) {
    pump_->Tick({ms * kMillisecond});
    ASSERT_TRUE(pump_->Flush().ok());
  }
  static WorkerEnvelope HelloOf(Rank rank, const std::string& job = "toy") {
    return {.incarnation = 10u + static_cast<Incarnation>(rank),
            .seq = 1,
            .body = Hello{.job = job, .rank = rank, .host = "h", .endpoints = {"tcp://x:1"}}};
  }
  // In the newest life of the controller that anybody has heard of.
  WorkerEnvelope From(Rank rank, Seq seq, Seq ack, WorkerBody body) const {
    RunIdentity identity;
    for (const ControllerEnvelope& envelope : ports_.sent) {
      if (envelope.identity.known()) identity = envelope.identity;
    }
    return {.run = 1,
            .identity = identity,
            .rank = rank,
            .incarnation = 10u + static_cast<Incarnation>(rank),
            .seq = seq,
            .ack = ack,
            .oldest = std::max<Seq>(seq, 1),
            .body = std::move(body)};
  }
  void StartTwo() {
    Receive(0, HelloOf(0));
    Receive(0, HelloOf(1));
    for (Rank r = 0; r < 2; ++r) Receive(1, From(r, 2, 2, Finished{.group = 1}));
  }

  std::uint64_t drawn_ = 0;
  Ports ports_;
  std::unique_ptr<Pump> pump_ = Make();
};

TEST_F(PumpTest, NothingIsSentThatIsNotRecordedAndNothingIsLostOnAFullDisk) {
  ports_.disk = Status(Code::kResourceExhausted, "no space left on device");
  pump_->Receive({1}, 0, HelloOf(0));
  EXPECT_FALSE(pump_->Flush().ok());
  EXPECT_FALSE(pump_->Flush().ok());
  EXPECT_TRUE(ports_.sent.empty());
  EXPECT_TRUE(pump_->pending());
  ports_.disk = Status::Ok();
  EXPECT_TRUE(pump_->Flush().ok());
  EXPECT_EQ(ports_.Count<Welcome>(), 1);
  EXPECT_EQ(ports_.records.size(), 2u);  // RunStarted, Hello
  EXPECT_FALSE(pump_->pending());
}

TEST_F(PumpTest, OneBatchPerFlush) {
  pump_->Receive({1}, 0, HelloOf(0));
  pump_->Receive({1}, 0, HelloOf(1));
  ASSERT_TRUE(pump_->Flush().ok());
  EXPECT_EQ(ports_.appends, 1);
}

// A Released that got lost does not bring it back: all later answers say the same.
TEST_F(PumpTest, WhoIsEvictedIsRefusedForGoodAlsoAfterARestart) {
  StartTwo();
  const OperatorActed evict{
      .verb = OperatorVerb::kEvict, .rank = 1, .by = "user 0", .reason = "disk"};
  EXPECT_EQ(pump_->Act({2 * kMillisecond}, "another", evict).code(), Code::kNotFound);
  ASSERT_TRUE(pump_->Act({2 * kMillisecond}, "toy", evict).ok());
  EXPECT_EQ(ports_.Count<Released>(), 0) << "not recorded yet";
  ASSERT_TRUE(pump_->Flush().ok());
  EXPECT_EQ(ports_.Count<Released>(), 1);
  EXPECT_EQ(pump_->Act({3 * kMillisecond}, "toy", evict).code(), Code::kNotFound);
  const WorkerEnvelope late = From(1, 3, 3, Ready{.iteration = 1});
  const auto refused = [&](std::int64_t ms, const WorkerEnvelope& envelope) {
    Receive(ms, envelope);
    const auto* body = std::get_if<Refused>(&ports_.sent.back().body);
    return body != nullptr && body->code == Code::kFailedPrecondition &&
           body->reason == "evicted by user 0: disk";
  };
  EXPECT_TRUE(refused(3, late));
  EXPECT_TRUE(refused(4, HelloOf(1))) << "the same incarnation, which has not heard its Welcome";
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({9 * kMillisecond}, 1, Spec(), "", 0, ports_.records).ok());
  EXPECT_EQ(pump_->Act({9 * kMillisecond}, "toy", evict).code(), Code::kUnavailable)
      << "its workers have not been heard";
  EXPECT_TRUE(refused(10, late));
  pump_ = Make();
  Job job(1, Spec());
  Replay replay(&job);
  for (const Record& record : ports_.records) ASSERT_TRUE(replay.Add(record).ok());
  ASSERT_TRUE(
      pump_->Restore({19 * kMillisecond}, 1, Spec(), SaveState(job), job.next_index(), {}).ok());
  EXPECT_TRUE(refused(20, late)) << "from a snapshot";
}

// ---- switches ----

class PumpSwitchTest : public PumpTest {
 protected:
  PumpSwitchTest() { pump_ = Make(); }
  std::unique_ptr<Pump> Make() {
    return std::make_unique<Pump>(
        Pump::Options{.random = [this] { return ++drawn_; },
                      .spec_of = [](const std::string& text) -> Result<JobSpec> {
                        if (text.empty()) return Spec();
                        if (text != "all-reduce") return Status(Code::kInvalidArgument, "no such");
                        JobSpec spec = Spec();
                        spec.engine = AllReduceOptions{};
                        spec.text = text;
                        return spec;
                      }},
        [](const std::string& name) -> Result<JobSpec> { return Spec(name); }, &ports_, &ports_);
  }
  static OperatorActed Switch(const std::string& spec = "all-reduce") {
    return {.verb = OperatorVerb::kSwitch, .by = "user 0", .spec = spec};
  }
  // Up to the report with which the run ends.
  void StopTwo() {
    StartTwo();
    ASSERT_TRUE(pump_->Act({2 * kMillisecond}, "toy", Switch()).ok());
    ASSERT_TRUE(pump_->Flush().ok());
    for (Rank r = 0; r < 2; ++r) Receive(3, From(r, 3, 3, Finish{}));
    Receive(4, From(0, 4, 4, Finished{.group = 2}));
  }
  const RunStarted* Started(RunId run) const {
    for (const Record& record : ports_.records) {
      const auto* started = std::get_if<RunStarted>(&record.body);
      if (started != nullptr && record.run == run) return started;
    }
    return nullptr;
  }
  WorkerEnvelope Return(Rank rank) const {
    WorkerEnvelope hello = HelloOf(rank);
    hello.incarnation += 100;
    std::get<Hello>(hello.body).former = Started(1)->identity;
    return hello;
  }
  std::vector<Record> Of(RunId run) const {
    std::vector<Record> records;
    for (const Record& record : ports_.records) {
      if (record.run == run) records.push_back(record);
    }
    return records;
  }
};

TEST_F(PumpSwitchTest, TheNextRunBeginsInTheBatchInWhichTheOldOneEnds) {
  StopTwo();
  EXPECT_EQ(Started(2), nullptr);
  const int appends = ports_.appends;
  Receive(5, From(1, 4, 4, Finished{.group = 2}));
  EXPECT_EQ(ports_.appends, appends + 1);
  ASSERT_NE(Started(2), nullptr);
  EXPECT_EQ(Started(2)->engine, "all-reduce");
  EXPECT_EQ(Started(2)->spec, "all-reduce");
  EXPECT_EQ(Started(2)->former.run, 1u);
  EXPECT_EQ(Started(2)->former.identity, Started(1)->identity.high);
  EXPECT_EQ(pump_->RunOf("toy"), 2u);
  EXPECT_EQ(pump_->jobs().size(), 1u);
  for (Rank r = 0; r < 2; ++r) Receive(6, Return(r));
  int welcomes = 0;
  for (const ControllerEnvelope& envelope : ports_.sent) {
    const auto* welcome = std::get_if<Welcome>(&envelope.body);
    welcomes += welcome != nullptr && welcome->run == 2 && NeedsGradients(welcome->plan) ? 1 : 0;
  }
  EXPECT_EQ(welcomes, 2);
}

TEST_F(PumpSwitchTest, WhatIsWrongIsSaidBeforeAnythingStops) {
  StartTwo();
  EXPECT_EQ(pump_->Act({2}, "toy", Switch("nonsense")).code(), Code::kInvalidArgument);
  EXPECT_EQ(ports_.Count<EndRun>(), 0);
  WorkerEnvelope bare = HelloOf(2);
  std::get<Hello>(bare.body).gradients = HasGradients::kNone;
  Receive(3, bare);
  const Status status = pump_->Act({4 * kMillisecond}, "toy", Switch());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("engine all-reduce reduces gradients, and rank 2"));
  EXPECT_TRUE(pump_->Act({4 * kMillisecond}, "toy", Switch("")).code() != Code::kOk);
  ASSERT_TRUE(pump_->Flush().ok());
  EXPECT_EQ(ports_.Count<EndRun>(), 0);
}

// A switch that is recorded goes on after a restart, with the number that it had.
TEST_F(PumpSwitchTest, ARestartInTheMiddleCompletesIt) {
  StopTwo();
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({9 * kMillisecond}, 1, Spec(), "", 0, ports_.records).ok());
  for (Rank r = 0; r < 2; ++r) Receive(10, From(r, 0, 4, Heartbeat{}));  // of this life nothing yet
  for (Rank r = 0; r < 2; ++r) Receive(11, From(r, 0, 4, Heartbeat{}));
  const WorkerEnvelope last = From(1, 4, 4, Finished{.group = 2});
  Receive(11, HelloOf(7, "another"));
  EXPECT_EQ(pump_->RunOf("another"), 3u) << "2 is taken";
  Receive(12, last);
  ASSERT_NE(Started(2), nullptr);
  EXPECT_EQ(pump_->RunOf("toy"), 2u);
}

// The batch was torn: the end of the old run is in the history, and the next run is not.
TEST_F(PumpSwitchTest, ANextRunThatIsMissingIsMade) {
  StopTwo();
  Receive(5, From(1, 4, 4, Finished{.group = 2}));
  const std::vector<Record> old = Of(1);
  for (std::size_t left = old.size() - 4; left <= old.size(); ++left) {
    ports_.records.assign(old.begin(), old.begin() + static_cast<std::ptrdiff_t>(left));
    pump_ = Make();
    ASSERT_TRUE(pump_->Restore({9 * kMillisecond}, 1, Spec(), "", 0, ports_.records).ok());
    Tick(10);
    ASSERT_NE(Started(2), nullptr) << left << " of " << old.size();
    EXPECT_EQ(pump_->RunOf("toy"), 2u);
    EXPECT_EQ(Of(1), old);
  }
  // And one that is there is not made again.
  const std::vector<Record> next = Of(2);
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({19 * kMillisecond}, 1, Spec(), "", 0, old).ok());
  JobSpec spec = Spec();
  spec.engine = AllReduceOptions{};
  spec.text = "all-reduce";
  ASSERT_TRUE(pump_->Restore({19 * kMillisecond}, 2, spec, "", 0, next).ok());
  ports_.records.clear();
  Tick(20);
  EXPECT_TRUE(ports_.records.empty());
  EXPECT_EQ(pump_->RunOf("toy"), 2u);
}

TEST_F(PumpTest, UnknownJobsAndRunsAreRefused) {
  Receive(0, HelloOf(0, "other"));
  ASSERT_EQ(ports_.Count<Refused>(), 1);
  EXPECT_THAT(std::get<Refused>(ports_.sent[0].body).reason, HasSubstr("no job matches other"));
  Receive(0, HelloOf(0, ""));
  EXPECT_THAT(std::get<Refused>(ports_.sent[1].body).reason, HasSubstr("1 to 256 bytes"));
  Receive(0, From(0, 2, 0, Ready{}));
  EXPECT_EQ(std::get<Refused>(ports_.sent[2].body).code, Code::kAborted);
  EXPECT_TRUE(ports_.records.empty());
  EXPECT_EQ(pump_->counters().refused, 3u);
}

TEST_F(PumpTest, ARepeatedMessageIsAnsweredAgainButNotActedOnAgain) {
  StartTwo();
  Receive(2, From(0, 3, 2, Ready{.iteration = 1}));
  const std::size_t records = ports_.records.size();
  Receive(3, From(0, 3, 2, Ready{.iteration = 1}));
  EXPECT_EQ(ports_.records.size(), records);
  EXPECT_EQ(ports_.Count<HeartbeatAck>(), 1);
  Receive(4, HelloOf(0));  // its Welcome is acknowledged by now, so nothing is left to repeat
  EXPECT_EQ(ports_.Count<Welcome>(), 2);
  EXPECT_EQ(pump_->counters().duplicates, 2u);
  Receive(5, From(0, 9, 2, Finish{}));
  EXPECT_EQ(pump_->counters().gaps, 1u);
  EXPECT_EQ(ports_.records.size(), records);
}

TEST_F(PumpTest, NothingIsSaidToOrDoneForSomebodyInAnothersName) {
  StartTwo();
  const std::size_t sent = ports_.sent.size();
  const std::size_t records = ports_.records.size();
  const auto foreign = [](WorkerEnvelope envelope) {
    envelope.token = {7, 7};
    return envelope;
  };
  Receive(2, foreign(From(0, 0, 2, Heartbeat{})));
  Receive(3, foreign(From(0, 3, 2, Leave{})));
  Receive(4, foreign(HelloOf(0)));
  // As if its worker were elsewhere: a refusal would go to the worker.
  WorkerEnvelope elsewhere = foreign(From(0, 3, 2, Leave{}));
  elsewhere.run = 99;
  Receive(5, elsewhere);
  elsewhere.run = 1;
  elsewhere.rank = 1;
  Receive(6, elsewhere);
  WorkerEnvelope other = foreign(HelloOf(0));
  std::get<Hello>(other.body).job = "another";
  Receive(7, other);
  EXPECT_EQ(ports_.sent.size(), sent);
  EXPECT_EQ(ports_.records.size(), records);
  EXPECT_EQ(pump_->counters().foreign, 6u);
  EXPECT_EQ(pump_->counters().refused, 0u);
}

TEST_F(PumpTest, WhatAHeartbeatDoesNotAcknowledgeIsSentAgain) {
  Receive(0, HelloOf(0));
  EXPECT_EQ(ports_.Count<Welcome>(), 1);
  Receive(250, From(0, 0, 0, Heartbeat{}));
  EXPECT_EQ(ports_.Count<Welcome>(), 1) << "it may have crossed the heartbeat";
  Receive(500, From(0, 0, 0, Heartbeat{}));
  EXPECT_EQ(ports_.Count<Welcome>(), 2);
  Receive(750, From(0, 0, 1, Heartbeat{}));
  Receive(999, From(0, 0, 1, Heartbeat{}));
  EXPECT_EQ(ports_.Count<Welcome>(), 2);
}

TEST_F(PumpTest, AnAcknowledgementThatNothingCarriesIsSentAlone) {
  StartTwo();
  const int before = ports_.Count<HeartbeatAck>();
  ASSERT_TRUE(pump_->NextDeadline().has_value());
  Tick(50);
  EXPECT_EQ(ports_.Count<HeartbeatAck>(), before);
  Tick(150);
  EXPECT_EQ(ports_.Count<HeartbeatAck>(), before + 2);  // of the two Finished
  Tick(300);
  EXPECT_EQ(ports_.Count<HeartbeatAck>(), before + 2);
}

TEST_F(PumpTest, EveryMessageOfARunSaysHowFarItsJobIs) {
  StartTwo();
  Receive(2, From(0, 3, 2, Ready{.iteration = 1, .own = {1, 64}}));
  Receive(2, From(1, 3, 2, Ready{.iteration = 1, .own = {1, 16}}));
  const JobProgress both{.trained = {2, 80}, .workers = 2};
  EXPECT_EQ(ports_.Count<Group>(), 4);
  EXPECT_EQ(ports_.sent.back().progress, both);
  const auto next = [&](std::int64_t ms, const WorkerEnvelope& envelope) {
    ports_.sent.clear();
    Receive(ms, envelope);
    Tick(ms + 110);
    EXPECT_FALSE(ports_.sent.empty());
    for (const ControllerEnvelope& sent : ports_.sent) EXPECT_EQ(sent.progress, both);
  };
  next(3, From(0, 0, 2, Heartbeat{}));                              // an acknowledgement
  next(200, From(0, 3, 2, Ready{.iteration = 1, .own = {1, 64}}));  // what is sent again
  next(400, From(1, 4, 3, Finished{.group = 2}));                   // a late acknowledgement
  ports_.sent.clear();
  Receive(600, HelloOf(0, "other"));
  EXPECT_EQ(ports_.sent.back().progress, JobProgress());
}

TEST_F(PumpTest, ALeaseRunsOutAndAHeartbeatKeepsIt) {
  StartTwo();
  for (std::int64_t ms = 100; ms <= 1600; ms += 100) {
    Receive(ms, From(0, 0, 2, Heartbeat{}));
    Tick(ms);
  }
  EXPECT_EQ(pump_->counters().leases_expired, 1u);
  EXPECT_EQ(pump_->jobs().at(1)->workers()[1].state, Job::State::kAbsent);
  EXPECT_EQ(pump_->jobs().at(1)->workers()[0].state, Job::State::kActive);
  EXPECT_FALSE(pump_->Silence({0}, 1, 1).has_value());
  Receive(1700, From(1, 0, 2, Heartbeat{}));
  EXPECT_EQ(std::get<Refused>(ports_.sent.back().body).code, Code::kAborted);
}

// Workers whose connections end: they say a word at once over the next one.
class DeathTest : public PumpTest {
 protected:
  void Start(std::uint32_t grace_ms = 200) {
    spec_ = Spec();
    spec_.death_grace_ms = grace_ms;
    pump_ = Fresh();
    for (Rank r = 0; r < 2; ++r) Receive(0, Hi(r));
    for (Rank r = 0; r < 2; ++r) Receive(1, From(r, 2, 2, Finished{.group = 1}));
  }
  std::unique_ptr<Pump> Fresh() {
    return std::make_unique<Pump>(
        Pump::Options{.random = [this] { return ++drawn_; }},
        [this](const std::string&) -> Result<JobSpec> { return spec_; }, &ports_, &ports_);
  }
  static WorkerEnvelope Hi(Rank rank) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).returns_at_once = true;
    return hello;
  }
  void Connection(std::int64_t ms, Incarnation incarnation, bool there) {
    pump_->Connection({ms * kMillisecond}, incarnation, there);
  }
  std::uint64_t ended() const { return pump_->counters().processes_ended; }
  bool Here(Rank rank) const {
    return pump_->jobs().at(1)->workers()[static_cast<std::size_t>(rank)].state !=
           Job::State::kAbsent;
  }

  JobSpec spec_;
};

TEST_F(DeathTest, WhoseConnectionEndedIsGoneAfterItsGraceAndTheOthersAreNot) {
  Start();
  Receive(10, From(0, 3, 2, Ready{.iteration = 1}));
  Receive(10, From(1, 3, 2, Ready{.iteration = 1}));  // in a group with it
  Connection(10, 11, false);
  Tick(110);
  EXPECT_EQ(pump_->NextDeadline(), Instant{210 * kMillisecond});
  Tick(209);
  EXPECT_TRUE(Here(1));
  const int aborts = ports_.Count<Abort>();
  Tick(210);
  EXPECT_FALSE(Here(1));
  EXPECT_TRUE(Here(0));
  EXPECT_EQ(ended(), 1u);
  EXPECT_EQ(pump_->counters().leases_expired, 0u);
  EXPECT_EQ(ports_.Count<Abort>(), aborts + 1) << "rank 0 waits for nobody";
  const auto left = std::find_if(ports_.records.begin(), ports_.records.end(), [](const Record& r) {
    return std::holds_alternative<WorkerLeft>(r.body);
  });
  ASSERT_NE(left, ports_.records.end());
  EXPECT_EQ(std::get<WorkerLeft>(left->body).why, LeftReason::kLost);
  EXPECT_EQ(std::get<WorkerLeft>(left->body).reason,
            "its process ended: its connection closed, and it was not back within 200 ms");
  // The next controller decides the same from the records.
  const std::uint64_t hash = pump_->jobs().at(1)->StateHash();
  pump_ = Fresh();
  ASSERT_TRUE(pump_->Restore({220 * kMillisecond}, 1, spec_, "", 0, ports_.records).ok());
  EXPECT_EQ(pump_->jobs().at(1)->StateHash(), hash);
}

TEST_F(DeathTest, WhoIsBackInTimeHasLostNothing) {
  Start();
  const std::size_t records = ports_.records.size();
  for (std::int64_t ms = 10; ms < 1000; ms += 150) {
    Connection(ms, 11, false);
    Tick(ms + 100);
    Connection(ms + 149, 11, true);
    for (Rank r = 0; r < 2; ++r) Receive(ms + 149, From(r, 0, 2, Heartbeat{}));
    Tick(ms + 149);
  }
  Tick(1400);
  EXPECT_EQ(ended(), 0u);
  EXPECT_TRUE(Here(1));
  EXPECT_EQ(ports_.records.size(), records);
}

// What it had sent before its connection ended may be read after that.
TEST_F(DeathTest, ALateMessageIsNoSignOfLife) {
  Start();
  Connection(10, 11, false);
  Receive(100, From(1, 3, 2, Ready{.iteration = 1}));
  Connection(100, 11, false);  // as the socket says once more
  Tick(210);
  EXPECT_EQ(ended(), 1u);
}

TEST_F(DeathTest, TheEndOfAnIncarnationThatIsOverHarmsNobody) {
  Start();
  Connection(10, 11, false);
  Tick(210);
  ASSERT_EQ(ended(), 1u);
  WorkerEnvelope next = Hi(1);
  next.incarnation = 12;
  Receive(220, next);
  Connection(230, 11, false);
  Connection(230, 77, false);  // of nobody
  Tick(300);
  Tick(430);
  EXPECT_EQ(ended(), 1u);
  EXPECT_TRUE(Here(1));
  // And an entry of the one before says nothing about the one that has its rank.
  Connection(440, 12, false);
  WorkerEnvelope leave = From(1, 2, 1, Leave{});
  leave.incarnation = 12;
  Receive(450, leave);
  next.incarnation = 13;
  Receive(460, next);
  Tick(640);
  Tick(641);
  EXPECT_EQ(ended(), 1u);
}

TEST_F(DeathTest, WithoutAGraceTheLeaseDecides) {
  Start(0);
  Connection(10, 11, false);
  Tick(210);
  Tick(600);
  EXPECT_TRUE(Here(1));
  EXPECT_EQ(ended(), 0u);
}

TEST_F(DeathTest, OneThatDoesNotComeBackAtOnceHasItsLease) {
  StartTwo();  // of a version before
  Connection(10, 11, false);
  Tick(210);
  Tick(600);
  EXPECT_TRUE(Here(1));
  EXPECT_EQ(ended(), 0u);
}

// As by a full disk: it has not read yet who came back meanwhile.
TEST_F(DeathTest, AControllerThatWasHeldUpWaitsOnceMore) {
  Start();
  Connection(10, 11, false);
  Tick(450);
  EXPECT_TRUE(Here(1));
  Tick(649);
  EXPECT_TRUE(Here(1));
  Tick(650);
  EXPECT_FALSE(Here(1));
}

// It may have stood still for all that time, and say Hello once more as what it was.
TEST_F(DeathTest, WhoIsGoneIsRefusedAlsoByTheNextController) {
  Start();
  Connection(10, 11, false);
  Tick(210);
  ASSERT_EQ(ended(), 1u);
  const Job& job = *pump_->jobs().at(1);
  const std::string snapshot = SaveState(job);
  const std::uint64_t next = job.next_index();
  pump_ = Fresh();
  ASSERT_TRUE(pump_->Restore({250 * kMillisecond}, 1, spec_, snapshot, next, {}).ok());
  Receive(260, From(0, 0, 2, Heartbeat{}));
  Receive(270, Hi(1));
  const auto* refused = std::get_if<Refused>(&ports_.sent.back().body);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->code, Code::kAborted);
  EXPECT_FALSE(Here(1));
}

// The message is for the kernel of its host: a peer's word is no proof.
TEST_F(DeathTest, WhoIsOutOfAPeersReachIsSentSomethingAndStays) {
  Start();
  Receive(10, From(0, 3, 2, Ready{.iteration = 1}));
  Receive(10, From(1, 3, 2, Ready{.iteration = 1}));
  const auto group = std::get<Group>(ports_.sent.back().body).id;
  const int before = ports_.Count<HeartbeatAck>();
  Receive(11,
          From(0, 4, 3, Finished{.group = group, .outcome = Outcome::kFailed, .unreachable = {1}}));
  ASSERT_EQ(ports_.Count<HeartbeatAck>(), before + 1);
  const auto sent = std::find_if(ports_.sent.rbegin(), ports_.sent.rend(), [](const auto& of) {
    return std::holds_alternative<HeartbeatAck>(of.body);
  });
  EXPECT_EQ(sent->incarnation, 11u);
  Tick(900);
  EXPECT_TRUE(Here(1));
  EXPECT_EQ(ended(), 0u);
}

TEST_F(DeathTest, AReportOfRanksThatDoNotExistHarmsTheReporterAlone) {
  for (const GroupId group : {GroupId{0}, GroupId{1}, GroupId{77}}) {
    ports_ = {};
    Start();
    Receive(11, From(0, 3, 2,
                     Finished{.group = group,
                              .outcome = Outcome::kFailed,
                              .unreachable = {-1, 2, 1 << 30, 1}}));
    EXPECT_FALSE(Here(0));
    EXPECT_TRUE(Here(1));
  }
}

// It has no connection yet, and nobody has told of an end.
TEST_F(DeathTest, AfterARestartNobodyIsJudgedThatHasNotBeenThere) {
  Start();
  Connection(10, 11, false);
  pump_ = Fresh();
  ASSERT_TRUE(pump_->Restore({50 * kMillisecond}, 1, spec_, "", 0, ports_.records).ok());
  Tick(300);
  Tick(600);
  EXPECT_TRUE(Here(1));
  Connection(610, 11, true);  // it is back, and gone before it has said what it knows
  Receive(610, From(1, 0, 2, Heartbeat{}));
  Connection(620, 11, false);
  Tick(820);
  EXPECT_FALSE(Here(1));
  EXPECT_TRUE(Here(0));
}

// The Hello was sent twice and its copy came when the lease had run out. Were it admitted, the
// report of its worker, who has the first answer, would be taken for one out of nowhere.
TEST_F(PumpTest, ALateCopyOfAHelloDoesNotBringALostIncarnationBack) {
  Receive(0, HelloOf(0));
  Receive(0, HelloOf(1));
  for (std::int64_t ms = 100; ms <= 1600; ms += 100) {
    Receive(ms, From(0, 0, 2, Heartbeat{}));
    Tick(ms);
  }
  ASSERT_EQ(pump_->counters().leases_expired, 1u);
  const auto refused = [this] {
    const auto* body = std::get_if<Refused>(&ports_.sent.back().body);
    return body != nullptr && body->code == Code::kAborted && ports_.sent.back().incarnation == 11;
  };
  Receive(1700, HelloOf(1));
  EXPECT_TRUE(refused());
  Receive(1700, From(1, 2, 2, Finished{.group = 1}));
  EXPECT_TRUE(refused());
  // Nor after a restart.
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({1'800 * kMillisecond}, 1, Spec(), "", 0, ports_.records).ok());
  Receive(1800, HelloOf(1));
  EXPECT_TRUE(refused());
  WorkerEnvelope again = HelloOf(1);
  again.incarnation = 12;
  Receive(1800, again);  // rank 0 has not been heard yet
  EXPECT_EQ(std::get<Refused>(ports_.sent.back().body).code, Code::kUnavailable);
  for (int i = 0; i < 2; ++i) Receive(1800, From(0, 0, 2, Heartbeat{}));
  const int welcomes = ports_.Count<Welcome>();
  Receive(1800, again);
  EXPECT_EQ(ports_.Count<Welcome>(), welcomes + 1);
}

TEST_F(PumpTest, ARunThatIsDoneIsNotBegunAgainByALateCopyOfAHello) {
  StartTwo();
  Receive(2, From(0, 3, 2, Leave{}));
  Receive(2, From(1, 3, 2, Leave{}));
  Receive(3, HelloOf(0));
  EXPECT_TRUE(pump_->jobs().empty());
}

// Rank 1 sleeps past its lease, and the other finishes.
class SleeperTest : public PumpTest {
 protected:
  SleeperTest() {
    StartTwo();
    for (std::int64_t ms = 100; ms <= 1600; ms += 100) {
      Receive(ms, From(0, 0, 2, Heartbeat{}));
      Tick(ms);
    }
    EXPECT_EQ(pump_->counters().leases_expired, 1u);
    for (const ControllerEnvelope& envelope : ports_.sent) {
      if (envelope.identity.known()) former_ = envelope.identity;
    }
  }
  void OthersFinish() {
    Receive(1700, From(0, 3, 2, Finish{}));
    Receive(1700, From(0, 4, 3, Finished{.group = 2}));
    EXPECT_TRUE(pump_->jobs().empty());
  }
  void OthersAreLost() {
    for (std::int64_t ms = 1700; ms <= 3200; ms += 100) Tick(ms);
    EXPECT_TRUE(pump_->jobs().empty());
  }
  // As the next incarnation.
  void WakeUp(std::int64_t ms) {
    WorkerEnvelope hello = HelloOf(1);
    hello.incarnation = 700 + static_cast<Incarnation>(ms);
    std::get<Hello>(hello.body).former = former_;
    std::get<Hello>(hello.body).iteration = 5;
    Receive(ms, hello);
  }
  bool IsRefusedForGood() {
    const auto* refused = std::get_if<Refused>(&ports_.sent.back().body);
    return refused != nullptr && refused->code == Code::kFailedPrecondition &&
           refused->reason.find("run 1 of job toy, in which this worker trained, has ended") == 0;
  }
  RunIdentity former_;
};

TEST_F(SleeperTest, ARunThatIsFinishedIsNotBegunAnewByWhoWakesAfterIt) {
  OthersFinish();
  WakeUp(2000);
  EXPECT_TRUE(IsRefusedForGood());
  EXPECT_TRUE(pump_->jobs().empty());
}

TEST_F(SleeperTest, TheNextRunIsNotForWhoTrainedInTheOneBefore) {
  OthersFinish();
  WorkerEnvelope hello = HelloOf(0);
  hello.incarnation = 99;
  Receive(1800, hello);
  WakeUp(2000);
  EXPECT_TRUE(IsRefusedForGood());
  ASSERT_EQ(pump_->jobs().size(), 1u);
  EXPECT_EQ(pump_->jobs().begin()->second->live(), 1);
  EXPECT_TRUE(pump_->jobs().begin()->second->refusals().empty()) << "nobody waits for it";
}

TEST_F(SleeperTest, ARestartedControllerKnowsWhatWasFinished) {
  OthersFinish();
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({1'900 * kMillisecond}, 1, Spec(), "", 0, ports_.records).ok());
  WakeUp(2000);
  EXPECT_TRUE(IsRefusedForGood());
  pump_ = Make();
  pump_->KnowEnded(1, "toy", former_.high, true);  // from the list of runs
  WakeUp(2001);
  EXPECT_TRUE(IsRefusedForGood());
}

TEST_F(SleeperTest, ARunThatWasLostIsGoneOnWith) {
  OthersAreLost();
  WakeUp(4000);
  ASSERT_EQ(pump_->jobs().size(), 1u);
  EXPECT_TRUE(pump_->jobs().begin()->second->workers()[1].returns);
}

// A worker of an older launch, for example, must not begin a finished job again.
TEST_F(SleeperTest, ARunThatWasLostIsOverOnceALaterOneIsFinished) {
  OthersAreLost();
  pump_->KnowEnded(2, "another", 77, true);
  pump_->KnowEnded(3, "toy", 78, true);
  WakeUp(4000);
  EXPECT_TRUE(IsRefusedForGood());
  EXPECT_TRUE(pump_->jobs().empty());
}

TEST_F(SleeperTest, ARunThatWasLostIsNotOverThroughOnesBeforeIt) {
  pump_ = Make();
  pump_->KnowEnded(1, "toy", 78, true);
  pump_->KnowEnded(2, "toy", former_.high, false);
  pump_->KnowEnded(3, "another", 77, true);
  WakeUp(4000);
  EXPECT_EQ(pump_->jobs().size(), 1u);
}

TEST_F(SleeperTest, WhoWakesWhileItsRunGoesOnIsAdmitted) {
  WakeUp(1700);
  EXPECT_EQ(pump_->jobs().at(1)->live(), 2);
}

class RefusedTest : public PumpTest {
 protected:
  RefusedTest() {
    WorkerEnvelope hello = HelloOf(0);
    std::get<Hello>(hello.body).model_hash = 3;
    Receive(0, hello);
  }
  void Other(std::int64_t ms, std::uint32_t pid) {
    WorkerEnvelope hello = HelloOf(1);
    hello.incarnation = 5000 + pid;
    std::get<Hello>(hello.body).model_hash = 4;
    std::get<Hello>(hello.body).pid = pid;
    std::get<Hello>(hello.body).host_name = "node";
    Receive(ms, hello);
    EXPECT_TRUE(std::holds_alternative<Refused>(ports_.sent.back().body));
  }
  int Noted() const {
    int n = 0;
    for (const Record& r : ports_.records) n += std::holds_alternative<HelloRefused>(r.body);
    return n;
  }
};

TEST_F(RefusedTest, ARefusalIsARecordOfTheRunThatWaits) {
  Other(0, 7);
  ASSERT_EQ(Noted(), 1);
  const auto& refused = std::get<HelloRefused>(ports_.records.back().body);
  EXPECT_EQ(refused.rank, 1);
  EXPECT_EQ(refused.pid, 7u);
  EXPECT_EQ(refused.code, Code::kInvalidArgument);
  EXPECT_THAT(refused.reason, HasSubstr("the model differs"));
  Receive(100, From(0, 0, 1, Heartbeat{}));
  EXPECT_THAT(std::get<HeartbeatAck>(ports_.sent.back().body).waits_for,
              HasSubstr("missing: rank 1; refused: rank 1 (pid 7 on node): the model differs"));
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({9}, 1, Spec(), "", 0, ports_.records).ok());
  EXPECT_EQ(pump_->jobs().at(1)->refusals().size(), 1u);
}

TEST_F(RefusedTest, TheSameIsNotedOnceInTenSecondsAndThirtyTwoInAMinute) {
  for (std::int64_t ms = 0; ms < 10'000; ms += 100) {
    Other(ms, 7);
    Receive(ms, From(0, 0, 1, Heartbeat{}));
  }
  EXPECT_EQ(Noted(), 1);
  Other(10'000, 7);
  EXPECT_EQ(Noted(), 2);
  for (std::uint32_t pid = 100; pid < 200; ++pid) Other(10'001, pid);
  EXPECT_EQ(Noted(), 32);
  Receive(40'000, From(0, 0, 1, Heartbeat{}));
  Other(60'001, 7);
  EXPECT_EQ(Noted(), 33);
}

TEST_F(PumpTest, ARefusalThatNoRunTakesNoteOfIsTold) {
  std::vector<std::pair<std::string, HelloRefused>> told;
  Pump::Options options{.random = [this] { return ++drawn_; }};
  options.refused = [&](const std::string& job, const HelloRefused& refused) {
    told.emplace_back(job, refused);
  };
  pump_ = std::make_unique<Pump>(
      std::move(options),
      [](const std::string& name) -> Result<JobSpec> {
        if (name == "toy") return Spec();
        return Status(Code::kNotFound, "no job matches " + name);
      },
      &ports_, &ports_);
  Receive(0, HelloOf(0, "other"));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].first, "other");
  EXPECT_EQ(told[0].second.code, Code::kNotFound);
  EXPECT_EQ(told[0].second.reason, "no job matches other");
  Receive(0, HelloOf(0, ""));
  WorkerEnvelope hello = HelloOf(-7);
  std::get<Hello>(hello.body).host_name = std::string(1000, 'x');
  Receive(0, hello);
  ASSERT_EQ(told.size(), 3u) << "it would have been the first of a run";
  EXPECT_EQ(told[2].second.rank, -7);
  EXPECT_EQ(told[2].second.host_name.size(), 256u);
  StartTwo();
  Receive(2, From(0, 3, 2, Leave{}));
  Receive(2, HelloOf(0));  // a late copy
  Receive(3, From(1, 9, 2, Finish{}));
  EXPECT_EQ(told.size(), 3u) << "those are nobody's mistake";
  EXPECT_TRUE(ports_.records.front().index == 0);
}

TEST_F(PumpTest, AControllerThatSleptExpiresNobodyAtOnce) {
  StartTwo();
  Tick(100);
  Tick(60'000);  // the machine was suspended
  Tick(60'500);
  EXPECT_EQ(pump_->counters().leases_expired, 0u);
  for (std::int64_t ms = 60'600; ms <= 61'600; ms += 100) Tick(ms);
  EXPECT_EQ(pump_->counters().leases_expired, 2u);
}

TEST_F(PumpTest, RestoresFromRecordsAndFromASnapshot) {
  pump_ = Make(5);
  StartTwo();
  Receive(2, From(0, 3, 2, Ready{.iteration = 1}));
  const std::uint64_t hash = pump_->jobs().at(1)->StateHash();
  ASSERT_GT(ports_.snapshot.first, 0u);
  for (const bool with_snapshot : {false, true}) {
    pump_ = Make();
    const std::uint64_t from = with_snapshot ? ports_.snapshot.first : 0;
    const Status status =
        pump_->Restore({9}, 1, Spec(), with_snapshot ? ports_.snapshot.second : "", from,
                       std::span(ports_.records).subspan(from));
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(pump_->jobs().at(1)->StateHash(), hash);
  }
  // The group's other member signals: both are told, once the first one has been heard, too.
  Receive(10, From(0, 0, 2, Heartbeat{}));  // hears of the restart
  const int groups = ports_.Count<Group>();
  Receive(10, From(1, 3, 2, Ready{.iteration = 1}));
  EXPECT_EQ(ports_.Count<Group>(), groups);
  Receive(10, From(0, 0, 2, Heartbeat{}));
  EXPECT_EQ(ports_.Count<Group>(), groups + 2);
  EXPECT_EQ(pump_->counters().histories_lost, 0u);
}

// Two workers that have reduced together, and a controller that starts with `kept` of its records.
class ForgettingTest : public PumpTest {
 protected:
  ForgettingTest() {
    StartTwo();
    for (Rank r = 0; r < 2; ++r) Receive(2, From(r, 3, 2, Ready{.iteration = 1}));
    EXPECT_EQ(ports_.Count<Group>(), 4);
    for (Rank r = 0; r < 2; ++r) Receive(3, From(r, 4, 3, Finished{.group = 2}));
  }
  // Records up to the input before the last `inputs`.
  void Restart(int inputs) {
    std::vector<Record> kept = ports_.records;
    for (; inputs > 0; --inputs) {
      while (!IsInput(kept.back().body)) kept.pop_back();
      kept.pop_back();
    }
    ports_.records = kept;
    ports_.sent.clear();
    pump_ = Make();
    ASSERT_TRUE(pump_->Restore({9 * kMillisecond}, 1, Spec(), "", 0, kept).ok());
    Receive(9, Old(0, {.ack = 3}));  // hears of the restart
    ASSERT_EQ(ports_.Count<HeartbeatAck>(), 1);
  }
  struct Numbers {
    Seq ack = 0;
    Seq oldest = 1;
  };
  WorkerEnvelope Old(Rank rank, Numbers numbers) const {
    WorkerEnvelope envelope = From(rank, 0, numbers.ack, Heartbeat{});
    envelope.identity = ports_.sent.empty() ? RunIdentity{2, 1} : envelope.identity;
    envelope.oldest = numbers.oldest;
    return envelope;
  }
  void ComeBack(std::int64_t ms, Rank rank, Iteration iteration) {
    WorkerEnvelope hello = HelloOf(rank);
    hello.incarnation += 100;
    std::get<Hello>(hello.body).former = {2, 1};
    std::get<Hello>(hello.body).iteration = iteration;
    Receive(ms, hello);
  }
  bool EndedAsLost() {
    int refused = 0;
    for (const ControllerEnvelope& envelope : ports_.sent) {
      const auto* body = std::get_if<Refused>(&envelope.body);
      if (body != nullptr && body->code == Code::kAborted) ++refused;
    }
    return refused == 2 && pump_->jobs().empty() && pump_->counters().histories_lost == 1 &&
           std::holds_alternative<RunEnded>(ports_.records.back().body);
  }
};

TEST_F(ForgettingTest, NothingLostGoesOn) {
  Restart(0);
  Receive(9, Old(0, {.ack = 3, .oldest = 5}));
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  EXPECT_EQ(pump_->jobs().size(), 1u);
  EXPECT_EQ(ports_.Count<Refused>(), 0);
}

TEST_F(ForgettingTest, WhatWasSentIsForgotten) {
  Restart(3);  // the second Ready, which formed the group, and both reports
  Receive(9, Old(0, {.ack = 3, .oldest = 4}));
  EXPECT_TRUE(EndedAsLost());
}

TEST_F(ForgettingTest, WhatWasReceivedIsForgotten) {
  Restart(1);  // the last report
  Receive(9, Old(0, {.ack = 3, .oldest = 5}));
  EXPECT_EQ(pump_->jobs().size(), 1u);
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  EXPECT_TRUE(EndedAsLost());
}

// A message from before the restart says nothing of what its worker received since.
TEST_F(ForgettingTest, OnlyWordsOfThisLifeCount) {
  Restart(3);
  WorkerEnvelope stale = Old(0, {.ack = 2, .oldest = 4});
  stale.identity.low = 1;
  Receive(9, stale);
  EXPECT_EQ(pump_->jobs().size(), 1u);
  Receive(9, Old(0, {.ack = 3, .oldest = 4}));
  EXPECT_TRUE(EndedAsLost());
}

TEST_F(ForgettingTest, TheLeaseOfAWorkerThatNeverComesRunsOut) {
  Restart(0);
  for (std::int64_t ms = 9; ms < 1500; ms += 100) {
    Receive(ms, Old(0, {.ack = 3, .oldest = 5}));
    Tick(ms);
  }
  EXPECT_EQ(pump_->counters().leases_expired, 1u);
  Receive(1500, From(0, 5, 3, Ready{.iteration = 2}));
  EXPECT_EQ(ports_.Count<Group>(), 1);  // of one
}

TEST_F(ForgettingTest, ThoseWhoComeBackStartFromTheirAverage) {
  Restart(3);
  Receive(9, Old(0, {.ack = 3, .oldest = 4}));
  ASSERT_TRUE(EndedAsLost());
  ComeBack(10, 0, 4);
  ComeBack(11, 1, 7);
  const auto* formed = std::get_if<GroupFormed>(&ports_.records.back().body);
  ASSERT_NE(formed, nullptr);
  EXPECT_EQ(formed->iteration, 7);
  EXPECT_EQ(formed->members[0].weight, 0.5);
  EXPECT_EQ(formed->members[1].weight, 0.5);
}

TEST_F(ForgettingTest, AStartOfThoseWhoComeBackGoesOnWithoutTheOthers) {
  Restart(3);
  Receive(9, Old(0, {.ack = 3, .oldest = 4}));
  ComeBack(10, 1, 7);
  const Job& job = *pump_->jobs().at(2);
  EXPECT_THAT(
      job.Explain({20 * kMillisecond}, 1),
      HasSubstr("1 of 2 workers are here; missing: rank 0; goes on without the missing in"));
  for (std::int64_t ms = 100; ms <= 3100; ms += 100) {
    WorkerEnvelope beat = From(1, 0, 1, Heartbeat{});
    beat.run = 2;
    beat.incarnation += 100;
    Receive(ms, beat);
    Tick(ms);
  }
  ASSERT_EQ(ports_.Count<Group>(), 1);
  const auto& group = std::get<Group>(ports_.sent.back().body);
  EXPECT_EQ(group.kind, GroupKind::kInitial);
  EXPECT_EQ(group.iteration, 7);
}

// No deadline has come for workers that are new: they wait for all.
TEST_F(PumpTest, AFirstStartWaitsForAllAndSaysForWhom) {
  Receive(0, HelloOf(1));
  for (std::int64_t ms = 500; ms <= 10'000; ms += 500) {
    Receive(ms, From(1, 0, 1, Heartbeat{}));
    Tick(ms);
  }
  EXPECT_EQ(ports_.Count<Group>(), 0);
  EXPECT_EQ(std::get<HeartbeatAck>(ports_.sent.back().body).waits_for,
            "waiting for the common start: 1 of 2 workers are here; missing: rank 0");
}

TEST_F(PumpTest, AHistoryThatCannotBeIsRefused) {
  StartTwo();
  const auto restore = [this](std::vector<Record> records) {
    return Make()->Restore({9}, 1, Spec(), "", 0, records);
  };
  EXPECT_TRUE(restore(ports_.records).ok());
  std::vector<Record> records = ports_.records;
  records.erase(records.begin() + 2);
  EXPECT_THAT(restore(records).message(), HasSubstr("record 2 of run 1 is missing"));
  records = ports_.records;
  for (Record& record : records) {
    if (auto* formed = std::get_if<GroupFormed>(&record.body)) formed->members[1].weight = 0.7;
  }
  EXPECT_THAT(restore(records).message(), HasSubstr("the replay decides otherwise"));
  records = ports_.records;
  std::get<FromWorker>(records.back().body.index() == 0 ? records.back().body : records[1].body)
      .envelope.incarnation = 0;
  EXPECT_THAT(restore(records).message(), HasSubstr("does not follow"));
}

TEST_F(PumpTest, ATornTailIsCompleted) {
  StartTwo();
  std::vector<Record> torn = ports_.records;
  while (!IsInput(torn.back().body))
    torn.pop_back();  // the last input is there, its decisions are not
  const std::size_t missing = ports_.records.size() - torn.size();
  ASSERT_GT(missing, 0u);
  const std::vector<Record> whole = ports_.records;
  ports_.records = torn;
  pump_ = Make();
  ASSERT_TRUE(pump_->Restore({9}, 1, Spec(), "", 0, torn).ok());
  EXPECT_TRUE(pump_->pending());
  ASSERT_TRUE(pump_->Flush().ok());
  EXPECT_EQ(ports_.records, whole);
}

TEST_F(PumpTest, ANewRunFollowsAnEndedOne) {
  StartTwo();
  Receive(2, From(0, 3, 2, Leave{}));
  Receive(2, From(1, 3, 2, Leave{}));
  EXPECT_TRUE(pump_->jobs().empty());
  WorkerEnvelope hello = HelloOf(0);
  hello.incarnation = 99;
  Receive(3, hello);
  ASSERT_EQ(pump_->jobs().size(), 1u);
  EXPECT_EQ(pump_->jobs().begin()->first, 2u);
}

}  // namespace
}  // namespace prd
