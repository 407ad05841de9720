// The end of a membership: which workers the job tells of it, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/all_reduce/options.h"
#include "tests/engines/job_puppet.h"
#include "tests/engines/job_testing.h"
#include "tests/plans.h"

namespace prd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobGoneTest : public JobTest {
 protected:
  void Start(const Plan& plan, int workers) {
    script_ = {.plan = plan, .joining = Engine::Joining::kAnytime};
    spec_.make_engine = [this](const EngineOptions&) { return std::make_unique<Puppet>(&script_); };
    Make(AllReduceOptions{}, workers, spec_);
    for (Rank r = 0; r < workers; ++r) Join(r);
    for (Rank r = 0; r < workers; ++r) Done(r);
  }
  // These reduce together from now on.
  void Form(const std::vector<Rank>& ranks) {
    GroupFormed form{.kind = GroupKind::kTrain, .iteration = 1, .reason = "told"};
    for (const Rank rank : ranks) {
      form.members.push_back({.rank = rank, .weight = 1.0 / static_cast<double>(ranks.size())});
    }
    for (std::size_t i = 1; i < ranks.size(); ++i) script_.next.emplace_back();
    script_.next.push_back({form});
    for (const Rank rank : ranks) Say(rank, Ready{.iteration = 1});
  }
  // Whom the last step told this rank to be out.
  std::vector<Incarnation> Told(Rank rank) {
    const Gone* gone = Sent<Gone>(rank);
    return gone == nullptr ? std::vector<Incarnation>() : gone->incarnations;
  }
  void ExpectReplaysAsTold() {
    JobSpec spec = job_->spec();
    Script again{.plan = script_.plan, .joining = script_.joining, .next = script_.done};
    spec.make_engine = [&](const EngineOptions&) { return std::make_unique<Puppet>(&again); };
    ExpectReplays(spec);
  }

  Script script_;
  JobSpec spec_;
};

TEST_F(JobGoneTest, AllHearAtOnceWhoeverEndsAMembership) {
  Start(plans::kModels, 6);
  const auto expect_told = [this](Rank out) {
    for (Rank rank = 0; rank < 6; ++rank) {
      if (rank > out || rank == 0) {
        EXPECT_THAT(Told(rank), ElementsAre(incarnation_[out])) << rank;
      } else {
        EXPECT_THAT(Told(rank), IsEmpty()) << rank;
      }
    }
  };
  Say(1, Leave{.reason = "done"});
  expect_told(1);
  Step(LeaseExpired{2});
  expect_told(2);
  Step(OperatorActed{.verb = OperatorVerb::kEvict, .rank = 3, .by = "o"});
  expect_told(3);
  Say(4, Finished{.group = 77});  // which breaks the protocol
  ASSERT_NE(Sent<Refused>(4), nullptr);
  expect_told(4);
  ExpectReplaysAsTold();
}

TEST_F(JobGoneTest, SeveralThatEndAtOnceAreInOneMessage) {
  Start(plans::kModels, 3);
  WorkerEnvelope hello = HelloOf(3);
  std::get<Hello>(hello.body).host_name = "stays";
  incarnation_[3] = hello.incarnation;
  seq_[3] = 1;
  Step(FromWorker{hello});
  Say(3, Adopted{.ok = true});
  Step(OperatorActed{.verb = OperatorVerb::kDrain, .host = "host", .by = "o"});
  EXPECT_THAT(Told(3), ElementsAre(incarnation_[0], incarnation_[1], incarnation_[2]));
  EXPECT_EQ(std::count_if(
                out_.sends.begin(), out_.sends.end(),
                [](const auto& send) { return std::holds_alternative<Gone>(send.envelope.body); }),
            1);
}

// It has sent its part of the group, which may be on its way.
TEST_F(JobGoneTest, WhoReadsWhatALeaverHasSentHearsOnceThatIsOver) {
  for (const bool lost : {false, true}) {
    Start(plans::kModels, 4);
    Form({0, 1, 2});
    Done(2);
    if (lost) {
      Step(LeaseExpired{2});
    } else {
      Say(2, Leave{});
    }
    EXPECT_THAT(Told(0), IsEmpty());
    EXPECT_THAT(Told(1), IsEmpty());
    EXPECT_THAT(Told(3), ElementsAre(incarnation_[2])) << "it was not in that group";
    ExpectReplaysAsTold();
    Done(1);
    EXPECT_THAT(Told(1), ElementsAre(incarnation_[2]));
    EXPECT_THAT(Told(0), IsEmpty());
    Say(3, Leave{});
    EXPECT_THAT(Told(0), ElementsAre(incarnation_[3])) << "it reads nothing of this one";
    Done(0);
    EXPECT_THAT(Told(0), ElementsAre(incarnation_[2]));
    ExpectReplaysAsTold();
    Say(1, Leave{});
    EXPECT_THAT(Told(0), ElementsAre(incarnation_[1]));
  }
}

TEST_F(JobGoneTest, WhoIsEvictedIsOutAtOnceForAGroupAsWell) {
  Start(plans::kModels, 3);
  Form({0, 1, 2});
  Done(2);
  Step(OperatorActed{.verb = OperatorVerb::kEvict, .rank = 2, .by = "o"});
  EXPECT_THAT(Told(0), ElementsAre(incarnation_[2]));
  EXPECT_THAT(Told(1), ElementsAre(incarnation_[2]));
}

TEST_F(JobGoneTest, ACopyOfALeaversReplicaMayEnd) {
  Start(plans::kModels, 2);
  Join(2);
  ASSERT_NE(Sent<Adopt>(2), nullptr);
  const Rank source = Sent<Adopt>(2)->source.rank;
  const Rank other = 1 - source;
  ASSERT_NE(Sent<Announce>(source), nullptr);
  EXPECT_TRUE(Sent<Announce>(source)->copies);
  EXPECT_EQ(Sent<Announce>(source)->members[0].incarnation, incarnation_[2]);
  Say(source, Leave{});
  EXPECT_THAT(Told(2), IsEmpty());
  EXPECT_THAT(Told(other), ElementsAre(incarnation_[source]));
  Say(2, Adopted{.ok = true});
  EXPECT_THAT(Told(2), ElementsAre(incarnation_[source]));
  ExpectReplaysAsTold();
}

// And the run's history is the same as it was when there was no such message.
TEST_F(JobGoneTest, AnOlderWorkerIsToldNothingThatItDoesNotKnow) {
  Make(AllReduceOptions{}, 3);
  for (Rank rank = 0; rank < 3; ++rank) {
    WorkerEnvelope hello = HelloOf(rank);
    std::get<Hello>(hello.body).version = rank == 1 ? kOldestVersion : kProtocolVersion;
    ASSERT_EQ(job_->Admit(hello).verdict, Verdict::kStep);
    incarnation_[rank] = hello.incarnation;
    seq_[rank] = 1;
    Step(FromWorker{hello});
  }
  for (Rank rank = 0; rank < 3; ++rank) Done(rank);
  Say(2, Leave{});
  EXPECT_THAT(Told(0), ElementsAre(incarnation_[2]));
  EXPECT_THAT(Told(1), IsEmpty());
  ExpectReplays(job_->spec());
  WorkerEnvelope hello = HelloOf(2);
  std::get<Hello>(hello.body).version = kOldestVersion - 1;
  EXPECT_EQ(WhyRefused(hello), "protocol version: found 8, this daemon speaks 9 to 10");
}

// What a restarted controller has to send again, it has from its history.
TEST_F(JobGoneTest, WhatIsNotAcknowledgedIsInTheReplayedLink) {
  Running(AllReduceOptions{}, 3);
  Step(LeaseExpired{2});
  Job again(1, job_->spec());
  Replay replay(&again);
  for (const Record& record : history_) ASSERT_TRUE(replay.Add(record).ok());
  const auto& unacked = again.link(0).unacked();
  const bool found = std::any_of(unacked.begin(), unacked.end(), [this](const auto& entry) {
    const Gone* gone = std::get_if<Gone>(&entry.second);
    return gone != nullptr && gone->incarnations == std::vector{incarnation_[2]};
  });
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace prd
