// prdbench device: the module's kernels beside plain copies, and what is right across processes.
//
// On one device, or on the stand-in for CUDA and NCCL that PRD_CUDA_MODULE may name: that shows
// that the calls are made as they must be, and proves nothing about GPUs; every line then says
// "stand_in":true.
#ifndef PRD_TOOLS_PRDBENCH_DEVICE_H_
#define PRD_TOOLS_PRDBENCH_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace prd::bench {

struct DeviceOptions {
  std::string device = "cuda:0";
  std::string check;              // empty: the kernels; or one of DeviceChecks()
  std::size_t bytes = 256 << 20;  // of a row
  double seconds = 0.5;           // per case of the kernels
  // For the checks:
  int processes = 6;
  int groups = 200;
  std::size_t elements = 1 << 18;  // per dtype
  std::uint64_t seed = 1;
  int timeout_ms = 20'000;              // of a reduction; NCCL's first ones connect
  std::size_t slack_bytes = 256 << 20;  // of `leak`, over all processes
};

// "groups", "dtypes", "kill", "leak".
const std::vector<std::string>& DeviceChecks();

// Prints a JSON object per case: {"bench":"device","case":"gather","gb_per_s":..,
// "copy_gb_per_s":..,"ratio":..}, bytes read and written, beside a copy within the device of as
// many; host cases beside a copy from or to pinned memory. Returns the exit code.
int BenchDevice(const DeviceOptions& options);

// Prints {"check":..,"ok":..} and returns 0 if it is, 1 if not.
//   groups  groups of 2 to 4 processes in changing memberships, random weights, several at once;
//           each result against float64
//   dtypes  every dtype alone, and all in one model, by every way
//   kill    a member is killed in mid-reduce: the others' reduction ends with an error in time and
//           changes nothing; groups without it go on, on the communicators that they had
//   leak    memory of the device after `groups` groups in changing memberships, communicators made
//           and given up all the time, as after the first quarter of them
int CheckDevice(const DeviceOptions& options);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_DEVICE_H_
