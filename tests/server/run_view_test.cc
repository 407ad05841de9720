#include "server/meters/run_view.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
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

// In order: what each record of a run of ranks 0 and 1 changes.
struct Case {
  std::string what;
  RecordBody body;
  Rank came = kNoRank;
  Rank went = kNoRank;
  bool gone = false, lost = false;
  std::uint32_t gradients_lost = 0;
  std::set<Rank> training = {};  // after it
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {.what = "the run begins", .body = RunStarted{}},
      {.what = "a worker joins", .body = Joins(0), .came = 0, .training = {0}},
      {.what = "another one", .body = Joins(1), .came = 1, .training = {0, 1}},
      {.what = "its lease ends: that alone says nothing",
       .body = LeaseExpired{.rank = 1},
       .training = {0, 1}},
      {.what = "it is lost, and its gradients with it",
       .body = Leaves(1, LeftReason::kLost, 2),
       .went = 1,
       .gone = true,
       .lost = true,
       .gradients_lost = 2,
       .training = {0}},
      {.what = "it comes back", .body = Joins(1), .came = 1, .training = {0, 1}},
      {.what = "it pauses: it is still in the job, and its gradients may get into a round",
       .body = Leaves(1, LeftReason::kPaused, 1),
       .went = 1,
       .training = {0}},
      {.what = "a paused one trains again", .body = Joins(1), .came = 1, .training = {0, 1}},
      {.what = "a paused one", .body = Leaves(1, LeftReason::kPaused), .went = 1, .training = {0}},
      {.what = "may be evicted",
       .body = Leaves(1, LeftReason::kEvicted, 3),
       .went = 1,
       .gone = true,
       .lost = true,
       .gradients_lost = 3,
       .training = {0}},
      {.what = "it finishes: it waits for the final average, with gradients that a round may take",
       .body = Leaves(0, LeftReason::kFinished, 1),
       .went = 0},
      {.what = "one that has finished is released: it is gone, and asked to be",
       .body = Leaves(0, LeftReason::kLeft, 1),
       .went = 0,
       .gone = true,
       .gradients_lost = 1},
      {.what = "the run ends", .body = RunEnded{}},
  };
  return cases;
}

TEST(RunViewTest, WhoComesAndWhoGoes) {
  RunView view;
  Record record{.run = 1, .index = 0, .now = Instant{5}, .body = {}};
  for (const Case& of : Cases()) {
    SCOPED_TRACE(of.what);
    record.body = of.body;
    const RunView::Change change = view.Apply(record);
    EXPECT_EQ(change.came != nullptr ? change.came->rank : kNoRank, of.came);
    EXPECT_EQ(change.went != nullptr ? change.went->rank : kNoRank, of.went);
    EXPECT_EQ(change.gone, of.gone);
    EXPECT_EQ(change.lost, of.lost);
    EXPECT_EQ(change.gradients_lost, of.gradients_lost);
    EXPECT_EQ(Training(view), of.training);
    EXPECT_EQ(change.formed, nullptr);
    EXPECT_FALSE(change.ended.has_value());
    ++record.index;
    record.now = record.now + 1;
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
