// The job around an engine without groups, which answers each signal with where its worker goes on:
// graphs and placements reach those whom they name, and who finished holds shards until it is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/all_reduce/options.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobExchangeTest : public JobTest {
 protected:
  void Start(const Plan& plan, int workers) {
    script_ = {};
    script_.plan = plan;
    Running(AllReduceOptions{}, workers, SpecFor(&script_));
    script_.heard.clear();
  }
  static JobSpec SpecFor(Script* script) {
    JobSpec spec;
    spec.make_engine = [script](const EngineOptions&) { return std::make_unique<Puppet>(script); };
    return spec;
  }
  void Next(std::vector<Effect> effects) { script_.next.push_back(std::move(effects)); }
  void BeReady(Rank rank, Iteration iteration) { Say(rank, Ready{.iteration = iteration}); }
  // Its signal is answered at once.
  void Enter(Rank rank, Iteration iteration, Iteration next) {
    Next({QueryAnswered{.rank = rank, .reason = "told", .next = next, .workers = 3}});
    BeReady(rank, iteration);
  }
  const Job::Worker& Worker(Rank rank) { return job_->workers()[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }
  std::string WhyEvicted() {
    return Recorded<WorkerLeft>() == nullptr ? "not evicted" : Recorded<WorkerLeft>()->reason;
  }

  Script script_;
};

TEST_F(JobExchangeTest, AnAnswerSaysWhereTheWorkerGoesOn) {
  for (const Plan& plan : {plans::kNeighbours, plans::kStore}) {
    Start(plan, 2);
    BeReady(0, 1);
    EXPECT_TRUE(Worker(0).signal);
    EXPECT_EQ(Worker(0).iteration, 0) << "until it is answered";
    EXPECT_EQ(job_->Explain({50}, 0), "as it is told");
    Next({QueryAnswered{.rank = 0, .reason = "told", .next = 1},
          QueryAnswered{.rank = 1, .reason = "told", .next = 7, .workers = 2}});
    BeReady(1, 1);
    EXPECT_EQ(Worker(0).iteration, 1);
    EXPECT_EQ(Worker(1).iteration, 7);
    EXPECT_FALSE(Worker(0).signal);
    ASSERT_NE(Sent<QueryReply>(1), nullptr);
    EXPECT_EQ(*Sent<QueryReply>(1),
              (QueryReply{.iteration = 1, .ready = false, .next = 7, .workers = 2}));
    ASSERT_NE(Recorded<QueryAnswered>(), nullptr);
    EXPECT_EQ(Recorded<QueryAnswered>()->next, 1);
  }
}

TEST_F(JobExchangeTest, ASignalAsksForTheIterationAfterItsOwn) {
  for (const Iteration wrong : {5, 7, 0}) {
    Start(plans::kNeighbours, 2);
    Enter(0, 1, 5);
    EXPECT_EQ(WhyEvicted(), "not evicted");
    BeReady(0, wrong);
    EXPECT_THAT(WhyEvicted(), HasSubstr("a ready signal for iteration")) << wrong;
  }
  Start(plans::kNeighbours, 2);
  Enter(0, 1, 5);
  BeReady(0, 6);
  EXPECT_EQ(WhyEvicted(), "not evicted");
  BeReady(0, 6);
  EXPECT_THAT(WhyEvicted(), HasSubstr("a ready signal while")) << "one stands";
}

TEST_F(JobExchangeTest, ANeighbourhoodGoesToItsWorkerWithAllThatAPeerNeeds) {
  Start(plans::kNeighbours, 3);
  Enter(1, 1, 4);
  const NeighboursSet set{.rank = 1,
                          .at = 6,
                          .in = {{.rank = 0, .weight = 0.25, .from = 2}},
                          .out = {0, 2},
                          .own_weight = 0.75,
                          .slots = 3,
                          .reason = "told"};
  Next({set});
  Say(2, Leave{.reason = "test"});
  const auto* hood = Sent<Neighbourhood>(1);
  ASSERT_NE(hood, nullptr);
  ASSERT_EQ(hood->in.size(), 1u);
  EXPECT_EQ(hood->in[0].incarnation, incarnation_[0]);
  EXPECT_EQ(hood->in[0].weight, 0.25);
  EXPECT_THAT(hood->in[0].endpoints, ElementsAre("tcp://127.0.0.1:1"));
  EXPECT_THAT(hood->from, ElementsAre(2));
  ASSERT_EQ(hood->out.size(), 2u);
  EXPECT_EQ(hood->own_weight, 0.75);
  EXPECT_EQ(hood->slots, 3u);
  EXPECT_EQ(hood->at, 6);
  EXPECT_EQ(Worker(1).iteration, 6) << "counted on from there";
  EXPECT_EQ(Sent<Neighbourhood>(0), nullptr);
  ASSERT_NE(Recorded<NeighboursSet>(), nullptr);
  EXPECT_EQ(*Recorded<NeighboursSet>(), set);
}

TEST_F(JobExchangeTest, APlacementGoesToAllMembersEachWithItsClock) {
  Start(plans::kStore, 3);
  Next({PlacementSet{.epoch = 2,
                     .members = {0, 2},
                     .at = {0, 3},
                     .shards = {{.owner = 2, .holders = {0}, .source = kNoRank}},
                     .reason = "told"},
        PlacementOpened{.epoch = 2, .members = {0, 2}}});
  Say(1, Leave{.reason = "test"});
  for (const Rank rank : {0, 2}) {
    ASSERT_NE(Sent<Placement>(rank), nullptr);
    EXPECT_EQ(Sent<Placement>(rank)->epoch, 2u);
    EXPECT_EQ(Sent<Placement>(rank)->members.size(), 2u);
    EXPECT_EQ(Sent<Placement>(rank)->shards[0].owner, 2);
    EXPECT_EQ(Sent<Placement>(rank)->at, rank == 2 ? 3 : 0);
    ASSERT_NE(Sent<Opened>(rank), nullptr);
    EXPECT_EQ(Sent<Opened>(rank)->epoch, 2u);
  }
  EXPECT_EQ(Worker(2).iteration, 3);
  EXPECT_NE(Recorded<PlacementSet>(), nullptr);
  EXPECT_NE(Recorded<PlacementOpened>(), nullptr);
}

TEST_F(JobExchangeTest, WhoFinishedPlacesAndLeavesItsShardsOnlyWhenItIsGone) {
  Start(plans::kStore, 3);
  Say(0, Finish{});
  EXPECT_THAT(Heard(), ElementsAre("left 0"));
  Say(0, Placed{.epoch = 4});
  EXPECT_THAT(Heard(), ElementsAre("placed 0 4"));
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  EXPECT_THAT(Heard(), ElementsAre("left 0")) << "its shards need another home";
  Say(1, Finish{});
  Say(2, Finish{});
  EXPECT_EQ(State(2), Job::State::kFinal);
  Heard();
  Say(2, Placed{.epoch = 5});
  EXPECT_THAT(Heard(), ElementsAre("placed 2 5")) << "they read once more before the average";
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  EXPECT_THAT(Heard(), ElementsAre("left 1"));
  EXPECT_NE(Sent<Abort>(2), nullptr);
}

TEST_F(JobExchangeTest, WhoFinishedAmongNeighboursIsToldOnce) {
  Start(plans::kNeighbours, 2);
  Say(0, Finish{});
  EXPECT_THAT(Heard(), ElementsAre("left 0"));
  Step(LeaseExpired{.rank = 0, .incarnation = incarnation_[0]});
  EXPECT_THAT(Heard(), IsEmpty());
}

TEST_F(JobExchangeTest, ShardsAreForJobsThatHaveThem) {
  Start(plans::kNeighbours, 2);
  Say(0, Placed{.epoch = 1});
  EXPECT_THAT(WhyEvicted(), HasSubstr("shards placed while"));
  ASSERT_NE(Sent<Refused>(0), nullptr);
}

TEST_F(JobExchangeTest, ALateWorkerCopiesAnybodysReplica) {
  Start(plans::kNeighbours, 2);
  Enter(0, 1, 1);
  Join(2);
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  Say(2, Adopted{.ok = true, .iteration = 1});
  EXPECT_EQ(State(2), Job::State::kActive);
  EXPECT_EQ(Heard().back(), "joined 2@1");
}

TEST_F(JobExchangeTest, AReplayEndsInTheSameState) {
  Start(plans::kStore, 3);
  Enter(0, 1, 1);
  BeReady(1, 1);
  Next({PlacementSet{.epoch = 1, .members = {0, 1}, .at = {1, 2}, .shards = {}, .reason = ""}});
  Say(2, Leave{.reason = "test"});
  Next({PlacementOpened{.epoch = 1, .members = {0, 1}}});
  Say(0, Placed{.epoch = 1});
  Script script{.plan = script_.plan, .next = script_.done};
  JobSpec spec = job_->spec();
  spec.make_engine = SpecFor(&script).make_engine;
  EXPECT_EQ(job_->workers()[1].iteration, 2);
  ExpectReplays(spec);
}

}  // namespace
}  // namespace prd
