#include "tools/prdbench/reduce.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "tools/prdbench/reduce_team.h"

namespace prd::bench {
namespace {

struct Samples {
  std::vector<double> first_use;
  std::vector<double> first_contact;
  std::vector<double> repeated;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Every ordered pair of members is next to each other once, as in the rings to come.
Status ConnectAll(Team* team, int workers, std::size_t bytes) {
  for (int a = 0; a < workers; ++a) {
    for (int b = a + 1; b < workers; ++b) {
      const Result<double> pair = team->Reduce({a, b}, bytes);
      if (!pair.ok()) return pair.status();
    }
  }
  return Status::Ok();
}

Status Measure(Team* team, const std::vector<int>& all, std::size_t bytes, bool connected,
               Samples* samples) {
  if (connected) {
    PRD_RETURN_IF_ERROR(ConnectAll(team, static_cast<int>(all.size()), bytes));
  }
  const Result<double> first = team->Reduce(all, bytes);
  if (!first.ok()) return first.status();
  (connected ? samples->first_use : samples->first_contact).push_back(*first);
  return Status::Ok();
}

Status MeasureSize(const ReduceOptions& options, std::size_t bytes, Samples* ours, Samples* torch) {
  std::vector<int> all(static_cast<std::size_t>(options.workers));
  std::iota(all.begin(), all.end(), 0);
  for (int trial = 0; trial < 2 * options.trials; ++trial) {
    const bool connected = trial % 2 == 1;
    Result<std::unique_ptr<Team>> team = StartMeshTeam(options.workers, bytes, options.tcp);
    if (!team.ok()) return team.status();
    std::unique_ptr<Team> other;
    if (options.beside_torch) {
      Result<std::unique_ptr<Team>> started =
          StartTorchTeam(options.workers, bytes, options.python);
      if (!started.ok()) return started.status();
      other = std::move(*started);
    }
    PRD_RETURN_IF_ERROR(Measure(team->get(), all, bytes, connected, ours));
    if (other) PRD_RETURN_IF_ERROR(Measure(other.get(), all, bytes, connected, torch));
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      const Result<double> time = (*team)->Reduce(all, bytes);
      if (!time.ok()) return time.status();
      ours->repeated.push_back(*time);
      if (!other) continue;
      const Result<double> beside = other->Reduce(all, bytes);
      if (!beside.ok()) return beside.status();
      torch->repeated.push_back(*beside);
    }
  }
  return Status::Ok();
}

void Print(const ReduceOptions& options, const char* library, std::size_t bytes,
           const Samples& samples) {
  const double median = Median(samples.repeated);
  const double first = Median(samples.first_use);
  const double contact = Median(samples.first_contact);
  const double rate = static_cast<double>(bytes) / median * 1e-9;
  if (options.json) {
    std::printf(
        "{\"bench\":\"reduce\",\"library\":\"%s\",\"workers\":%d,\"bytes\":%zu,"
        "\"first_use_s\":%.6g,\"first_contact_s\":%.6g,\"median_s\":%.6g,\"min_s\":%.6g,"
        "\"gb_per_s\":%.4g}\n",
        library, options.workers, bytes, first, contact, median,
        *std::min_element(samples.repeated.begin(), samples.repeated.end()), rate);
  } else {
    std::printf("%-12s %8d %12zu %12.3f %14.3f %12.3f %10.3f\n", library, options.workers, bytes,
                first * 1e3, contact * 1e3, median * 1e3, rate);
  }
  std::fflush(stdout);
}

}  // namespace

int BenchReduce(const ReduceOptions& options) {
  if (options.workers < 2 || options.workers > 64 || options.trials < 1 || options.repeats < 1) {
    std::fprintf(stderr, "prdbench: 2 to 64 workers, and at least one trial and repeat\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);  // a process that is gone is an error of its own
  if (!options.json) {
    std::printf("%-12s %8s %12s %12s %14s %12s %10s\n", "library", "workers", "bytes",
                "first use ms", "1st contact ms", "median ms", "GB/s");
  }
  for (const std::size_t bytes : options.bytes) {
    Samples ours;
    Samples torch;
    const Status status = MeasureSize(options, bytes, &ours, &torch);
    if (!status.ok()) {
      std::fprintf(stderr, "prdbench: reduce of %zu bytes: %s\n", bytes, status.ToString().c_str());
      return 1;
    }
    Print(options, options.tcp ? "prd-tcp" : "prd", bytes, ours);
    if (options.beside_torch) Print(options, "torch-gloo", bytes, torch);
  }
  return 0;
}

}  // namespace prd::bench
