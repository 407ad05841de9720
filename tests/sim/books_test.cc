// What really happened, beside what the history says: every law is broken on purpose, once, and
// found under its name.
#include <gtest/gtest.h>

#include "tests/plans.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/connection_book.h"
#include "tools/sim/data_copies.h"
#include "tools/sim/replica_book.h"
#include "tools/sim/run_book.h"

namespace prd::sim {
namespace {

constexpr const char* kWorkload =
    "[cluster]\nworkers = 3\n[job]\nname = \"sim\"\nengine = \"all-reduce\"\nlease_ms = 400\n"
    "heartbeat_ms = 100\n";

class BookTest : public testing::Test {
 protected:
  explicit BookTest(const std::string& more = "")
      : workload_(FromText(kWorkload + more)), world_(workload_, 1) {}
  const Workload workload_;
  World world_;
};

class RunBookTest : public BookTest {
 protected:
  void Seen(RunId run, RecordBody body) { book_.Seen(run, {.run = run, .body = std::move(body)}); }
  void Says(Seq seq, WorkerBody body) {
    Seen(1, FromWorker{
                {.run = 1, .rank = 0, .incarnation = 100, .seq = seq, .body = std::move(body)}});
  }
  RunBook book_{&world_};
};

TEST_F(RunBookTest, AFinishedRunsReplicaEntersNoOtherRun) {
  book_.Enters(0, 2, 1, 1);
  Seen(1, RunEnded{.reason = "lost"});
  book_.Enters(0, 2, 1, 1);
  Seen(1, RunEnded{.finished = true});
  book_.Enters(1, 2, 2, 1);
  book_.Enters(1, 2, kNoRun, 1);
  Breaks("run-identity", [&] { book_.Enters(0, 2, 1, 1); });
  book_.Forgot({});
  book_.Enters(0, 2, 1, 1);
}

TEST_F(RunBookTest, ARunIsOfOneLaunch) {
  book_.Enters(0, 1, kNoRun, 1);
  book_.Enters(1, 1, kNoRun, 1);
  book_.Enters(1, 2, kNoRun, 2);
  Breaks("launches", [&] { book_.Enters(2, 1, kNoRun, 2); });
}

TEST_F(RunBookTest, WhatAWorkerTrainedIsToldWhenItStops) {
  Says(1, Hello{.rank = 0, .own = {.steps = 2, .samples = 64}});
  book_.Stops(100, 3, {.steps = 3, .samples = 96});
  Says(2, Ready{.own = {.steps = 3, .samples = 96}});
  Says(3, Pause{});
  book_.Stops(100, 5, {.steps = 4, .samples = 128});
  Says(4, Progressed{.own = {.steps = 4, .samples = 96}});
  Breaks("samples", [&] { Says(5, Finish{}); });
}

TEST_F(RunBookTest, NobodyIsToldOfMoreThanAllHaveTrained) {
  book_.Trained(32);
  book_.Stepped(0, 1, {}, false, {.steps = 1, .samples = 32});
  Breaks("samples", [&] { book_.Stepped(0, 1, {}, false, {.steps = 1, .samples = 33}); });
}

TEST_F(RunBookTest, WhoTrainsLearnsOfTheGoal) {
  Seen(1, GoalReached{});
  const Instant early{700 * kMillisecond};
  const Instant late{900 * kMillisecond};
  for (int i = 0; i < 9; ++i) book_.Stepped(0, 1, early, false, {});
  book_.Stepped(0, 1, late, false, {});
  book_.Stepped(0, 1, late, false, {});
  book_.Stepped(0, 1, late, true, {});
  book_.Stepped(0, 1, late, false, {});
  book_.Stepped(0, 2, late, false, {});
  for (int i = 0; i < 2; ++i) book_.Stepped(0, 1, late, false, {});
  Breaks("goal", [&] { book_.Stepped(0, 1, late, false, {}); });
}

class ConnectionBookTest : public testing::Test {
 protected:
  static Instant At(std::int64_t ms) { return {ms * kMillisecond}; }
  void Taken(std::int64_t ms, Incarnation incarnation) const {
    book_.Seen(At(ms), {.rank = 0, .incarnation = incarnation});
  }
  ConnectionBook book_{200 * kMillisecond};
};

TEST_F(ConnectionBookTest, NobodyIsTakenForEndedWhoseConnectionIsThere) {
  Breaks("ended-alive", [&] { Taken(1, 7); });  // has never spoken
  book_.Spoke(At(1), 7, 1);
  Breaks("ended-alive", [&] { Taken(10, 7); });
  book_.Ended(At(20), 1);
  Breaks("ended-alive", [&] { Taken(219, 7); });
  Taken(220, 7);
  book_.Spoke(At(230), 7, 2);
  Breaks("ended-alive", [&] { Taken(240, 7); });
  Taken(230, 7);               // decided before that, and recorded since
  book_.Spoke(At(250), 7, 1);  // what the first one has left behind
  Breaks("ended-alive", [&] { Taken(260, 7); });
  book_.Ended(At(270), 3);
  book_.Spoke(At(280), 8, 3);  // read after its end
  Breaks("ended-alive", [&] { Taken(479, 8); });
  Taken(480, 8);
  book_.ControllerDied();
  Breaks("ended-alive", [&] { Taken(500, 8); });
}

class ReplicaBookTest : public BookTest {
 protected:
  ReplicaBookTest()
      : BookTest("check_replicas_ms = 100\non_divergence = \"repair\"\n[faults]\nflips = 0.1\n") {
    world_.runs.SetFirstPlan(plans::kGradients);
    Seen(0, RunStarted{});
  }
  void Seen(std::int64_t ms, RecordBody body) {
    book_.Seen(1, {.run = 1, .now = {ms * kMillisecond}, .body = std::move(body)});
  }
  // A group that forms then, after which two workers have these digests.
  void Group(std::int64_t ms, std::uint64_t one, std::uint64_t other, bool ok = true) {
    const GroupId id = ++groups_;
    Seen(ms, GroupFormed{.id = id, .members = {{.rank = 0}, {.rank = 1}}});
    book_.Applied(1, id, one);
    book_.Applied(1, id, other);
    Seen(ms, GroupEnded{.id = id, .ok = ok});
  }
  GroupId groups_ = 0;
  ReplicaBook book_{&world_};
};

TEST_F(ReplicaBookTest, ADifferenceIsToldWithinAPeriod) {
  for (const int ms : {0, 60, 100}) Group(ms, 1, 2);
  Group(130, 1, 1);
  for (const int ms : {150, 200, 240}) Group(ms, 1, 2);
  Group(250, 1, 2, false);  // was to compare them, maybe
  for (const int ms : {260, 300, 370}) Group(ms, 1, 2);
  Breaks("difference-told", [&] { Group(380, 1, 2); });
}

TEST_F(ReplicaBookTest, ADifferenceIsRepaired) {
  Group(0, 1, 2);
  Seen(0, ReplicasDiffer{.group = 1, .ranks = {1}});
  for (const int ms : {100, 200, 310}) Group(ms, 1, 2);
  Breaks("difference-repaired", [&] { Group(320, 1, 2); });
}

TEST_F(ReplicaBookTest, AFaultMayMakeThemDifferAnew) {
  Group(0, 1, 2);
  Seen(0, ReplicasDiffer{.group = 1, .ranks = {1}});
  for (const int ms : {100, 200, 310}) Group(ms, 1, 2);
  book_.Flipped();
  Group(320, 1, 2);
}

TEST_F(ReplicaBookTest, ACopyOfOneThatIsReportedLaterMayMakeThemDifferAnew) {
  Group(0, 1, 2);
  Seen(10, AdoptOrdered{.rank = 0, .source = 1});
  Seen(20, ReplicasDiffer{.group = 1, .ranks = {1}});
  for (const int ms : {100, 200, 310, 410}) Group(ms, 1, 2);  // since 100
  Seen(420, ReplicasDiffer{.group = 5, .ranks = {0, 1}});     // by the same copy
  Breaks("difference-repaired", [&] { Group(430, 1, 2); });
}

TEST_F(ReplicaBookTest, NobodyCopiesOneThatIsReported) {
  Group(0, 1, 2);
  Seen(0, ReplicasDiffer{.group = 1, .ranks = {1}});
  Seen(10, AdoptOrdered{.rank = 0, .source = 1});
  for (const int ms : {100, 200, 310}) Group(ms, 1, 2);
  Seen(315, ReplicasDiffer{.group = 4, .ranks = {0}});
  Seen(316, ReplicasDiffer{.group = 4, .ranks = {0, 1}});
  Breaks("difference-repaired", [&] { Group(320, 1, 2); });
}

TEST_F(ReplicaBookTest, WhoSharedAnEqualReplicaSinceItsCopySpreadsNothing) {
  Seen(0, AdoptOrdered{.rank = 0, .source = 1});
  Group(0, 1, 1);
  Group(10, 1, 2);
  Seen(20, ReplicasDiffer{.group = 2, .ranks = {1}});
  for (const int ms : {100, 200, 320}) Group(ms, 1, 2);
  Breaks("difference-repaired", [&] { Group(330, 1, 2); });
}

TEST_F(ReplicaBookTest, WhatIsToldIsTrue) {
  Group(0, 1, 2);
  Seen(0, ReplicasDiffer{.group = 1, .ranks = {1}});
  Group(10, 1, 1);
  Seen(10, ReplicasDiffer{.group = 2, .ranks = {}});
  Group(20, 1, 1);
  Breaks("difference-true", [&] { Seen(20, ReplicasDiffer{.group = 3, .ranks = {1}}); });
}

class AverageTest : public BookTest {
 protected:
  AverageTest() {
    for (std::uint32_t i = 0; i < 3; ++i) {
      world_.replicas[i].incarnation = world_.NewIncarnation(i);
      world_.replicas[i].run = i < 2 ? 1 : kNoRun;
    }
    copies_.BeginAverage(0, 1);
  }
  bool Copies(std::uint32_t source) {
    copies_.CopyForAverage(0, world_.replicas[source].incarnation);
    const SimEvent event = world_.queue.Pop();
    EXPECT_EQ(event.kind, EventKind::kCopied);
    return copies_.OnCopied(0, event.what).value_or(false);
  }
  ReplicaBoxes boxes_{&world_};
  DataCopies copies_{&world_, &boxes_};
};

TEST_F(AverageTest, EachReplicaIsInItOnce) {
  EXPECT_TRUE(Copies(1));
  Breaks("average", [&] { Copies(1); });
  Breaks("average", [&] { Copies(0); });
  copies_.BeginAverage(0, 1);
  EXPECT_TRUE(Copies(1));
}

TEST_F(AverageTest, WhoHasNoReplicaOfTheRunIsNotInIt) {
  Breaks("average", [&] { Copies(2); });
}

TEST_F(AverageTest, ADeadSourceIsLeftOut) {
  const Incarnation gone = world_.replicas[1].incarnation;
  world_.replicas[1].incarnation = 0;
  copies_.CopyForAverage(0, gone);
  EXPECT_EQ(copies_.OnCopied(0, world_.queue.Pop().what), false);
  copies_.CopyForAverage(0, gone);
  copies_.CancelAverage(0);
  EXPECT_EQ(copies_.OnCopied(0, world_.queue.Pop().what), std::nullopt);
}

}  // namespace
}  // namespace prd::sim
