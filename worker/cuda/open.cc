// What the module exports.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "worker/cuda/cuda_gpu.h"

namespace prd::cuda {
namespace {

Result<std::unique_ptr<CudaGpu>> Open(int interface, const char* version, int device) {
  if (interface != kGpuInterface || std::strcmp(version, PRD_VERSION) != 0) {
    return Status(Code::kUnavailable,
                  std::string("the CUDA module is of prd " PRD_VERSION " (interface ") +
                      std::to_string(kGpuInterface) + "), the library of prd " + version +
                      " (interface " + std::to_string(interface) + ")");
  }
  try {
    return CudaGpu::Open(device);
  } catch (const std::exception& error) {  // no exception leaves the module
    return Status(Code::kUnavailable, error.what());
  }
}

}  // namespace
}  // namespace prd::cuda

extern "C" __attribute__((visibility("default"))) prd::Gpu* prd_gpu_open(int interface,
                                                                         const char* version,
                                                                         int device, char* error,
                                                                         std::size_t error_bytes) {
  auto gpu = prd::cuda::Open(interface, version, device);
  if (gpu.ok()) return gpu->release();
  std::snprintf(error, error_bytes, "%s", gpu.status().message().c_str());
  return nullptr;
}
