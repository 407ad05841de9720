// Replicas that are to be equal and are compared, and steps that were not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/job_limits.h"
#include "engines/registry.h"
#include "tests/engines/job_testing.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobReplicasTest : public JobTest {
 protected:
  void Later(std::int64_t ms) { now_ += ms * kMillisecond; }
  // A group of all ranks here, after which they tell these digests.
  void Train(Iteration iteration, const std::vector<std::uint64_t>& digests) {
    std::vector<Rank> here;
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const auto rank = static_cast<Rank>(i);
      if (State(rank) == Job::State::kActive) here.push_back(rank);
    }
    for (const Rank rank : here) Say(rank, Ready{.iteration = iteration});
    ASSERT_NE(Sent<Group>(here.front()), nullptr);
    asked_ = Sent<Group>(here.front())->digest;
    for (const Rank rank : here) Tell(rank, digests[static_cast<std::size_t>(rank)]);
  }
  void Tell(Rank rank, std::uint64_t digest, Outcome outcome = Outcome::kOk) {
    const GroupId group = job_->workers()[static_cast<std::size_t>(rank)].group;
    Say(rank, Finished{.group = group, .outcome = outcome, .digest = digest});
  }
  std::vector<Rank> Differ() { return job_->divergence().ranks; }
  static JobSpec Repairs() {
    JobSpec spec;
    spec.on_divergence = JobSpec::OnDivergence::kRepair;
    return spec;
  }
  bool asked_ = false;
};

TEST_F(JobReplicasTest, TheyAreComparedOnceInAPeriod) {
  JobSpec spec;
  spec.check_replicas_ms = 100;
  Running(AllReduceOptions{}, 2, spec);
  Train(1, {7, 7});
  EXPECT_TRUE(asked_);
  Train(2, {0, 0});
  EXPECT_FALSE(asked_);
  Later(99);
  Train(3, {0, 0});
  EXPECT_FALSE(asked_);
  Later(1);
  Train(4, {8, 8});
  EXPECT_TRUE(asked_);
  EXPECT_THAT(Differ(), IsEmpty());
  for (const Record& record : history_) {
    EXPECT_FALSE(std::holds_alternative<ReplicasDiffer>(record.body)) << "all were equal";
  }
  ExpectReplays(job_->spec());

  spec.check_replicas_ms = 0;
  Running(AllReduceOptions{}, 2, spec);
  Train(1, {0, 0});
  EXPECT_FALSE(asked_);
  Running(AllReduceOptions{}, 1);
  Train(1, {0});
  EXPECT_FALSE(asked_) << "with nobody";
  Running(PReduceOptions{.group_size = 2}, 2);
  Train(1, {0, 0});
  EXPECT_FALSE(asked_) << "they differ by design";
}

// Told when it begins, when it is another's, and when it is over.
TEST_F(JobReplicasTest, WhoDiffersIsNamedOnce) {
  Running(AllReduceOptions{}, 4);
  Train(1, {7, 9, 7, 7});
  const auto* differ = Recorded<ReplicasDiffer>();
  ASSERT_NE(differ, nullptr);
  EXPECT_THAT(differ->ranks, ElementsAre(1));
  EXPECT_EQ(differ->group, 2u);
  EXPECT_EQ(differ->iteration, 1);
  EXPECT_THAT(differ->reason, HasSubstr("rank 1 has other parameters than ranks 0, 2, 3, since "
                                        "group 2 (iteration 1)"));
  EXPECT_THAT(differ->reason, HasSubstr("Replica::state"));
  EXPECT_EQ(Sent<Adopt>(1), nullptr) << "warn is the default";
  Later(3000);
  EXPECT_THAT(job_->Explain({now_}, 1), HasSubstr("; rank 1's parameters differ from those of "
                                                  "most members since group 2 (3.0 s ago), and are "
                                                  "equal again after the final average"));
  EXPECT_THAT(job_->Explain({now_}, 0), testing::Not(HasSubstr("differ")));
  Later(3000);
  Train(2, {17, 19, 17, 17});
  EXPECT_EQ(Recorded<ReplicasDiffer>(), nullptr) << "nothing new";
  Later(5000);
  Train(3, {27, 29, 27, 28});
  differ = Recorded<ReplicasDiffer>();
  ASSERT_NE(differ, nullptr);
  EXPECT_THAT(differ->ranks, ElementsAre(1, 3));
  EXPECT_THAT(differ->reason, HasSubstr("ranks 1, 3 have other parameters than ranks 0, 2, since "
                                        "group 2"));
  Later(5000);
  Train(4, {37, 37, 37, 37});
  differ = Recorded<ReplicasDiffer>();
  ASSERT_NE(differ, nullptr);
  EXPECT_THAT(differ->ranks, IsEmpty());
  EXPECT_THAT(differ->reason, HasSubstr("some were not since group 2"));
  EXPECT_THAT(Differ(), IsEmpty());
  ExpectReplays(job_->spec());
}

// What differs would spread.
TEST_F(JobReplicasTest, WhoDiffersIsNoSourceOfCopiesWhileOthersAre) {
  Running(AllReduceOptions{}, 3);
  Train(1, {9, 7, 7});
  EXPECT_THAT(Differ(), ElementsAre(0));
  Join(3);
  ASSERT_NE(Sent<Adopt>(3), nullptr);
  EXPECT_EQ(Sent<Adopt>(3)->source.rank, 1);
}

// Its engine does not know that it copies a replica, and finds it late.
TEST_F(JobReplicasTest, WhoIsRepairedAndLateCopiesOneReplicaAtATime) {
  Running(BackupOptions{.backups = 1}, 4, Repairs());
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  Tell(0, 7);
  Tell(1, 9);
  Tell(2, 7);
  ASSERT_NE(Sent<Adopt>(1), nullptr) << "to repair it";
  ASSERT_NE(Sent<Adopt>(3), nullptr) << "it was late";
  Say(3, Adopted{.ok = true, .iteration = 1});
  for (const Rank r : {0, 2, 3}) Say(r, Ready{.iteration = 2});
  for (const Rank r : {0, 2, 3}) Tell(r, 0);
  ASSERT_NE(Recorded<UpdateDropped>(), nullptr);
  EXPECT_EQ(Recorded<UpdateDropped>()->rank, 1);
  EXPECT_EQ(Sent<Adopt>(1), nullptr) << "it copies already";
  Say(1, Adopted{.ok = true, .iteration = 1});
  Say(1, Ready{.iteration = 2});
  ASSERT_NE(Sent<Adopt>(1), nullptr) << "what it copied is old by now";
  Say(1, Adopted{.ok = true, .iteration = 2});
  Say(1, Ready{.iteration = 3});
  EXPECT_EQ(State(1), Job::State::kActive);
  ExpectReplays(job_->spec());
}

TEST_F(JobReplicasTest, OfTwoHalvesTheLowestRanksCounts) {
  Running(AllReduceOptions{}, 4);
  Train(1, {9, 7, 7, 9});
  EXPECT_THAT(Differ(), ElementsAre(1, 2));
}

// A worker without a digest is not compared, nor is one that has gone since.
TEST_F(JobReplicasTest, OnlyThoseWhoTellAreCompared) {
  Running(AllReduceOptions{}, 3);
  Train(1, {7, 0, 9});
  EXPECT_THAT(Differ(), ElementsAre(2));
  Later(5000);
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 2});
  Tell(0, 7);
  Tell(2, 9);
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  ASSERT_NE(Recorded<ReplicasDiffer>(), nullptr);
  EXPECT_EQ(Recorded<ReplicasDiffer>()->reason, "rank 2, whose replica differed, is gone");
  Tell(1, 8, Outcome::kAborted);
  EXPECT_THAT(Differ(), IsEmpty()) << "rank 0 is alone";
  ExpectReplays(job_->spec());
}

// As a member for whom the group failed: it copies before its next signal gets to the engine.
TEST_F(JobReplicasTest, ARepairCopiesAReplicaOfTheMajority) {
  Running(AllReduceOptions{}, 3, Repairs());
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  Tell(0, 9);
  Say(0, Ready{.iteration = 2});
  EXPECT_THAT(job_->Explain({now_}, 0), HasSubstr("held back until all members of group 2 have "
                                                  "told the digests of their replicas"));
  Tell(1, 7);
  Tell(2, 7);
  ASSERT_NE(Sent<Adopt>(0), nullptr);
  EXPECT_EQ(Sent<Adopt>(0)->source.rank, 1);
  EXPECT_EQ(Sent<Adopt>(1), nullptr);
  EXPECT_EQ(Sent<Adopt>(2), nullptr);
  Say(1, Ready{.iteration = 2});
  Say(2, Ready{.iteration = 2});
  EXPECT_EQ(Sent<Group>(1), nullptr) << "no round without the one that copies";
  Say(0, Adopted{.ok = true, .iteration = 1});
  Say(0, Ready{.iteration = 2});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_FALSE(Sent<Group>(0)->digest);
  for (Rank r = 0; r < 3; ++r) Done(r);
  Later(5000);
  Train(3, {8, 8, 8});
  EXPECT_THAT(Differ(), IsEmpty());
  ExpectReplays(job_->spec());
}

// A worker that finishes before it is known takes the final average anyway.
TEST_F(JobReplicasTest, NobodyIsRepairedWhoHasStopped) {
  Running(AllReduceOptions{}, 3, Repairs());
  for (Rank r = 0; r < 3; ++r) Say(r, Ready{.iteration = 1});
  Tell(0, 9);
  Say(0, Finish{});
  EXPECT_EQ(State(0), Job::State::kFinishing);
  Tell(1, 9);
  Say(1, Pause{});
  Tell(2, 7);
  EXPECT_THAT(Differ(), ElementsAre(2));
  EXPECT_EQ(Sent<Adopt>(2), nullptr) << "nobody trains who could give it a replica";
  Say(2, Ready{.iteration = 2});
  EXPECT_NE(Sent<Group>(2), nullptr) << "it trains on";
}

// Those for whom the group failed copy what most have, too.
TEST_F(JobReplicasTest, WhoMissedTheGroupCopiesFromTheMajority) {
  Running(AllReduceOptions{}, 4);
  for (Rank r = 0; r < 4; ++r) Say(r, Ready{.iteration = 1});
  Tell(0, 9);
  Tell(1, 7);
  Tell(2, 7);
  Tell(3, 0, Outcome::kFailed);
  ASSERT_NE(Sent<Adopt>(3), nullptr);
  EXPECT_EQ(Sent<Adopt>(3)->source.rank, 1);
}

// Between averages the replicas of rounds differ; one that differs after an average begins anew.
TEST_F(JobReplicasTest, RoundsAreComparedAfterAnAverage) {
  Running(EagerOptions{.quorum = EagerOptions::kSolo, .sync_every = 1}, 3, Repairs());
  const auto arrive = [this](Iteration iteration) {
    for (Rank r = 0; r < 3; ++r) {
      if (State(r) == Job::State::kActive) Say(r, Ready{.iteration = iteration, .gradients = 1});
    }
  };
  arrive(1);
  ASSERT_NE(job_->groups().size(), 0u);
  EXPECT_FALSE(job_->groups().begin()->second.compares);
  for (Rank r = 0; r < 3; ++r) {
    const std::uint32_t owed = job_->workers()[static_cast<std::size_t>(r)].owed;
    Say(r, Finished{.group = 2, .included = r == 0 ? owed : 0});
  }
  for (Rank r = 0; r < 3; ++r) {
    const auto& worker = job_->workers()[static_cast<std::size_t>(r)];
    if (!worker.signal && worker.group == kNoGroup) {
      Say(r, Ready{.iteration = 2, .gradients = 1});
    }
  }
  ASSERT_EQ(job_->groups().size(), 1u);
  ASSERT_EQ(job_->groups().begin()->second.kind, GroupKind::kAverage);
  EXPECT_TRUE(job_->groups().begin()->second.compares);
  Tell(0, 7);
  Tell(1, 9);
  Tell(2, 7);
  EXPECT_EQ(State(1), Job::State::kAbsent);
  ASSERT_NE(Sent<Refused>(1), nullptr);
  EXPECT_EQ(Sent<Refused>(1)->code, Code::kAborted);
  EXPECT_EQ(State(0), Job::State::kActive);
  ExpectReplays(job_->spec());
}

// ---- steps that were not finite ----

TEST_F(JobReplicasTest, StepsThatWereNotFiniteAreCounted) {
  JobSpec spec;
  spec.on_nonfinite = OnNonfinite::kDrop;
  Running(PReduceOptions{}, 2, spec);
  Join(2);
  EXPECT_EQ(Sent<Welcome>(2)->on_nonfinite, OnNonfinite::kDrop);
  Say(0, Ready{.iteration = 1, .nonfinite = 1});
  EXPECT_THAT(job_->Explain({now_}, 0), HasSubstr("; 1 of its steps was not finite, the last told "
                                                  "0 ns ago"));
  Say(1, Progressed{.nonfinite = 2});
  Say(1, Progressed{.nonfinite = 3});
  Say(1, Progressed{.nonfinite = 0});
  Later(2000);
  EXPECT_THAT(job_->Explain({now_}, 1), HasSubstr("; 5 of its steps were not finite, the last told "
                                                  "2.0 s ago"));
  EXPECT_EQ(job_->nonfinite(), 6u);
  ExpectReplays(job_->spec());
  Say(1, Progressed{.nonfinite = kMaxJump + 1});
  ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
  EXPECT_EQ(Recorded<WorkerLeft>()->reason, "a report of 1000001 steps that were not finite");
  EXPECT_EQ(job_->nonfinite(), 6u);
}

}  // namespace
}  // namespace prd
