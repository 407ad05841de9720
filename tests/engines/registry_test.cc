#include "engines/registry.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plans.h"

namespace prd::registry_test {
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

TEST(RegistryTest, SaysWhatIsWrongBetweenKeys) {
  EXPECT_THAT(WrongIn(PReduceOptions{.history_window = 3}, 8),
              testing::HasSubstr("history_window: found 3, allowed is 0 (chosen by prd) or 4 to"));
  EXPECT_TRUE(Validate(PReduceOptions{.history_window = 4}, 8).ok());
  EXPECT_EQ(WrongIn(BackupOptions{.backups = 4}, 4),
            "backups: found 4, allowed is 0 to 3: a round of 4 workers waits for one at least");
  EXPECT_TRUE(Validate(BackupOptions{.backups = 4}, 5).ok());
  EXPECT_EQ(WrongIn(EsyncOptions{.global_lr = 0}),
            "global_lr: found 0.0, allowed is more than 0 and less than 10");
  EXPECT_EQ(WrongIn(EsyncOptions{.stall_factor = 1}),
            "stall_factor: found 1, allowed is 0 (off) or 2 to 1000");
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
  EXPECT_EQ(WrongIn(AdPsgdOptions{.graph = {.kind = Graph::Kind::kEdges, .edges = {{0, 1}}}}, 3),
            "graph: found no edge of rank 2, allowed is a list that names all 3 workers");
}

TEST(RegistryTest, SaysWhatIsWrongWithAnOptionOfHop) {
  using Kind = Graph::Kind;
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

TEST(RegistryTest, SaysUnderWhichOptionsTheSlowestSetsThePace) {
  using testing::HasSubstr;
  using Generator = PragueOptions::Generator;
  const PReduceOptions three{.group_size = 3};
  EXPECT_EQ(SlowestSetsPace(three, 3),
            "group_size 3 of 3 workers: every group waits for the slowest worker; fewer than 3, or "
            "0, does not");
  EXPECT_THAT(SlowestSetsPace(PReduceOptions{.group_size = 99, .overlap = true}, 2),
              HasSubstr("group_size 99 of 2 workers"));
  EXPECT_THAT(SlowestSetsPace(PReduceOptions{}, 2), HasSubstr("group_size 2 of 2"));
  EXPECT_THAT(SlowestSetsPace(BackupOptions{.backups = 0}, 4), HasSubstr("backups 0"));
  EXPECT_THAT(SlowestSetsPace(EagerOptions{.quorum = 4}, 4), HasSubstr("quorum 4 of 4"));
  EXPECT_THAT(SlowestSetsPace(SspOptions{.staleness = 0}, 4), HasSubstr("staleness 0: every step"));
  EXPECT_THAT(SlowestSetsPace(SspOptions{}, 4), HasSubstr("staleness 3: who is always slow"));
  EXPECT_THAT(SlowestSetsPace(HopOptions{.backups = 1}, 5), HasSubstr("max_jump 0"));
  EXPECT_THAT(SlowestSetsPace(HopOptions{.max_jump = 10}, 5), HasSubstr("staleness 0"));
  EXPECT_THAT(SlowestSetsPace(PragueOptions{}, 5), HasSubstr("nor does 2 or less"));
  EXPECT_THAT(SlowestSetsPace(PragueOptions{}, 3), HasSubstr("one group of all"));
  const PragueOptions drawn{.generator = Generator::kStatic, .overlap = true};
  EXPECT_THAT(SlowestSetsPace(drawn, 8), HasSubstr("static"));
  EXPECT_THAT(SlowestSetsPace(PragueOptions{.generator = Generator::kRandom}, 8),
              HasSubstr("without overlap"));
  const std::vector<EngineOptions> fine = {
      AllReduceOptions{},
      PReduceOptions{},
      PReduceOptions{.group_size = 4},
      PReduceOptions{.group_size = 99, .max_wait_ms = 50},
      EagerOptions{},
      BackupOptions{},
      EsyncOptions{},
      PragueOptions{.group_size = 2},
      PragueOptions{.overlap = true},
      PragueOptions{.generator = Generator::kRandom, .overlap = true},
      AdPsgdOptions{},
      HopOptions{.backups = 1, .max_jump = 10},
      HopOptions{.staleness = 5, .max_jump = 10},
      SspOptions{.staleness = -1}};
  for (const EngineOptions& options : fine) EXPECT_EQ(SlowestSetsPace(options, 5), "");
  for (const EngineOptions& options : AllEngines()) EXPECT_EQ(SlowestSetsPace(options, 1), "");
}

TEST(RegistryTest, HopsPlanIsItsOptions) {
  const Plan plan =
      MakeEngine(HopOptions{.backups = 2, .staleness = 3, .order = HopOptions::Order::kSerial})
          ->plan();
  EXPECT_EQ(plan, (Plan{.by = NeighbourPlan{.staleness = 3, .backups = 2, .serial = true}}));
}

}  // namespace
}  // namespace prd::registry_test
