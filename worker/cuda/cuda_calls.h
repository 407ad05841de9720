// What every file of the module needs of CUDA's runtime.
#ifndef PRD_WORKER_CUDA_CUDA_CALLS_H_
#define PRD_WORKER_CUDA_CUDA_CALLS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "prd/status.h"

namespace prd::cuda {

// "cudaMalloc of 64 bytes: cudaErrorMemoryAllocation: out of memory".
Status ToStatus(cudaError_t error, const std::string& asked);

// "13.0" of 13000.
std::string VersionText(int version);

// Makes a device the thread's current one, and the one before it again at the end: calls come from
// the training program's thread, too. In between the thread may call what allocates or asks while
// another thread captures a CUDA graph; otherwise such a call would fail, and break that capture.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;                                            // -1: it is not to be restored
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's before
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_CUDA_CALLS_H_
