#include "engines/roster.h"

#include <gtest/gtest.h>

namespace prd {
namespace {

class RosterTest : public testing::Test {
 protected:
  RosterTest() { log_.Begin({7}, &out_); }
  void Enter(Rank rank, Incarnation incarnation) {
    roster_.Grow(std::max(roster_.size(), rank + 1));
    const Hello hello{.host = "h", .endpoints = {"tcp://127.0.0.1:1"}, .iteration = 3};
    roster_.Enter(rank, {.incarnation = incarnation, .seq = 1, .body = hello}, false, {});
  }

  RunOutput out_;
  RunJournal log_{1};
  Roster roster_{&log_};
};

TEST_F(RosterTest, AWorkerHoldsItsRankUntilItLeaves) {
  Enter(1, 11);
  EXPECT_EQ(roster_.Free(), 0);
  EXPECT_EQ(roster_.RankOf(11), 1);
  EXPECT_TRUE(roster_.Present(1));
  EXPECT_FALSE(roster_.Present(0));
  EXPECT_FALSE(roster_.Present(kNoRank));
  EXPECT_EQ(roster_.Count(WorkerState::kJoining), 1);
  EXPECT_EQ(roster_[1].since, (Instant{7}));
  roster_.SetResumes(1, true);
  const RunWorker gone = roster_.Leave(1);
  EXPECT_EQ(gone.incarnation, 11u);
  EXPECT_EQ(gone.iteration, 3);
  EXPECT_EQ(roster_.RankOf(11), kNoRank);
  EXPECT_EQ(roster_.live(), 0);
  EXPECT_EQ(roster_.resuming(), 0);
  EXPECT_EQ(roster_.Count(WorkerState::kJoining), 0);
  EXPECT_EQ(roster_[1].endpoints.size(), 0u);
}

TEST_F(RosterTest, MessagesAreNumberedAndKeptUntilAcknowledged) {
  Enter(0, 10);
  roster_.Send(0, Resumed{});
  roster_.Send(0, Resumed{});
  ASSERT_EQ(out_.sends.size(), 2u);
  EXPECT_EQ(out_.sends[1].envelope.seq, 2u);
  EXPECT_EQ(out_.sends[1].envelope.ack, 1u) << "the Hello";
  EXPECT_FALSE(roster_.Acknowledge(0, 3)) << "never sent";
  roster_.Receive(0, 2, 1);
  EXPECT_EQ(roster_[0].link.unacked().size(), 1u);
  roster_.Refuse(0, Code::kAborted, "why");
  EXPECT_EQ(out_.sends[2].envelope.seq, 0u) << "outside the order";
}

TEST_F(RosterTest, CountsFollowFromTheRowsAfterALoad) {
  Enter(0, 10);
  Enter(2, 12);
  roster_.SetState(2, WorkerState::kActive);
  roster_.SetResumes(0, true);
  const std::string saved = SaveState(roster_);
  Roster loaded(&log_);
  StateArchive ar = StateArchive::Loader(saved);
  loaded.Archive(ar);
  loaded.Restore();
  EXPECT_EQ(loaded.live(), 2);
  EXPECT_EQ(loaded.resuming(), 1);
  EXPECT_EQ(loaded.RankOf(12), 2);
  EXPECT_EQ(loaded.Count(WorkerState::kActive), 1);
}

}  // namespace
}  // namespace prd
