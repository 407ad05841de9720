// prdbench skew: the microbenchmark of eager-SGD (Li et al., PPoPP 2020, section 6.1 and Fig. 8).
#ifndef PRD_TOOLS_PRDBENCH_SKEW_H_
#define PRD_TOOLS_PRDBENCH_SKEW_H_

#include <cstddef>
#include <string>
#include <vector>

namespace prd::bench {

// What a size may be, a multiple of four.
inline constexpr std::size_t kLeastSkewBytes = 64;
inline constexpr std::size_t kMostSkewBytes = 64 << 20;

struct SkewOptions {
  int processes = 32;   // 2 to 256
  double skew_ms = 1;   // process i of 1..N calls the operation i x this after the start
  int iterations = 50;  // measured, per round and size
  int warmup = 5;       // before them, not counted: connections are made
  int rounds = 2;       // fresh processes for each, MPI's and prd's taking turns
  std::vector<std::size_t> bytes = {64, 1024, 16384};                 // of float32, per process
  std::vector<std::string> ops = {"solo", "majority", "all-reduce"};  // of SkewOps()
  bool without_mpi = false;       // else MPI_Allreduce beside them, where it is installed
  std::string mpirun = "mpirun";  // Open MPI's
  std::string daemon;             // the prd binary; empty: the one beside this program
  bool json = false;              // an object per operation, otherwise a table
};

// What can be measured, in the order of the table.
std::vector<std::string> SkewOps();

// Prints, for each operation, the mean latency over all processes and iterations, MPI_Allreduce's
// in the same run, the ratio of the two, and the mean number of active processes: those whose
// gradient of the iteration was in the round that their peers' calls, too, returned with. Progress
// goes to stderr. Returns the exit code: 130 or 143 when interrupted, with all processes ended.
int BenchSkew(const SkewOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_SKEW_H_
