// CUDA's runtime, as far as the module calls it, with one device in host memory. Streams have
// nothing to wait for: what is asked is done before the call returns.
#include "tests/worker/cuda/fake_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace {

constexpr std::size_t kMemory = std::size_t{1} << 30;

struct Allocation {
  std::size_t bytes;
  cudaMemoryType type;
};
struct Memory {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> allocations;
  std::size_t used = 0;  // of the device
};
Memory& TheMemory() {
  static Memory memory;
  return memory;
}

cudaError_t Allocate(void** data, std::size_t bytes, cudaMemoryType type) {
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  if (type == cudaMemoryTypeDevice && bytes > kMemory - memory.used) {
    return cudaErrorMemoryAllocation;
  }
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xa5, bytes);
  memory.allocations[reinterpret_cast<std::uintptr_t>(*data)] = {bytes, type};
  if (type == cudaMemoryTypeDevice) memory.used += bytes;
  return cudaSuccess;
}

cudaError_t Release(void* data, cudaMemoryType type) {
  if (data == nullptr) return cudaSuccess;
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.allocations.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == memory.allocations.end() || found->second.type != type) std::abort();
  if (type == cudaMemoryTypeDevice) memory.used -= found->second.bytes;
  memory.allocations.erase(found);
  std::free(data);
  return cudaSuccess;
}

std::atomic<bool> runs = false, pools = true;

}  // namespace

namespace prd::testing {
void FakeCudaRuns(bool so) { runs = so; }
void FakeCudaHasPools(bool so) { pools = so; }
}  // namespace prd::testing

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t) { return "of the fake runtime"; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
  std::strcpy(properties->name, "fake");
  properties->multiProcessorCount = 3;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return Allocate(data, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* data) { return Release(data, cudaMemoryTypeDevice); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 1, cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  if (!pools) return cudaErrorNotSupported;
  return Allocate(reinterpret_cast<void**>(pool), 1, cudaMemoryTypeHost);
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return Release(pool, cudaMemoryTypeHost); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  return Allocate(data, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return Release(data, cudaMemoryTypeDevice); }
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  return Allocate(data, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* data) { return Release(data, cudaMemoryTypeHost); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  *free = kMemory - memory.used;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  Memory& memory = TheMemory();
  const std::lock_guard lock(memory.mutex);
  auto found = memory.allocations.upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (found == memory.allocations.begin()) return cudaSuccess;
  --found;
  if (reinterpret_cast<std::uintptr_t>(data) - found->first < found->second.bytes) {
    attributes->type = found->second.type;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}

// Handles are memory, so that one that is destroyed twice, or never made, is found.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return Allocate(reinterpret_cast<void**>(stream), 1, cudaMemoryTypeHost);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return Release(stream, cudaMemoryTypeHost); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Allocate(reinterpret_cast<void**>(event), 1, cudaMemoryTypeHost);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return Release(event, cudaMemoryTypeHost); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return runs ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  function(argument);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
}  // extern "C"
