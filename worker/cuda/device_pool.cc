#include "worker/cuda/device_pool.h"

#include <string>

#include "worker/cuda/cuda_calls.h"

namespace prd::cuda {

Status DevicePool::Open() {
  const OnDevice on(device_);
  int supported = 0;
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_),
               "cudaDeviceGetAttribute"));
  if (supported == 0) return Status::Ok();
  for (cudaStream_t* stream : {&given_, &taken_}) {
    PRD_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                                 "cudaStreamCreateWithFlags"));
  }
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"));
  if (MakePool() == cudaSuccess) return Status::Ok();
  // The device has them, and what it is seen through has not: a container's or machine's layer.
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  pool_ = nullptr;
  cudaGetLastError();  // that it failed is not the next caller's concern
  return Status::Ok();
}

// And tries it.
cudaError_t DevicePool::MakePool() {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  if (const cudaError_t error = cudaMemPoolCreate(&pool_, &properties); error != cudaSuccess) {
    pool_ = nullptr;
    return error;
  }
  // Or what is given would wait for what is taken back.
  int no = 0;
  const cudaError_t set =
      cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &no);
  if (set != cudaSuccess) return set;
  void* data = nullptr;
  const cudaError_t error = TryMalloc(1, &data);
  return error != cudaSuccess ? error : cudaFreeAsync(data, taken_);
}

DevicePool::~DevicePool() {
  const OnDevice on(device_);
  if (event_ != nullptr) cudaEventDestroy(event_);
  for (cudaStream_t stream : {given_, taken_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
}

cudaError_t DevicePool::TryMalloc(std::size_t bytes, void** data) {
  if (pool_ == nullptr) return cudaMalloc(data, bytes);
  const cudaError_t error = cudaMallocFromPoolAsync(data, bytes, pool_, given_);
  // Other streams may use it when this one has got there, which is at once.
  return error != cudaSuccess ? error : cudaStreamSynchronize(given_);
}

Result<std::byte*> DevicePool::Malloc(std::size_t bytes) {
  const OnDevice on(device_);
  void* data = nullptr;
  cudaError_t error = TryMalloc(bytes, &data);
  if (error == cudaErrorMemoryAllocation && pool_ != nullptr) {
    cudaStreamSynchronize(taken_);
    cudaMemPoolTrimTo(pool_, 0);
    error = TryMalloc(bytes, &data);
  }
  PRD_RETURN_IF_ERROR(ToStatus(error, "memory of the device, " + std::to_string(bytes) + " bytes"));
  return static_cast<std::byte*>(data);
}

void DevicePool::Free(std::byte* data) {
  if (data == nullptr) return;
  const OnDevice on(device_);
  if (pool_ == nullptr) {
    freeing_.Ask([data] { cudaFree(data); });
    return;
  }
  const std::lock_guard lock(mutex_);
  for (cudaStream_t stream : watched_) {
    if (cudaEventRecord(event_, stream) != cudaSuccess) return;  // the device has failed
    if (cudaStreamWaitEvent(taken_, event_, 0) != cudaSuccess) return;
  }
  cudaFreeAsync(data, taken_);
}

void DevicePool::Watch(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(stream);
}

void DevicePool::Unwatch(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  std::erase(watched_, stream);
}

}  // namespace prd::cuda
