// Every law is broken on purpose, once, and found under its name.
#include "tools/sim/laws.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "common/base/static_schedule.h"
#include "tests/plans.h"
#include "tools/sim/eager_rules.h"
#include "tools/sim/engine_watch.h"
#include "tools/sim/esync_rules.h"
#include "tools/sim/hop_rules.h"
#include "tools/sim/neighbour_book.h"
#include "tools/sim/prague_rules.h"
#include "tools/sim/schedule_book.h"
#include "tools/sim/ssp_rules.h"
#include "tools/sim/violation.h"

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
  template <typename F>
  void Breaks(const std::string& invariant, F&& what) {
    try {
      what();
      ADD_FAILURE() << invariant << " is not found broken";
    } catch (const Violation& violation) {
      EXPECT_EQ(violation.invariant(), invariant) << violation.what();
    }
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

TEST_F(LawsTest, MembersNeedASignal) {
  Message(0, Ready{.iteration = 6});
  Breaks("members", [&] { Seen(Group1()); });
}

TEST_F(LawsTest, MembersMustBeThere) {
  BothReady();
  Seen(WorkerLeft{.rank = 1, .incarnation = 101, .why = LeftReason::kLost});
  Breaks("members", [&] { Seen(Group1()); });
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
    for (const Rank member : members) group.members.push_back({.rank = member, .weight = 0.5});
    try {
      book_.Begins(1, rank, group);
    } catch (const Violation& violation) {
      return violation.invariant();
    }
    return "";
  }
  ScheduleBook book_;
};

TEST_F(ScheduleBookTest, GroupsAreTheSchedules) {
  EXPECT_EQ(Begins(0, 10, {0, 2}), "");
  EXPECT_EQ(Begins(2, 10, {2, 0}), "");
  EXPECT_EQ(Begins(0, 13, {0, 1}), "");
  EXPECT_EQ(Begins(0, 10, {0, 2}), "schedule");  // slots ascend
  EXPECT_EQ(Begins(1, 13, {1, 2}), "schedule");
  EXPECT_EQ(Begins(1, 9, {0, 1}), "schedule");  // of no schedule
}

// An engine that does as it is told.
class Puppet final : public Engine {
 public:
  explicit Puppet(std::vector<FormGroup>* next) : next_(next) {}
  Plan plan() const override { return {}; }
  void Step(Instant, const Event&, GroupId* next_group, Effects* out) override {
    for (FormGroup& group : *next_) {
      group.id = (*next_group)++;
      out->push_back(group);
    }
    next_->clear();
  }
  std::optional<Instant> NextDeadline() const override { return std::nullopt; }
  std::string Explain(Instant, Rank) const override { return ""; }
  void Archive(StateArchive&) override {}

 private:
  std::vector<FormGroup>* next_;
};

// P-Reduce's rules over a puppet: what it forms after all of `ready` have signalled.
std::string PReduceBreaks(const PReduceOptions& options, int workers,
                          const std::vector<std::vector<Rank>>& groups,
                          const std::vector<Rank>& order) {
  std::vector<FormGroup> next;
  EngineWatch watch(std::make_unique<Puppet>(&next), options);
  GroupId id = 1;
  Effects effects;
  try {
    for (Rank rank = 0; rank < workers; ++rank) {
      watch.Step({0}, JoinedEvent{.rank = rank, .host = "h"}, &id, &effects);
    }
    std::size_t formed = 0;
    std::size_t waiting = 0;
    for (const Rank rank : order) {
      ++waiting;
      if (formed < groups.size() && waiting >= groups[formed].size()) {
        FormGroup& group = next.emplace_back();
        for (const Rank member : groups[formed]) group.members.push_back({.rank = member});
        waiting -= groups[formed].size();
        ++formed;
      }
      effects.clear();
      watch.Step({1}, ReadyEvent{.rank = rank, .ready = {.iteration = 1}}, &id, &effects);
      for (const FormGroup& group : GroupsOf(effects)) {
        Effects none;
        for (const GroupShare& share : group.members) {
          watch.Step({2}, FinishedEvent{.rank = share.rank, .group = group.id, .ok = true}, &id,
                     &none);
        }
      }
    }
  } catch (const Violation& violation) {
    return violation.invariant();
  }
  return "";
}

constexpr PReduceOptions kPairs{.group_size = 2, .history_window = 3};

TEST(PReduceRules, FirstComeFirstGrouped) {
  EXPECT_EQ(PReduceBreaks(kPairs, 4, {{0, 1}, {2, 3}}, {0, 1, 2, 3}), "");
  EXPECT_EQ(PReduceBreaks(kPairs, 4, {{0, 1, 2}}, {0, 1, 2}), "no-idle-queue");
  EXPECT_EQ(PReduceBreaks(kPairs, 4, {{3, 3}}, {0, 1}), "members");
  EXPECT_EQ(PReduceBreaks(kPairs, 4, {}, {0, 1}), "no-idle-queue");
}

// Four workers, P = 2, T = 3: 0 with 1 and 2 with 3 for three groups is a split window; then a
// group that keeps it split may not form while one of the other side waits.
TEST(PReduceRules, ASplitWindowIsBridged) {
  const std::vector<std::vector<Rank>> frozen = {{0, 1}, {2, 3}, {0, 1}};
  std::vector<Rank> order = {0, 1, 2, 3, 0, 1};
  auto groups = frozen;
  groups.push_back({0, 2});
  order.insert(order.end(), {0, 2});
  EXPECT_EQ(PReduceBreaks(kPairs, 4, groups, order), "");
  groups = frozen;
  groups.push_back({2, 3});  // nobody of the other side waits: as good as it gets
  order = {0, 1, 2, 3, 0, 1, 2, 3};
  EXPECT_EQ(PReduceBreaks(kPairs, 4, groups, order), "");
}

TEST(AllReduceRules, ARoundHasEverybody) {
  std::vector<FormGroup> next;
  EngineWatch watch(std::make_unique<Puppet>(&next), AllReduceOptions{});
  GroupId id = 1;
  Effects effects;
  for (Rank rank = 0; rank < 2; ++rank) {
    watch.Step({0}, JoinedEvent{.rank = rank, .host = "h"}, &id, &effects);
  }
  next.push_back({.members = {{.rank = 0}}});
  EXPECT_THROW(watch.Step({1}, ReadyEvent{.rank = 0}, &id, &effects), Violation);
}

// Prague's smart generator on one host, groups of two, threshold 2; all but rank 3 have requested a
// group, and had it.
class PragueRulesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (Rank rank = 0; rank < 4; ++rank) Tell(JoinedEvent{.rank = rank, .host = "h"}, {});
    EXPECT_EQ(Tell(ReadyEvent{.rank = 0}, {{0, 1}, {2, 3}}), "");
    for (const Rank rank : {1, 2}) EXPECT_EQ(Tell(ReadyEvent{.rank = rank}, {}), "");
    for (Rank rank = 0; rank < 4; ++rank) {
      Tell(FinishedEvent{.rank = rank, .group = rank < 2 ? 1u : 2u, .ok = true}, {});
    }
  }
  // What is broken when the engine, told of this, draws these groups.
  std::string Tell(const Event& event, const std::vector<std::vector<Rank>>& groups) {
    Effects effects;
    std::vector<Engine::Drawn> drawn;
    for (const std::vector<Rank>& members : groups) {
      std::vector<GroupShare> shares;
      for (const Rank rank : members) shares.push_back({.rank = rank, .weight = 0.5});
      const bool waits = drawn.empty() && !effects.empty();  // one of each
      if (waits) drawn.push_back({.id = next_++, .members = shares});
      if (!waits) effects.emplace_back(FormGroup{.id = next_++, .members = shares});
    }
    try {
      rules_.Check({0}, event, effects, 4);
      rules_.CheckDrawn(drawn);
      if (!drawn.empty()) Form(drawn.front());
    } catch (const Violation& violation) {
      return violation.invariant();
    }
    return "";
  }
  void Form(const Engine::Drawn& drawn) {
    const Effects effects = {FormGroup{.id = drawn.id, .members = drawn.members}};
    rules_.Check({0}, DeadlineEvent{}, effects, 4);
    rules_.CheckDrawn({});
  }

  GroupId next_ = 1;
  PragueRules rules_{PragueOptions{.group_size = 2, .slowdown_threshold = 2}};
};

TEST_F(PragueRulesTest, ADivisionHasAllWhoAreIdleAndFast) {
  EXPECT_EQ(Tell(ReadyEvent{.rank = 0}, {{0, 1, 2}}), "");
  EXPECT_EQ(Tell(ReadyEvent{.rank = 1}, {{1, 3}}), "division");  // it has a group
}

TEST_F(PragueRulesTest, NobodyIdleIsLeftOut) {
  EXPECT_EQ(Tell(ReadyEvent{.rank = 0}, {{0, 1}}), "division");
}

TEST_F(PragueRulesTest, NobodySlowIsDivided) {
  EXPECT_EQ(Tell(ReadyEvent{.rank = 0}, {{0, 1}, {2, 3}}), "slow-worker");
}

TEST_F(PragueRulesTest, ASlowOneDividesAll) {
  EXPECT_EQ(Tell(ReadyEvent{.rank = 3}, {{0, 3}, {1, 2}}), "");
}

// Two workers of esync, whose iterations take 10 and 100 ms. They have reduced once, at 101 ms.
class EsyncRulesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (Rank rank = 0; rank < 2; ++rank) Tell(0, JoinedEvent{.rank = rank, .host = "h"});
    Query(10, 0, 1, true);
    Query(100, 1, 1, true);
    Barrier(100, 0, 1);
    Barrier(100, 1, 1, {Both(1)});
    for (Rank rank = 0; rank < 2; ++rank) {
      Tell(101, FinishedEvent{.rank = rank, .group = 1, .ok = true});
    }
    Tell(101, EndedEvent{.group = 1, .ok = true});
  }
  static FormGroup Both(GroupId id) {
    FormGroup group;
    group.id = id;
    group.members = {{.rank = 0, .weight = 0.5}, {.rank = 1, .weight = 0.5}};
    return group;
  }
  void Tell(std::int64_t ms, const Event& event, const Effects& effects = {}) {
    rules_.Check({ms * kMillisecond}, event, effects, 2);
  }
  static Event Signal(Rank rank, std::uint32_t steps, bool waiting) {
    return ReadyEvent{.rank = rank,
                      .ready = {.iteration = 1, .waiting = waiting, .local_steps = steps}};
  }
  void Query(std::int64_t ms, Rank rank, std::uint32_t steps, std::optional<bool> ready) {
    Effects effects;
    if (ready) effects.emplace_back(Answer{.rank = rank, .ready = *ready});
    Tell(ms, Signal(rank, steps, false), effects);
  }
  void Barrier(std::int64_t ms, Rank rank, std::uint32_t steps, const Effects& effects = {}) {
    Tell(ms, Signal(rank, steps, true), effects);
  }
  std::string Broken(std::function<void()> what) {
    try {
      what();
    } catch (const Violation& violation) {
      return violation.invariant();
    }
    return "";
  }

  EsyncRules rules_{EsyncOptions{.margin_ms = 1, .stall_factor = 2}};
};

TEST_F(EsyncRulesTest, WhoIsReadyWaitsLessThanAnIteration) {
  Query(191, 0, 9, true);
  Barrier(191, 0, 9);
  Query(201, 1, 1, true);
  EXPECT_EQ(Broken([&] { Barrier(201, 1, 1, {Both(2)}); }), "");
}

TEST_F(EsyncRulesTest, AnotherIterationOfTheSlowestIsNotWaitedFor) {
  Query(191, 0, 9, true);
  Barrier(191, 0, 9);
  Query(201, 1, 1, std::nullopt);  // it is not told that it is ready
  Query(301, 1, 2, true);
  EXPECT_EQ(Broken([&] { Barrier(301, 1, 2, {Both(2)}); }), "wait");
}

TEST_F(EsyncRulesTest, WhatOthersAreOffIsAllowed) {
  Query(191, 0, 9, true);
  Barrier(191, 0, 9);
  Query(301, 1, 1, true);  // its iteration has taken twice as long
  EXPECT_EQ(Broken([&] { Barrier(301, 1, 1, {Both(2)}); }), "");
}

TEST_F(EsyncRulesTest, NobodyIsAwaitedWhoIsOverdue) {
  Query(191, 0, 9, true);
  Barrier(191, 0, 9);
  const Event nothing = LeftEvent{.rank = 7};  // passes time
  for (const int ms : {300, 302, 310}) EXPECT_EQ(Broken([&] { Tell(ms, nothing); }), "");
  EXPECT_EQ(Broken([&] { Tell(320, nothing); }), "stall");
}

// A majority's round begins with the arrival of the worker that the seed says, and of nobody else.
TEST(EagerRules, TheInitiatorIsTheOneDrawn) {
  int drawn = 0;
  for (std::int64_t seed = 0; seed < 60; ++seed) {
    const auto broken = [&](bool starts) -> std::string {
      EagerRules rules(EagerOptions{.quorum = EagerOptions::kMajority, .seed = seed});
      Effects effects;
      FormGroup round;
      round.id = round.iteration = 1;
      round.kind = GroupKind::kRound;
      for (Rank rank = 0; rank < 3; ++rank) {
        rules.Check({0}, JoinedEvent{.rank = rank, .host = "h"}, {}, rank + 1);
        round.members.push_back({.rank = rank, .weight = rank == 0 ? 1.0 / 3 : 0});
      }
      if (starts) effects.emplace_back(round);
      try {
        rules.Check({1},
                    ReadyEvent{.rank = 0, .ready = {.iteration = 1, .waiting = true}, .owed = 1},
                    effects, 3);
      } catch (const Violation& violation) {
        return violation.invariant();
      }
      return "";
    };
    const bool first = broken(true).empty();
    drawn += int{first};
    EXPECT_EQ(broken(true), first ? "" : "initiator") << seed;
    EXPECT_EQ(broken(false), first ? "quorum" : "") << seed;
  }
  EXPECT_GT(drawn, 8);  // 20 of 60 are expected
  EXPECT_LT(drawn, 34);
}

template <typename F>
void Breaks(const std::string& invariant, F&& what) {
  try {
    what();
    ADD_FAILURE() << invariant << " is not found broken";
  } catch (const Violation& violation) {
    EXPECT_EQ(violation.invariant(), invariant) << violation.what();
  }
}

// Two neighbours with equal weights.
class HopRulesTest : public testing::Test {
 protected:
  HopRulesTest() {
    for (Rank rank = 0; rank < 2; ++rank) Check(JoinedEvent{.rank = rank}, {});
    Check(DeadlineEvent{}, {Told(0, 0.5), Told(1, 0.5)});
  }
  static NeighboursSet Told(Rank rank, double weight) {
    return {.rank = rank,
            .in = {{.rank = 1 - rank, .weight = weight}},
            .out = {1 - rank},
            .own_weight = 1 - weight,
            .slots = 3};
  }
  void Check(const Event& event, const Effects& effects) {
    rules_.Check(Instant{}, event, effects, 2);
  }
  void LetIn(Rank rank, Iteration next) {
    Check(ReadyEvent{.rank = rank, .ready = {}}, {Answer{.rank = rank, .next = next}});
  }
  HopRules rules_{HopOptions{.graph = {.kind = Graph::Kind::kRing, .edges = {}},
                             .max_iteration_gap = 2,
                             .backups = 1,
                             .max_jump = 3}};
};

TEST_F(HopRulesTest, TokensRunOut) {
  LetIn(0, 1);
  LetIn(0, 2);
  Breaks("gap", [&] { LetIn(0, 3); });
}

TEST_F(HopRulesTest, NobodySkipsPastWhoGetsItsUpdates) {
  LetIn(0, 1);
  LetIn(0, 2);
  Breaks("jump", [&] { LetIn(1, 3); });
}

TEST_F(HopRulesTest, WeightsSumToOneBothWays) {
  Breaks("graph", [&] { Check(DeadlineEvent{}, {Told(0, 0.25), Told(1, 0.5)}); });
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

TEST_F(NeighbourBookTest, QueuesHaveSlots) {
  Breaks("queue", [&] { book_.Pulls(0, Who(1), 2, 2); });
}

TEST_F(NeighbourBookTest, AWorkerEntersWhatItWasAnsweredAndIsNotTooFarAhead) {
  Breaks("entry", [&] { book_.Enters(0, 5); });
  book_.Answered(0, 6);
  Breaks("in-edge", [&] { book_.Enters(0, 6); });
}

class SspRulesTest : public testing::Test {
 protected:
  SspRulesTest() {
    for (Rank rank = 0; rank < 2; ++rank) Check(JoinedEvent{.rank = rank}, {});
    Check(DeadlineEvent{},
          {Placed(1, {{.owner = 0, .holders = {1}}, {.owner = 1, .holders = {0}}})});
  }
  static PlacementSet Placed(std::uint64_t epoch, std::vector<ShardPlace> places) {
    PlacementSet set{.epoch = epoch, .members = {0, 1}, .at = {0, 0}};
    set.shards = SharedList<ShardPlace>(std::move(places));
    return set;
  }
  void Check(const Event& event, const Effects& effects) {
    rules_.Check(Instant{}, event, effects, 2);
  }
  void LetOn(Iteration next) {
    Check(ReadyEvent{.rank = 0, .ready = {}}, {Answer{.rank = 0, .next = next, .workers = 2}});
  }
  SspRules rules_{SspOptions{.staleness = 1}};
};

TEST_F(SspRulesTest, NobodyIsMoreThanSAhead) {
  LetOn(1);
  Breaks("bound", [&] { LetOn(2); });
}

TEST_F(SspRulesTest, WhoMayGoOnIsLetOn) {
  Breaks("bound", [&] { Check(ReadyEvent{.rank = 0, .ready = {}}, {}); });
}

TEST_F(SspRulesTest, ClocksGoOnOneByOne) {
  Breaks("clocks", [&] { LetOn(2); });
}

TEST_F(SspRulesTest, ShardsHaveTheirCopiesAndAllMembersTheirShards) {
  Breaks("placement", [&] {
    Check(DeadlineEvent{},
          {Placed(2, {{.owner = 0, .holders = {}}, {.owner = 1, .holders = {0}}})});
  });
  Breaks("placement", [&] {
    Check(DeadlineEvent{},
          {Placed(3, {{.owner = 0, .holders = {1}}, {.owner = 0, .holders = {1}}})});
  });
  Breaks("opened", [&] {
    Check(DeadlineEvent{}, {PlacementOpened{.epoch = 3, .members = {0, 1}}});
  });
}

}  // namespace
}  // namespace prd::sim
