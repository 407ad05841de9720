#include "server/meters/run_view.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace prd::meters {
namespace {

RecordBody Joins(Rank rank) { return WorkerJoined{.rank = rank}; }
RecordBody Leaves(Rank rank, LeftReason why, std::uint32_t gradients = 0) {
  return WorkerLeft{.rank = rank, .why = why, .gradients = gradients};
}

std::set<Rank> Training(const RunView& view) {
  std::set<Rank> ranks;
  for (const auto& [rank, since] : view.training()) ranks.insert(rank);
  return ranks;
}

struct Case {
  const char* what;
  RecordBody body;
  Rank came, went;
  bool gone, lost;
  std::uint32_t gradients_lost;
  std::set<Rank> training;  // after it
};

// The records of a run of ranks 0 and 1, in order.
TEST(RunViewTest, WhoComesAndWhoGoes) {
  using enum LeftReason;
  constexpr Rank kNo = kNoRank;
  const std::vector<Case> cases = {
      {"the run begins", RunStarted{}, kNo, kNo, false, false, 0, {}},
      {"a worker joins", Joins(0), 0, kNo, false, false, 0, {0}},
      {"another one", Joins(1), 1, kNo, false, false, 0, {0, 1}},
      {"a lease ends: only what follows says who goes",
       LeaseExpired{.rank = 1},
       kNo,
       kNo,
       false,
       false,
       0,
       {0, 1}},
      {"lost, with its gradients", Leaves(1, kLost, 2), kNo, 1, true, true, 2, {0}},
      {"back for a moment", Joins(1), 1, kNo, false, false, 0, {0, 1}},
      {"it fails", Leaves(1, kFailed, 1), kNo, 1, true, true, 1, {0}},
      {"back", Joins(1), 1, kNo, false, false, 0, {0, 1}},
      {"a round may still take a paused one's gradients",
       Leaves(1, kPaused, 1),
       kNo,
       1,
       false,
       false,
       0,
       {0}},
      {"it trains again", Joins(1), 1, kNo, false, false, 0, {0, 1}},
      {"it pauses", Leaves(1, kPaused), kNo, 1, false, false, 0, {0}},
      {"and is evicted", Leaves(1, kEvicted, 3), kNo, 1, true, true, 3, {0}},
      {"finished: it waits for the average", Leaves(0, kFinished, 1), kNo, 0, false, false, 0, {}},
      {"and is released later", Leaves(0, kLeft, 1), kNo, 0, true, false, 1, {}},
      {"the run ends", RunEnded{}, kNo, kNo, false, false, 0, {}},
  };
  RunView view;
  Record record{.run = 1, .index = 0, .now = Instant{5}, .body = {}};
  for (const Case& of : cases) {
    SCOPED_TRACE(of.what);
    record.body = of.body;
    const RunView::Change change = view.Apply(record);
    EXPECT_EQ(change.came != nullptr ? change.came->rank : kNo, of.came);
    EXPECT_EQ(change.went != nullptr ? change.went->rank : kNo, of.went);
    EXPECT_EQ(change.gone, of.gone);
    EXPECT_EQ(change.lost, of.lost);
    EXPECT_EQ(change.gradients_lost, of.gradients_lost);
    EXPECT_EQ(Training(view), of.training);
    ++record.index;
  }
  EXPECT_EQ(view.start(), Instant{5});
}

TEST(RunViewTest, TrainingTellsSinceWhen) {
  RunView view;
  view.Apply({.run = 1, .index = 0, .now = Instant{5}, .body = RunStarted{}});
  view.Apply({.run = 1, .index = 1, .now = Instant{7}, .body = Joins(3)});
  EXPECT_EQ(view.training().at(3), Instant{7});
  view.Apply({.run = 1, .index = 2, .now = Instant{8}, .body = Leaves(3, LeftReason::kPaused)});
  view.Apply({.run = 1, .index = 3, .now = Instant{9}, .body = Joins(3)});
  EXPECT_EQ(view.training().at(3), Instant{9});
}

TEST(RunViewTest, ARecordOfAnotherRunBeginsAnew) {
  RunView view;
  view.Apply({.run = 1, .index = 0, .now = Instant{5}, .body = RunStarted{}});
  view.Apply({.run = 1, .index = 1, .now = Instant{6}, .body = Joins(0)});
  view.Apply({.run = 1, .index = 2, .now = Instant{7}, .body = GroupFormed{.id = 1}});
  EXPECT_EQ(view.train_groups(), 1u);
  view.Apply({.run = 2, .index = 0, .now = Instant{8}, .body = RunStarted{}});
  EXPECT_EQ(view.start(), Instant{8});
  EXPECT_TRUE(view.training().empty());
  EXPECT_TRUE(view.running().empty());
  EXPECT_EQ(view.train_groups(), 0u);
}

}  // namespace
}  // namespace prd::meters
