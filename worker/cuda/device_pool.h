// Memory of the device, given and taken back without waiting for what runs there: cudaFree waits
// for all of it, a collective included whose other member is gone, and then nobody would be left to
// abort that.
#ifndef PRD_WORKER_CUDA_DEVICE_POOL_H_
#define PRD_WORKER_CUDA_DEVICE_POOL_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <vector>

#include "prd/status.h"
#include "worker/cuda/tasks.h"

namespace prd::cuda {

// Threads: any.
class DevicePool {
 public:
  explicit DevicePool(int device) : device_(device), freeing_(device) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // Where there are no pools, cudaMalloc and cudaFree are what is left: then a thread of its own
  // waits.
  Status Open();

  // Waits only where no memory is left but what is being taken back.
  Result<std::byte*> Malloc(std::size_t bytes);
  // Taken back when the streams that are watched have got to where they are now.
  void Free(std::byte* data);

  void Watch(cudaStream_t stream);
  // REQUIRES: it has run dry.
  void Unwatch(cudaStream_t stream);

 private:
  cudaError_t MakePool();
  cudaError_t TryMalloc(std::size_t bytes, void** data);

  const int device_;
  cudaMemPool_t pool_ = nullptr;  // null: there are none
  cudaStream_t given_ = nullptr;  // on which nothing is waited for
  cudaStream_t taken_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::mutex mutex_;
  std::vector<cudaStream_t> watched_;
  Tasks freeing_;  // without a pool
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_DEVICE_POOL_H_
