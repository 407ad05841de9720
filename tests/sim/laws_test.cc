// Every law is broken on purpose, once, and found under its name.
#include "tools/sim/laws.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "common/base/static_schedule.h"
#include "engines/batch_shares.h"
#include "tests/plans.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/neighbour_book.h"
#include "tools/sim/schedule_book.h"

namespace prd::sim {
namespace {

// Feeds a history of two workers, 0 and 1 with incarnations 100 and 101, that have joined.
class LawsTest : public testing::Test {
 protected:
  explicit LawsTest(const Plan& plan = {}) : laws_(plan) {}
  void SetUp() override {
    for (Rank rank = 0; rank < 2; ++rank) {
      Message(rank, Hello{.rank = rank});
      Seen(WorkerJoined{.rank = rank, .incarnation = Who(rank), .iteration = 5});
    }
  }
  static Incarnation Who(Rank rank) { return 100 + static_cast<Incarnation>(rank); }
  void Seen(RecordBody body) { laws_.Seen({.run = 1, .body = std::move(body)}); }
  void Message(Rank rank, WorkerBody body) { Message(rank, std::move(body), ++seq_[rank]); }
  void Message(Rank rank, WorkerBody body, Seq seq) {
    Seen(FromWorker{
        {.run = 1, .rank = rank, .incarnation = Who(rank), .seq = seq, .body = std::move(body)}});
  }
  void BothReady() {
    for (Rank rank = 0; rank < 2; ++rank) Message(rank, Ready{.iteration = 6});
  }
  static GroupFormed Group1() {
    return {.id = 1,
            .members = {{.rank = 0, .weight = 0.5, .iteration = 6},
                        {.rank = 1, .weight = 0.5, .iteration = 6}},
            .iteration = 6};
  }

  Laws laws_;
  std::map<Rank, Seq> seq_;
};

TEST_F(LawsTest, AGoodRoundBreaksNothing) {
  BothReady();
  Seen(Group1());
  laws_.Sent({.incarnation = 100, .seq = 2, .body = Group{.id = 1}});
  Message(0, Finished{.group = 1});
  Message(1, Finished{.group = 1, .outcome = Outcome::kFailed});
  Seen(GroupEnded{.id = 1});
  Message(1, Ready{.iteration = 6});
  Seen(WorkerLeft{.rank = 1, .incarnation = 101, .why = LeftReason::kLost});
  Seen(RunEnded{});
}

TEST_F(LawsTest, ADeadlineIsOverOnceItHasBeenHandled) {
  const auto deadline = [this](std::int64_t ms) {
    laws_.Seen({.run = 1, .now = {ms * kMillisecond}, .body = DeadlineReached{}});
  };
  for (int i = 0; i < 150; ++i) deadline(i);
  for (int i = 0; i < 100; ++i) deadline(200);
  Breaks("deadlines", [&] { deadline(200); });
}

TEST_F(LawsTest, Weights) {
  BothReady();
  GroupFormed formed = Group1();
  formed.members[1].weight = 0.6;
  Breaks("weights", [&] { Seen(formed); });
}

TEST_F(LawsTest, NegativeWeights) {
  BothReady();
  GroupFormed formed = Group1();
  formed.members[0].weight = 1.5;
  formed.members[1].weight = -0.5;
  Breaks("weights", [&] { Seen(formed); });
}

// A round has null gradients in it: what contributes may weigh less than 1, and never more.
TEST_F(LawsTest, WeightsOfARoundSumToOneAtMost) {
  Message(0, Ready{.iteration = 6, .gradients = 1});
  Message(1, Ready{.iteration = 6});
  GroupFormed formed = Group1();
  formed.kind = GroupKind::kRound;
  formed.members[0].weight = 0.2;
  formed.members[1].weight = 0;
  Seen(formed);
  formed.id = 2;
  formed.members[0].weight = 1.2;
  Breaks("weights", [&] { Seen(formed); });
}

TEST_F(LawsTest, MembersNeedASignal) {
  Message(0, Ready{.iteration = 6});
  Breaks("members", [&] { Seen(Group1()); });
}

// A signal that was on its way when its worker was given more to compute is void, but not after the
// job has gone back to that step.
TEST_F(LawsTest, SignalsFromBeforeAnOrderAreVoid) {
  Seen(SharesSet{.from = 6, .shares = {{.rank = 1, .samples = 3}}, .more = true});
  BothReady();
  Breaks("members", [&] { Seen(Group1()); });
}

TEST_F(LawsTest, OrdersOfAStepThatTheJobGoesBackToAreVoid) {
  Seen(SharesSet{.from = 6, .shares = {{.rank = 1, .samples = 3}}, .more = true});
  Seen(SharesSet{
      .from = 6, .more = true, .reason = std::string(BatchShares::kGoesOnElsewhere) + "6"});
  BothReady();
  Seen(Group1());
}

TEST_F(LawsTest, MembersMustBeThere) {
  BothReady();
  Seen(WorkerLeft{.rank = 1, .incarnation = 101, .why = LeftReason::kLost});
  Breaks("members", [&] { Seen(Group1()); });
}

TEST_F(LawsTest, WhoPausesIsInNoGroupThatTrains) {
  BothReady();
  Seen(WorkerLeft{.rank = 1, .incarnation = 101, .why = LeftReason::kPaused});
  Breaks("pause", [&] { Seen(Group1()); });
}

TEST_F(LawsTest, OneGroupAtATime) {
  BothReady();
  Seen(Group1());
  BothReady();
  GroupFormed formed = Group1();
  formed.id = 2;
  Breaks("one-group", [&] { Seen(formed); });
}

TEST_F(LawsTest, IterationsDoNotGoBack) {
  Breaks("iterations", [&] { Message(0, Ready{.iteration = 4}); });
}

TEST_F(LawsTest, AGroupGoesOnAtTheLargest) {
  BothReady();
  GroupFormed formed = Group1();
  formed.iteration = 7;
  Breaks("iterations", [&] { Seen(formed); });
}

// Where replicas are equal by design, all members train on from one.
TEST(LawsOfGradientsTest, MembersHaveModelsOfOneIteration) {
  for (const bool equal : {true, false}) {
    Laws laws(plans::kGradients);
    for (Rank rank = 0; rank < 2; ++rank) {
      const Incarnation who = 100 + static_cast<Incarnation>(rank);
      const auto say = [&](Seq seq, WorkerBody body) {
        laws.Seen({.run = 1,
                   .body = FromWorker{{.run = 1,
                                       .rank = rank,
                                       .incarnation = who,
                                       .seq = seq,
                                       .body = std::move(body)}}});
      };
      say(1, Hello{.rank = rank});
      const Iteration iteration = equal || rank == 0 ? 5 : 4;
      laws.Seen({.run = 1,
                 .body = WorkerJoined{.rank = rank, .incarnation = who, .iteration = iteration}});
      say(2, Ready{.iteration = 6});
    }
    const GroupFormed formed{.id = 1,
                             .members = {{.rank = 0, .weight = 0.5, .iteration = 6},
                                         {.rank = 1, .weight = 0.5, .iteration = 6}},
                             .iteration = 6};
    const auto form = [&] { laws.Seen({.run = 1, .body = formed}); };
    if (equal) {
      form();
    } else {
      Breaks("iterations", form);
    }
  }
}

TEST_F(LawsTest, NothingIsSentBeforeItIsRecorded) {
  BothReady();
  Breaks("recorded-first",
         [&] { laws_.Sent({.incarnation = 100, .seq = 2, .body = Group{.id = 1}}); });
  Breaks("recorded-first", [&] { laws_.Sent({.incarnation = 555, .seq = 1, .body = Welcome{}}); });
}

TEST_F(LawsTest, MessagesCountOnce) {
  Breaks("messages-once", [&] { Message(0, Ready{.iteration = 6}, 1); });
  Breaks("messages-once", [&] { Message(1, Ready{.iteration = 6}, 3); });
}

TEST_F(LawsTest, ReportsCountOnce) {
  BothReady();
  Seen(Group1());
  Message(0, Finished{.group = 1});
  Breaks("finished-once", [&] { Message(0, Finished{.group = 1}); });
}

TEST_F(LawsTest, GroupsEndWhenAllHaveReported) {
  BothReady();
  Seen(Group1());
  Message(0, Finished{.group = 1});
  Breaks("finished-once", [&] { Seen(GroupEnded{.id = 1, .ok = true}); });
}

TEST_F(LawsTest, NobodyIsEvicted) {
  Breaks("no-evictions",
         [&] { Seen(WorkerLeft{.rank = 0, .incarnation = 100, .why = LeftReason::kEvicted}); });
}

TEST_F(LawsTest, ARoundIsForAllOrForNone) {
  Message(0, Ready{.iteration = 6, .gradients = 1});
  GroupFormed round = Group1();
  round.kind = GroupKind::kRound;
  round.members[1].weight = 0;
  Seen(round);
  Message(0, Finished{.group = 1, .included = 1});
  Message(1, Finished{.group = 1, .outcome = Outcome::kFailed});
  Breaks("round-for-all", [&] { Seen(GroupEnded{.id = 1}); });
}

TEST_F(LawsTest, ContributorsOweAGradient) {
  GroupFormed round = Group1();
  round.kind = GroupKind::kRound;
  Breaks("members", [&] { Seen(round); });
}

TEST_F(LawsTest, GradientsThatAreLostAreTold) {
  Message(0, Ready{.iteration = 6, .gradients = 1});
  Breaks("gradients",
         [&] { Seen(WorkerLeft{.rank = 0, .incarnation = 100, .why = LeftReason::kLost}); });
}

TEST_F(LawsTest, AnAnswerNeedsASignal) {
  Breaks("answers", [&] { Seen(QueryAnswered{.rank = 0, .iteration = 6}); });
}

TEST_F(LawsTest, OneSignalStandsAtATime) {
  Message(0, Ready{.iteration = 6});
  Breaks("one-signal", [&] { Message(0, Ready{.iteration = 7}); });
}

class AheadLawsTest : public LawsTest {
 protected:
  AheadLawsTest() : LawsTest(plans::kAhead) {}
  static GroupFormed Passive(GroupId id) {
    GroupFormed formed = Group1();
    formed.id = id;
    formed.members[1].passive = true;
    return formed;
  }
};

// Group 2 was drawn before it and never forms.
TEST_F(AheadLawsTest, GroupsFormBeforeSignalsAndAnswerThoseWhoAreNotPassive) {
  Seen(Passive(3));
  BothReady();
  Message(0, Finished{.group = 3});
  Message(1, Finished{.group = 3});
  Seen(GroupEnded{.id = 3, .ok = true});
  Message(0, Ready{.iteration = 7});
  Breaks("one-signal", [&] { Message(1, Ready{.iteration = 7}); });
}

TEST_F(AheadLawsTest, GroupsOfAWorkerFormInOrder) {
  Seen(Passive(3));
  Message(0, Finished{.group = 3});
  Message(1, Finished{.group = 3});
  Breaks("group-order", [&] { Seen(Passive(2)); });
}

TEST_F(AheadLawsTest, NobodyWhoHasLeftIsPutIntoAGroup) {
  Seen(WorkerLeft{.rank = 1, .incarnation = 101, .why = LeftReason::kLost});
  Breaks("members", [&] { Seen(Passive(1)); });
}

TEST_F(AheadLawsTest, NothingIsSentBeforeItIsRecorded) {
  Seen(Passive(3));
  laws_.Sent({.incarnation = 100, .seq = 2, .body = Group{.id = 3}});
  GroupFormed alone = Group1();
  alone.id = 7;
  alone.members = {{.rank = 0, .weight = 1, .iteration = 6}};
  Message(0, Finished{.group = 3});
  Message(1, Finished{.group = 3});
  Seen(alone);
  Breaks("recorded-first",
         [&] { laws_.Sent({.incarnation = 101, .seq = 2, .body = Group{.id = 7}}); });
}

class ScheduleLawsTest : public LawsTest {
 protected:
  ScheduleLawsTest() : LawsTest(plans::kSchedule) {}
};

TEST_F(ScheduleLawsTest, ForAllWhoHaveJoined) {
  Seen(ScheduleSet{.first = 1, .members = {0, 1}, .hosts = {0, 0}});
  laws_.Sent({.incarnation = 100, .seq = 2, .body = Schedule{.first = 1}});
  Breaks("schedule", [&] { Seen(ScheduleSet{.first = 2, .members = {0, 1}, .hosts = {0, 0}}); });
  const GroupId next = 1 + kScheduleSpan;
  Breaks("schedule", [&] { Seen(ScheduleSet{.first = next, .members = {0}, .hosts = {0}}); });
}

TEST_F(ScheduleLawsTest, NothingIsSentBeforeItIsRecorded) {
  Message(0, Heartbeat{});
  Breaks("recorded-first",
         [&] { laws_.Sent({.incarnation = 100, .seq = 2, .body = Schedule{.first = 1}}); });
}

TEST_F(ScheduleLawsTest, NoGroupTrainsBesideIt) {
  BothReady();
  Breaks("schedule", [&] { Seen(Group1()); });
}

// Three workers, of whom 0 and 1 share a host: slot 0 puts 0 and 2 together, slot 1 0 and 1.
class ScheduleBookTest : public testing::Test {
 protected:
  void SetUp() override { book_.Set(1, {.first = 10, .members = {0, 1, 2}, .hosts = {0, 0, 1}}); }
  std::string Begins(Rank rank, GroupId id, const std::vector<Rank>& members) {
    Group group{.id = id, .members = {}};
    for (const Rank member : members) {
      group.members.push_back(
          {.rank = member, .incarnation = life_ + static_cast<Incarnation>(member), .weight = 0.5});
    }
    try {
      book_.Begins(1, rank, group);
    } catch (const Violation& violation) {
      return violation.invariant();
    }
    return "";
  }
  ScheduleBook book_;
  Incarnation life_ = 100;
};

TEST_F(ScheduleBookTest, GroupsAreTheSchedules) {
  EXPECT_EQ(Begins(0, 10, {0, 2}), "");
  EXPECT_EQ(Begins(2, 10, {2, 0}), "");
  EXPECT_EQ(Begins(0, 13, {0, 1}), "");
  EXPECT_EQ(Begins(0, 10, {0, 2}), "schedule");  // slots ascend
  EXPECT_EQ(Begins(1, 13, {1, 2}), "schedule");
  EXPECT_EQ(Begins(1, 9, {0, 1}), "schedule");  // of no schedule
  life_ = 200;                                  // the controller has forgotten that they were there
  EXPECT_EQ(Begins(0, 10, {0, 2}), "");
}

// Worker 1 sends worker 0 its updates; both are in iteration 4.
class NeighbourBookTest : public testing::Test {
 protected:
  NeighbourBookTest() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      world_.replicas[i].incarnation = Who(i);
      world_.replicas[i].iteration = 4;
    }
    Neighbourhood hood{.from = {0}, .own_weight = 0.5, .slots = 2, .at = 4};
    hood.in.push_back({.rank = 1, .incarnation = Who(1), .weight = 0.5});
    book_.Told(0, hood);
    book_.Enters(0, 4);
    for (const Iteration of : {3, 4, 5}) book_.Publishes(1, of);
  }
  static Incarnation Who(std::uint32_t worker) { return (Incarnation{7} << kWorkerBits) | worker; }
  void Mix(Iteration of, double weight) {
    book_.Mixes(0, 1 - weight, {{.from = Who(1), .iteration = of, .weight = weight}});
  }
  Workload workload_;
  World world_{workload_, 1};
  Stats stats_{8, false, 0};
  NeighbourBook book_{&world_, NeighbourPlan{}, &stats_};
};

TEST_F(NeighbourBookTest, AGoodIterationBreaksNothing) {
  book_.Pulls(0, Who(1), 1, 1);
  book_.Received(0, Who(1), 4);
  Mix(4, 0.5);
  book_.Answered(0, 5);
  book_.Enters(0, 5);
}

TEST_F(NeighbourBookTest, UpdatesAreOfTheIteration) {
  Breaks("update-age", [&] { Mix(3, 0.5); });
  Breaks("update-age", [&] { Mix(5, 0.5); });
  Breaks("update-weights", [&] { Mix(4, 0.4); });
  Breaks("update-count", [&] { book_.Mixes(0, 1, {}); });
}

TEST_F(NeighbourBookTest, WhatIsSentAndAveragedIsTheReplicaThatWasEnteredWith) {
  Breaks("recursion",
         [&] { book_.Mixes(0, 0.5, {{.from = Who(1), .iteration = 4, .weight = 0.5, .tag = 9}}); });
  book_.Enters(0, 4);
  world_.replicas[0].tag = 7;  // its gradient is applied too early
  Breaks("recursion", [&] { book_.Publishes(0, 4); });
  Breaks("recursion", [&] { Mix(4, 0.5); });
}

TEST_F(NeighbourBookTest, QueuesHaveSlots) {
  Breaks("queue", [&] { book_.Pulls(0, Who(1), 2, 2); });
}

TEST_F(NeighbourBookTest, AWorkerEntersWhatItWasAnsweredAndIsNotTooFarAhead) {
  Breaks("entry", [&] { book_.Enters(0, 5); });
  book_.Answered(0, 6);
  Breaks("in-edge", [&] { book_.Enters(0, 6); });
}

// Looks once per 10 ns, from 100 on.
// ---- what is trained ----

class TrainingLawsTest : public LawsTest {
 protected:
  explicit TrainingLawsTest(const Plan& plan = {}) : LawsTest(plan) {}
  void Tell(Rank rank, std::int64_t steps) { Message(rank, Progressed{.own = {.steps = steps}}); }
  void End(Rank rank) {
    Message(rank, Finish{});
    Seen(WorkerLeft{.rank = rank, .incarnation = Who(rank), .why = LeftReason::kFinished});
  }
  void Final(double weight, Iteration other = 5) {
    Seen(GroupFormed{.id = 1,
                     .kind = GroupKind::kFinal,
                     .members = {{.rank = 0, .weight = weight, .iteration = other},
                                 {.rank = 1, .weight = 1 - weight, .iteration = 5}},
                     .iteration = 5});
  }
};
class EqualTrainingLawsTest : public TrainingLawsTest {
 protected:
  EqualTrainingLawsTest() : TrainingLawsTest(plans::kGradients) {}
};

TEST_F(TrainingLawsTest, WhoStoppedLongBeforeDoesNotCount) {
  Tell(0, 100);
  Tell(1, 100);
  End(0);
  Tell(1, 111);
  End(1);
  Breaks("final-average", [&] { Final(0.5); });
}

TEST_F(TrainingLawsTest, WhoStoppedShortlyBeforeCounts) {
  Tell(0, 100);
  Tell(1, 100);
  End(0);
  Tell(1, 110);
  End(1);
  Breaks("final-average", [&] { Final(0); });
}

TEST_F(TrainingLawsTest, AGoodEndBreaksNothing) {
  Tell(0, 100);
  End(0);
  Tell(1, 106);
  End(1);
  Final(0);
}

TEST_F(EqualTrainingLawsTest, OfEqualReplicasTheNewestCount) {
  End(0);
  Tell(1, 106);
  End(1);
  Breaks("final-average", [&] { Final(0.5, 4); });
}

TEST_F(TrainingLawsTest, AGoalIsReachedOnce) {
  Seen(GoalReached{});
  Breaks("goal", [&] { Seen(GoalReached{}); });
}

TEST_F(TrainingLawsTest, WhatIsToldIsRecorded) {
  Tell(0, 3);
  const auto say = [&](std::int64_t steps, bool done) {
    laws_.Sent({.incarnation = 100,
                .seq = 2,
                .progress = {.trained = {.steps = steps}, .done = done},
                .body = Abort{}});
  };
  say(3, false);
  Breaks("recorded-first", [&] { say(4, false); });
  Breaks("recorded-first", [&] { say(3, true); });
}

class HangWatchTest : public testing::Test {
 protected:
  using Doing = HangWatch::Doing;
  using Workers = std::vector<HangWatch::Worker>;
  HangWatchTest() { watch_.Disturbed({100}); }
  HangWatch watch_{10};
};

TEST_F(HangWatchTest, WhoGetsNowhereInACallHangs) {
  EXPECT_EQ(watch_.due().ns, 100);
  EXPECT_FALSE(watch_.Hangs({{Doing::kWaits, 4, 9}, {Doing::kComputes, 7, 9}}));
  EXPECT_EQ(watch_.due().ns, 110);
  EXPECT_FALSE(watch_.Hangs({{Doing::kWaits, 5, 10}, {Doing::kComputes, 8, 10}}));
  EXPECT_EQ(watch_.due().ns, 120);
  EXPECT_TRUE(watch_.Hangs({{Doing::kWaits, 5, 10}, {Doing::kComputes, 9, 11}}));
}

TEST_F(HangWatchTest, LongStepsGiveTime) {
  EXPECT_FALSE(watch_.Hangs({{Doing::kWaits, 4, 9}}));
  watch_.Computed(5);
  EXPECT_EQ(watch_.due().ns, 130);
}

TEST_F(HangWatchTest, AFaultThatLastsPutsItOff) {
  EXPECT_FALSE(watch_.Hangs({{Doing::kWaits, 4, 9}}));
  watch_.Disturbed({105});
  EXPECT_EQ(watch_.due().ns, 105);
  EXPECT_FALSE(watch_.Hangs({{Doing::kWaits, 4, 9}}));
  EXPECT_EQ(watch_.due().ns, 115);
  EXPECT_TRUE(watch_.Hangs({{Doing::kWaits, 4, 9}}));
}

TEST_F(HangWatchTest, OthersMayWaitForWhoComputesOneStepAllTheTime) {
  const Workers slow = {{Doing::kWaits, 4, 9}, {Doing::kComputes, 3, 8}};
  EXPECT_FALSE(watch_.Hangs(slow));
  EXPECT_FALSE(watch_.Hangs(slow));
}

TEST_F(HangWatchTest, OnlyWhoFinishesMayWaitForWhoPauses) {
  const Workers finishes = {{Doing::kFinishes, 9, 9}, {Doing::kPauses, 3, 8}};
  EXPECT_FALSE(watch_.Hangs(finishes));
  EXPECT_FALSE(watch_.Hangs(finishes));
  const Workers waits = {{Doing::kWaits, 9, 9}, {Doing::kPauses, 3, 8}};
  EXPECT_FALSE(watch_.Hangs(waits));
  EXPECT_TRUE(watch_.Hangs(waits));
}

TEST_F(HangWatchTest, WhoFinishesWaitsForThoseWhoTrain) {
  EXPECT_FALSE(watch_.Hangs({{Doing::kFinishes, 9, 9}, {Doing::kWaits, 3, 8}}));
  EXPECT_FALSE(watch_.Hangs({{Doing::kFinishes, 9, 9}, {Doing::kWaits, 4, 9}}));
  EXPECT_FALSE(watch_.Hangs({{Doing::kFinishes, 9, 9}, {Doing::kThrough, 4, 9}}));
  EXPECT_TRUE(watch_.Hangs({{Doing::kFinishes, 9, 9}, {Doing::kThrough, 4, 9}}));
}

}  // namespace
}  // namespace prd::sim
