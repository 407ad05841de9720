#include "engines/registry.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plans.h"

namespace prd {
namespace {

TEST(RegistryTest, EveryEngineIsMadeFromItsDefaults) {
  std::vector<std::string_view> names;
  for (const EngineOptions& options : AllEngines()) {
    names.push_back(EngineName(options));
    EXPECT_TRUE(Validate(options, 0).ok());
    EXPECT_TRUE(Validate(options, 4096).ok());
    EXPECT_NE(MakeEngine(options), nullptr);
  }
  EXPECT_THAT(names, testing::ElementsAre("all-reduce", "p-reduce", "eager", "backup", "esync",
                                          "prague", "ad-psgd", "hop", "ssp"));
}

// The message of the one thing that is wrong.
std::string WrongIn(const EngineOptions& options, int workers = 0) {
  const Status status = Validate(options, workers);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

std::string Wrong(const PReduceOptions& options, int workers = 0) {
  return WrongIn(options, workers);
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOption) {
  EXPECT_EQ(Wrong({.group_size = 1}), "group_size: found 1, allowed is 2 to 100000");
  EXPECT_EQ(Wrong({.group_size = 1'000'000}), "group_size: found 1000000, allowed is 2 to 100000");
  EXPECT_EQ(Wrong({.alpha = 1}), "alpha: found 1.000000, allowed is 0 or more and less than 1");
  EXPECT_THAT(Wrong({.alpha = -0.5}), testing::StartsWith("alpha: found -0.5"));
  EXPECT_THAT(Wrong({.alpha = std::numeric_limits<double>::quiet_NaN()}),
              testing::StartsWith("alpha: found nan"));
  EXPECT_EQ(Wrong({.history_window = -1}),
            "history_window: found -1, allowed is 0 (chosen by prd) or 1 to 10000000");
  EXPECT_THAT(Wrong({.history_window = 3}, 8), testing::HasSubstr("at least 4 groups"));
  EXPECT_EQ(Wrong({.max_wait_ms = -1}),
            "max_wait_ms: found -1, allowed is 0 (off) or 1 to 86400000");
  EXPECT_EQ(Wrong({.overlap_steps = 0}), "overlap_steps: found 0, allowed is 1 to 1000");
}

TEST(RegistryTest, OverlapIsThePlansAlone) {
  const Plan blocking = MakeEngine(PReduceOptions{.overlap_steps = 3})->plan();
  EXPECT_FALSE(AveragesInBackground(blocking));
  EXPECT_EQ(RunAhead(blocking), 0u);
  const Plan plan = MakeEngine(PReduceOptions{.overlap = true, .overlap_steps = 3})->plan();
  EXPECT_TRUE(AveragesInBackground(plan));
  EXPECT_EQ(RunAhead(plan), 3u);
  EXPECT_FALSE(DrawnAhead(plan));
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfPrague) {
  EXPECT_EQ(WrongIn(PragueOptions{.group_size = 1}), "group_size: found 1, allowed is 2 to 100000");
  EXPECT_EQ(WrongIn(PragueOptions{.section_length = 0}),
            "section_length: found 0, allowed is 1 to 100000");
  EXPECT_EQ(WrongIn(PragueOptions{.slowdown_threshold = 0}),
            "slowdown_threshold: found 0, allowed is 1 to 1000000000");
  EXPECT_EQ(WrongIn(PragueOptions{.workers_per_host = -4}),
            "workers_per_host: found -4, allowed is 0 to 1000000");
  EXPECT_EQ(WrongIn(PragueOptions{.overlap_steps = 0}),
            "overlap_steps: found 0, allowed is 1 to 1000");
  EXPECT_EQ(WrongIn(PragueOptions{.seed = -1}), "seed: found -1, allowed is 0 or more");
}

TEST(RegistryTest, PraguesPlanIsItsOptions) {
  const Plan plan = MakeEngine(PragueOptions{.section_length = 3, .overlap_steps = 5})->plan();
  EXPECT_EQ(plan, (plans::Every(3, plans::kAhead)));
  const Plan overlap = MakeEngine(PragueOptions{.generator = PragueOptions::Generator::kStatic,
                                                .overlap = true,
                                                .overlap_steps = 5})
                           ->plan();
  EXPECT_EQ(overlap, (plans::Background(5, Membership::kSchedule)));
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfAdPsgd) {
  EXPECT_EQ(WrongIn(AdPsgdOptions{.section_length = 0}),
            "section_length: found 0, allowed is 1 to 100000");
  EXPECT_EQ(WrongIn(AdPsgdOptions{.overlap_steps = 1001}),
            "overlap_steps: found 1001, allowed is 1 to 1000");
  EXPECT_EQ(WrongIn(AdPsgdOptions{.seed = -1}), "seed: found -1, allowed is 0 or more");
  EXPECT_EQ(WrongIn(AdPsgdOptions{.graph = {.kind = Graph::Kind::kEdges, .edges = {{0, 1}}}}, 3),
            "graph: found no edge of rank 2, allowed is a list that names all 3 workers");
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfHop) {
  using Kind = Graph::Kind;
  EXPECT_EQ(WrongIn(HopOptions{.max_iteration_gap = -1}),
            "max_iteration_gap: found -1, allowed is 0 to 10000");
  EXPECT_EQ(WrongIn(HopOptions{.skip_behind = 0}), "skip_behind: found 0, allowed is 1 to 10000");
  EXPECT_THAT(WrongIn(HopOptions{.max_iteration_gap = 0, .backups = 1}),
              testing::HasSubstr("with backups: without token queues nothing would bound"));
  EXPECT_THAT(WrongIn(HopOptions{.max_iteration_gap = 0, .max_jump = 1}),
              testing::HasSubstr("with max_jump"));
  EXPECT_EQ(WrongIn(HopOptions{.directed = true}),
            "directed: found true, allowed is false, unless graph is a list of edges");
  EXPECT_EQ(WrongIn(HopOptions{.backups = 4}, 8),
            "backups: found 4, allowed is 0 to 3: so many neighbours has rank 0");
  EXPECT_TRUE(Validate(HopOptions{.backups = 3}, 8).ok());
  EXPECT_EQ(WrongIn(HopOptions{.graph = {.kind = Kind::kEdges, .edges = {{0, 1}}}}, 3),
            "graph: found no edge of rank 2, allowed is a list that names all 3 workers");
  EXPECT_EQ(WrongIn(AdPsgdOptions{.graph = {.kind = Kind::kRingBased, .edges = {}}}),
            "graph: found \"ring-based\", allowed is \"ring\", \"complete\" or a list");
}

TEST(RegistryTest, HopsPlanIsItsOptions) {
  const Plan plan =
      MakeEngine(HopOptions{.backups = 2, .staleness = 3, .order = HopOptions::Order::kSerial})
          ->plan();
  EXPECT_EQ(plan, (Plan{.by = NeighbourPlan{.staleness = 3, .backups = 2, .serial = true}}));
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfSsp) {
  EXPECT_EQ(WrongIn(SspOptions{.staleness = -2}),
            "staleness: found -2, allowed is -1 (no bound) or 0 to 1000000");
  EXPECT_EQ(WrongIn(SspOptions{.replicas = 17}), "replicas: found 17, allowed is 0 to 16");
  EXPECT_EQ(WrongIn(SspOptions{.shards = -1}),
            "shards: found -1, allowed is 0 (two per worker) or 1 to 10000");
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfEager) {
  EXPECT_EQ(WrongIn(EagerOptions{.quorum = -1}),
            "quorum: found -1, allowed is 0 (majority), 1 (solo) or 2 to 1000000");
  EXPECT_THAT(WrongIn(EagerOptions{.quorum = 1'000'001}),
              testing::StartsWith("quorum: found 1000001"));
  EXPECT_EQ(WrongIn(EagerOptions{.seed = -1}), "seed: found -1, allowed is 0 or more");
  EXPECT_EQ(WrongIn(EagerOptions{.max_stale_rounds = -1}),
            "max_stale_rounds: found -1, allowed is 0 (no bound) or 1 to 1000000000");
  EXPECT_EQ(WrongIn(EagerOptions{.sync_every = 2'000'000'000}),
            "sync_every: found 2000000000, allowed is 0 (never) or 1 to 1000000000");
}

}  // namespace
}  // namespace prd
