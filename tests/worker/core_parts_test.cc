// The parts of SessionCore, each on its own.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/plans.h"
#include "worker/core/average_copies.h"
#include "worker/core/background_group.h"
#include "worker/core/call_slot.h"
#include "worker/core/call_work.h"
#include "worker/core/controller_link.h"
#include "worker/core/departure.h"
#include "worker/core/mean_call.h"
#include "worker/core/session_parts.h"
#include "worker/core/step_procedure.h"
#include "worker/core/step_protocol.h"
#include "worker/core/trained_report.h"
#include "worker/core/unreachable_peers.h"

namespace prd {
namespace {

constexpr Instant At(DurationNs ms) { return {ms * kMillisecond}; }

template <typename T>
std::size_t Count(const Actions& actions) {
  std::size_t count = 0;
  for (const Action& action : actions) count += std::holds_alternative<T>(action) ? 1 : 0;
  return count;
}

// ---- ControllerLink ----

class ControllerLinkTest : public testing::Test {
 protected:
  // What is sent meanwhile, by number; 0: a heartbeat.
  std::vector<Seq> Sent() {
    std::vector<Seq> sent;
    for (const Action& action : out_) {
      if (const auto* send = std::get_if<SendToController>(&action)) {
        sent.push_back(send->envelope.seq);
      }
    }
    out_.clear();
    return sent;
  }
  void Join() {
    link_.Attach(At(0), {});
    link_.BeginHello(At(0));
    link_.GiveIncarnation(7);
    link_.SayHello(At(0), {}, &out_);
    const ControllerEnvelope welcome{
        .identity = kRun, .incarnation = 7, .seq = 1, .ack = 1, .body = Welcome{}};
    ASSERT_NE(link_.OnHelloAnswered(welcome), nullptr);
    link_.Admit(At(0), {.run = 3, .rank = 2, .heartbeat_ms = 1000});
    out_.clear();
  }

  static constexpr RunIdentity kRun{.high = 1, .low = 10};
  ControllerLink link_;
  Actions out_;
};

TEST_F(ControllerLinkTest, HelloWaitsForAnIncarnationAndForTheGapAfterTheLastOne) {
  link_.Attach(At(0), {});
  EXPECT_FALSE(link_.MaySayHello(At(0))) << "none is due";
  link_.BeginHello(At(1000));
  EXPECT_FALSE(link_.MaySayHello(At(1000))) << "there is no incarnation";
  link_.GiveIncarnation(7);
  EXPECT_TRUE(link_.MaySayHello(At(1000)));
  link_.SayHello(At(1000), {}, &out_);
  EXPECT_TRUE(link_.wants_incarnation());
  link_.BeginHello(At(1010));
  link_.GiveIncarnation(8);
  EXPECT_FALSE(link_.MaySayHello(At(1099)));
  EXPECT_EQ(link_.NextDeadline(true), At(1100));
  EXPECT_EQ(link_.NextDeadline(false), std::nullopt);
  EXPECT_TRUE(link_.MaySayHello(At(1100)));
  EXPECT_EQ(link_.incarnation(), 7u) << "until the Hello is said";
}

TEST_F(ControllerLinkTest, SendsAgainWhatIsNotAcknowledgedWithPausesThatDouble) {
  Join();
  link_.SendHeartbeat(At(0), &out_);
  link_.Push(At(0), Resume{}, &out_);
  EXPECT_EQ(Sent(), (std::vector<Seq>{0, 2}));
  std::vector<DurationNs> times;
  for (DurationNs ms = 1; ms < 3000; ++ms) {
    link_.OnTime(At(ms), &out_);
    for (const Seq seq : Sent()) {
      if (seq == 2) times.push_back(ms);
    }
  }
  EXPECT_EQ(times, (std::vector<DurationNs>{250, 750, 1750}));
  EXPECT_EQ(link_.OnAck(At(3000), 2), ControllerLink::Acked::kMore);
  EXPECT_EQ(link_.OnAck(At(3000), 2), ControllerLink::Acked::kNothing);
  EXPECT_EQ(link_.OnAck(At(3000), 9), ControllerLink::Acked::kWrong);
  EXPECT_EQ(link_.unacked(), 0u);
  link_.Push(At(3000), Resume{}, &out_);
  Sent();
  link_.OnConnected(At(3010), &out_);
  EXPECT_EQ(Sent(), (std::vector<Seq>{3, 0})) << "at once, on a new connection";
}

TEST_F(ControllerLinkTest, AGapIsAnsweredWithAHeartbeatAtOnce) {
  Join();
  link_.SendHeartbeat(At(0), &out_);
  EXPECT_FALSE(link_.Receive(At(5), 3)) << "2 is missing";
  EXPECT_EQ(link_.NextDeadline(true), At(5));
  EXPECT_TRUE(link_.OnTime(At(5), &out_));
  EXPECT_TRUE(link_.Receive(At(6), 2));
  EXPECT_FALSE(link_.Receive(At(6), 2)) << "twice";
}

TEST_F(ControllerLinkTest, HearsANewLifeOfTheControllerAndNoneBeforeIt) {
  Join();
  const RunIdentity next{.high = 1, .low = 11};
  EXPECT_TRUE(link_.IsOfThisRun(At(1), kRun, &out_));
  EXPECT_EQ(Sent(), std::vector<Seq>{});
  EXPECT_TRUE(link_.IsOfThisRun(At(1), next, &out_));
  EXPECT_EQ(Sent(), std::vector<Seq>{0}) << "it is told what has been received";
  EXPECT_FALSE(link_.IsOfThisRun(At(1), kRun, &out_));
  EXPECT_FALSE(link_.IsOfThisRun(At(1), {.high = 2, .low = 12}, &out_)) << "another run";
}

TEST_F(ControllerLinkTest, MeasuresTheRoundTripOfASingleHeartbeat) {
  Join();
  link_.SendHeartbeat(At(100), &out_);
  link_.OnHeartbeatAck(At(108), {});
  EXPECT_EQ(link_.rtt(), 8 * kMillisecond);
  link_.SendHeartbeat(At(200), &out_);
  link_.SendHeartbeat(At(300), &out_);
  link_.OnHeartbeatAck(At(301), {});
  EXPECT_EQ(link_.rtt(), 8 * kMillisecond) << "it may answer either of the two";
  link_.SendHeartbeat(At(400), &out_);
  link_.OnHeartbeatAck(At(416), {});
  EXPECT_EQ(link_.rtt(), 9 * kMillisecond);
}

TEST_F(ControllerLinkTest, KeepsItsLeaseWhileSomethingTakesLong) {
  link_.SendHeartbeatIfDue(At(0), &out_);
  EXPECT_EQ(Sent(), std::vector<Seq>{}) << "it is no member yet";
  Join();
  link_.SendHeartbeat(At(0), &out_);
  out_.clear();
  for (const std::int64_t ms : {999, 1000, 1001, 1999, 2500}) {
    link_.SendHeartbeatIfDue(At(ms), &out_);
  }
  EXPECT_EQ(Sent(), (std::vector<Seq>{0, 0})) << "at 1000 and at 2500";
}

// ---- CallSlot ----

TEST(CallSlotTest, SaysWhatItWaitsForAfter5And15SecondsAndThenEveryMinute) {
  CallSlot call;
  call.Begin(At(0), Call::kStep);
  std::vector<DurationNs> seconds;
  while (call.line_at() <= At(200'000)) {
    seconds.push_back(call.line_at().ns / kSecond);
    call.OnLine(call.line_at());
  }
  EXPECT_EQ(seconds, (std::vector<DurationNs>{5, 15, 60, 120, 180}));
  call.End();
  call.Begin(At(190'000), Call::kStep);
  EXPECT_EQ(call.line_at(), At(240'000)) << "a minute after the last line about a Step";
  call.End();
  call.Begin(At(190'000), Call::kFinish);
  EXPECT_EQ(call.line_at(), At(195'000));
}

TEST(CallSlotTest, TimesOutAfterTheControllerWasHeardAndTheStartHasATimeOfItsOwn) {
  CallSlot call;
  call.Begin(At(1000), Call::kAttach);
  EXPECT_EQ(call.TimeoutEnds(true, At(0), At(0)), std::nullopt);
  call.SetTimeouts(50 * kMillisecond, 0);
  EXPECT_EQ(call.TimeoutEnds(true, At(1020), At(1040)), At(1070));
  call.SetTimeouts(50 * kMillisecond, 200 * kMillisecond);
  EXPECT_EQ(call.TimeoutEnds(false, At(1020), At(1040)), At(1070));
  EXPECT_EQ(call.TimeoutEnds(true, At(1020), At(1040)), At(1090)) << "it answers still";
  EXPECT_EQ(call.TimeoutEnds(true, At(1020), At(1200)), At(1220)) << "but does not begin the job";
  EXPECT_FALSE(call.StartIsLate(At(1219), At(1020)));
  EXPECT_TRUE(call.StartIsLate(At(1220), At(1020)));
}

// ---- what has been trained, and whom it cannot reach ----

TEST(TrainedReportTest, MemoryIsToldWhenItChangesAndAtMostOnceASecond) {
  const Instant start{100 * kSecond};
  const HeldMemory small{.host = 1, .host_peak = 2}, large{.host = 3, .host_peak = 4};
  TrainedReport report;
  report.Begin({}, {});
  Hello hello;
  report.TellIn(start, &hello);
  EXPECT_FALSE(report.memory_is_news(start));
  report.NoteMemory(small);
  EXPECT_TRUE(report.memory_is_news(start));
  EXPECT_EQ(report.Tell(start), Progressed{.memory = small});
  report.NoteMemory(large);
  EXPECT_FALSE(report.memory_is_news(start + kSecond / 2));
  EXPECT_EQ(report.Tell(start + kSecond / 2), std::nullopt);
  EXPECT_EQ(report.Tell(start + kSecond), Progressed{.memory = large});
  report.TellIn(start + 2 * kSecond, &hello);
  EXPECT_EQ(report.Tell(start + 2 * kSecond), Progressed{.memory = large}) << "to another one";
}

TEST(TrainedReportTest, TellsEachThingOnce) {
  TrainedReport report;
  report.Begin({.steps = 5, .samples = 50}, {});
  Hello hello;
  report.TellIn(At(1), &hello);
  EXPECT_EQ(hello.own, (Trained{.steps = 5, .samples = 50}));
  EXPECT_EQ(report.Tell(At(2)), std::nullopt);
  report.AddStep(10);
  report.NoteNonfinite();
  report.NoteLosses({.count = 1, .mean = 0.5});
  const Progressed expected{
      .own = {.steps = 6, .samples = 60}, .nonfinite = 1, .losses = {.count = 1, .mean = 0.5}};
  EXPECT_EQ(report.Tell(At(3)), expected);
  EXPECT_EQ(report.told_at(), At(3));
  EXPECT_EQ(report.Tell(At(4)), std::nullopt);
  report.NoteNonfinite();
  Ready ready;
  report.TellIn(At(5), &ready);
  EXPECT_EQ(ready.nonfinite, 1u);
  EXPECT_EQ(report.Tell(At(6)), std::nullopt);
}

TEST(TrainedReportTest, CountsNeverFall) {
  TrainedReport report;
  report.Begin({.steps = 5, .samples = 50}, {.steps = 9, .samples = 90});
  report.OnWelcome({.steps = 4, .samples = 60});
  EXPECT_EQ(report.own(), (Trained{.steps = 5, .samples = 60}));
  EXPECT_NE(report.Tell(At(1)), std::nullopt) << "the controller has heard of 4 steps";
  report.OnProgress({.trained = {.steps = 8, .samples = 95}, .workers = 2, .done = true});
  report.OnProgress({.trained = {.steps = 7, .samples = 70}, .workers = 3, .done = false});
  EXPECT_EQ(report.progress().trained, (Trained{.steps = 9, .samples = 95}));
  EXPECT_EQ(report.progress().workers, 3);
  EXPECT_TRUE(report.progress().done);
  report.BeginRun();
  EXPECT_FALSE(report.progress().done);
}

TEST(UnreachablePeersTest, NamesARankOnceASecondAndInTheReportOfItsGroup) {
  UnreachablePeers peers;
  peers.OnReduced(4, false, {1, 2});
  Finished other{.group = 3, .outcome = Outcome::kFailed};
  peers.Complete(&other);
  EXPECT_TRUE(other.unreachable.empty());
  Finished finished{.group = 4, .outcome = Outcome::kFailed};
  peers.Complete(&finished);
  EXPECT_EQ(finished.unreachable, (std::vector<Rank>{1, 2}));
  EXPECT_EQ(peers.ReportGroup(At(0), 3), std::nullopt);
  const auto report = peers.ReportGroup(At(0), 4);
  ASSERT_NE(report, std::nullopt);
  EXPECT_EQ(report->unreachable, (std::vector<Rank>{1, 2}));
  EXPECT_EQ(peers.Report(At(999), {1, 2}), std::nullopt);
  EXPECT_EQ(peers.Report(At(999), {2, 5})->unreachable, std::vector<Rank>{5});
  EXPECT_EQ(peers.Report(At(1000), {1, 5})->unreachable, std::vector<Rank>{1});
  peers.Clear();
  EXPECT_EQ(peers.Report(At(1001), {1})->unreachable, std::vector<Rank>{1});
  EXPECT_EQ(peers.ReportGroup(At(1001), 4), std::nullopt);
}

// ---- the data plane's places ----

TEST(CallWorkTest, AnApplyGoesOnButIsNoGroupsResultAnyMore) {
  CallWork work;
  Actions out;
  work.Reduce(At(1), {.id = 4, .digest = true}, {}, false, &out);
  EXPECT_TRUE(work.reduces(4));
  EXPECT_FALSE(work.reduces(5));
  work.OnReduced(100, 9);
  EXPECT_EQ(work.Report(At(3), Outcome::kOk, {}, 0).digest, 9u);
  EXPECT_EQ(work.Report(At(3), Outcome::kFailed, {}, 0).digest, 0u);
  EXPECT_EQ(work.Report(At(3), Outcome::kOk, {}, 0).reduce_ns, 2 * kMillisecond);
  work.ApplyResult(&out);
  EXPECT_TRUE(std::get<ApplyNow>(out.back()).digest);
  out.clear();
  work.Drop(&out);
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(work.applies());
  EXPECT_EQ(work.group().id, kNoGroup);
  work.OnApplied(0);
  EXPECT_TRUE(work.idle());
}

TEST(CallWorkTest, WhatTheDeviceDecidesIsGivenUpAndNotCancelled) {
  CallWork work;
  Actions out;
  work.Hold(Group{.id = 4});
  EXPECT_TRUE(work.has_group());
  work.Reduce(At(1), std::get<Group>(work.TakeHeld()), {}, false, &out);
  EXPECT_FALSE(work.holds());
  EXPECT_FALSE(work.handed_over());
  work.HandOver();
  work.GiveUp("why", &out);
  work.HandOver();
  EXPECT_TRUE(work.given_up());
  EXPECT_TRUE(work.reduces()) << "until the device says how it ended";
  work.End();
  work.Reduce(At(2), {.id = 5}, {}, false, &out);
  EXPECT_FALSE(work.handed_over());
  work.Cancel(&out);
  EXPECT_EQ(Count<CancelReduce>(out), 1u);
}

TEST(BackgroundGroupTest, ItsCostsGoToTheNextStepThatEnds) {
  BackgroundGroup group;
  group.CountAttempt();
  group.Begin(At(10), {.id = 4}, true);
  EXPECT_TRUE(group.runs());
  group.End(At(15), 100);
  group.Fail();
  EXPECT_TRUE(group.is(4));
  EXPECT_FALSE(group.runs());
  group.BeginFetch(At(20));
  group.End(At(22));
  StepOutcome step{.attempts = 1};
  group.MoveCosts(&step);
  EXPECT_EQ(step.attempts, 2);
  EXPECT_EQ(step.sent_bytes, 100u);
  EXPECT_EQ(step.reduced, 7 * kMillisecond);
  group.MoveCosts(&step);
  EXPECT_EQ(step.attempts, 2);
  Actions out;
  group.Drop(&out);
  EXPECT_EQ(Count<CancelFetch>(out), 1u);
  EXPECT_FALSE(group.is(4));
}

// ---- beside training ----

TEST(MeanCallTest, TheSameCallUntilItEnds) {
  MeanCall mean;
  mean.Begin(100, {1, 2}, true);
  const auto first = mean.Give();
  ASSERT_NE(first, std::nullopt);
  EXPECT_EQ(mean.Give(), std::nullopt) << "this incarnation has given them";
  mean.OnHello();
  EXPECT_EQ(mean.Give()->call, first->call);
  mean.Begin(200, {3, 4}, false);  // after a timeout
  EXPECT_EQ(mean.Give()->call, first->call);
  mean.OnAnswer({.call = first->call + 1, .values = {8, 8}});
  EXPECT_FALSE(mean.answered());
  mean.OnAnswer({.call = first->call, .values = {5, 6}});
  mean.Begin(200, {7, 7}, false);
  EXPECT_TRUE(mean.answered());
  EXPECT_TRUE(mean.End().ok());
  EXPECT_EQ(mean.TakeNumbers(), (std::vector<double>{5, 6}));
  mean.Begin(200, {1}, true);
  EXPECT_NE(mean.Give()->call, first->call);
  EXPECT_FALSE(mean.answered());
}

TEST(AverageCopiesTest, CopiesAllOthersInOrderAndLeavesOutWhatFails) {
  AverageCopies copies;
  Actions out;
  SharedList<GroupMember> members;
  for (const Rank rank : {0, 1, 2}) {
    members.push_back({.rank = rank, .incarnation = static_cast<Incarnation>(10 + rank)});
  }
  copies.Begin(members, 11);
  ASSERT_TRUE(copies.Next(&out));
  EXPECT_EQ(copies.source(), 0);
  copies.OnCopied(Status(Code::kUnavailable, "away"), &out);
  EXPECT_EQ(std::get<LogLine>(out.back()).text, "Average leaves out rank 0: away");
  ASSERT_TRUE(copies.Next(&out));
  EXPECT_EQ(copies.source(), 2);
  copies.OnCopied(Status::Ok(), &out);
  EXPECT_FALSE(copies.Next(&out));
  EXPECT_FALSE(copies.running());
  EXPECT_EQ(Count<CopyForAverage>(out), 2u);
  copies.Cancel(&out);
  EXPECT_EQ(Count<CancelCopyForAverage>(out), 0u);
}

TEST(DepartureTest, TheFirstReasonCounts) {
  Departure departure;
  EXPECT_FALSE(departure.soon());
  EXPECT_TRUE(departure.LeaveSoon("notice", At(5)));
  EXPECT_FALSE(departure.LeaveSoon("another", std::nullopt));
  EXPECT_EQ(departure.by(), At(5));
  EXPECT_EQ(departure.Left().message(), "left: notice");
  EXPECT_TRUE(departure.Stop("converged"));
  EXPECT_FALSE(departure.Stop("again"));
  EXPECT_EQ(departure.stop(), "converged");
  departure.ForgetStop();
  EXPECT_TRUE(departure.Stop("again"));
}

// ---- what is done to the replica ----

class WrittenReplica final : public StepReplica {
 public:
  explicit WrittenReplica(Inbox inbox = {}) : inbox_(inbox) {}
  Iteration iteration() const override { return iteration_; }
  std::int64_t AddInbox() override {
    did += "adds ";
    return inbox_.rounds;
  }
  Inbox TakeInbox() override {
    did += "takes ";
    return inbox_;
  }
  std::uint64_t Digest() const override { return 77; }

  // As a caller whose `apply` runs well.
  StepProcedure Run(StepProcedure procedure) {
    if (const std::optional<Iteration> at = procedure.Begin(this)) {
      did += "applies ";
      iteration_ = *at;
    }
    procedure.End(this);
    return procedure;
  }

  std::string did;

 private:
  Inbox inbox_;
  Iteration iteration_ = 5;
};

TEST(StepProcedureTest, WhatAStepDoesBeforeItSignals) {
  const struct {
    const char* name;
    Plan plan;
    bool discard;
    const char* does;
    Iteration replica, ready;
  } kCases[] = {
      {"models", plans::kModels, false, "applies adds ", 6, 6},
      {"cut short", plans::kModels, true, "adds ", 5, 5},
      {"in the background", plans::Background(2), false, "applies adds ", 6, 6},
      {"gradients", plans::kGradients, false, "", 5, 6},
      {"rounds", plans::kRounds, false, "", 5, 6},
      {"changes", plans::kChangeEvery8, false, "applies ", 5, 6},
      {"changes, cut short", plans::kChangeEvery8, true, "", 5, 6},
      {"a store", plans::kStore, false, "applies ", 5, 6},
  };
  for (const auto& its : kCases) {
    WrittenReplica replica;
    const StepProcedure procedure = replica.Run(StepProcedure(its.plan, its.discard));
    EXPECT_EQ(replica.did, its.does) << its.name;
    EXPECT_EQ(replica.iteration(), its.replica) << its.name;
    EXPECT_EQ(procedure.ReadyAt(replica.iteration()).iteration, its.ready) << its.name;
    EXPECT_EQ(procedure.idle(), replica.did.empty()) << its.name;
  }
}

TEST(StepProcedureTest, WhatTheCoreWantsInTheMiddleOfACall) {
  using What = ApplyNow::What;
  const struct {
    const char* name;
    ApplyNow duty;
    StepReplica::Inbox inbox;
    const char* does;
    Iteration replica;
    std::int64_t rounds;
    std::uint64_t digest;
  } kCases[] = {
      {"a result", {What::kGradients, 9}, {3, 8}, "applies ", 9, 1, 0},
      {"a result, told of", {What::kGradients, 9, true}, {3, 8}, "applies ", 9, 1, 77},
      {"rounds", {What::kInboxOfGradients, 9}, {3, 8}, "takes applies ", 8, 3, 0},
      {"no rounds", {What::kInboxOfGradients, 9, true}, {0, 8}, "takes ", 5, 0, 0},
      {"averages", {What::kInboxOfChanges, 9}, {3, 8}, "adds ", 5, 3, 0},
      {"no averages", {What::kInboxOfChanges, 9}, {0, 8}, "adds ", 5, 0, 0},
  };
  for (const auto& its : kCases) {
    WrittenReplica replica(its.inbox);
    const StepProcedure procedure = replica.Run(StepProcedure(its.duty));
    EXPECT_EQ(replica.did, its.does) << its.name;
    EXPECT_EQ(replica.iteration(), its.replica) << its.name;
    EXPECT_EQ(procedure.rounds(), its.rounds) << its.name;
    EXPECT_EQ(procedure.digest(), its.digest) << its.name;
  }
}

// ---- a step protocol without a session ----

// Notes what a protocol does.
class FakeContext final : public StepContext {
 public:
  explicit FakeContext(SessionParts& parts) : StepContext(parts) {}
  void Push(WorkerBody, Actions*) override { said += "push "; }
  bool EndsPartial(Actions*) override { return false; }
  void SayReady(Actions*) override {
    step.ready_waiting = step.ready.waiting;
    said += "ready ";
  }
  void SayEnd(Actions*) override { said += "end "; }
  void BeginHeld(Actions*) override { said += "held "; }
  void Begin(Group, Actions*) override { said += "begin "; }
  void BeginBeside(Group, Iteration, bool, Actions*) override { said += "beside "; }
  void Report(Outcome, const std::string&, Actions*) override { said += "report "; }
  void StepDone(bool, Actions*) override { said += "done "; }
  bool EndJoin(Actions*) override { return false; }
  bool EndsCall(Actions*) override { return false; }
  void Over(Status, Actions*) override { said += "over "; }

  std::string said;
};

TEST(StepProtocolTest, EverySecondStepSignalsAndEndsWithItsGroup) {
  SessionParts parts;
  FakeContext context(parts);
  Actions out;
  parts.link.BeginHello(At(0));
  parts.link.GiveIncarnation(7);
  parts.link.SayHello(At(0), {}, &out);
  parts.link.Admit(At(0), {.run = 3, .rank = 2, .plan = plans::Every(2, plans::kModels)});
  parts.standing.has_replica = true;
  const std::unique_ptr<StepProtocol> protocol = MakeStepProtocol(context.plan(), context);
  const auto step = [&](Iteration iteration) {
    parts.call.Begin(At(iteration), Call::kStep);
    protocol->OnStep({.iteration = iteration, .waiting = true}, 0);
    protocol->StartStep(&out);
  };
  step(1);
  EXPECT_EQ(context.said, "done ");
  parts.call.End();
  step(2);
  EXPECT_EQ(context.said, "done ready ");
  parts.step.ready_waiting = false;
  parts.work.Reduce(At(3), {.id = 4, .iteration = 9}, {}, false, &out);
  protocol->OnTrained(Outcome::kFailed, "why", &out);
  EXPECT_EQ(context.said, "done ready report ready ") << "it signals again";
  protocol->OnTrained(Outcome::kOk, {}, &out);
  EXPECT_EQ(context.said, "done ready report ready report done ");
  EXPECT_EQ(parts.step.iteration, 9);
  EXPECT_TRUE(parts.step.outcome.included);
}

}  // namespace
}  // namespace prd
