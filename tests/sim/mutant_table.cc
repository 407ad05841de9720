// Prints the lines of mutants.md for two drivers: `prdsim`, the sweep of tests/sim/faults with the
// mutant's engine, and `random`, the engine alone under random events beside its reference.
//
// Usage: mutant_table [DRIVER [MOST]], with MOST seeds per base seed at most, 2000 unless told.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "engines/engine_watch.h"
#include "engines/registry.h"
#include "tests/engines/engine_driver.h"
#include "tests/engines/hop_world.h"
#include "tests/engines/ssp_world.h"
#include "tests/sim/mutant_hunt.h"
#include "tests/sim/sim_testing.h"
#include "tools/sim/sweep.h"
#include "tools/sim/vary.h"

namespace prd::sim {
namespace {

bool SweepFinds(const std::vector<Workload>& workloads, const Mutant& mutant, std::uint64_t seed) {
  std::optional<OneEngine> only;
  if (mutant.engine) only = OneEngine{.engine = *mutant.engine};
  const SweepOptions options{.mutation = mutant.mutation, .only = only, .twice = false};
  return !RunSeed(workloads, options, seed).result.invariant.empty();
}

// "" or what is wrong.
std::string RunDriver(Engine* engine, std::uint64_t seed, Rank workers) {
  EngineDriver driver(engine, seed, workers);
  for (int round = 0; round < 3; ++round) {
    if (auto wrong = driver.Storm(500); !wrong.empty()) return wrong;
    if (auto wrong = driver.Calm(10); !wrong.empty()) return wrong;
  }
  return driver.Drain();
}

template <typename World>
std::string RunWorld(World world, std::uint64_t seed, Rank workers) {
  Prng random(seed);
  for (int round = 0; round < 3; ++round) {
    if (auto wrong = world.Storm(&random, 500, workers); !wrong.empty()) return wrong;
    if (auto wrong = world.Calm(&random, 10); !wrong.empty()) return wrong;
  }
  return world.Drain(&random);
}

bool RandomFinds(const Mutant& mutant, std::uint64_t seed) {
  const auto workers = static_cast<Rank>(1 + Prng(seed).Below(kMostVaried));
  EngineOptions drawn = DrawEngine(seed, workers, OneEngine{.engine = *mutant.engine});
  auto* prague = std::get_if<PragueOptions>(&drawn);
  if (prague != nullptr && prague->generator == PragueOptions::Generator::kStatic) {
    prague->generator = PragueOptions::Generator::kSmart;  // that forms groups
  }
  EngineWatch engine(MakeMutant(drawn, mutant.mutation, workers), drawn);
  std::string wrong;
  if (const auto* hop = std::get_if<HopOptions>(&drawn)) {
    wrong = RunWorld(HopWorld(*hop, &engine), seed, workers);
  } else if (const auto* ssp = std::get_if<SspOptions>(&drawn)) {
    wrong = RunWorld(SspWorld(*ssp, &engine), seed, workers);
  } else {
    wrong = RunDriver(&engine, seed, workers);
  }
  return !wrong.empty();
}

void Main(const std::string& driver, std::uint64_t most) {
  if (driver.empty() || driver == "random") {
    std::vector<Mutant> mutants = AllMutants();
    std::erase_if(mutants, [](const Mutant& of) { return !ChangesDecisions(of.mutation); });
    Hunt("random", mutants, most, RandomFinds);
  }
  if (driver.empty() || driver == "prdsim") {
    const std::vector<Workload> workloads = FaultWorkloads();
    Hunt("prdsim", AllMutants(), most, [&](const Mutant& mutant, std::uint64_t seed) {
      return SweepFinds(workloads, mutant, seed);
    });
  }
}

}  // namespace
}  // namespace prd::sim

int main(int argc, char** argv) {
  prd::sim::Main(argc > 1 ? argv[1] : "", argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000);
  return 0;
}
