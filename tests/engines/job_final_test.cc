// The replicas that count in the final average, under every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/registry.h"
#include "tests/engines/job_testing.h"

namespace prd {
namespace {

using testing::HasSubstr;

class JobFinalTest : public JobTest {
 protected:
  void Tell(Rank rank, std::int64_t steps) { Say(rank, Progressed{.own = {.steps = steps}}); }
  void Lose(Rank rank) { Step(LeaseExpired{.rank = rank, .incarnation = incarnation_[rank]}); }
  // Of the final group that the last step has announced, by rank.
  std::vector<double> Weights() {
    const auto* formed = Recorded<GroupFormed>();
    if (formed == nullptr || formed->kind != GroupKind::kFinal) return {};
    std::vector<double> weights(job_->workers().size());
    for (const GroupShare& share : formed->members) {
      weights[static_cast<std::size_t>(share.rank)] = share.weight;
      const Group* sent = Sent<Group>(share.rank);
      EXPECT_NE(sent, nullptr);
      if (sent == nullptr) continue;
      for (const GroupMember& member : sent->members) {
        EXPECT_TRUE(member.rank != share.rank || member.weight == share.weight);
      }
    }
    return weights;
  }
  std::string Reason() {
    const auto* formed = Recorded<GroupFormed>();
    return formed == nullptr ? "" : formed->reason;
  }
};

class JobFinalOfTest : public JobFinalTest, public testing::WithParamInterface<EngineOptions> {
 protected:
  bool Equal() { return ReplicasAreEqual(job_->engine().plan()); }
};

// One stops at a quarter, waits, and takes what the others end with.
TEST_P(JobFinalOfTest, WhoStoppedLongBeforeTakesTheAverageOfTheOthers) {
  Running(GetParam(), 4);
  for (Rank r = 0; r < 4; ++r) Tell(r, 100);
  Say(1, Finish{});
  for (const Rank r : {0, 2, 3}) Tell(r, 400);
  for (const Rank r : {0, 2, 3}) Say(r, Finish{});
  if (Equal()) {
    EXPECT_EQ(Weights(), (std::vector<double>{0.25, 0.25, 0.25, 0.25}))
        << "all have the same iteration";
    EXPECT_EQ(Reason(), "final average of all 4 workers");
  } else {
    EXPECT_EQ(Weights(), (std::vector<double>{1.0 / 3, 0, 1.0 / 3, 1.0 / 3}));
    EXPECT_EQ(Reason(),
              "final average of ranks 0, 2, 3; rank 1 stopped 900 steps before and takes it");
  }
  for (Rank r = 0; r < 4; ++r) Done(r);
  EXPECT_TRUE(job_->ended());
  ExpectReplays(job_->spec());
}

// Workers that end one after another, each at its own step, all count.
TEST_P(JobFinalOfTest, WhoStopsShortlyBeforeTheOthersCounts) {
  Running(GetParam(), 4);
  for (Rank r = 0; r < 4; ++r) Tell(r, 100);
  Say(1, Finish{});
  for (const Rank r : {0, 2, 3}) Tell(r, 102);
  for (const Rank r : {0, 2, 3}) Say(r, Finish{});
  EXPECT_EQ(Weights(), (std::vector<double>{0.25, 0.25, 0.25, 0.25})) << Reason();
}

// The others have gone since, with all that they had learned.
TEST_P(JobFinalOfTest, WhoIsLeftCounts) {
  Running(GetParam(), 3);
  Say(1, Finish{});
  for (const Rank r : {0, 2}) Tell(r, 400);
  Say(0, Leave{.reason = "has enough"});
  Say(2, Finish{});
  EXPECT_EQ(Weights(),
            Equal() ? (std::vector<double>{0, 0.5, 0.5}) : (std::vector<double>{0, 0, 1}));
  Lose(2);
  Done(1, Outcome::kAborted);
  EXPECT_EQ(Weights(), (std::vector<double>{0, 1, 0})) << Reason();
}

INSTANTIATE_TEST_SUITE_P(All, JobFinalOfTest, testing::ValuesIn(AllEngines()), [](const auto& of) {
  std::string name(EngineName(of.param));
  std::erase(name, '-');
  return name;
});

// Where replicas are equal by design, the newest iteration counts alone.
TEST_F(JobFinalTest, OfEqualReplicasTheNewestCount) {
  Running(AllReduceOptions{}, 4);
  const auto round = [this](Iteration iteration, std::vector<Rank> ranks) {
    for (const Rank r : ranks) Say(r, Ready{.iteration = iteration});
    for (const Rank r : ranks) Done(r);
  };
  round(1, {0, 1, 2, 3});
  Say(1, Finish{});
  round(2, {0, 2, 3});
  Say(3, Finish{});
  round(3, {0, 2});
  Say(0, Finish{});
  Say(2, Finish{});
  EXPECT_EQ(Weights(), (std::vector<double>{0.5, 0, 0.5, 0}));
  EXPECT_EQ(Recorded<GroupFormed>()->iteration, 3);
  EXPECT_EQ(
      Reason(),
      "final average of ranks 0, 2; ranks 1, 3 stopped up to 2 iterations before and take it");
  Done(0);
  Done(2);
  Done(3);
  Done(1, Outcome::kFailed);
  ASSERT_NE(Sent<Adopt>(1), nullptr) << "what did not get there is copied";
  ExpectReplays(job_->spec());
}

// Between two reports a worker may make steps that nobody knows of: they are no steps of others.
TEST_F(JobFinalTest, StepsThatAreToldTogetherAreNotLong) {
  const auto ends = [this](const EngineOptions& engine, std::int64_t more) {
    Running(engine, 2);
    Say(0, Finish{});
    Tell(1, more);
    Say(1, Finish{});
    return Weights();
  };
  const std::vector<double> both{0.5, 0.5};
  const std::vector<double> last{0, 1};
  EXPECT_EQ(ends(PReduceOptions{}, 4), both);
  EXPECT_EQ(ends(PReduceOptions{}, 5), last);
  const PReduceOptions ahead{.overlap = true, .overlap_steps = 3};
  EXPECT_EQ(ends(ahead, 16), both);
  EXPECT_EQ(ends(ahead, 17), last);
  const PragueOptions sections{.generator = PragueOptions::Generator::kStatic, .section_length = 5};
  EXPECT_EQ(ends(sections, 20), both);
  EXPECT_EQ(ends(sections, 21), last);
}

// Of a long run a longer part: workers that make the same number of steps, one a little faster, end
// together.
TEST_F(JobFinalTest, ATwentiethOfTheRunIsNotLong) {
  for (const std::int64_t more : {500, 527}) {
    Running(PReduceOptions{}, 2);
    Tell(0, 5000);
    Tell(1, 5000);
    Say(0, Finish{});
    Tell(1, 5000 + more);
    Say(1, Finish{});
    EXPECT_EQ(Weights()[0], more == 500 ? 0.5 : 0) << more;
  }
}

// Steps of a job before this run do not make this run's end longer.
TEST_F(JobFinalTest, OnlyThisRunsStepsCount) {
  Make(PReduceOptions{}, 2);
  for (Rank r = 0; r < 2; ++r) {
    WorkerEnvelope hello = HelloOf(r);
    std::get<Hello>(hello.body).job_trained = {.steps = 1'000'000};
    incarnation_[r] = hello.incarnation;
    seq_[r] = 1;
    Step(FromWorker{hello});
  }
  for (Rank r = 0; r < 2; ++r) Done(r);
  Say(0, Finish{});
  Tell(1, 100);
  Say(1, Finish{});
  EXPECT_THAT(Reason(), HasSubstr("rank 0 stopped 100 steps before"));
}

}  // namespace
}  // namespace prd
