// The NCCL half of CudaGpu: its communicators, and the threads for what may take long.
//
// NCCL's rules that are kept here: nothing is asked of a non-blocking communicator while it is
// busy, but ncclCommAbort; ncclCommAbort is called when ncclCommInitRankConfig has returned, and
// with nothing else running on that communicator; an operator is destroyed when the last call that
// was given it has returned.
//
// Every communicator ends on a thread of its own: to free what one has may wait for all that runs
// on the device, another one's collective included that nobody would be left to abort (NCCL pull
// request 564). One on which nothing runs any more is finalized: when a collective is through here,
// its last bytes may still be in this process, for others that are slower, and ncclCommAbort drops
// them. (Besides, it then ends at once; an abort is looked for every 500 ms, src/proxy.cc of NCCL.)
#ifndef PRD_WORKER_CUDA_NCCL_H_
#define PRD_WORKER_CUDA_NCCL_H_

#include <condition_variable>
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
  explicit Nccl(int device) : device_(device), tasks_(device) {}
  // Waits for communicators to end, but not for ever.
  ~Nccl();

  void MakeUniqueId();
  std::unique_ptr<Gpu::Id> TakeUniqueId();
  Gpu::Comm CommInit(int ranks, const Gpu::UniqueId& id, int rank);
  Result<bool> CommBusy(Gpu::Comm comm);
  void CommAbort(Gpu::Comm comm);
  std::size_t aborting() const;

  Status AllReduce(Gpu::Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                   DType dtype, std::optional<Weight> weight, Gpu::Stream stream);
  Status Send(Gpu::Comm comm, const std::byte* from, std::size_t bytes, int to, Gpu::Stream stream);
  Status Receive(Gpu::Comm comm, std::byte* to, std::size_t bytes, int from, Gpu::Stream stream);
  Status GroupStart();
  Status GroupEnd(Gpu::Comm comm);

 private:
  // What the threads share on which communicators end.
  struct Ending {
    std::mutex mutex;
    std::condition_variable fewer;
    std::size_t count = 0;
  };

  const int device_;
  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  std::mutex mutex_;
  std::unique_ptr<Gpu::Id> id_;
  Tasks tasks_;  // goes first
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_NCCL_H_
