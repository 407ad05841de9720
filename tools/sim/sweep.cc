#include "tools/sim/sweep.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

namespace prd::sim {
namespace {

// The seed that a thread is at, for the last words of a PRD_CHECK that fails.
thread_local std::uint64_t current_seed = 0;

void SayLastWords(int) {
  char text[64];
  char* end = text + sizeof text - 1;
  char* at = end;
  *at = '\n';
  std::uint64_t seed = current_seed;
  do {
    *--at = static_cast<char>('0' + seed % 10);
  } while ((seed /= 10) != 0);
  constexpr char kWords[] = "prdsim: a check in the code under test failed at seed ";
  (void)!write(STDERR_FILENO, kWords, sizeof kWords - 1);
  (void)!write(STDERR_FILENO, at, static_cast<std::size_t>(end - at) + 1);
}

void Count(const RunResult& run, SweepResult* sweep) {
  sweep->events += run.events;
  sweep->groups += run.stats.groups;
  sweep->failed_groups += run.stats.failed_groups;
  sweep->restarts += run.restarts;
  sweep->expired += run.stats.expired;
  sweep->adoptions += run.stats.adoptions;
}

}  // namespace

SweepFailure RunSeed(const std::vector<Workload>& workloads, const SweepOptions& options,
                     std::uint64_t seed) {
  const Workload& base = workloads[seed % workloads.size()];
  Workload workload = options.vary ? Vary(base, seed, options.only) : base;
  if (options.vary && options.plane) {
    using enum MeshSecurity;
    constexpr MeshSecurity kDrawn[] = {kNone, kNone, kAead, kCurve};
    workload.job.mesh_security = kDrawn[Prng(seed ^ 0x5ec).Next() % std::size(kDrawn)];
  }
  SweepFailure run{.seed = seed,
                   .workload = workload.name,
                   .engine = EngineText(workload.job.engine),
                   .result = {}};
  current_seed = seed;
  const RunOptions run_options{
      .seed = seed, .mutation = options.mutation, .trace = options.trace, .plane = options.plane};
  run.result = Simulate(workload, run_options);
  if (!options.twice || !run.result.invariant.empty()) return run;
  const RunResult again = Simulate(workload, run_options);
  if (again.hash != run.result.hash) {
    run.result.invariant = "deterministic";
    run.result.violation = "deterministic: the second run of the seed differs from the first";
  }
  return run;
}

SweepResult Sweep(const std::vector<Workload>& workloads, const SweepOptions& options) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  SweepResult sweep;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> failed{0};
  const auto before = std::signal(SIGABRT, SayLastWords);
  const auto work = [&] {
    while (failed.load() < options.stop_after && !(options.ends && options.ends())) {
      const std::uint64_t place = next.fetch_add(1);
      if (place >= options.seeds) return;
      SweepFailure run = RunSeed(workloads, options, options.first_seed + place);
      const std::lock_guard<std::mutex> lock(mutex);
      ++sweep.seeds;
      ++sweep.by_engine[run.engine.substr(0, run.engine.find(':'))];
      Count(run.result, &sweep);
      if (run.result.invariant.empty()) continue;
      failed.fetch_add(1);
      sweep.failures.push_back(std::move(run));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::signal(SIGABRT, before);
  std::sort(sweep.failures.begin(), sweep.failures.end(),
            [](const SweepFailure& a, const SweepFailure& b) { return a.seed < b.seed; });
  sweep.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return sweep;
}

}  // namespace prd::sim
