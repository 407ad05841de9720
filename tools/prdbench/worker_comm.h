// A communicator of prdbench's own: what NCCL alone does, beside prd's reductions.
#ifndef PRD_TOOLS_PRDBENCH_WORKER_COMM_H_
#define PRD_TOOLS_PRDBENCH_WORKER_COMM_H_

#include <sstream>
#include <string>

#include "tools/prdbench/worker_memory.h"

namespace prd::bench {

class WorkerComm {
 public:
  // Timeout of NCCL
  static constexpr DurationNs kTimeout = 40 * kSecond;

  // comm-id, comm-init, plain and comm-abort of mesh_worker.h. Waits until it is done. `used`: the
  // communicator that prd has reduced on, or null.
  Result<std::string> Obey(const std::string& verb, std::istringstream* words, WorkerMemory* memory,
                           Gpu::Comm used);

 private:
  Result<std::string> MakeId(Gpu* gpu);
  Result<std::string> Init(Gpu* gpu, std::istringstream* words);
  Result<std::string> Plain(std::istringstream* words, WorkerMemory* memory, Gpu::Comm comm);
  Result<std::string> Abort(Gpu* gpu);
  Status AwaitIdle(Gpu* gpu, Gpu::Comm comm);

  Gpu::Comm comm_ = nullptr;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_WORKER_COMM_H_
