#include "tools/prdbench/skew_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

namespace prd::bench {
namespace {

SkewReport::Size AllSizes(const SkewReport::Operation& operation) {
  SkewReport::Size all;
  for (const SkewReport::Size& size : operation.sizes) {
    all.ours.Add(size.ours);
    all.mpi.Add(size.mpi);
  }
  return all;
}

double Ratio(const SkewReport::Size& size) {
  return size.mpi.latency_ms() / size.ours.latency_ms();
}

nlohmann::json Figures(const SkewReport::Size& size) {
  nlohmann::json figures{{"latency_ms", size.ours.latency_ms()},
                         {"first_ms", size.ours.first_ms()},
                         {"last_ms", size.ours.last_ms()},
                         {"mean_active", size.ours.active()},
                         {"mpi_latency_ms", nullptr},
                         {"ratio", nullptr}};
  if (!size.mpi.empty()) {
    figures["mpi_latency_ms"] = size.mpi.latency_ms();
    figures["ratio"] = Ratio(size);
  }
  return figures;
}

void PrintRow(const std::string& name, const std::string& bytes, const SkewReport::Size& size) {
  std::printf("%-12s %9s %12.3f", name.c_str(), bytes.c_str(), size.ours.latency_ms());
  if (size.mpi.empty()) {
    std::printf(" %17s %8s", "-", "-");
  } else {
    std::printf(" %17.3f %8.2f", size.mpi.latency_ms(), Ratio(size));
  }
  std::printf(" %12.2f\n", size.ours.active());
}

}  // namespace

void SkewFigures::Add(Board* board, int from) {
  for (int i = from; i < board->iterations(); ++i) {
    for (int p = 0; p < board->processes(); ++p) {
      latency_ns_ += static_cast<double>(board->at(i, p).latency_ns);
      active_ += board->at(i, p).active;
      ++count_;
    }
    first_ns_ += static_cast<double>(board->at(i, 0).latency_ns);
    last_ns_ += static_cast<double>(board->at(i, board->processes() - 1).latency_ns);
    ++iterations_;
  }
}

void SkewFigures::Add(const SkewFigures& other) {
  latency_ns_ += other.latency_ns_;
  active_ += other.active_;
  first_ns_ += other.first_ns_;
  last_ns_ += other.last_ns_;
  count_ += other.count_;
  iterations_ += other.iterations_;
}

void SkewReport::PrintTable() const {
  std::printf(
      "%d processes on %u cores; process i of 1..%d calls i x %g ms after the start. Means over "
      "all\n"
      "processes and %d iterations of each size.\n",
      processes, std::thread::hardware_concurrency(), processes, skew_ms, iterations);
  std::printf("%-12s %9s %12s %17s %8s %12s\n", "operation", "bytes", "prd, ms",
              "MPI_Allreduce, ms", "MPI/prd", "mean active");
  for (const Operation& operation : operations) {
    for (const Size& size : operation.sizes) {
      PrintRow(operation.name, std::to_string(size.bytes), size);
    }
    if (operation.sizes.size() > 1) PrintRow(operation.name, "all", AllSizes(operation));
  }
  std::printf("MPI: %s\n", mpi.c_str());
}

void SkewReport::PrintJson() const {
  for (const Operation& operation : operations) {
    nlohmann::json line = Figures(AllSizes(operation));
    line.update({{"bench", "skew"},
                 {"op", operation.name},
                 {"processes", processes},
                 {"cores", std::thread::hardware_concurrency()},
                 {"skew_ms", skew_ms},
                 {"iterations", iterations},
                 {"mpi", mpi}});
    for (const Size& size : operation.sizes) {
      line["sizes"].push_back(Figures(size));
      line["sizes"].back()["bytes"] = size.bytes;
    }
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace prd::bench
