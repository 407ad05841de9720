// The NCCL half of CudaGpu: its communicators, and the thread for what may take long.
//
// NCCL's rules that are kept here: nothing is asked of a non-blocking communicator while it is
// busy, but ncclCommAbort; ncclCommAbort is called when ncclCommInitRankConfig has returned, and
// with nothing else running on that communicator; an operator is destroyed when the last call that
// was given it has returned.
#ifndef PRD_WORKER_CUDA_NCCL_H_
#define PRD_WORKER_CUDA_NCCL_H_

#include <cstddef>
#include <memory>
#include <mutex>

#include "worker/cuda/nccl_library.h"
#include "worker/cuda/tasks.h"
#include "worker/device/gpu.h"

namespace prd::cuda {

// Methods are those of Gpu (worker/device/gpu.h).
class Nccl {
 public:
  explicit Nccl(int device) : tasks_(device) {}

  void MakeUniqueId();
  std::unique_ptr<Gpu::Id> TakeUniqueId();
  Gpu::Comm CommInit(int ranks, const Gpu::UniqueId& id, int rank);
  Result<bool> CommBusy(Gpu::Comm comm);
  void CommAbort(Gpu::Comm comm);
  std::size_t aborting() const;

  Status AllReduce(Gpu::Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                   DType dtype, Weight weight, Gpu::Stream stream);
  Status Send(Gpu::Comm comm, const std::byte* from, std::size_t bytes, int to, Gpu::Stream stream);
  Status Receive(Gpu::Comm comm, std::byte* to, std::size_t bytes, int from, Gpu::Stream stream);
  Status GroupStart();
  Status GroupEnd(Gpu::Comm comm);

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Gpu::Id> id_;
  std::size_t aborting_ = 0;
  Tasks tasks_;  // goes first
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_NCCL_H_
