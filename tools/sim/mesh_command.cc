// prdsim mesh.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tools/sim/commands.h"
#include "tools/sim/mesh_run.h"

namespace prd::sim {
namespace {

struct Failure {
  std::uint64_t seed = 0;
  MeshRunResult run;
};

MeshRunResult RunTwice(std::uint64_t seed) {
  MeshRunResult run = RunMeshes({.seed = seed, .trace = {}});
  if (run.invariant.empty() && RunMeshes({.seed = seed, .trace = {}}).hash != run.hash) {
    run.invariant = "deterministic";
    run.what = "deterministic: the second run of the seed differs from the first";
  }
  return run;
}

nlohmann::json ToJson(const Failure& failure) {
  return {{"seed", failure.seed},
          {"invariant", failure.run.invariant},
          {"what", failure.run.what},
          {"setting", failure.run.setting}};
}

}  // namespace

int RunMeshSweep(const CommandOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  if (options.trace) {
    const MeshRunResult run = RunMeshes({.seed = options.seed, .trace = Tracer(options)});
    if (options.json) {
      nlohmann::json json = {{"seeds", 1}, {"violations", nlohmann::json::array()}};
      if (!run.invariant.empty()) json["violations"].push_back(ToJson({options.seed, run}));
      std::printf("%s\n", json.dump().c_str());
    } else {
      std::printf("seed %llu: %s%s%s\n", static_cast<unsigned long long>(options.seed),
                  run.setting.c_str(), run.what.empty() ? "" : "\nBROKEN ", run.what.c_str());
    }
    return run.invariant.empty() ? 0 : kBroken;
  }
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::vector<Failure> failures;
  std::map<std::string, std::uint64_t> sums;
  const auto work = [&] {
    while (!stop && !Interrupted()) {
      const std::uint64_t place = next.fetch_add(1);
      if (place >= options.seeds) return;
      const std::uint64_t seed = options.seed + place;
      MeshRunResult run = RunTwice(seed);
      const std::lock_guard lock(mutex);
      ++sums["seeds"];
      for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::uint64_t>>{
               {"groups", run.groups},
               {"groups_ok", run.succeeded},
               {"landed_in_part", run.landed_in_part},
               {"held", run.held},
               {"on_devices", run.on_devices},
               {"failed_devices", run.failed_devices},
               {"copies", run.copies},
               {"copies_ok", run.copied},
               {"pulls", run.pulls},
               {"pulls_ok", run.pulled},
               {"probes", run.probes},
               {"kills", run.kills},
               {"breaks", run.breaks},
               {"cuts", run.cuts},
               {"attacks", run.attacks},
               {"forged", run.forged},
               {"resumed", run.resumed},
               {"frames", run.frames}}) {
        sums[name] += value;
      }
      if (run.invariant.empty()) continue;
      stop = true;
      failures.push_back({seed, std::move(run)});
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::sort(failures.begin(), failures.end(),
            [](const Failure& a, const Failure& b) { return a.seed < b.seed; });
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (options.json) {
    nlohmann::json json = sums;
    json["seconds"] = seconds;
    json["violations"] = nlohmann::json::array();
    for (const Failure& failure : failures) {
      json["violations"].push_back(ToJson(failure));
    }
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%llu seeds, each twice, in %.1f s: %s\n",
                static_cast<unsigned long long>(sums["seeds"]), seconds,
                failures.empty() ? "no violation" : "a violation");
    for (const auto& [name, value] : sums) {
      if (name != "seeds") {
        std::printf("  %-10s %llu\n", name.c_str(), static_cast<unsigned long long>(value));
      }
    }
    for (const Failure& failure : failures) {
      const auto seed = static_cast<unsigned long long>(failure.seed);
      std::printf("BROKEN %s\n  seed %llu: %s\n  again: prdsim mesh --seed %llu --trace\n",
                  failure.run.what.c_str(), seed, failure.run.setting.c_str(), seed);
    }
  }
  if (!failures.empty()) return kBroken;
  return Interrupted() ? kInterrupted : 0;
}

}  // namespace prd::sim
