// NCCL, loaded when it is first asked for: the module is linked to nothing of it.
#ifndef PRD_WORKER_CUDA_NCCL_LIBRARY_H_
#define PRD_WORKER_CUDA_NCCL_LIBRARY_H_

#include <nccl.h>

#include <string>

#include "prd/status.h"

namespace prd::cuda {

// The oldest that is used. Before it, what a thread has asked of non-blocking communicators is kept
// in one place of that thread until it is done (src/group.cc of 2.26), so that two of them may not
// be on their way at once.
inline constexpr int kOldestNccl = NCCL_VERSION(2, 28, 0);

struct NcclLibrary {
  Status status;  // not ok: it is not there, or of no use, and the rest is null
  std::string version;

  decltype(&ncclGetVersion) GetVersion = nullptr;
  decltype(&ncclGetErrorString) GetErrorString = nullptr;
  decltype(&ncclGetLastError) GetLastError = nullptr;
  decltype(&ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&ncclCommFinalize) CommFinalize = nullptr;
  decltype(&ncclCommDestroy) CommDestroy = nullptr;
  decltype(&ncclCommAbort) CommAbort = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) RedOpCreatePreMulSum = nullptr;
  decltype(&ncclRedOpDestroy) RedOpDestroy = nullptr;
  decltype(&ncclAllReduce) AllReduce = nullptr;
  decltype(&ncclSend) Send = nullptr;
  decltype(&ncclRecv) Recv = nullptr;
  decltype(&ncclGroupStart) GroupStart = nullptr;
  decltype(&ncclGroupEnd) GroupEnd = nullptr;

  // The one of this process: libnccl.so.2, or what PRD_NCCL_LIBRARY names. Any thread.
  static const NcclLibrary& Get();
};

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_NCCL_LIBRARY_H_
