// Random events against the engines: a storm with faults, then calm in which everybody must get on,
// then workers leave one by one. Each run is replayed twice, the second time through a snapshot at
// every few events, and must give the same decisions and the same state.
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/static_schedule.h"
#include "engines/draw.h"
#include "engines/engine_watch.h"
#include "engines/p_reduce/p_reduce.h"
#include "engines/prague/prague.h"
#include "engines/registry.h"
#include "gtest/gtest.h"
#include "tests/engines/engine_driver.h"

namespace prd {
namespace {

std::string StateOf(Engine* engine) {
  StateArchive ar = StateArchive::Saver();
  engine->Archive(ar);
  return ar.bytes();
}

// Held to its invariants.
std::unique_ptr<EngineWatch> Watched(const EngineOptions& options) {
  return std::make_unique<EngineWatch>(MakeEngine(options), options);
}

std::unique_ptr<EngineWatch> Copy(const EngineOptions& options, Engine* engine) {
  const std::string state = StateOf(engine);
  auto copy = Watched(options);
  StateArchive ar = StateArchive::Loader(state);
  copy->Archive(ar);
  EXPECT_TRUE(ar.ok() && ar.AtEnd());
  EXPECT_EQ(StateOf(copy.get()), state);
  return copy;
}

// The same events again give the same decisions, also if the state goes through bytes now and then.
void ExpectReplay(const EngineOptions& options, const std::vector<Applied>& applied,
                  std::uint64_t final_hash) {
  auto engine = Watched(options);
  Prng random(applied.size());
  GroupId next_group = 1;
  for (const Applied& one : applied) {
    if (random.Below(16) == 0) {
      auto copy = Copy(options, engine.get());
      EXPECT_EQ(copy->NextDeadline(), engine->NextDeadline());
      engine = std::move(copy);
    }
    Effects effects;
    engine->Step(one.now, one.event, &next_group, &effects);
    ASSERT_EQ(effects, one.effects);
  }
  EXPECT_EQ(HashBytes(StateOf(engine.get())), final_hash);
}

void RunOnce(const EngineOptions& options, Engine* engine, std::uint64_t seed, Rank max_workers) {
  const auto driver = MakeDriver(engine, seed, max_workers);
  ASSERT_EQ(driver->Run(), "") << "seed " << seed;
  const std::uint64_t hash = HashBytes(StateOf(engine));
  ExpectReplay(options, driver->applied(), hash);
}

TEST(EngineRandomTest, PReduceKeepsItsRules) {
  std::int64_t small = 0;
  std::int64_t alone = 0;
  std::int64_t bridges = 0;
  std::int64_t holds = 0;
  std::int64_t left_over = 0;
  std::int64_t gathered = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Prng random(seed);
    // Many workers, or hardly more than a group has.
    auto workers = static_cast<Rank>(2 + random.Below(14));
    const auto options = Draw<PReduceOptions>(&random, seed % 2 == 0 ? workers : 6);
    if (seed % 2 == 1) {
      workers = static_cast<Rank>(FullGroup(options, 6)) + static_cast<Rank>(random.Below(3));
    }
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, workers);
    if (HasFatalFailure()) return;
    bridges += engine->rules().Counter("bridges");
    holds += engine->rules().Counter("holds");
    small += engine->rules().Counter("small");
    alone += engine->rules().Counter("alone");
    left_over += engine->rules().Counter("left_over");
    gathered += engine->rules().Counter("gathered");
  }
  EXPECT_GT(bridges, 100) << "the runs must reach the filter";
  EXPECT_GT(holds, 20);
  EXPECT_GT(small, 1000) << "the runs must reach workers that do not reach each other";
  EXPECT_GT(alone, 100);
  EXPECT_GT(left_over, 100);
  EXPECT_GT(gathered, 50);
}

TEST(EngineRandomTest, AllReduceKeepsItsRules) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Prng random(seed);
    const auto options = Draw<AllReduceOptions>(&random, 9);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + seed % 9));
    if (HasFatalFailure()) return;
  }
}

TEST(EngineRandomTest, EagerKeepsItsRules) {
  std::int64_t bounds = 0;
  std::int64_t holds = 0;
  std::int64_t averages = 0;
  std::int64_t failures = 0;
  std::int64_t by_samples = 0;
  std::int64_t finished = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    const auto options = Draw<EagerOptions>(&random, 9);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + random.Below(9)));
    if (HasFatalFailure()) return;
    bounds += engine->rules().Counter("bounds");
    holds += engine->rules().Counter("holds");
    averages += engine->rules().Counter("averages");
    failures += engine->rules().Counter("failures");
    by_samples += engine->rules().Counter("by_samples");
    finished += engine->rules().Counter("finished");
  }
  EXPECT_GT(bounds, 1000) << "the runs must reach the bound on staleness";
  EXPECT_GT(holds, 50);
  EXPECT_GT(averages, 1000);
  EXPECT_GT(failures, 500);
  EXPECT_GT(by_samples, 1000) << "the runs must reach unequal weights";
  EXPECT_GT(finished, 100) << "the runs must reach rounds after a worker has finished";
}

TEST(EngineRandomTest, BackupKeepsItsRules) {
  std::int64_t rounds = 0;
  std::int64_t dropped = 0;
  std::int64_t came = 0;
  std::int64_t in_vain = 0;
  std::int64_t begins = 0;
  std::int64_t let_go = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Prng random(seed);
    const auto workers = static_cast<Rank>(1 + random.Below(9));
    const auto options = Draw<BackupOptions>(&random, 9);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, workers);
    if (HasFatalFailure()) return;
    rounds += engine->rules().Counter("rounds");
    dropped += engine->rules().Counter("dropped");
    came += engine->rules().Counter("came");
    in_vain += engine->rules().Counter("in_vain");
    begins += engine->rules().Counter("begins");
    let_go += engine->rules().Counter("let_go");
  }
  EXPECT_GT(came, 50) << "the runs must reach rounds that wait for who had to copy";
  EXPECT_GT(in_vain, 50);
  EXPECT_GT(begins, 50) << "the runs must reach outdated workers that are dropped later";
  EXPECT_GT(let_go, 10) << "and such as no round comes for in time";
  EXPECT_GT(rounds, 5000);
  EXPECT_GT(dropped, 5000) << "the runs must reach late gradients";
}

TEST(EngineRandomTest, EsyncKeepsItsRules) {
  std::int64_t rounds = 0;
  std::int64_t dropped = 0;
  std::int64_t taken_out = 0;
  std::int64_t local_steps = 0;
  std::int64_t by_samples = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Prng random(seed);
    const auto workers = static_cast<Rank>(1 + random.Below(9));
    const auto options = Draw<EsyncOptions>(&random, 9);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, workers);
    if (HasFatalFailure()) return;
    rounds += engine->rules().Counter("rounds");
    dropped += engine->rules().Counter("dropped");
    taken_out += engine->rules().Counter("taken_out");
    local_steps += engine->rules().Counter("local_steps");
    by_samples += engine->rules().Counter("by_samples");
  }
  EXPECT_GT(rounds, 3000);
  EXPECT_GT(dropped, 500) << "the runs must reach late updates";
  EXPECT_GT(taken_out, 100) << "the runs must reach stalls";
  EXPECT_GT(local_steps, 1000) << "the runs must reach several local iterations";
  EXPECT_GT(by_samples, 500) << "the runs must reach unequal weights";
}

TEST(EngineRandomTest, AdPsgdKeepsItsRules) {
  std::int64_t pairs = 0;
  std::int64_t conflicts = 0;
  std::int64_t redrawn = 0;
  std::int64_t parted = 0;
  std::int64_t alone = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Prng random(seed);
    const auto options = Draw<AdPsgdOptions>(&random, 9);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + random.Below(9)));
    if (HasFatalFailure()) return;
    pairs += engine->rules().Counter("pairs");
    conflicts += engine->rules().Counter("conflicts");
    redrawn += engine->rules().Counter("redrawn");
    alone += engine->rules().Counter("alone");
    parted += engine->rules().Counter("parted");
  }
  EXPECT_GT(pairs, 20000);
  EXPECT_GT(conflicts, 5000) << "the runs must reach pairs that share a worker";
  EXPECT_GT(redrawn, 500) << "the runs must reach failures and partners that leave";
  EXPECT_GT(alone, 500);
  EXPECT_GT(parted, 20) << "the runs must reach pairs whose link breaks before their turn";
}

struct PragueCounts {
  std::int64_t divisions = 0;
  std::int64_t in_two_phases = 0;
  std::int64_t excluded = 0;
  std::int64_t served = 0;
  std::int64_t conflicts = 0;
  std::int64_t redraws = 0;
  std::int64_t parted = 0;
  std::int64_t apart = 0;
};

PragueCounts RunPrague(PragueOptions::Generator generator, std::uint64_t seeds) {
  PragueCounts counts;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Prng random(seed);
    auto options = Draw<PragueOptions>(&random, 14);
    options.generator = generator;

    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + random.Below(14)));
    if (testing::Test::HasFatalFailure()) return counts;
    counts.divisions += engine->rules().Counter("divisions");
    counts.in_two_phases += engine->rules().Counter("in_two_phases");
    counts.excluded += engine->rules().Counter("excluded");
    counts.served += engine->rules().Counter("served");
    counts.conflicts += engine->rules().Counter("conflicts");
    counts.redraws += engine->rules().Counter("redraws");
    counts.parted += engine->rules().Counter("parted");
    counts.apart += engine->rules().Counter("divisions_apart");
  }
  return counts;
}

TEST(EngineRandomTest, PragueRandomKeepsItsRules) {
  const PragueCounts counts = RunPrague(PragueOptions::Generator::kRandom, 20);
  EXPECT_GT(counts.conflicts, 5000) << "the runs must reach groups that overlap";
  EXPECT_GT(counts.served, 150) << "the runs must reach groups that are through before a request";
  EXPECT_GT(counts.redraws, 500) << "the runs must reach failures";
  EXPECT_GT(counts.parted, 50) << "the runs must reach links that break before a group's turn";
}

TEST(EngineRandomTest, PragueSmartKeepsItsRules) {
  const PragueCounts counts = RunPrague(PragueOptions::Generator::kSmart, 80);
  EXPECT_GT(counts.divisions, 5000);
  EXPECT_GT(counts.in_two_phases, 1000);
  EXPECT_GT(counts.excluded, 1000) << "the runs must reach slow workers";
  EXPECT_GT(counts.served, 1000) << "the runs must reach groups that are through before a request";
  EXPECT_GT(counts.redraws, 500) << "the runs must reach failures";
  EXPECT_GT(counts.parted, 10) << "the runs must reach links that break before a group's turn";
  EXPECT_GT(counts.apart, 300) << "the runs must reach idle workers that do not reach each other";
}

// A schedule of exactly those who are there, kSettle after the first change since the last one.
TEST(EngineRandomTest, PragueStaticSaysWhoIsThere) {
  PragueOptions options{.generator = PragueOptions::Generator::kStatic};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Prng random(seed);
    options.workers_per_host = static_cast<int>(random.Below(4));
    auto engine = Watched(options);
    std::map<Rank, std::string> joined;
    std::optional<Instant> due;
    Instant now;
    GroupId next_group = 1;
    for (int i = 0; i < 300; ++i) {
      now.ns += static_cast<std::int64_t>(random.Below(3 * kMillisecond));
      Effects effects;
      const GroupId first = next_group;
      ASSERT_EQ(engine->NextDeadline(), due);
      if (due && *due <= now) {
        due.reset();
        engine->Step(now, DeadlineEvent{}, &next_group, &effects);
        ASSERT_EQ(effects.size(), joined.empty() ? 0u : 1u);
        if (joined.empty()) continue;
        const auto& set = std::get<ScheduleSet>(effects[0]);
        ASSERT_EQ(set.first, first);
        ASSERT_EQ(next_group, first + kScheduleSpan);
        ASSERT_FALSE(set.reason.empty());
        ASSERT_EQ(set.members.size(), joined.size());
        ASSERT_EQ(set.hosts.size(), joined.size());
        std::map<std::string, std::int32_t> numbers;
        for (std::size_t at = 0; const auto& [rank, name] : joined) {
          ASSERT_EQ(set.members[at], rank);
          const int size = options.workers_per_host;
          const std::string host = size > 0 ? std::to_string(rank / size) : name;
          ASSERT_EQ(numbers.emplace(host, set.hosts[at]).first->second, set.hosts[at]);
          ++at;
        }
        std::set<std::int32_t> distinct(set.hosts.begin(), set.hosts.end());
        ASSERT_EQ(distinct.size(), numbers.size());
        for (const auto& [rank, name] : joined) ASSERT_NE(engine->Explain(now, rank), "");
        continue;
      }
      const auto rank = static_cast<Rank>(random.Below(12));
      if (joined.contains(rank)) {
        joined.erase(rank);
        engine->Step(now, LeftEvent{.rank = rank}, &next_group, &effects);
      } else {
        joined[rank] = "host" + std::to_string(random.Below(3));
        engine->Step(now, JoinedEvent{.rank = rank, .host = joined[rank]}, &next_group, &effects);
      }
      ASSERT_TRUE(effects.empty());
      if (!due) due = now + Prague::kSettle;
      if (i % 7 == 0) engine = Copy(options, engine.get());
    }
  }
}

TEST(EngineRandomTest, HopKeepsItsRules) {
  std::int64_t waits = 0;
  std::int64_t jumps = 0;
  std::int64_t rewired = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    const auto options = Draw<HopOptions>(&random, 12);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + random.Below(12)));
    if (HasFatalFailure()) return;
    waits += engine->rules().Counter("waits");
    jumps += engine->rules().Counter("jumps");
    rewired += engine->rules().Counter("rewired");
  }
  EXPECT_GT(waits, 2000) << "the runs must reach token queues that are empty";
  EXPECT_GT(jumps, 500) << "the runs must reach skipped iterations";
  EXPECT_GT(rewired, 2000) << "the runs must reach changes of the graph";
}

TEST(EngineRandomTest, SspKeepsItsRules) {
  std::int64_t placements = 0;
  std::int64_t late = 0;
  std::int64_t moved = 0;
  std::int64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    const auto options = Draw<SspOptions>(&random, 10);
    const auto engine = Watched(options);
    RunOnce(options, engine.get(), seed, static_cast<Rank>(1 + random.Below(10)));
    if (HasFatalFailure()) return;
    placements += engine->rules().Counter("placements");
    late += engine->rules().Counter("late");
    moved += engine->rules().Counter("moved");
    lost += engine->rules().Counter("lost");
  }
  EXPECT_GT(placements, 3000);
  EXPECT_GT(late, 500) << "the runs must reach changes before a placement is open";
  EXPECT_GT(moved, 3000);
  EXPECT_GT(lost, 100) << "the runs must reach shards that nobody has any more";
}

// What an engine saves in the midst of a storm.
std::string StateInAStorm(const EngineOptions& options) {
  const auto engine = MakeEngine(options);
  EXPECT_EQ(MakeDriver(engine.get(), 7, 9)->Storm(400), "");
  return StateOf(engine.get());
}

// Damaged snapshots are refused or give a state that can be saved again; nothing is read out of
// bounds, and no walk goes round for ever.
TEST(EngineRandomTest, DamagedSnapshotsAreSafe) {
  std::vector<EngineOptions> engines = AllEngines();
  engines.push_back(PragueOptions{.generator = PragueOptions::Generator::kRandom});
  for (const EngineOptions& options : engines) {
    const std::string state = StateInAStorm(options);
    Prng random(11);
    int refused = 0;
    for (int i = 0; i < 6000; ++i) {
      std::string damaged = state;
      for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) {
        damaged[random.Below(damaged.size())] = static_cast<char>(random.Next());
      }
      if (i % 5 == 0) damaged.resize(random.Below(damaged.size()));
      const auto copy = MakeEngine(options);
      StateArchive ar = StateArchive::Loader(damaged);
      copy->Archive(ar);
      refused += ar.ok() ? 0 : 1;
      if (!ar.ok()) continue;
      EXPECT_FALSE(StateOf(copy.get()).empty());
      for (Rank rank = 0; rank < 9; ++rank) copy->Explain({1}, rank);
    }
    EXPECT_GE(refused, 1200) << EngineName(options);  // all that were cut short, at least
  }
}

}  // namespace
}  // namespace prd
