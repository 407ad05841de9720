// What `prdbench skew` has measured, and how it is printed.
#ifndef PRD_TOOLS_PRDBENCH_SKEW_REPORT_H_
#define PRD_TOOLS_PRDBENCH_SKEW_REPORT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tools/prdbench/skew_board.h"

namespace prd::bench {

// Means over processes and iterations.
class SkewFigures {
 public:
  // REQUIRES: from < board->iterations(), the first iteration that counts.
  void Add(Board* board, int from);
  void Add(const SkewFigures& other);

  bool empty() const { return count_ == 0; }
  double latency_ms() const { return PerSample(latency_ns_) / 1e6; }
  double active() const { return PerSample(active_); }
  // The mean latency of the process that calls first, and of the last.
  double first_ms() const { return PerIteration(first_ns_) / 1e6; }
  double last_ms() const { return PerIteration(last_ns_) / 1e6; }

 private:
  double PerSample(double sum) const { return empty() ? 0 : sum / count_; }
  double PerIteration(double sum) const { return empty() ? 0 : sum / iterations_; }

  double latency_ns_ = 0;  // sums
  double active_ = 0;
  double first_ns_ = 0;
  double last_ns_ = 0;
  double count_ = 0;
  double iterations_ = 0;
};

struct SkewReport {
  struct Size {
    std::size_t bytes = 0;
    SkewFigures ours;
    SkewFigures mpi;  // in the same run; empty without MPI
  };
  struct Operation {
    std::string name;
    std::vector<Size> sizes;
  };
  int processes = 0;
  double skew_ms = 0;
  int iterations = 0;  // of each size
  std::string mpi;     // its name and how it was run, or why it was not
  std::vector<Operation> operations;

  void PrintTable() const;
  // An object per operation; `mpi_latency_ms` and `ratio` are null without MPI.
  void PrintJson() const;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_SKEW_REPORT_H_
