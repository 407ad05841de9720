#include "tools/prdbench/reduce.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "tools/prdbench/device_line.h"
#include "tools/prdbench/interrupts.h"
#include "tools/prdbench/team.h"

namespace prd::bench {
namespace {

struct Samples {
  std::vector<double> first_use;
  std::vector<double> first_contact;
  std::vector<double> repeated;
};

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

// Prd's processes, and those that alternate with them.
struct Library {
  std::string name;
  std::function<Result<std::unique_ptr<Team>>(std::size_t bytes)> start;
};

std::vector<Library> LibrariesOf(const ReduceOptions& options) {
  const std::string prd = options.tcp ? "prd-tcp" : "prd";
  const auto mesh = [&options](MeshSecurity security) {
    return [&options, security](std::size_t bytes) {
      return StartMeshTeam(options.workers, bytes, options.tcp, security);
    };
  };
  std::vector<Library> libraries = {{prd, mesh(MeshSecurity::kNone)}};
  if (options.mesh_security != "none") {
    const bool aead = options.mesh_security == "aead";
    libraries.push_back({prd + "-" + options.mesh_security,
                         mesh(aead ? MeshSecurity::kAead : MeshSecurity::kCurve)});
  }
  if (options.beside_torch) {
    libraries.push_back({"torch-gloo", [&options](std::size_t bytes) {
                           return StartTorchTeam(options.workers, bytes, options.python);
                         }});
  }
  return libraries;
}

Status MeasureSize(const ReduceOptions& options, const std::vector<Library>& libraries,
                   std::size_t bytes, std::vector<Samples>* samples) {
  std::vector<int> all(static_cast<std::size_t>(options.workers));
  std::iota(all.begin(), all.end(), 0);
  for (int trial = 0; trial < 2 * options.trials; ++trial) {
    const bool connected = trial % 2 == 1;
    std::vector<std::unique_ptr<Team>> teams;
    for (std::size_t i = 0; i < libraries.size(); ++i) {
      Result<std::unique_ptr<Team>> team = libraries[i].start(bytes);
      if (!team.ok()) return team.status();
      teams.push_back(std::move(*team));
      PRD_RETURN_IF_ERROR(Measure(teams[i].get(), all, bytes, connected, &(*samples)[i]));
    }
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (std::size_t i = 0; i < teams.size(); ++i) {
        const Result<double> time = teams[i]->Reduce(all, bytes);
        if (!time.ok()) return time.status();
        (*samples)[i].repeated.push_back(*time);
      }
    }
  }
  return Status::Ok();
}

void Print(const ReduceOptions& options, const std::string& library, std::size_t bytes,
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
        library.c_str(), options.workers, bytes, first, contact, median,
        *std::min_element(samples.repeated.begin(), samples.repeated.end()), rate);
  } else {
    std::printf("%-12s %8d %12zu %12.3f %14.3f %12.3f %10.3f\n", library.c_str(), options.workers,
                bytes, first * 1e3, contact * 1e3, median * 1e3, rate);
  }
  std::fflush(stdout);
}

}  // namespace

int BenchReduce(const ReduceOptions& options) {
  if (options.workers < 2 || options.workers > 64 || options.trials < 1 || options.repeats < 1) {
    std::fprintf(stderr, "prdbench: 2 to 64 workers, and at least one trial and repeat\n");
    return 2;
  }
  CatchInterrupts();
  signal(SIGPIPE, SIG_IGN);  // a process that is gone is an error of its own
  if (!options.json) {
    std::printf("%-12s %8s %12s %12s %14s %12s %10s\n", "library", "workers", "bytes",
                "first use ms", "1st contact ms", "median ms", "GB/s");
  }
  const std::vector<Library> libraries = LibrariesOf(options);
  for (const std::size_t bytes : options.bytes) {
    std::vector<Samples> samples(libraries.size());
    const Status status = MeasureSize(options, libraries, bytes, &samples);
    if (InterruptedBy() != 0) return EndInterrupted();
    if (!status.ok()) {
      std::fprintf(stderr, "prdbench: reduce of %zu bytes: %s\n", bytes, status.ToString().c_str());
      return 1;
    }
    for (std::size_t i = 0; i < libraries.size(); ++i) {
      Print(options, libraries[i].name, bytes, samples[i]);
    }
  }
  return 0;
}

}  // namespace prd::bench
