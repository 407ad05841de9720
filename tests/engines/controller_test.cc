// What transcripts (testdata/controller) cannot say of the controller: snapshots of its own, what
// it accepts as history, and a history that has lost its end.
#include "engines/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/p_reduce/options.h"
#include "engines/replay.h"

namespace prd {
namespace {

using testing::HasSubstr;

class FakePorts : public History, public Messenger {
 public:
  Status Append(std::span<const Record> batch) override {
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

  int appends = 0;
  std::vector<Record> records;
  std::pair<std::uint64_t, std::string> snapshot;
  std::vector<ControllerEnvelope> sent;
};

class ControllerTest : public testing::Test {
 protected:
  static JobSpec Spec() {
    JobSpec spec;
    spec.name = "toy";
    spec.engine = PReduceOptions{.group_size = 2};
    spec.workers = 2;
    spec.lease_ms = 1000;
    spec.heartbeat_ms = 250;
    return spec;
  }
  std::unique_ptr<Controller> Make(std::uint64_t snapshot_every = 1000) {
    return std::make_unique<Controller>(
        Controller::Options{.snapshot_every = snapshot_every,
                            .random = [this] { return ++drawn_; }},
        [](const std::string&) -> Result<JobSpec> { return Spec(); }, &ports_, &ports_);
  }
  void Receive(std::int64_t ms, const WorkerEnvelope& envelope) {
    controller_->Receive({ms * kMillisecond}, 0, envelope);
    ASSERT_TRUE(controller_->Flush().ok());
  }
  void Tick(std::int64_t ms) {
    controller_->Tick({ms * kMillisecond});
    ASSERT_TRUE(controller_->Flush().ok());
  }
  static WorkerEnvelope HelloOf(Rank rank) {
    return {.incarnation = 10u + static_cast<Incarnation>(rank),
            .seq = 1,
            .body = Hello{.job = "toy", .rank = rank, .host = "h", .endpoints = {"tcp://x:1"}}};
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
  FakePorts ports_;
  std::unique_ptr<Controller> controller_ = Make();
};

TEST_F(ControllerTest, OneBatchPerFlush) {
  controller_->Receive({1}, 0, HelloOf(0));
  controller_->Receive({1}, 0, HelloOf(1));
  ASSERT_TRUE(controller_->Flush().ok());
  EXPECT_EQ(ports_.appends, 1);
}

class RefusedTest : public ControllerTest {
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

TEST_F(ControllerTest, RestoresFromRecordsAndFromASnapshot) {
  controller_ = Make(5);
  StartTwo();
  Receive(2, From(0, 3, 2, Ready{.iteration = 1}));
  const std::uint64_t hash = controller_->runs().at(1)->StateHash();
  ASSERT_GT(ports_.snapshot.first, 0u);
  for (const bool with_snapshot : {false, true}) {
    controller_ = Make();
    const std::uint64_t from = with_snapshot ? ports_.snapshot.first : 0;
    StoredRun stored(1, Spec());
    ASSERT_TRUE(stored.Load(with_snapshot ? ports_.snapshot.second : "", from).ok());
    ASSERT_TRUE(stored.Add(std::span(ports_.records).subspan(from)).ok());
    ASSERT_TRUE(controller_->Restore({9}, std::move(stored)).ok());
    EXPECT_EQ(controller_->runs().at(1)->StateHash(), hash);
  }
  // The group's other member signals: both are told, once the first one has been heard, too.
  Receive(10, From(0, 0, 2, Heartbeat{}));  // hears of the restart
  const int groups = ports_.Count<Group>();
  Receive(10, From(1, 3, 2, Ready{.iteration = 1}));
  EXPECT_EQ(ports_.Count<Group>(), groups);
  Receive(10, From(0, 0, 2, Heartbeat{}));
  EXPECT_EQ(ports_.Count<Group>(), groups + 2);
  EXPECT_EQ(controller_->counters().histories_lost, 0u);
}

// Two workers that have reduced together, and a controller that starts with `kept` of its records.
class ForgettingTest : public ControllerTest {
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
    controller_ = Make();
    StoredRun stored(1, Spec());
    ASSERT_TRUE(stored.Add(kept).ok());
    ASSERT_TRUE(controller_->Restore({9 * kMillisecond}, std::move(stored)).ok());
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
    return refused == 2 && controller_->runs().empty() &&
           controller_->counters().histories_lost == 1 &&
           std::holds_alternative<RunEnded>(ports_.records.back().body);
  }
};

TEST_F(ForgettingTest, NothingLostGoesOn) {
  Restart(0);
  Receive(9, Old(0, {.ack = 3, .oldest = 5}));
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  EXPECT_EQ(controller_->runs().size(), 1u);
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
  EXPECT_EQ(controller_->runs().size(), 1u);
  Receive(9, Old(1, {.ack = 3, .oldest = 5}));
  EXPECT_TRUE(EndedAsLost());
}

// A message from before the restart says nothing of what its worker received since.
TEST_F(ForgettingTest, OnlyWordsOfThisLifeCount) {
  Restart(3);
  WorkerEnvelope stale = Old(0, {.ack = 2, .oldest = 4});
  stale.identity.low = 1;
  Receive(9, stale);
  EXPECT_EQ(controller_->runs().size(), 1u);
  Receive(9, Old(0, {.ack = 3, .oldest = 4}));
  EXPECT_TRUE(EndedAsLost());
}

TEST_F(ForgettingTest, TheLeaseOfAWorkerThatNeverComesRunsOut) {
  Restart(0);
  for (std::int64_t ms = 9; ms < 1500; ms += 100) {
    Receive(ms, Old(0, {.ack = 3, .oldest = 5}));
    Tick(ms);
  }
  EXPECT_EQ(controller_->counters().leases_expired, 1u);
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
  const prd::Run& run = *controller_->runs().at(2);
  EXPECT_THAT(
      run.Explain({20 * kMillisecond}, 1),
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

TEST_F(ControllerTest, AHistoryThatCannotBeIsRefused) {
  StartTwo();
  const auto restore = [](const std::vector<Record>& records) {
    return StoredRun(1, Spec()).Add(records);
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

}  // namespace
}  // namespace prd
