#include "worker/cuda/nccl.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "worker/cuda/cuda_calls.h"
#include "worker/cuda/element.h"

namespace prd {

// A communicator, from the asking for it on.
struct CommHandle {
  enum State { kAsked, kMade, kFailed };

  // Written by the Nccl's thread before `state`, and then no more.
  std::atomic<State> state{kAsked};
  ncclComm_t comm = nullptr;
  Status failure;
  std::atomic<bool> abandoned{false};  // before it was made

  // The rest is of those who use it. The newest operators, by their dtype and scalar: groups recur,
  // and so do their weights.
  struct Operator {
    DType dtype;
    double weight;
    ncclRedOp_t op;
  };
  std::vector<Operator> operators;

  // Where its newest collective is, until that is handed over; then `last` is when it is through.
  std::optional<cudaStream_t> asked;
  cudaEvent_t last = nullptr;
};

namespace cuda {
namespace {

constexpr std::size_t kMaxOperators = 16;
// For what is left of a communicator's last collective to reach the others; and for the end of all.
constexpr std::chrono::seconds kFlush(2);
constexpr std::chrono::seconds kEnd(20);

ncclDataType_t ToNccl(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
  }
  return ncclFloat32;
}

Status ToStatus(ncclResult_t result, ncclComm_t comm, const std::string& asked) {
  if (result == ncclSuccess || result == ncclInProgress) return Status::Ok();
  const NcclLibrary& nccl = NcclLibrary::Get();
  std::string text = asked + ": " + nccl.GetErrorString(result);
  // ncclRemoteError and ncclSystemError: a peer or the network is gone. What was said last may be
  // of another thread's call, which is still the best hint that there is.
  const char* last = nccl.GetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  return Status(peer ? Code::kAborted : Code::kInternal, text);
}

// The weight in the dtype's own bits, at the front.
std::uint64_t ScalarOf(DType dtype, Weight weight) {
  std::uint64_t scalar = 0;
  const auto put = [&](auto value) { std::memcpy(&scalar, &value, sizeof(value)); };
  switch (dtype) {
    case DType::kF32:
      put(weight.single);
      break;
    case DType::kF64:
      put(weight.exact);
      break;
    case DType::kF16:
      put(F16::Round(weight.single));
      break;
    case DType::kBF16:
      put(BF16::Round(weight.single));
      break;
  }
  return scalar;
}

// An operator for PreMulSum. The one that makes room was given to collectives of before, whose
// calls have returned.
Result<ncclRedOp_t> OperatorFor(CommHandle* comm, DType dtype, Weight weight) {
  const double value = dtype == DType::kF64 ? weight.exact : static_cast<double>(weight.single);
  auto& known = comm->operators;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i].dtype != dtype || known[i].weight != value) continue;
    const CommHandle::Operator found = known[i];
    known.erase(known.begin() + static_cast<std::ptrdiff_t>(i));
    known.push_back(found);
    return found.op;
  }
  const NcclLibrary& nccl = NcclLibrary::Get();
  if (known.size() == kMaxOperators) {
    PRD_RETURN_IF_ERROR(
        ToStatus(nccl.RedOpDestroy(known.front().op, comm->comm), comm->comm, "ncclRedOpDestroy"));
    known.erase(known.begin());
  }
  std::uint64_t scalar = ScalarOf(dtype, weight);
  ncclRedOp_t op = ncclSum;
  PRD_RETURN_IF_ERROR(ToStatus(
      nccl.RedOpCreatePreMulSum(&op, &scalar, ToNccl(dtype), ncclScalarHostImmediate, comm->comm),
      comm->comm, "ncclRedOpCreatePreMulSum"));
  known.push_back({dtype, value, op});
  return op;
}

// On the Nccl's thread.
void Make(CommHandle* comm, int ranks, const Gpu::UniqueId& id, int rank) {
  const NcclLibrary& nccl = NcclLibrary::Get();
  if (!nccl.status.ok() || comm->abandoned) {
    comm->failure = nccl.status.ok() ? Status(Code::kAborted, "abandoned") : nccl.status;
    comm->state = CommHandle::kFailed;
    return;
  }
  static_assert(sizeof(ncclUniqueId) == sizeof(id));
  ncclUniqueId nccl_id;
  std::memcpy(&nccl_id, id.data(), sizeof(nccl_id));
  // Fields that are left alone stay NCCL's or its environment variables' choice.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = nccl.CommInitRankConfig(&comm->comm, ranks, nccl_id, rank, &config);
  comm->failure = ToStatus(result, nullptr, "ncclCommInitRankConfig");
  comm->state = comm->failure.ok() ? CommHandle::kMade : CommHandle::kFailed;
}

// Whether nothing runs on it here, and nothing has failed.
bool IsIdle(const CommHandle& comm) {
  ncclResult_t now = ncclInProgress;
  if (comm.state != CommHandle::kMade || comm.asked) return false;
  if (NcclLibrary::Get().CommGetAsyncError(comm.comm, &now) != ncclSuccess) return false;
  return now == ncclSuccess && (comm.last == nullptr || cudaEventQuery(comm.last) == cudaSuccess);
}

bool Finalized(ncclComm_t comm) {
  const NcclLibrary& nccl = NcclLibrary::Get();
  ncclResult_t now = nccl.CommFinalize(comm);
  const auto until = std::chrono::steady_clock::now() + kFlush;
  while (now == ncclInProgress && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (nccl.CommGetAsyncError(comm, &now) != ncclSuccess) return false;
  }
  return now == ncclSuccess;
}

void End(CommHandle* comm) {
  if (comm->comm != nullptr) {
    const NcclLibrary& nccl = NcclLibrary::Get();
    const bool through = IsIdle(*comm) && Finalized(comm->comm);
    through ? nccl.CommDestroy(comm->comm) : nccl.CommAbort(comm->comm);
  }
  if (comm->last != nullptr) cudaEventDestroy(comm->last);
  delete comm;
}

// Not ok: it is not to be used.
Status Usable(Gpu::Comm comm) {
  switch (comm->state.load()) {
    case CommHandle::kAsked:
      return Status(Code::kInternal, "a communicator is used before it is made");
    case CommHandle::kFailed:
      return comm->failure;
    case CommHandle::kMade:
      return Status::Ok();
  }
  return Status::Ok();
}

// Its newest collective is on the stream.
Status HandedOver(CommHandle* comm) {
  if (comm->last == nullptr) {
    PRD_RETURN_IF_ERROR(cuda::ToStatus(
        cudaEventCreateWithFlags(&comm->last, cudaEventDisableTiming), "cudaEventCreate"));
  }
  PRD_RETURN_IF_ERROR(cuda::ToStatus(cudaEventRecord(comm->last, *comm->asked), "cudaEventRecord"));
  comm->asked.reset();
  return Status::Ok();
}

}  // namespace

void Nccl::MakeUniqueId() {
  tasks_.Ask([this] {
    auto made = std::make_unique<Gpu::Id>();
    const NcclLibrary& nccl = NcclLibrary::Get();
    made->status = nccl.status;
    if (made->status.ok()) {
      ncclUniqueId id;
      made->status = ToStatus(nccl.GetUniqueId(&id), nullptr, "ncclGetUniqueId");
      std::memcpy(made->id.data(), &id, sizeof(id));
    }
    const std::lock_guard lock(mutex_);
    id_ = std::move(made);
  });
}

std::unique_ptr<Gpu::Id> Nccl::TakeUniqueId() {
  const std::lock_guard lock(mutex_);
  return std::move(id_);
}

Gpu::Comm Nccl::CommInit(int ranks, const Gpu::UniqueId& id, int rank) {
  auto* comm = new CommHandle;
  tasks_.Ask([comm, ranks, id, rank] { Make(comm, ranks, id, rank); });
  return comm;
}

Result<bool> Nccl::CommBusy(Gpu::Comm comm) {
  if (comm->state == CommHandle::kAsked) return true;
  PRD_RETURN_IF_ERROR(Usable(comm));
  ncclResult_t now = ncclSuccess;
  const ncclResult_t asked = NcclLibrary::Get().CommGetAsyncError(comm->comm, &now);
  PRD_RETURN_IF_ERROR(ToStatus(asked, comm->comm, "ncclCommGetAsyncError"));
  PRD_RETURN_IF_ERROR(ToStatus(now, comm->comm, "the communicator failed"));
  if (now == ncclInProgress) return true;
  if (comm->asked) PRD_RETURN_IF_ERROR(HandedOver(comm));
  return false;
}

void Nccl::CommAbort(Gpu::Comm comm) {
  comm->abandoned = true;
  {
    const std::lock_guard lock(ending_->mutex);
    ++ending_->count;
  }
  const auto end = [ending = ending_, device = device_, comm] {
    {
      const OnDevice on(device);
      End(comm);
    }
    const std::lock_guard lock(ending->mutex);
    --ending->count;
    ending->fewer.notify_all();
  };
  // By way of the thread that makes it: it is made by then, or never will be.
  tasks_.Ask([end] {
    try {
      std::thread(end).detach();
    } catch (const std::system_error&) {  // no more threads
      end();
    }
  });
}

std::size_t Nccl::aborting() const {
  const std::lock_guard lock(ending_->mutex);
  return ending_->count;
}

Nccl::~Nccl() {
  std::unique_lock lock(ending_->mutex);
  ending_->fewer.wait_for(lock, kEnd, [this] { return ending_->count == 0; });
}

Status Nccl::AllReduce(Gpu::Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                       DType dtype, std::optional<Weight> weight, Gpu::Stream stream) {
  PRD_RETURN_IF_ERROR(Usable(comm));
  const Result<ncclRedOp_t> op =
      weight ? OperatorFor(comm, dtype, *weight) : Result<ncclRedOp_t>(ncclSum);
  if (!op.ok()) return op.status();
  comm->asked = static_cast<cudaStream_t>(stream);
  return ToStatus(NcclLibrary::Get().AllReduce(from, to, count, ToNccl(dtype), *op, comm->comm,
                                               static_cast<cudaStream_t>(stream)),
                  comm->comm, "ncclAllReduce");
}

Status Nccl::Send(Gpu::Comm comm, const std::byte* from, std::size_t bytes, int to,
                  Gpu::Stream stream) {
  PRD_RETURN_IF_ERROR(Usable(comm));
  comm->asked = static_cast<cudaStream_t>(stream);
  return ToStatus(NcclLibrary::Get().Send(from, bytes, ncclUint8, to, comm->comm,
                                          static_cast<cudaStream_t>(stream)),
                  comm->comm, "ncclSend");
}

Status Nccl::Receive(Gpu::Comm comm, std::byte* to, std::size_t bytes, int from,
                     Gpu::Stream stream) {
  PRD_RETURN_IF_ERROR(Usable(comm));
  comm->asked = static_cast<cudaStream_t>(stream);
  return ToStatus(NcclLibrary::Get().Recv(to, bytes, ncclUint8, from, comm->comm,
                                          static_cast<cudaStream_t>(stream)),
                  comm->comm, "ncclRecv");
}

Status Nccl::GroupStart() {
  const NcclLibrary& nccl = NcclLibrary::Get();
  PRD_RETURN_IF_ERROR(nccl.status);
  return ToStatus(nccl.GroupStart(), nullptr, "ncclGroupStart");
}

Status Nccl::GroupEnd(Gpu::Comm comm) {
  const NcclLibrary& nccl = NcclLibrary::Get();
  PRD_RETURN_IF_ERROR(nccl.status);
  const ncclComm_t which = comm->state == CommHandle::kMade ? comm->comm : nullptr;
  return ToStatus(nccl.GroupEnd(), which, "ncclGroupEnd");
}

}  // namespace cuda
}  // namespace prd
