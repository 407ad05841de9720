// Prints the lines of mutants.md for two drivers: `prdsim`, the sweep of tests/sim/faults with the
// mutant's engine, and `random`, the engine alone under random events beside its reference.
//
// Usage: mutant_table [DRIVER [MOST [MUTANT]]], with MOST seeds per base seed at most, 2000 unless
// told, for one MUTANT or all.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "engines/draw.h"
#include "engines/engine_watch.h"
#include "engines/registry.h"
#include "tests/engines/engine_driver.h"
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

bool RandomFinds(const Mutant& mutant, std::uint64_t seed) {
  Prng random(seed);
  const auto workers = static_cast<Rank>(1 + random.Below(kMaxVaried));
  EngineOptions drawn = Draw(*mutant.engine, &random, workers);
  auto* prague = drawn.As<PragueOptions>();
  if (prague != nullptr && prague->generator == PragueOptions::Generator::kStatic) {
    prague->generator = PragueOptions::Generator::kSmart;  // that forms groups
  }
  EngineWatch engine(MakeMutant(drawn, mutant.mutation, workers), drawn);
  return !MakeDriver(&engine, seed, workers)->Run().empty();
}

void Main(const std::string& driver, std::uint64_t most, const std::string& mutant) {
  std::vector<Mutant> all = AllMutants();
  std::erase_if(all, [&](const Mutant& of) {
    return !mutant.empty() && MutationName(of.mutation) != mutant;
  });
  if (driver.empty() || driver == "random") {
    std::vector<Mutant> mutants = all;
    std::erase_if(mutants, [](const Mutant& of) { return !ChangesDecisions(of.mutation); });
    Hunt("random", mutants, most, RandomFinds);
  }
  if (driver.empty() || driver == "prdsim") {
    const std::vector<Workload> workloads = FaultWorkloads();
    Hunt("prdsim", all, most, [&](const Mutant& planted, std::uint64_t seed) {
      return SweepFinds(workloads, planted, seed);
    });
  }
}

}  // namespace
}  // namespace prd::sim

int main(int argc, char** argv) {
  prd::sim::Main(argc > 1 ? argv[1] : "", argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000,
                 argc > 3 ? argv[3] : "");
  return 0;
}
