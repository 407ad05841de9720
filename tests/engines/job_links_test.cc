// Workers that live and do not reach each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "engines/all_reduce/options.h"
#include "engines/job.h"
#include "engines/job_limits.h"
#include "engines/links.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// ---- rings ----

// Tries all orders.
bool AnyRing(std::vector<Rank> ranks, const BrokenLinks& broken) {
  std::sort(ranks.begin(), ranks.end());
  do {
    bool whole = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      whole = whole && !broken.Has(ranks[i], ranks[(i + 1) % ranks.size()]);
    }
    if (whole) return true;
  } while (std::next_permutation(ranks.begin() + 1, ranks.end()));
  return false;
}

TEST(RingAroundTest, FindsARingWhereThereIsOne) {
  Prng random(1);
  int found = 0;
  int none = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto n = static_cast<Rank>(1 + random.Below(7));
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < n; ++rank) ranks.push_back(rank * 3);
    BrokenLinks broken;
    for (std::uint64_t left = random.Below(10); left > 0; --left) {
      const Rank a = ranks[random.Below(ranks.size())];
      const Rank b = ranks[random.Below(ranks.size())];
      if (a != b) broken.Set(a, b, false);
    }
    const std::vector<Rank> ring = RingAround(ranks, broken);
    ASSERT_EQ(ring.empty(), !AnyRing(ranks, broken)) << n << " ranks, try " << i;
    (ring.empty() ? none : found) += 1;
    if (ring.empty()) continue;
    EXPECT_THAT(ring, testing::UnorderedElementsAreArray(ranks));
    for (std::size_t at = 0; at < ring.size(); ++at) {
      ASSERT_FALSE(broken.Has(ring[at], ring[(at + 1) % ring.size()]));
    }
  }
  EXPECT_GT(found, 500);
  EXPECT_GT(none, 200);
}

TEST(RingAroundTest, KeepsTheOrderThatWorksAndIsQuickInLargeGroups) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < 2000; ++rank) ranks.push_back(rank);
  BrokenLinks broken;
  broken.Set(7, 9, false);
  EXPECT_EQ(RingAround(ranks, broken), ranks);
  for (Rank rank = 0; rank < 40; ++rank) broken.Set(rank, rank + 1, false);
  const std::vector<Rank> ring = RingAround(ranks, broken);
  ASSERT_EQ(ring.size(), ranks.size());
  for (std::size_t at = 0; at < ring.size(); ++at) {
    ASSERT_FALSE(broken.Has(ring[at], ring[(at + 1) % ring.size()]));
  }
}

// ---- the job ----

class JobLinksTest : public JobTest {
 protected:
  void Start(Plan plan, int workers, Engine::Joining joining = Engine::Joining::kAnytime) {
    script_.plan = plan;
    script_.joining = joining;
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Running(AllReduceOptions{}, workers, spec_);
    script_.heard.clear();
  }
  void Next(const std::vector<Rank>& ranks, GroupKind kind = GroupKind::kTrain) {
    GroupFormed form{.kind = kind, .iteration = 1, .reason = "told"};
    for (const Rank rank : ranks) {
      form.members.push_back({.rank = rank, .weight = 1.0 / static_cast<double>(ranks.size())});
    }
    script_.next.push_back({form});
  }
  // All of them are ready, and then a group of them is formed.
  void Form(const std::vector<Rank>& ranks) {
    for (const Rank rank : ranks) {
      if (rank == ranks.back()) Next(ranks);
      Say(rank, Ready{.iteration = 1});
    }
  }
  void Fails(Rank rank, std::vector<Rank> unreachable, Outcome outcome = Outcome::kFailed) {
    const GroupId group = Worker(rank).group;
    Say(rank, Finished{.group = group, .outcome = outcome, .unreachable = std::move(unreachable)});
  }
  void Answers(Rank asks, Rank rank) {
    Say(asks, Probed{.rank = rank, .incarnation = incarnation_[rank]});
  }
  // Group of 0, 1 and 2, in which 1 does not reach 2.
  void Break() {
    Form({0, 1, 2});
    Fails(1, {2});
    Fails(0, {}, Outcome::kAborted);
    Fails(2, {}, Outcome::kAborted);
    script_.heard.clear();
  }
  std::vector<Rank> Targets(Rank rank) {
    std::vector<Rank> targets;
    const Probe* probe = Sent<Probe>(rank);
    if (probe == nullptr) return {kNoRank};
    for (const GroupMember& member : probe->targets) {
      EXPECT_EQ(member.incarnation, incarnation_[member.rank]);
      EXPECT_FALSE(member.endpoints.empty());
      targets.push_back(member.rank);
    }
    return targets;
  }
  std::vector<Rank> Order(Rank rank) {
    std::vector<Rank> order;
    for (const GroupMember& member : Sent<Group>(rank)->members) order.push_back(member.rank);
    return order;
  }
  // The job as it is from a snapshot, and from its history: both with what the engine decided.
  void Replays() {
    StateArchive saved = StateArchive::Saver();
    job_->Archive(saved);
    Script again{.plan = script_.plan, .joining = script_.joining};
    again.next = script_.done;
    JobSpec spec = job_->spec();
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    Job replayed(1, spec);
    Replay replay(&replayed);
    for (const Record& record : history_) {
      const Status status = replay.Add(record);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    EXPECT_EQ(replayed.StateHash(), job_->StateHash());
    Job loaded(1, spec);
    ASSERT_TRUE(loaded.Load(saved.bytes()).ok());
    EXPECT_EQ(loaded.StateHash(), job_->StateHash());
    EXPECT_EQ(loaded.broken_links().size(), job_->broken_links().size());
  }
  const Job::Worker& Worker(Rank rank) { return job_->workers()[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> Heard() { return std::exchange(script_.heard, {}); }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobLinksTest, WhoDoesNotReachAnotherProbesItUntilItAnswers) {
  Start(plans::kModels, 4);
  Form({0, 1, 2});
  Heard();
  Fails(1, {2});
  ASSERT_NE(Recorded<LinkChanged>(), nullptr);
  EXPECT_EQ(
      *Recorded<LinkChanged>(),
      (LinkChanged{
          .a = 1, .b = 2, .works = false, .reason = "rank 1 did not reach rank 2 in group 2"}));
  EXPECT_THAT(Targets(1), ElementsAre(2));
  EXPECT_EQ(Sent<Probe>(2), nullptr) << "one of the two is enough";
  EXPECT_THAT(Heard(), ElementsAre("link 1 2 broken", "failed 1 owes 0"))
      << "before the engine can form another group of the two";
  EXPECT_THAT(job_->Explain({now_}, 2), HasSubstr("the link between ranks 1 and 2 is broken"));
  EXPECT_THAT(job_->Explain({now_}, 3), Not(HasSubstr("link")));
  Fails(2, {1});
  EXPECT_EQ(Recorded<LinkChanged>(), nullptr) << "known";
  EXPECT_EQ(job_->broken_links().size(), 1u);
  Replays();
  Answers(1, 3);  // nobody asked for that: the Probe was replaced on its way
  EXPECT_EQ(Recorded<LinkChanged>(), nullptr);
  Answers(2, 1);
  EXPECT_EQ(Recorded<LinkChanged>(), nullptr) << "rank 1 asks";
  Say(1, Probed{.rank = 2, .incarnation = 5});
  EXPECT_EQ(Recorded<LinkChanged>(), nullptr) << "an incarnation before";
  Heard();
  Answers(1, 2);
  ASSERT_NE(Recorded<LinkChanged>(), nullptr);
  EXPECT_TRUE(Recorded<LinkChanged>()->works);
  EXPECT_THAT(Targets(1), IsEmpty());
  EXPECT_THAT(Heard(), ElementsAre("link 1 2 works"));
  EXPECT_TRUE(job_->broken_links().empty());
  EXPECT_THAT(job_->Explain({now_}, 1), Not(HasSubstr("link")));
  Replays();
}

TEST_F(JobLinksTest, AReportOnWorkersThatWereNotInTheGroupEvicts) {
  for (const Rank other : {3, 1, 77, -1}) {
    Start(plans::kModels, 4);
    Form({0, 1, 2});
    Fails(1, {other});
    EXPECT_EQ(State(1), Job::State::kAbsent) << other;
    EXPECT_EQ(Recorded<LinkChanged>(), nullptr);
  }
  Start(plans::kModels, 4);
  Form({0, 1, 2});
  Fails(1, {2}, Outcome::kOk);
  EXPECT_EQ(State(1), Job::State::kAbsent) << "a group that is through reached all";
  Fails(0, {2}, Outcome::kAborted);
  EXPECT_EQ(State(0), Job::State::kActive);
  EXPECT_TRUE(job_->broken_links().empty());
  Say(0, Probed{.rank = 99});
  EXPECT_EQ(State(0), Job::State::kAbsent);
}

TEST_F(JobLinksTest, WhoLeavesTakesItsBrokenLinksAlong) {
  Start(plans::kModels, 4);
  Form({0, 1, 2, 3});
  Fails(1, {2, 3});
  EXPECT_THAT(Targets(1), ElementsAre(2, 3));
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  EXPECT_THAT(Targets(1), ElementsAre(3));
  EXPECT_EQ(job_->broken_links().size(), 1u);
  Replays();
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  EXPECT_TRUE(job_->broken_links().empty());
  EXPECT_EQ(Sent<Probe>(3), nullptr);
  // Rank 2 is back. Those that were in a group with the one before speak of that one.
  Join(2);
  Fails(0, {2});
  EXPECT_TRUE(job_->broken_links().empty());
  Fails(3, {0});
  EXPECT_EQ(job_->broken_links().size(), 1u);
  Replays();
}

TEST_F(JobLinksTest, TheEngineHearsOfThoseThatHaveJoined) {
  script_.plan = plans::kModels;
  spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
  Make(AllReduceOptions{}, 4, spec_);
  for (Rank rank = 0; rank < 4; ++rank) Join(rank);
  Fails(1, {2});
  EXPECT_THAT(Heard(), IsEmpty());
  for (const Rank rank : {0, 2, 3}) Fails(rank, {}, Outcome::kAborted);
  ASSERT_NE(Sent<Group>(0), nullptr) << "the common start is tried again";
  EXPECT_THAT(Order(0), ElementsAre(0, 1, 3, 2)) << "as a ring in which 1 and 2 are not adjacent";
  EXPECT_TRUE(Sent<Group>(0)->ring_only);
  EXPECT_THAT(Sent<Group>(0)->reason, HasSubstr("around the broken link between ranks 1 and 2"));
  for (Rank rank = 0; rank < 4; ++rank) Done(rank);
  EXPECT_THAT(Heard(), ElementsAre("joined 0@0", "joined 1@0", "joined 2@0", "link 1 2 broken",
                                   "joined 3@0"));
  Say(2, Finish{});
  Answers(1, 2);
  EXPECT_THAT(Heard(), ElementsAre("left 2")) << "of whom it has no links";
  Replays();
}

TEST_F(JobLinksTest, AStartThatCannotWorkWaitsAndSaysForWhich) {
  script_.plan = plans::kModels;
  spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
  Make(AllReduceOptions{}, 3, spec_);
  for (Rank rank = 0; rank < 3; ++rank) Join(rank);
  Fails(1, {2});
  for (const Rank rank : {0, 2}) Fails(rank, {}, Outcome::kAborted);
  EXPECT_EQ(Sent<Group>(0), nullptr);
  EXPECT_THAT(job_->Explain({now_}, 0),
              AllOf(HasSubstr("3 of 3 workers are here"),
                    HasSubstr("the link between ranks 1 and 2 is broken"),
                    HasSubstr("no ring of all workers goes around that")));
  Replays();
  Answers(1, 2);
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_FALSE(Sent<Group>(0)->ring_only);
  Replays();
}

TEST_F(JobLinksTest, AGroupGoesAroundABrokenLink) {
  Start(plans::kModels, 4);
  Form({0, 1, 2, 3});
  Fails(1, {2});
  for (const Rank rank : {0, 2, 3}) Fails(rank, {}, Outcome::kAborted);
  Form({0, 1, 2, 3});
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_TRUE(Sent<Group>(0)->ring_only);
  const std::vector<Rank> order = Order(0);
  const auto at = [&](Rank rank) { return std::find(order.begin(), order.end(), rank); };
  EXPECT_EQ(std::abs(at(1) - at(2)), 2) << "opposite each other";
  ASSERT_NE(Recorded<GroupFormed>(), nullptr);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Recorded<GroupFormed>()->members[i].rank, order[i]);
    EXPECT_EQ(Sent<Group>(3)->members[i].weight, 0.25);
  }
  for (Rank rank = 0; rank < 4; ++rank) Done(rank);
  Replays();
}

TEST_F(JobLinksTest, AGroupThatCannotWorkIsHeldBackUntilTheLinkWorks) {
  Start(plans::kGradients, 3, Engine::Joining::kBarrier);
  Break();
  Form({0, 1, 2});
  EXPECT_EQ(Sent<Group>(0), nullptr);
  EXPECT_EQ(Recorded<GroupFormed>(), nullptr);
  EXPECT_THAT(job_->Explain({now_}, 0),
              AllOf(HasSubstr("group 3 of ranks 0, 1, 2 is held back"),
                    HasSubstr("the link between ranks 1 and 2 is broken")));
  EXPECT_THAT(job_->Explain({now_}, 2), HasSubstr("the link between ranks 1 and 2 is broken"));
  Replays();
  Heard();
  Answers(1, 2);
  EXPECT_THAT(Heard(), ElementsAre("link 1 2 works"));
  ASSERT_NE(Sent<Group>(0), nullptr);
  EXPECT_FALSE(Sent<Group>(0)->ring_only);
  for (Rank rank = 0; rank < 3; ++rank) Done(rank);
  EXPECT_EQ(Worker(2).iteration, 1);
  Replays();
}

TEST_F(JobLinksTest, WhenAMemberLeavesAHeldGroupHasFailed) {
  Start(plans::kGradients, 3, Engine::Joining::kBarrier);
  Break();
  Form({0, 1, 2});
  Heard();
  Step(LeaseExpired{.rank = 2, .incarnation = incarnation_[2]});
  EXPECT_THAT(Heard(), ElementsAre("left 2", "failed 0 owes 0", "failed 1 owes 0", "ended, nobody",
                                   "ready 0@1 owes 0", "ready 1@1 owes 0"));
  EXPECT_EQ(Recorded<GroupEnded>(), nullptr) << "no worker has heard of it";
  Replays();
}

TEST_F(JobLinksTest, AnotherWorkerEndsAHeldGroup) {
  Start(plans::kGradients, 3, Engine::Joining::kBarrier);
  Break();
  Form({0, 1, 2});
  Heard();
  Join(3);
  EXPECT_THAT(Heard(), ElementsAre("failed 0 owes 0", "failed 1 owes 0", "failed 2 owes 0",
                                   "ended, nobody", "joined 3@0", "ready 0@1 owes 0",
                                   "ready 1@1 owes 0", "ready 2@1 owes 0"));
  EXPECT_NE(Sent<Adopt>(3), nullptr);
  Replays();
}

TEST_F(JobLinksTest, AHeldRoundLetsItsWorkersComputeAndFinish) {
  Start(plans::kRounds, 3, Engine::Joining::kPause);
  Next({0, 1, 2}, GroupKind::kRound);
  Say(0, Ready{.iteration = 1, .gradients = 1});
  Fails(1, {2});
  for (const Rank rank : {0, 2}) Fails(rank, {}, Outcome::kAborted);
  Heard();
  Next({0, 1, 2}, GroupKind::kRound);
  Say(1, Ready{.iteration = 1, .gradients = 1});
  EXPECT_EQ(Sent<Group>(1), nullptr);
  Say(2, Ready{.iteration = 1, .gradients = 1});
  Join(3);
  EXPECT_EQ(Sent<Adopt>(3), nullptr) << "joins between two rounds";
  Heard();
  Replays();
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  EXPECT_THAT(Heard(),
              ElementsAre("left 1", "failed 0 owes 1", "failed 2 owes 1", "ended, nobody"));
  EXPECT_NE(Sent<Adopt>(3), nullptr);
  Replays();
}

TEST_F(JobLinksTest, WhoseLinksAreBrokenGivesNoModelWhereOthersCan) {
  Start(plans::kModels, 3);
  Join(3);
  ASSERT_NE(Sent<Adopt>(3), nullptr);
  EXPECT_EQ(Sent<Adopt>(3)->source.rank, 0);
  Say(3, Adopted{.ok = true, .iteration = 0});
  Form({0, 1, 2, 3});
  Fails(3, {0});
  Step(LeaseExpired{.rank = 1, .incarnation = incarnation_[1]});
  for (const Rank rank : {0, 2}) Fails(rank, {}, Outcome::kAborted);
  // Rank 3 is to copy a replica again.
  script_.next.push_back({UpdateDropped{.rank = 3, .iteration = 0, .reason = "told"}});
  Form({0, 2});
  for (const Rank rank : {0, 2}) Done(rank);
  script_.next.push_back({UpdateDropped{.rank = 3, .iteration = 0, .reason = "told"}});
  Say(0, Ready{.iteration = 2});
  ASSERT_NE(Sent<Adopt>(3), nullptr);
  EXPECT_EQ(Sent<Adopt>(3)->source.rank, 2);
}

TEST_F(JobLinksTest, WhoNamesManyKeepsTheNewest) {
  const auto n = static_cast<Rank>(kMaxBrokenLinks + 3);
  script_.plan = plans::kModels;
  spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
  spec_.name = "toy";
  spec_.engine = AllReduceOptions{};
  spec_.workers = n;
  job_ = std::make_unique<Job>(1, spec_);
  job_->Start({1}, 0, {}, {}, &out_);
  for (Rank rank = 0; rank < n; ++rank) Join(rank);
  std::vector<Rank> all;
  for (Rank rank = 1; rank < n; ++rank) all.push_back(rank);
  Fails(0, all);
  EXPECT_EQ(job_->broken_links().size(), kMaxBrokenLinks);
  EXPECT_FALSE(job_->broken_links().contains({0, 1}));
  EXPECT_FALSE(job_->broken_links().contains({0, 2}));
  EXPECT_TRUE(job_->broken_links().contains({0, n - 1}));
  EXPECT_TRUE(job_->broken_links().contains({0, 3}));
}

// Workers that exchange without reported groups name those that they do not reach in a report on no
// group.
TEST_F(JobLinksTest, WhereNoGroupIsReportedALinkIs) {
  Start(plans::kNeighbours, 3);
  Say(1, Finished{.group = kNoGroup, .outcome = Outcome::kFailed, .unreachable = {2}});
  EXPECT_THAT(Targets(1), ElementsAre(2));
  EXPECT_THAT(Heard(), ElementsAre("link 1 2 broken"));
  EXPECT_THAT(job_->Explain({now_}, 2), HasSubstr("rank 1 did not reach rank 2"));
  Replays();
  Say(1, Finished{.group = kNoGroup, .outcome = Outcome::kFailed, .unreachable = {9}});
  EXPECT_EQ(State(1), Job::State::kAbsent);
  Start(plans::kModels, 3);
  Say(1, Finished{.group = kNoGroup, .outcome = Outcome::kFailed, .unreachable = {2}});
  EXPECT_EQ(State(1), Job::State::kAbsent) << "a group would have said it";
}

}  // namespace
}  // namespace prd
