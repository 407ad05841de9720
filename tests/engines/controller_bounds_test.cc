// What one worker can cost the controller, and what runs cost that nothing happens in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/controller.h"
#include "engines/p_reduce/options.h"

namespace prd {
namespace {

// Counts what is asked of all engines.
class CountingEngine final : public Engine {
 public:
  CountingEngine(std::unique_ptr<Engine> engine, int* asked)
      : engine_(std::move(engine)), asked_(asked) {}
  Plan plan() const override { return engine_->plan(); }
  Joining joining() const override { return engine_->joining(); }
  void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) override {
    engine_->Step(now, event, next_group, out);
  }
  std::optional<Instant> NextDeadline() const override {
    ++*asked_;
    return engine_->NextDeadline();
  }
  std::string Explain(Instant now, Rank rank) const override { return engine_->Explain(now, rank); }
  void Archive(StateArchive& ar) override { engine_->Archive(ar); }

 private:
  std::unique_ptr<Engine> engine_;
  int* asked_;
};

class BoundsTest : public testing::Test, public History, public Messenger {
 protected:
  static constexpr DurationNs kLease = 2 * kSecond;

  // A worker that speaks the protocol by itself, but acknowledges only when it wants to.
  struct Client {
    std::string job;
    Rank rank = 0;
    Incarnation incarnation = 0;
    RunId run = kNoRun;
    RunIdentity identity;
    Seq out = 0;
    Seq in = 0;     // received in order
    Seq acked = 0;  // told to the controller
    bool acknowledges = true;
    std::vector<WorkerBody> said;  // after the Hello
    std::vector<ControllerEnvelope> got;
  };

  // History and Messenger.
  Status Append(std::span<const Record> batch) override {
    records_ += batch.size();
    return Status::Ok();
  }
  Status SaveSnapshot(RunId run, std::uint64_t, std::string_view) override {
    snapshots_.push_back(run);
    return Status::Ok();
  }
  void Send(const ControllerEnvelope& envelope) override {
    Client& client = *by_incarnation_.at(envelope.incarnation);
    client.got.push_back(envelope);
    if (envelope.identity.known()) client.identity = envelope.identity;
    if (envelope.seq == client.in + 1) ++client.in;
    if (const auto* welcome = std::get_if<Welcome>(&envelope.body)) client.run = welcome->run;
  }

  JobSpec Spec(const std::string& name) {
    JobSpec spec;
    spec.name = name;
    spec.engine = PReduceOptions{.group_size = 2};
    spec.workers = 2;
    spec.lease_ms = kLease / kMillisecond;
    spec.heartbeat_ms = 500;
    spec.make_engine = [this](const EngineOptions& options) {
      return std::make_unique<CountingEngine>(MakeEngine(options), &asked_);
    };
    return spec;
  }

  Client& Join(const std::string& job, Rank rank) {
    clients_.push_back({.job = job,
                        .rank = rank,
                        .incarnation = 100 + clients_.size(),
                        .identity = {},
                        .said = {},
                        .got = {}});
    Client& client = clients_.back();
    by_incarnation_[client.incarnation] = &client;
    Tell(client, ++client.out, Hello{.job = job, .rank = rank, .host = "h", .endpoints = {"x"}});
    return client;
  }
  void Tell(Client& client, Seq seq, WorkerBody body) {
    if (client.acknowledges) client.acked = client.in;
    controller_.Receive(now_, 0,
                        {.run = client.run,
                         .identity = client.identity,
                         .rank = client.run == kNoRun ? kNoRank : client.rank,
                         .incarnation = client.incarnation,
                         .seq = seq,
                         .ack = client.acked,
                         .oldest = std::max<Seq>(seq, 1),
                         .body = std::move(body)});
    ASSERT_TRUE(controller_.Flush().ok());
  }
  void Say(Client& client, WorkerBody body) {
    client.said.push_back(body);
    Tell(client, ++client.out, std::move(body));
  }
  // Says again what was not taken.
  void Repeat(Client& client) {
    Seq seq = RunOf(client).link(client.rank).last_in();
    while (seq < client.out) {
      ++seq;
      Tell(client, seq, client.said[seq - 2]);  // the Hello was the first
    }
  }
  void Beat(Client& client) { Tell(client, 0, Heartbeat{}); }
  void Tick() {
    controller_.Tick(now_);
    ASSERT_TRUE(controller_.Flush().ok());
  }

  // Both, past the common start.
  std::pair<Client*, Client*> Start(const std::string& job) {
    Client* a = &Join(job, 0);
    Client* b = &Join(job, 1);
    for (Client* client : {a, b}) Say(*client, Finished{.group = 1});
    return {a, b};
  }
  // Reduces both once. False: no group was formed.
  bool Round(Client& a, Client& b, Iteration iteration) {
    for (Client* client : {&a, &b}) Say(*client, Ready{.iteration = iteration});
    if (b.got.empty()) return false;
    const auto* group = std::get_if<Group>(&b.got.back().body);
    if (group == nullptr) return false;
    for (Client* client : {&a, &b}) {
      Say(*client, Finished{.group = group->id});
      client->got.clear();
    }
    return true;
  }
  const prd::Run& RunOf(const Client& client) { return *controller_.runs().at(client.run); }

  Instant now_{kSecond};
  int asked_ = 0;
  std::size_t records_ = 0;
  std::vector<RunId> snapshots_;
  std::vector<std::string> owing_;
  std::deque<Client> clients_;
  std::map<Incarnation, Client*> by_incarnation_;
  std::uint64_t drawn_ = 0;
  Controller controller_{{.snapshot_every = 50,
                          .random = [this] { return ++drawn_; },
                          .over_ack_limit =
                              [this](const prd::Run& run, Rank rank) {
                                owing_.push_back(run.spec().name + " " + std::to_string(rank));
                              }},
                         [this](const std::string& name) -> Result<JobSpec> { return Spec(name); },
                         this,
                         this};
};

TEST_F(BoundsTest, AtMostThirtyTwoMessagesAreSentAgainAtOnce) {
  const auto [a, b] = Start("job");
  a->acknowledges = false;
  for (Iteration i = 1; i <= 100; ++i) ASSERT_TRUE(Round(*a, *b, i));
  a->got.clear();
  Beat(*a);  // what is on its way is not sent again
  const auto again = [&, a = a] {
    const std::uint64_t before = controller_.counters().resent;
    Beat(*a);
    return controller_.counters().resent - before;
  };
  EXPECT_EQ(again(), PeerLinks::kResend.messages);
  EXPECT_EQ(again(), 0u);
  now_ = now_ + 50 * kMillisecond;
  EXPECT_EQ(again(), PeerLinks::kResend.messages);
  now_ = now_ + 50 * kMillisecond;
  EXPECT_EQ(again(), 0u) << "the second pause is longer";
  // In the order in which they were sent first, so that each time the worker gets further.
  Seq next = a->acked;
  for (const ControllerEnvelope& envelope : a->got) {
    if (envelope.seq == 0 || envelope.seq <= next) continue;
    EXPECT_EQ(envelope.seq, ++next);
  }
  // A worker that acknowledges gets the next ones at once.
  a->acked += 32;
  EXPECT_EQ(again(), PeerLinks::kResend.messages);
  // A repeated message does not get more either.
  const std::uint64_t before = controller_.counters().resent;
  for (int i = 0; i < 100; ++i) Tell(*a, 1, Ready{.iteration = 1});
  EXPECT_EQ(controller_.counters().resent, before);
}

TEST_F(BoundsTest, FromAWorkerThatNeverAcknowledgesNothingMoreIsTaken) {
  const auto [a, b] = Start("job");
  a->acknowledges = false;
  Iteration i = 1;
  while (i < 100'000 && Round(*a, *b, i)) ++i;
  EXPECT_EQ(controller_.counters().over_ack_limit, 1u);
  EXPECT_THAT(owing_, testing::ElementsAre("job 0"));
  const std::size_t unacked = RunOf(*a).link(0).unacked().size();
  EXPECT_LT(unacked * 512, 2 * PeerLinks::kMaxUnacked);
  const std::size_t records = records_;
  for (int k = 0; k < 10; ++k) Tell(*a, a->out, Ready{.iteration = i});
  EXPECT_EQ(records_, records);
  // Its lease runs out though it beats, and the other one goes on.
  for (int k = 0; k < 30; ++k) {
    now_ = now_ + 100 * kMillisecond;
    if (RunOf(*b).live() == 2) Beat(*a);
    Beat(*b);
    Tick();
  }
  EXPECT_EQ(controller_.counters().leases_expired, 1u);
  EXPECT_EQ(RunOf(*b).live(), 1);
  EXPECT_EQ(RunOf(*b).workers()[1].state, WorkerState::kActive);
}

// It may not read at all: what is sent to it waits in the system, up to a number of messages.
TEST_F(BoundsTest, AWorkerThatOwesLittleIsNotSentItAgainForEver) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const auto [a, b] = Start(late ? "late" : "never");
    ASSERT_TRUE(Round(*a, *b, 1));
    a->acknowledges = false;
    for (Iteration i = 2; i <= 6; ++i) ASSERT_TRUE(Round(*a, *b, i));
    const std::uint64_t resent = controller_.counters().resent;
    const std::size_t unacked = RunOf(*a).link(0).unacked().size();
    ASSERT_LE(unacked, PeerLinks::kMinUnacked);
    for (int k = 0; k < 600; ++k) {
      now_ = now_ + 100 * kMillisecond;
      if (late && k == 100) a->acknowledges = true;
      if (RunOf(*b).live() == 2) Beat(*a);
      Beat(*b);
      Tick();
    }
    EXPECT_EQ(RunOf(*b).live(), late ? 2 : 1);
    const std::uint64_t times = PeerLinks::kResentInVain + kLease / kSecond + 1;
    EXPECT_LE(controller_.counters().resent - resent, times * unacked);
    EXPECT_THAT(owing_, testing::ElementsAre("never 0"));
  }
}

TEST_F(BoundsTest, AWorkerThatAcknowledgesInTimeGoesOn) {
  const auto [a, b] = Start("job");
  a->acknowledges = false;
  Iteration i = 1;
  while (i < 100'000 && Round(*a, *b, i)) ++i;
  ASSERT_EQ(controller_.counters().over_ack_limit, 1u);
  EXPECT_LT(RunOf(*a).link(0).last_in(), a->out);
  a->acknowledges = true;
  Repeat(*a);
  EXPECT_EQ(RunOf(*a).link(0).last_in(), a->out);
  for (int k = 0; k < 30; ++k) {
    now_ = now_ + 100 * kMillisecond;
    for (Client* client : {a, b}) Beat(*client);
    Tick();
  }
  EXPECT_EQ(controller_.counters().leases_expired, 0u);
  EXPECT_EQ(RunOf(*a).live(), 2);
  EXPECT_TRUE(RunOf(*a).link(0).unacked().empty());
  EXPECT_EQ(controller_.counters().over_ack_limit, 1u);
}

TEST_F(BoundsTest, WhoIsHereIsKnownOfEachRun) {
  Client& a = Join("one", 0);
  const auto hello = [&](const std::string& job, const LinkToken& token) {
    Hello body{.job = job, .rank = 0, .host = "h", .endpoints = {"x"}};
    body.identity = "alice";
    controller_.Receive(
        now_, 0,
        {.incarnation = a.incarnation, .seq = 1, .oldest = 1, .token = token, .body = body});
    ASSERT_TRUE(controller_.Flush().ok());
  };
  const RunId one = a.run;
  hello("two", {});  // the same process, in another job
  ASSERT_EQ(controller_.runs().size(), 2u);
  EXPECT_EQ(controller_.RunOf("one"), one);
  EXPECT_EQ(controller_.RunOf("two"), a.run);
  EXPECT_EQ(controller_.RunOf("three"), kNoRun);
  ASSERT_NE(controller_.ShareOf("alice"), nullptr);
  EXPECT_EQ(controller_.ShareOf("alice")->workers, 1);
  EXPECT_EQ(controller_.ShareOf("alice")->runs, (std::map<RunId, std::int64_t>{{a.run, 1}}));
  EXPECT_TRUE(controller_.IsHere(a.incarnation, "alice"));
  EXPECT_FALSE(controller_.IsHere(a.incarnation, "bob"));
  hello("three", {7, 7});  // somebody in its name
  EXPECT_EQ(controller_.counters().foreign, 1u);
  Say(a, Leave{});  // the second job alone
  ASSERT_EQ(controller_.runs().size(), 1u);
  EXPECT_EQ(controller_.ShareOf("alice"), nullptr);
  hello("three", {7, 7});
  EXPECT_EQ(controller_.counters().foreign, 2u) << "it is in the first one";
}

TEST_F(BoundsTest, ATurnLooksAtRunsWithSomethingDueAlone) {
  const auto [a, b] = Start("job");
  for (int i = 0; i < 3000; ++i) Join("idle-" + std::to_string(i), 0);
  ASSERT_EQ(controller_.runs().size(), 3001u);
  Tick();
  asked_ = 0;
  for (Iteration i = 1; i <= 20; ++i) {
    ASSERT_TRUE(Round(*a, *b, i));
    Tick();
    EXPECT_TRUE(controller_.NextDeadline().has_value());
  }
  EXPECT_LT(asked_, 20 * 20);
  EXPECT_THAT(snapshots_, testing::Each(a->run));
  EXPECT_FALSE(snapshots_.empty());
  // The leases of all run out in time, with no more looks than these need.
  for (int k = 0; k < 30; ++k) {
    now_ = now_ + 100 * kMillisecond;
    for (Client* client : {a, b}) Beat(*client);
    Tick();
  }
  EXPECT_EQ(controller_.runs().size(), 1u);
  EXPECT_EQ(controller_.counters().leases_expired, 3000u);
  EXPECT_LT(asked_, 3000 * 20);
  ASSERT_TRUE(controller_.NextDeadline().has_value());
  EXPECT_LE(*controller_.NextDeadline(), now_ + kLease / 4);
}

}  // namespace
}  // namespace prd
