// prd-mpi-skew BOARD BYTES: one rank of MPI_Allreduce under skewed arrivals, on the same board as
// prd's processes. Run by `prdbench skew` through mpirun.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tools/prdbench/skew_board.h"

namespace prd::bench {
namespace {

void Measure(Board* board, int rank, int count) {
  std::vector<float> mine(static_cast<std::size_t>(count), 1.0F);
  std::vector<float> sum(mine.size());
  for (int i = 0; i < board->iterations(); ++i) {
    const std::int64_t start = board->MeetAndAwaitTurn(rank);
    MPI_Allreduce(mine.data(), sum.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    board->at(i, rank) = {.latency_ns = MonotonicNow() - start,
                          .active = static_cast<double>(sum[0])};
  }
  board->Meet();  // no rank ends, and waits for the end, while others still measure
}

int Run(const std::string& name, int bytes) {
  Result<Board> board = Board::Open(name);
  if (!board.ok()) {
    std::fprintf(stderr, "prd-mpi-skew: %s\n", board.status().ToString().c_str());
    return 1;
  }
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != board->processes()) {
    std::fprintf(stderr, "prd-mpi-skew: %d ranks for a board of %d\n", ranks, board->processes());
    return 1;
  }
  if (rank == 0) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(library, &length);
    const std::string text = library;
    board->SetLibrary(text.substr(0, text.find_first_of(",\n")));
  }
  Measure(&*board, rank, bytes / static_cast<int>(sizeof(float)));
  return 0;
}

}  // namespace
}  // namespace prd::bench

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed mpirun leaves none of them waiting
  const int bytes = argc == 3 ? std::atoi(argv[2]) : 0;
  if (bytes < static_cast<int>(sizeof(float))) {
    std::fprintf(stderr, "usage: mpirun ... prd-mpi-skew BOARD BYTES; prdbench skew runs it\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  const int code = prd::bench::Run(argv[1], bytes);
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}
