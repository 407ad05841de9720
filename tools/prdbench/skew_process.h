// One of the processes that `prdbench skew` starts: a worker of prd under skewed arrivals.
#ifndef PRD_TOOLS_PRDBENCH_SKEW_PROCESS_H_
#define PRD_TOOLS_PRDBENCH_SKEW_PROCESS_H_

#include <cstddef>
#include <string>

namespace prd::bench {

struct SkewProcessOptions {
  std::string board;       // as Board::Open has it
  int process = 0;         // its index, and its rank
  std::size_t bytes = 64;  // of float32
  std::string controller;
  std::string job;
};

// Joins the job, and measures Session::Step on the board. Returns the exit code.
int RunSkewProcess(const SkewProcessOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_SKEW_PROCESS_H_
