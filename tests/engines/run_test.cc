// What the transcripts in testdata/run cannot say of a run: tables, sizes, and links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engines/registry.h"
#include "engines/run_limits.h"
#include "tests/engines/run_testing.h"

namespace prd {
namespace {

using testing::HasSubstr;

TEST_F(RunTest, AStateThatIsNoneIsRefused) {
  Running(PReduceOptions{}, 2);
  prd::Run broken(1, run_->spec());
  EXPECT_EQ(broken.Load("nonsense").code(), Code::kDataLoss);
  std::string other = SaveState(*run_);
  --other.front();  // its version
  const Status status = broken.Load(other);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("another version of prd"), std::string::npos);
}

// What was saved before there were operators is what is saved where they have done nothing.
TEST_F(RunTest, AStateWithoutOperatorsIsAsBefore) {
  Running(PReduceOptions{}, 2);
  const std::string before = SaveState(*run_);
  Step(OperatorActed{.verb = OperatorVerb::kPause, .by = "identity alice"});
  EXPECT_GT(SaveState(*run_).size(), before.size());
  Step(OperatorActed{.verb = OperatorVerb::kResume, .by = "identity alice"});
  EXPECT_EQ(SaveState(*run_).size(), before.size());
}

TEST_F(RunTest, WordsOfOperatorsAreBounded) {
  Running(PReduceOptions{}, 2);
  const OperatorActed act{.verb = OperatorVerb::kPause, .reason = std::string(10'000, 'x')};
  EXPECT_EQ(run_->CheckAct(act).code(), Code::kInvalidArgument);
}

// What a restarted controller has to send again, it has from its history.
TEST_F(RunTest, WhatIsNotAcknowledgedIsInTheReplayedLink) {
  Running(AllReduceOptions{}, 3);
  Step(LeaseExpired{2});
  prd::Run again(1, run_->spec());
  Replay replay(&again);
  for (const Record& record : history_) ASSERT_TRUE(replay.Add(record).ok());
  const auto& unacked = again.link(0).unacked();
  const bool found = std::any_of(unacked.begin(), unacked.end(), [this](const auto& entry) {
    const Gone* gone = std::get_if<Gone>(&entry.second);
    return gone != nullptr && gone->incarnations == std::vector{incarnation_[2]};
  });
  EXPECT_TRUE(found);
}

// A worker that names many others keeps the newest of these links.
TEST_F(RunTest, BrokenLinksOfAWorkerAreBounded) {
  const auto n = static_cast<Rank>(kMaxBrokenLinks + 3);
  Make(AllReduceOptions{}, n);
  for (Rank rank = 0; rank < n; ++rank) Join(rank);
  std::vector<Rank> all(static_cast<std::size_t>(n) - 1);
  std::iota(all.begin(), all.end(), 1);
  Say(0, Finished{.group = 1, .outcome = Outcome::kFailed, .unreachable = all});
  EXPECT_EQ(run_->broken_links().size(), kMaxBrokenLinks);
  EXPECT_FALSE(run_->broken_links().contains({0, 1}));
  EXPECT_FALSE(run_->broken_links().contains({0, 2}));
  EXPECT_TRUE(run_->broken_links().contains({0, n - 1}));
  EXPECT_TRUE(run_->broken_links().contains({0, 3}));
}

TEST_F(RunTest, AReportThatCannotBeEvictsItsWorker) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::vector<Trained> wrong = {{9, 100},
                                      {11, 99},
                                      {-1, 100},
                                      {10, -1},
                                      {most, most},
                                      {10 + kMaxJump + 1, 100},
                                      {10, 100 + kMaxSamples + 1}};
  for (const Trained& own : wrong) {
    Running(PReduceOptions{}, 2);
    Say(1, Progressed{.own = {10, 100}});
    Say(1, Progressed{.own = own});
    ASSERT_NE(Recorded<WorkerLeft>(), nullptr);
    EXPECT_EQ(Recorded<WorkerLeft>()->why, LeftReason::kEvicted);
    EXPECT_THAT(
        Recorded<WorkerLeft>()->reason,
        HasSubstr("a report that it has trained " + std::to_string(own.steps) + " steps and " +
                  std::to_string(own.samples) + " samples so far, after 10"));
    EXPECT_EQ(run_->progress().trained, (Trained{10, 100}));
    Say(0, Ready{.iteration = 1, .own = own});
    EXPECT_EQ(State(0),
              own.steps > 0 && own.steps < 1000 && own.samples >= 0 && own.samples <= kMaxSamples
                  ? WorkerState::kActive
                  : WorkerState::kAbsent);
  }
}

}  // namespace
}  // namespace prd
