// The calls of CUDA's runtime and NCCL behind Gpu (worker/device/gpu.h).
#ifndef PRD_WORKER_CUDA_CUDA_GPU_H_
#define PRD_WORKER_CUDA_CUDA_GPU_H_

#include <memory>
#include <string>

#include "worker/cuda/device_pool.h"
#include "worker/cuda/nccl.h"
#include "worker/cuda/tasks.h"
#include "worker/device/gpu.h"

namespace prd::cuda {

class CudaGpu : public Gpu {
 public:
  // kUnavailable: no driver or one too old, no such device, or one this was not built for.
  static Result<std::unique_ptr<CudaGpu>> Open(int device);
  ~CudaGpu() override;

  std::string name() const override { return name_; }
  std::string cuda_version() const override { return cuda_version_; }
  std::string nccl_version() const override { return NcclLibrary::Get().version; }
  Status nccl() const override { return NcclLibrary::Get().status; }
  Status CheckPointer(const void* data) const override;

  Result<std::byte*> Malloc(std::size_t bytes) override;
  void Free(std::byte* data) override;
  Result<std::byte*> MallocHost(std::size_t bytes) override;
  void FreeHost(std::byte* data) override;
  Result<std::size_t> FreeMemory() override;
  Status Copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  Status Zero(std::byte* data, std::size_t bytes, Stream stream) override;

  Result<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  Result<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  Status Record(Event event, Stream stream) override;
  Status Wait(Stream stream, Event event) override;
  Result<bool> Capturing(Stream stream) override;
  Result<bool> Done(Event event) override;
  Status Synchronize(Event event) override;
  Status Notify(Stream stream, int eventfd) override;

  Result<std::shared_ptr<Table>> MakeTable(const Layout& layout) override;
  Status Launch(const Gpu::Combine& combine, Stream stream) override;
  Status Decide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                Stream stream) override;

  void MakeUniqueId() override { nccl_.MakeUniqueId(); }
  std::unique_ptr<Id> TakeUniqueId() override { return nccl_.TakeUniqueId(); }
  Comm CommInit(int ranks, const UniqueId& id, int rank) override {
    return nccl_.CommInit(ranks, id, rank);
  }
  Result<bool> CommBusy(Comm comm) override;
  void CommAbort(Comm comm) override { nccl_.CommAbort(comm); }
  std::size_t aborting() const override { return nccl_.aborting(); }
  Status AllReduce(Comm comm, const std::byte* from, std::byte* to, std::size_t count, DType dtype,
                   std::optional<Weight> weight, Stream stream) override;
  Status Send(Comm comm, const std::byte* from, std::size_t bytes, int to, Stream stream) override;
  Status Receive(Comm comm, std::byte* to, std::size_t bytes, int from, Stream stream) override;
  Status GroupStart() override;
  Status GroupEnd(Comm comm) override;

 private:
  explicit CudaGpu(int device)
      : device_(device),
        pool_(std::make_shared<DevicePool>(device)),
        nccl_(device),
        freeing_(device) {}
  Status Prepare();

  const int device_;
  std::string name_, cuda_version_;
  const std::shared_ptr<DevicePool> pool_;  // tables have it, too
  cudaStream_t tables_ = nullptr;           // on which tables are copied
  Nccl nccl_;
  Tasks freeing_;  // of host memory
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_CUDA_GPU_H_
