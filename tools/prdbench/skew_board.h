// What the processes of one measurement of skewed arrivals share, whatever they reduce with: a
// start line before each iteration, each process's turn after it, and what each has seen. It is
// shared memory and waits in the kernel, so it takes no core and no message from what is measured.
#ifndef PRD_TOOLS_PRDBENCH_SKEW_BOARD_H_
#define PRD_TOOLS_PRDBENCH_SKEW_BOARD_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "prd/status.h"

namespace prd::bench {

// Threads: every method from any number of processes, but one thread in each.
class Board {
 public:
  struct Sample {
    std::int64_t latency_ns = 0;  // from the call of the operation to its return
    double active = 0;            // processes whose gradient of this iteration is in the result
  };

  // `name` as shm_open has it. The board goes away with the object that Create returned. Between
  // the calls of process i and i + 1 in an iteration lie `skew_ns`.
  static Result<Board> Create(const std::string& name, int processes, int iterations,
                              std::int64_t skew_ns);
  // Waits for nothing: the board has been created. kInvalidArgument if this is none.
  static Result<Board> Open(const std::string& name);

  Board(Board&& other) noexcept { *this = std::move(other); }
  Board& operator=(Board&& other) noexcept;
  ~Board();

  int processes() const;
  int iterations() const;
  // How often all processes have met. Never more than iterations() + 1.
  int met() const;

  // Blocks until all processes have called it once more.
  void Meet();
  // Meet, then sleeps until it is this process's turn: (process + 1) x skew after the start, as in
  // Fig. 8 of the eager-SGD paper. Returns the time of the monotonic clock now, ns.
  std::int64_t MeetAndAwaitTurn(int process);

  // REQUIRES: 0 <= iteration < iterations(), 0 <= process < processes().
  Sample& at(int iteration, int process);
  // The MPI library's name, for display; written by process 0, read once all have ended.
  void SetLibrary(const std::string& name);
  std::string library() const;

 private:
  struct Header;
  Board() = default;
  static Result<Board> Map(int fd, std::size_t bytes);

  Header* header_ = nullptr;
  std::size_t bytes_ = 0;
  std::string owned_;  // the name to remove; empty in a board that was opened
};

// The time of the monotonic clock, ns.
std::int64_t MonotonicNow();

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_SKEW_BOARD_H_
