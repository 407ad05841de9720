// The calls of CUDA and NCCL that prd uses, for one device and one session.
//
// worker/cuda implements them. So does a stand-in in the tests, which checks that callers of this
// class call as they must, and proves nothing about GPUs. Methods are thin: callers decide. Handles
// are opaque, and belong to the Gpu that gave them.
//
// Calls with a stream are asynchronous, as in CUDA: the work runs in the stream's order, after the
// call has returned. A later call reports an error of that work, and every one after it does, too.
// A call's Status: kUnavailable (no driver, no such device, no NCCL), kResourceExhausted (out of
// memory), kAborted (the communicator failed or was abandoned), kInternal (any other error of CUDA
// or NCCL, with its text).
//
// Threads: any thread; calls for one communicator come one at a time. Synchronize and MallocHost
// block. So does Malloc, if no memory is left until freed memory has been taken back.
#ifndef PRD_WORKER_DEVICE_GPU_H_
#define PRD_WORKER_DEVICE_GPU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "prd/session.h"
#include "prd/status.h"
#include "worker/memory/kernels.h"
#include "worker/memory/layout.h"

namespace prd {

class Gpu {
 public:
  using Stream = void*;  // cudaStream_t; null is the legacy default stream, the caller's only
  using Event = struct EventHandle*;
  using Comm = struct CommHandle*;
  using UniqueId = std::array<std::byte, 128>;  // ncclUniqueId

  // The tensors of a layout, as kernels find them.
  class Table {
   public:
    virtual ~Table() = default;
  };

  virtual ~Gpu() = default;

  // "NVIDIA H200 (cuda:0)", for messages.
  virtual std::string name() const = 0;
  // "13.0", "2.28.9"; the second is empty while NCCL is not there: nccl() says why.
  virtual std::string cuda_version() const = 0;
  virtual std::string nccl_version() const = 0;
  virtual Status nccl() const = 0;
  // Ok if the memory is this device's.
  virtual Status CheckPointer(const void* data) const = 0;

  // ---- memory ----

  // Memory of the device; aligned to 256 bytes.
  virtual Result<std::byte*> Malloc(std::size_t bytes) = 0;
  virtual void Free(std::byte* data) = 0;
  // Pinned host memory.
  virtual Result<std::byte*> MallocHost(std::size_t bytes) = 0;
  virtual void FreeHost(std::byte* data) = 0;
  // Bytes of the device that no process on it has.
  virtual Result<std::size_t> FreeMemory() = 0;
  // Either way between pinned and device memory, or within the device.
  virtual Status Copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual Status Zero(std::byte* data, std::size_t bytes, Stream stream) = 0;

  // ---- streams and events ----

  // Beside the default stream: cudaStreamNonBlocking.
  virtual Result<Stream> CreateStream() = 0;
  // Blocks until it has run dry; of what was abandoned, that is soon.
  virtual void DestroyStream(Stream stream) = 0;
  // Without timing; Synchronize waits in the kernel.
  virtual Result<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;
  virtual Status Record(Event event, Stream stream) = 0;
  virtual Status Wait(Stream stream, Event event) = 0;
  // Whether a CUDA graph is captured from this stream: then nothing may be asked of it here.
  virtual Result<bool> Capturing(Stream stream) = 0;
  // Whether all that was there when it was recorded is done; of one never recorded, true.
  virtual Result<bool> Done(Event event) = 0;
  virtual Status Synchronize(Event event) = 0;
  // Writes 1 to the eventfd when the stream gets there (cudaLaunchHostFunc). After an error it may
  // not, so a caller that waits also asks Done now and then.
  virtual Status Notify(Stream stream, int eventfd) = 0;

  // ---- kernels ----

  // The layout's tensors are memory of this device.
  virtual Result<std::shared_ptr<Table>> MakeTable(const Layout& layout) = 0;

  static constexpr std::size_t kMaxInputs = 8;
  static constexpr std::size_t kMaxOutputs = 2;
  struct Input {
    const std::byte* data = nullptr;  // null: the tensors
    Weight weight = {1, 1};           // not 0
  };
  // One launch over [offset, offset + length) of a layout's row, cut as layout.h wants it or where
  // a dtype's run begins or ends: to = factor * sum of weight * input, with the bits of kernels.h
  // (f16 and bf16 are rounded after every addition; no fused multiply-add; a weight or factor of
  // exactly 1 changes nothing). Operands point at the first byte of the range, in device memory,
  // with any alignment; or are null: the tensors. Outputs may be the first input, and overlap no
  // other. Without inputs it is zeros. Without `to`, nothing.
  struct Combine {
    const Table* table = nullptr;
    std::size_t offset = 0;
    std::size_t length = 0;
    std::span<std::byte* const> to;
    std::span<const Input> from;
    Weight factor = {1, 1};
    // Null, or a word of device memory: nothing is written unless it is 0 when the launch runs.
    const std::uint32_t* skip = nullptr;
  };
  virtual Status Launch(const Combine& combine, Stream stream) = 0;
  // *word = *flag, and *said = *flag + 1, as one step of the stream: `flag` and `said` are words of
  // pinned host memory, `word` one of the device. To call a result off, write 1 to `flag`. Once
  // `said` is not 0, it says whether the launches that skip on `word` have written (1) or not (2).
  virtual Status Decide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                        Stream stream) = 0;

  // ---- NCCL ----
  //
  // Communicators are non-blocking (ncclConfig_t::blocking = 0). What may take long in NCCL itself
  // (unique ids, initialisation, abort) runs on a thread of the Gpu's own.

  struct Id {
    Status status;  // not ok: there is none
    UniqueId id{};
  };
  // Starts to make one; at most one at a time. TakeUniqueId: nullptr until it is there, then once.
  virtual void MakeUniqueId() = 0;
  virtual std::unique_ptr<Id> TakeUniqueId() = 0;
  // ncclCommInitRankConfig: all `ranks` members call it with the same id, each with its own rank.
  // What comes of it, CommBusy says. Never null.
  virtual Comm CommInit(int ranks, const UniqueId& id, int rank) = 0;
  // True: what was last asked of the communicator (its making, a collective) is not handed to the
  // device yet (ncclInProgress): nothing else may be asked of it but CommAbort, and no event
  // recorded for it. Not ok: it has failed, now or while a collective runs
  // (ncclCommGetAsyncError).
  virtual Result<bool> CommBusy(Comm comm) = 0;
  // Ends what runs on it, on this member, and forgets it (ncclCommAbort, on the Gpu's thread). The
  // stream goes on; what the collective has written is anything. Exactly once.
  virtual void CommAbort(Comm comm) = 0;
  // Communicators that are being aborted.
  virtual std::size_t aborting() const = 0;

  // to = sum over members of their weight * from, element by element, in the collective's dtype
  // (ncclRedOpCreatePreMulSum with the weight in that dtype; `weight` is exact in it); without a
  // weight the plain sum (ncclSum). `from` may be `to`. All members ask for the same collectives in
  // the same order, all with weights or all without: NCCL chooses by the operator how to go, on
  // each member.
  virtual Status AllReduce(Comm comm, const std::byte* from, std::byte* to, std::size_t count,
                           DType dtype, std::optional<Weight> weight, Stream stream) = 0;
  virtual Status Send(Comm comm, const std::byte* from, std::size_t bytes, int to,
                      Stream stream) = 0;
  virtual Status Receive(Comm comm, std::byte* to, std::size_t bytes, int from, Stream stream) = 0;
  // ncclGroupStart, ncclGroupEnd: calls between them are one.
  virtual Status GroupStart() = 0;
  virtual Status GroupEnd(Comm comm) = 0;
};

// ---- the module ----

// The version of this class and what it uses: a module of another one is refused.
inline constexpr int kGpuInterface = 3;

// What a module exports, as `prd_gpu_open`: a Gpu for device `device`, or null, and why in `error`
// (of `error_bytes`, zero-terminated). `interface` is kGpuInterface of the caller, `version` its
// version of prd.
using GpuOpen = Gpu* (*)(int interface, const char* version, int device, char* error,
                         std::size_t error_bytes);

// The module is libprd_cuda.so beside the worker library, or what PRD_CUDA_MODULE names; it is
// loaded once and stays. Errors: kUnavailable: prd was built without CUDA; the module is not there
// or is another version's; the driver is missing or too old; no such device.
Result<std::shared_ptr<Gpu>> OpenGpu(int device);
// Whether memory is a CUDA device's, which the processor cannot read. Asks the CUDA driver if the
// process has loaded one by the time that this is made; where it has not, no memory is.
class HostPointers {
 public:
  HostPointers();
  ~HostPointers();
  HostPointers(const HostPointers&) = delete;
  HostPointers& operator=(const HostPointers&) = delete;
  // kInvalidArgument: it is.
  Status Check(const void* data) const;

 private:
  void* driver_;
};
// "cuda:N", "cuda" (0), "cpu" or "" (nullopt). kInvalidArgument for anything else.
Result<std::optional<int>> ParseDevice(const std::string& device);

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_GPU_H_
