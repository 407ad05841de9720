// NCCL for communicators of one member, which says what was done with it that NCCL does not allow.
#include "tests/worker/cuda/fake_nccl.h"

#include <nccl.h>
#include <poll.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "tests/worker/numbers.h"

namespace {

using prd::testing::FakeNccl;

struct Operator {
  ncclDataType_t dtype;
  double weight;
};

FakeNccl fake;
std::mutex mutex;

ncclResult_t Wrong(const char* what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what);
  ++fake.wrong;
  return ncclInvalidUsage;
}

prd::DType DTypeOf(ncclDataType_t dtype) {
  return dtype == ncclFloat64   ? prd::DType::kF64
         : dtype == ncclFloat32 ? prd::DType::kF32
         : dtype == ncclFloat16 ? prd::DType::kF16
                                : prd::DType::kBF16;
}

}  // namespace

struct ncclComm {
  int ranks = 0;
  int busy = 0;
  bool finalized = false;
  std::map<int, Operator> operators;
};

namespace {

bool Busy(ncclComm_t comm) { return comm->busy > 0; }

// In a group, at its end.
std::set<ncclComm_t> in_group;

ncclResult_t Asked(ncclComm_t comm) {
  if (fake.groups > 0) {
    in_group.insert(comm);
    return ncclSuccess;
  }
  comm->busy = fake.busy;
  return comm->busy > 0 ? ncclInProgress : ncclSuccess;
}

void Forget(ncclComm_t comm) {
  --fake.comms;
  fake.operators -= static_cast<int>(comm->operators.size());
  delete comm;
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl() { return &fake; }

ncclResult_t ncclGetVersion(int* version) { return *version = fake.version, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake"; }
const char* ncclGetLastError(ncclComm_t) { return "the last words of the fake"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::uint64_t next = 1;
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id, &next, sizeof(next));
  ++next;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank,
                                    ncclConfig_t* config) {
  while (__atomic_load_n(&fake.init_blocks, __ATOMIC_ACQUIRE)) poll(nullptr, 0, 1);
  const std::lock_guard lock(mutex);
  ++fake.inits;
  *comm = nullptr;
  if (config->blocking != 0) return Wrong("a blocking communicator");
  if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
  ++fake.comms;
  *comm = new ncclComm{.ranks = ranks, .busy = 0, .finalized = false, .operators = {}};
  // Alone, one of two members waits for ever.
  (*comm)->busy = ranks == 1 ? fake.busy : 1 << 30;
  return (*comm)->busy > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  *result = Busy(comm) ? ncclInProgress : ncclSuccess;
  if (Busy(comm)) --comm->busy;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (Busy(comm)) return Wrong("a communicator is finalized while it is busy");
  if (comm->finalized) return Wrong("a communicator is finalized twice");
  comm->finalized = true;
  ++fake.finalized;
  comm->busy = fake.finalize_hangs ? 1 << 30 : fake.busy;
  return comm->busy > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (Busy(comm)) return Wrong("a communicator is destroyed while it is busy");
  ++fake.destroyed;
  Forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto others_come = [] {
    const std::lock_guard lock(mutex);
    return fake.aborts < fake.aborts_together;
  };
  {
    const std::lock_guard lock(mutex);
    ++fake.aborts;
  }
  while (others_come()) poll(nullptr, 0, 1);
  const std::lock_guard lock(mutex);
  Forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  static int next = ncclNumOps;
  const std::lock_guard lock(mutex);
  if (Busy(comm)) return Wrong("an operator is made while the communicator is busy");
  if (residence != ncclScalarHostImmediate) return Wrong("a scalar that is not immediate");
  comm->operators[next] = {dtype, prd::testing::Decode(DTypeOf(dtype), scalar)};
  *op = static_cast<ncclRedOp_t>(next++);
  ++fake.operators;
  if (fake.operators > fake.most_operators) fake.most_operators = fake.operators;
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (Busy(comm)) return Wrong("an operator is destroyed while the communicator is busy");
  if (comm->operators.erase(op) == 0) return Wrong("an operator that is not there is destroyed");
  --fake.operators;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  const std::lock_guard lock(mutex);
  if (Busy(comm)) return Wrong("a collective while the communicator is busy");
  if (comm->ranks != 1) return Wrong("a collective of a communicator that is not whole");
  double weight = 1;
  if (op != ncclSum) {
    const auto found = comm->operators.find(op);
    if (found == comm->operators.end()) return Wrong("an operator that is not there");
    if (found->second.dtype != dtype) return Wrong("an operator of another dtype");
    weight = found->second.weight;
  }
  const prd::DType numbers = DTypeOf(dtype);
  const std::size_t size = prd::DTypeSize(numbers);
  for (std::size_t i = 0; i < count * size; i += size) {
    const double value = prd::testing::Decode(numbers, static_cast<const char*>(from) + i);
    prd::testing::Encode(numbers, weight * value, static_cast<char*>(to) + i);
  }
  return Asked(comm);
}

ncclResult_t ncclSend(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return Wrong("a send, which the fake has not");
}
ncclResult_t ncclRecv(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return Wrong("a receive, which the fake has not");
}
ncclResult_t ncclGroupStart() {
  const std::lock_guard lock(mutex);
  return ++fake.groups, ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const std::lock_guard lock(mutex);
  if (fake.groups == 0) return Wrong("the end of a group that has not begun");
  if (--fake.groups > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (ncclComm_t comm : in_group) result = Asked(comm);
  in_group.clear();
  return result;
}

}  // extern "C"
