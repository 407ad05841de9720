#include "worker/cuda/cuda_gpu.h"

#include <unistd.h>

#include "worker/cuda/combine.h"
#include "worker/cuda/cuda_calls.h"

namespace prd::cuda {
namespace {

cudaStream_t ToCuda(Gpu::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t ToCuda(Gpu::Event event) { return reinterpret_cast<cudaEvent_t>(event); }

std::string Bytes(std::size_t bytes) { return std::to_string(bytes) + " bytes"; }

// On a thread of CUDA's, on which nothing of CUDA may be called.
void WriteToEventfd(void* eventfd) {
  const std::uint64_t one = 1;
  // Full, it wakes its reader anyhow; closed, there is none.
  [[maybe_unused]] const ssize_t written =
      write(static_cast<int>(reinterpret_cast<std::intptr_t>(eventfd)), &one, sizeof(one));
}

Status Unavailable(const std::string& why) { return Status(Code::kUnavailable, why); }

Status CheckDriver() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (driver >= CUDART_VERSION) return Unavailable("this host has no CUDA device");
    return Unavailable("the NVIDIA driver is missing or older than CUDA " +
                       VersionText(CUDART_VERSION) + " needs: found " +
                       (driver == 0 ? "none" : "one for CUDA " + VersionText(driver)));
  }
  return ToStatus(error, "cudaGetDeviceCount");
}

Status CheckDevice(int device) {
  int count = 0;
  PRD_RETURN_IF_ERROR(ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (device >= 0 && device < count) return Status::Ok();
  return Unavailable("no such device: this host has " + std::to_string(count) +
                     (count == 1 ? " device" : " devices") + ", counted from 0");
}

}  // namespace

Result<std::unique_ptr<CudaGpu>> CudaGpu::Open(int device) {
  PRD_RETURN_IF_ERROR(CheckDriver());
  PRD_RETURN_IF_ERROR(CheckDevice(device));
  std::unique_ptr<CudaGpu> gpu(new CudaGpu(device));
  const Status status = gpu->Prepare();
  if (!status.ok()) return Unavailable(status.message());
  return gpu;
}

Status CudaGpu::Prepare() {
  const OnDevice on(device_);
  cudaDeviceProp properties;
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, device_), "cudaGetDeviceProperties"));
  name_ = std::string(properties.name) + " (cuda:" + std::to_string(device_) + ")";
  cuda_version_ = VersionText(CUDART_VERSION);
  const cudaError_t error = PrepareKernels();
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return Unavailable(name_ + " is of compute capability " + std::to_string(properties.major) +
                       "." + std::to_string(properties.minor) +
                       ", and this module was built for " PRD_CUDA_ARCHITECTURES);
  }
  PRD_RETURN_IF_ERROR(ToStatus(error, "loading the kernels"));
  PRD_RETURN_IF_ERROR(pool_->Open());
  return ToStatus(cudaStreamCreateWithFlags(&tables_, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
}

CudaGpu::~CudaGpu() {
  if (tables_ != nullptr) cudaStreamDestroy(tables_);
}

Status CudaGpu::CheckPointer(const void* data) const {
  const OnDevice on(device_);
  cudaPointerAttributes attributes;
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes"));
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      if (attributes.device == device_) return Status::Ok();
      return Status(
          Code::kInvalidArgument,
          "it is memory of cuda:" + std::to_string(attributes.device) + ", not of " + name_);
    case cudaMemoryTypeManaged:
      return Status(Code::kInvalidArgument, "it is managed memory, not of " + name_);
    case cudaMemoryTypeHost:
    case cudaMemoryTypeUnregistered:
      break;
  }
  return Status(Code::kInvalidArgument, "it is host memory, not of " + name_);
}

// ---- memory ----

Result<std::byte*> CudaGpu::Malloc(std::size_t bytes) { return pool_->Malloc(bytes); }

void CudaGpu::Free(std::byte* data) { pool_->Free(data); }

Result<std::byte*> CudaGpu::MallocHost(std::size_t bytes) {
  const OnDevice on(device_);
  void* data = nullptr;
  PRD_RETURN_IF_ERROR(ToStatus(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                               "cudaHostAlloc of " + Bytes(bytes)));
  return static_cast<std::byte*>(data);
}

// Which may wait for all that runs on the device, as cudaFree does (device_pool.h).
void CudaGpu::FreeHost(std::byte* data) {
  freeing_.Ask([data] { cudaFreeHost(data); });
}

Result<std::size_t> CudaGpu::FreeMemory() {
  const OnDevice on(device_);
  std::size_t free = 0, total = 0;
  PRD_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return free;
}

Status CudaGpu::Copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  const OnDevice on(device_);
  return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ToCuda(stream)),
                  "cudaMemcpyAsync of " + Bytes(bytes));
}

Status CudaGpu::Zero(std::byte* data, std::size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  const OnDevice on(device_);
  return ToStatus(cudaMemsetAsync(data, 0, bytes, ToCuda(stream)),
                  "cudaMemsetAsync of " + Bytes(bytes));
}

// ---- streams and events ----

Result<Gpu::Stream> CudaGpu::CreateStream() {
  const OnDevice on(device_);
  cudaStream_t stream = nullptr;
  PRD_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags"));
  pool_->Watch(stream);
  return Stream(stream);
}

void CudaGpu::DestroyStream(Stream stream) {
  const OnDevice on(device_);
  // By an event, which waits in the kernel; cudaStreamSynchronize may spin.
  const Result<Event> last = CreateEvent();
  if (last.ok()) {
    if (Record(*last, stream).ok()) cudaEventSynchronize(ToCuda(*last));
    DestroyEvent(*last);
  }
  pool_->Unwatch(ToCuda(stream));
  cudaStreamDestroy(ToCuda(stream));
}

Result<Gpu::Event> CudaGpu::CreateEvent() {
  const OnDevice on(device_);
  cudaEvent_t event = nullptr;
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
               "cudaEventCreateWithFlags"));
  return reinterpret_cast<Event>(event);
}

void CudaGpu::DestroyEvent(Event event) {
  const OnDevice on(device_);
  cudaEventDestroy(ToCuda(event));
}

Status CudaGpu::Record(Event event, Stream stream) {
  const OnDevice on(device_);
  return ToStatus(cudaEventRecord(ToCuda(event), ToCuda(stream)), "cudaEventRecord");
}

Status CudaGpu::Wait(Stream stream, Event event) {
  const OnDevice on(device_);
  return ToStatus(cudaStreamWaitEvent(ToCuda(stream), ToCuda(event), 0), "cudaStreamWaitEvent");
}

Result<bool> CudaGpu::Capturing(Stream stream) {
  if (stream == nullptr) return false;  // none can be captured from the legacy default stream
  const OnDevice on(device_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PRD_RETURN_IF_ERROR(
      ToStatus(cudaStreamIsCapturing(ToCuda(stream), &status), "cudaStreamIsCapturing"));
  return status != cudaStreamCaptureStatusNone;
}

Result<bool> CudaGpu::Done(Event event) {
  const OnDevice on(device_);
  const cudaError_t error = cudaEventQuery(ToCuda(event));
  if (error == cudaErrorNotReady) return false;
  PRD_RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
  return true;
}

Status CudaGpu::Synchronize(Event event) {
  const OnDevice on(device_);
  return ToStatus(cudaEventSynchronize(ToCuda(event)), "cudaEventSynchronize");
}

Status CudaGpu::Notify(Stream stream, int eventfd) {
  const OnDevice on(device_);
  void* argument = reinterpret_cast<void*>(static_cast<std::intptr_t>(eventfd));
  return ToStatus(cudaLaunchHostFunc(ToCuda(stream), &WriteToEventfd, argument),
                  "cudaLaunchHostFunc");
}

// ---- NCCL ----

Result<bool> CudaGpu::CommBusy(Comm comm) {
  const OnDevice on(device_);
  return nccl_.CommBusy(comm);
}

Status CudaGpu::AllReduce(Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                          DType dtype, std::optional<Weight> weight, Stream stream) {
  const OnDevice on(device_);
  return nccl_.AllReduce(comm, from, to, count, dtype, weight, stream);
}

Status CudaGpu::Send(Comm comm, const std::byte* from, std::size_t bytes, int to, Stream stream) {
  const OnDevice on(device_);
  return nccl_.Send(comm, from, bytes, to, stream);
}

Status CudaGpu::Receive(Comm comm, std::byte* to, std::size_t bytes, int from, Stream stream) {
  const OnDevice on(device_);
  return nccl_.Receive(comm, to, bytes, from, stream);
}

Status CudaGpu::GroupStart() {
  const OnDevice on(device_);
  return nccl_.GroupStart();
}

Status CudaGpu::GroupEnd(Comm comm) {
  const OnDevice on(device_);
  return nccl_.GroupEnd(comm);
}

}  // namespace prd::cuda
