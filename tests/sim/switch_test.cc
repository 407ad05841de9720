// From every engine to every other one, in the middle of a job.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "config/engine_text.h"
#include "engines/registry.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/cluster.h"

namespace prd::sim {
namespace {

struct Switched {
  std::vector<std::string> engines;  // of the runs, in order
  std::optional<Instant> acted;
  std::optional<Instant> goes_on;  // the next run has its common start
  RunId next = kNoRun;
  int failed_groups = 0;
  int lost = 0;
  bool finished = false;
};

// Eight workers with steps of 10 ms; nothing goes wrong.
Switched RunSwitch(const std::string& from, const std::string& to, std::uint64_t seed) {
  Workload workload = FromText(
      "[cluster]\nworkers = 8\nworkers_per_host = 4\nsteps = 40\nseconds = 60.0\n"
      "[compute]\nmodel = \"normal\"\nmean_ms = 10.0\nspread = 0.2\n"
      "[job]\nname = \"sim\"\nengine = \"p-reduce\"\nlease_ms = 400\nheartbeat_ms = 100\n"
      "[faults]\nuntil_ms = 400.0\nswitch_at_ms = 150.0\n");
  workload.job.engine = *ParseEngine(from);
  workload.faults.switch_to = to;
  Switched seen;
  const auto count = [&](const Record& record) {
    if (const auto* started = std::get_if<RunStarted>(&record.body)) {
      seen.engines.push_back(started->engine);
    }
    if (std::holds_alternative<OperatorActed>(record.body)) seen.acted = record.now;
    const auto* ended = std::get_if<GroupEnded>(&record.body);
    seen.failed_groups += ended != nullptr && !ended->ok ? 1 : 0;
    if (std::holds_alternative<WorkerJoined>(record.body) && record.run == 2 && !seen.goes_on) {
      seen.goes_on = record.now;
    }
    const auto* left = std::get_if<WorkerLeft>(&record.body);
    seen.lost += left != nullptr && left->why == LeftReason::kLost ? 1 : 0;
    if (const auto* over = std::get_if<RunEnded>(&record.body)) {
      if (record.run == 1) seen.next = over->next;
      if (record.run == 2) seen.finished = over->finished;
    }
  };
  const RunResult run = Simulate(workload, {.seed = seed, .on_record = count});
  EXPECT_EQ(run.invariant, "") << run.violation;
  EXPECT_TRUE(run.all_finished);
  return seen;
}

void CheckSwitch(const std::string& from, const std::string& to, std::uint64_t seed) {
  SCOPED_TRACE(from + " to " + to);
  const Switched seen = RunSwitch(from, to, seed);
  ASSERT_EQ(seen.engines.size(), 2u);
  EXPECT_EQ(seen.engines[1], to.substr(0, to.find(':')));
  EXPECT_EQ(seen.next, 2u);
  EXPECT_EQ(seen.failed_groups, 0);
  EXPECT_EQ(seen.lost, 0);
  EXPECT_TRUE(seen.finished);
  ASSERT_TRUE(seen.acted && seen.goes_on);
  EXPECT_LT(*seen.goes_on - *seen.acted, 100 * kMillisecond);
}

class SwitchFrom : public testing::TestWithParam<EngineOptions> {};

TEST_P(SwitchFrom, ToEveryOther) {
  const std::string from(EngineName(GetParam()));
  std::uint64_t seed = 0;
  for (const EngineOptions& to : AllEngines()) {
    CheckSwitch(from, std::string(EngineName(to)), ++seed);
  }
}

INSTANTIATE_TEST_SUITE_P(OfEachEngine, SwitchFrom, testing::ValuesIn(AllEngines()),
                         [](const auto& of) {
                           std::string name(EngineName(of.param));
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Plans whose workers ask the controller for nothing, or do not wait for it.
TEST(Switch, FromAndToSchedulesAndAveragesInTheBackground) {
  const std::vector<std::string> plans = {
      "prague:generator=static", "prague:generator=static,overlap=true",
      "p-reduce:overlap=true",   "ad-psgd:overlap=true",
      "esync:mode=delayed-ack",  "ssp:staleness=0",
      "hop:staleness=3",         "eager:sync_every=5"};
  std::uint64_t seed = 0;
  for (const std::string& plan : plans) {
    if (!ParseEngine(plan).ok()) ADD_FAILURE() << ParseEngine(plan).status().ToString();
    CheckSwitch(plan, "all-reduce", ++seed);
    CheckSwitch("p-reduce", plan, ++seed);
  }
}

}  // namespace
}  // namespace prd::sim
