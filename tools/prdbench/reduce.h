// prdbench reduce: a group's weighted reduction among processes of this host.
#ifndef PRD_TOOLS_PRDBENCH_REDUCE_H_
#define PRD_TOOLS_PRDBENCH_REDUCE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace prd::bench {

inline constexpr std::size_t kMostReduceBytes = std::size_t{16} << 30;

struct ReduceOptions {
  int workers = 4;  // processes, 2 to 64
  // Sizes, of float32 per worker: multiples of four.
  std::vector<std::size_t> bytes = {4096, 1 << 20, 64 << 20};
  int trials = 3;     // fresh sets of processes per size; half of them for each kind of first use
  int repeats = 10;   // of a group after its first use, per trial
  bool tcp = false;   // between processes, as between hosts; otherwise ipc
  bool json = false;  // a JSON object per line, otherwise a table
  bool beside_torch = false;                // PyTorch's gloo all_reduce alternates with ours
  std::string mesh_security = "none";       // another one alternates with "none"
  std::string python = "/usr/bin/python3";  // that has torch
  // "cuda:N", of the workers in turn: BenchReduceDevice (reduce_device.h), trials x repeats times.
  std::vector<std::string> devices;
  std::string dtype = "f32";  // there: or f64, f16, bf16
};

// Prints one line per size: median_s of a repeated group; first_use_s of a group whose members have
// reduced with each other before, in other groups; first_contact_s of one where no two are
// connected yet; gb_per_s = bytes / median_s. With beside_torch, PyTorch's line follows each, and
// with mesh_security that of the same reductions under it. Returns the exit code: 130 or 143 when
// interrupted, with all processes ended.
int BenchReduce(const ReduceOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_REDUCE_H_
