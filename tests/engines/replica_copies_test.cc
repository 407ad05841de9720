#include "engines/replica_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A run that does nothing.
class NoActions final : public RunActions {
 public:
  void ToEngine(const Event&) override {}
  void DeliverReady(Rank) override {}
  void Activate(Rank, Iteration, const std::string&) override {}
  void Remove(Rank, LeftReason, const std::string&) override {}
  void TakeHeldStop(Rank) override {}
  void AdmitJoiners() override {}
  void EndCommonStart(Iteration, const std::vector<Rank>&, const std::vector<Rank>&) override {}
  std::string Explain(Instant, Rank) const override { return {}; }
};

class ReplicaCopiesTest : public testing::Test {
 protected:
  explicit ReplicaCopiesTest(Payload payload = Payload::kParameters)
      : plan_{.by = GroupPlan{.payload = payload}} {
    log_.Begin({1}, &out_);
  }
  // A worker that trains, with a replica of this iteration.
  void Add(Rank rank, Iteration iteration, const std::string& host = "a") {
    roster_.Grow(std::max(roster_.size(), rank + 1));
    const Hello hello{.host = host, .iteration = iteration};
    roster_.Enter(rank, {.incarnation = 10u + static_cast<Incarnation>(rank), .body = hello}, false,
                  {});
    roster_.SetState(rank, WorkerState::kActive);
    copies_.HasReplica(rank);
  }

  const JobSpec spec_;
  const Plan plan_;
  RunOutput out_;
  NoActions actions_;
  RunJournal log_{1};
  Roster roster_{&log_};
  RunContext run_{spec_, plan_, Engine::Joining::kAnytime, log_, roster_, actions_};
  LinkTable links_;
  DivergenceCheck divergence_{plan_, 0};
  ReadyQueue ready_{roster_.Of<ReadySlot>()};
  ReplicaCopies copies_{run_, &ready_, &divergence_, &links_};
};

class EqualReplicaCopiesTest : public ReplicaCopiesTest {
 protected:
  EqualReplicaCopiesTest() : ReplicaCopiesTest(Payload::kGradients) {}
};

TEST_F(ReplicaCopiesTest, PrefersReachableWorkersThatTrainOnItsHost) {
  Add(0, 5, "b");
  Add(1, 5, "a");
  Add(2, 5, "b");
  Add(3, 5, "b");
  EXPECT_EQ(copies_.SourceFor(3, kNoRank), 0);
  EXPECT_EQ(copies_.SourceFor(3, 0), 2);
  links_.Break(3, 0, {1}, "");
  roster_.SetState(2, WorkerState::kPaused);
  EXPECT_EQ(copies_.SourceFor(3, kNoRank), 1);
  copies_.Order(1, 0, "test");
  EXPECT_EQ(copies_.SourceFor(3, kNoRank), 2) << "a worker that copies is no source";
}

TEST_F(EqualReplicaCopiesTest, OnlyTheNewestReplicaWillDo) {
  Add(0, 5);
  Add(1, 6);
  Add(2, 4);
  EXPECT_EQ(copies_.Newest(), 6);
  EXPECT_EQ(copies_.SourceFor(2, kNoRank), 1);
  EXPECT_EQ(copies_.SourceFor(1, kNoRank), kNoRank);
}

TEST_F(ReplicaCopiesTest, AnOrderVoidsTheSignalAndTellsBothEnds) {
  Add(0, 5);
  Add(1, 5);
  ready_.Add(1, {.iteration = 6});
  copies_.Order(1, 0, "test");
  EXPECT_EQ(roster_[1].source, 0);
  EXPECT_FALSE(roster_[1].signal);
  EXPECT_TRUE(roster_[1].Held(ReadySlot::kForReplica));
  EXPECT_TRUE(copies_.Serves(0));
  ASSERT_EQ(out_.sends.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Announce>(out_.sends[0].envelope.body));
  EXPECT_TRUE(std::holds_alternative<Adopt>(out_.sends[1].envelope.body));
  EXPECT_EQ(copies_.End(1), 0);
  EXPECT_FALSE(copies_.Serves(0));
}

TEST_F(EqualReplicaCopiesTest, AWorkerThatIsBehindCopiesOrWaitsOrJoinsAnew) {
  Add(0, 6);
  Add(1, 5);
  Add(2, 5);
  copies_.CatchUp(1);
  EXPECT_EQ(roster_[1].source, 0);
  copies_.Order(0, 1, "test");  // the only one with a newer replica copies one itself
  copies_.CatchUp(2);
  EXPECT_EQ(roster_[2].source, kNoRank);
  EXPECT_EQ(copies_.again(), (Instant{1 + kSecond}));
  EXPECT_TRUE(copies_.Waits(2));
  EXPECT_THAT(copies_.WaitWords({1}, 2), HasSubstr("looks again in 1.0 s"));
  EXPECT_FALSE(copies_.AnyDue());
  log_.Begin({1 + kSecond}, &out_);
  EXPECT_TRUE(copies_.AnyDue());
  EXPECT_TRUE(copies_.Due(2));
  EXPECT_FALSE(copies_.Due(2));
  roster_.Leave(0);
  copies_.CatchUp(2);
  EXPECT_TRUE(copies_.any_behind());
  EXPECT_THAT(copies_.TakeBehind(), ElementsAre(2));
}

TEST_F(EqualReplicaCopiesTest, ACopyOfAWorkerThatHasGoneMayBeForked) {
  Add(0, 6);
  Add(1, 6);
  Add(2, 5);
  copies_.Order(2, 0, "test");
  EXPECT_FALSE(copies_.Forked(2, 6));
  copies_.SourceGone(0);
  roster_.Leave(0);
  EXPECT_TRUE(copies_.Forked(2, 6));
  EXPECT_FALSE(copies_.Forked(2, 5)) << "not the newest, whatever happened";
}

}  // namespace
}  // namespace prd
