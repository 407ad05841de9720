#include "engines/admissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/operator_orders.h"
#include "engines/run_limits.h"

namespace prd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Hello Of(const std::string& launch, std::uint64_t model) {
  return {.host_name = "host", .pid = 42, .model_hash = model, .launch = launch};
}

TEST(AdmissionsTest, TheFirstWorkerSaysWhatAllHaveInCommon) {
  const JobSpec spec{.name = "toy"};
  Admissions all;
  EXPECT_FALSE(all.CheckLaunch(spec, Of("a", 9), ""));
  EXPECT_FALSE(all.CheckModel(Of("a", 9)));
  all.Admit(0, Of("a", 9));
  EXPECT_FALSE(all.CheckLaunch(spec, Of("", 9), "")) << "a worker need not tell its launch";
  const auto other = all.CheckLaunch(spec, Of("b", 9), " (rank 0)");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->code, Code::kUnavailable);
  EXPECT_THAT(other->reason, StartsWith("launch a of job toy still runs (rank 0)"));
  EXPECT_EQ(all.CheckModel(Of("a", 8))->code, Code::kInvalidArgument);
}

TEST(AdmissionsTest, AWorkerOfAnOldLaunchDoesNotComeBack) {
  Admissions all;
  all.Admit(0, Of("b", 9));
  Hello old = Of("a", 9);
  old.former = {.high = 1, .low = 1};
  EXPECT_EQ(all.CheckLaunch({}, old, "")->code, Code::kFailedPrecondition);
}

TEST(AdmissionsTest, RemembersTheNewestRefusalsUntilTheyJoin) {
  Admissions all;
  for (std::uint32_t pid = 0; pid <= kMaxRefusals; ++pid) {
    all.Refuse({pid}, {.rank = 1, .host_name = "host", .pid = pid, .reason = "why"});
  }
  ASSERT_EQ(all.refusals().size(), kMaxRefusals);
  EXPECT_EQ(all.refusals().front().hello.pid, 1u);
  all.Refuse({99}, {.rank = 1, .host_name = "host", .pid = 1, .reason = "again"});
  EXPECT_EQ(all.refusals().size(), kMaxRefusals);
  EXPECT_THAT(all.RefusalWords(),
              StartsWith("; refused: rank 1 (pid 1 on host): again; rank 1 (pid 8 on host): why"));
  EXPECT_THAT(all.RefusalWords(), HasSubstr("; and 6 more"));
  all.Admit(1, Of("", 9));
  EXPECT_EQ(all.RefusalWords(), "");
}

TEST(OperatorOrdersTest, OnlyTheNewestDismissalsAreRemembered) {
  OperatorOrders orders;
  for (Incarnation each = 1; each <= OperatorOrders::kMaxDismissed + 1; ++each) {
    orders.Dismiss(each, "why");
  }
  EXPECT_EQ(orders.dismissed().size(), OperatorOrders::kMaxDismissed);
  EXPECT_EQ(orders.dismissed().front().incarnation, 2u);
}

TEST(OperatorOrdersTest, TheFirstReasonToDrainStays) {
  OperatorOrders orders;
  orders.Drain(3, "first");
  orders.Drain(3, "second");
  EXPECT_EQ(orders.draining().at(3), "first");
  orders.Forget(3);
  EXPECT_FALSE(orders.Drains(3));
}

TEST(OperatorOrdersTest, ASnapshotWithoutOrdersIsEmpty) {
  OperatorOrders orders;
  EXPECT_EQ(SaveState(orders), "");
  orders.Pause({.by = "alice", .reason = "lunch", .since = {1}});
  EXPECT_EQ(orders.PauseWords({1 + kSecond}), "paused by alice for 1.0 s: lunch");
  const std::string saved = SaveState(orders);
  OperatorOrders loaded;
  StateArchive ar = StateArchive::Loader(saved);
  loaded.Archive(ar);
  EXPECT_EQ(loaded.paused()->by, "alice");
}

}  // namespace
}  // namespace prd
