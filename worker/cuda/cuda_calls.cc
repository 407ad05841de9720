#include "worker/cuda/cuda_calls.h"

#include <cuda.h>

namespace prd::cuda {
namespace {

// Whether a device has a context already. Asked of the driver, which the runtime has loaded.
bool InUse(int device) {
  static void* const state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
  }();
  if (state == nullptr) return true;
  unsigned flags = 0;
  int active = 0;
  const auto ask = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(state);
  return ask(device, &flags, &active) != CUDA_SUCCESS || active != 0;
}

}  // namespace

Status ToStatus(cudaError_t error, const std::string& asked) {
  if (error == cudaSuccess) return Status::Ok();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return Status(code, asked + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// A thread that has chosen no device has device 0: to make that the current one would create a
// context there, which takes hundreds of megabytes of a device that the program may not want.
OnDevice::OnDevice(int device) {
  if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) {
    mode_ = cudaStreamCaptureModeGlobal;  // as every thread begins
  }
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current == device) return;
  if (cudaSetDevice(device) == cudaSuccess && InUse(current)) before_ = current;
}

OnDevice::~OnDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
  cudaThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace prd::cuda
