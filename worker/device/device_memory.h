// A replica in the memory of a device.
//
// All arithmetic of this class runs on one stream of its own, in the order of the calls. Events
// order this stream and the caller's. TakeFromCaller makes this stream wait for the caller's work
// so far; GiveToCaller makes the caller's stream wait for the work here. Neither waits on the
// processor, and the device is never synchronised.
//
// Combine with host operands copies them in and out in pieces, on two more streams: while one is
// copied in, the one before is combined, and the one before that is copied out; its bytes are
// Transfer::ready() then, and the eventfd tells, from a stream of its own. A row of AllocateHost is
// pinned, so a piece waits on the device only, in one of a few slots. What the pieces do is ordered
// after and before other calls as if all of them ran on the one stream.
//
// The memory of rows that are gone, and the owners of host places, are let go by a later call
// (Sweep), once the device does not use them any more.
//
// Threads: as Memory; besides, any thread may let go of a row or ask a Transfer.
#ifndef PRD_WORKER_DEVICE_DEVICE_MEMORY_H_
#define PRD_WORKER_DEVICE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "worker/device/gpu.h"
#include "worker/memory/memory.h"

namespace prd {

class DeviceMemory : public Memory {
 public:
  // Host operands go in pieces of this size, this many of them on their way.
  static constexpr std::size_t kPieceBytes = 4 << 20;
  static constexpr std::size_t kPieces = 4;

  // `wake`: an eventfd, or -1: told of each piece that is in host memory, and of the first failure.
  // `piece_bytes`: a multiple of 64. Twice kPieces times that is taken from the device when it is
  // first needed.
  static Result<std::unique_ptr<DeviceMemory>> Create(std::shared_ptr<Gpu> gpu, int wake,
                                                      std::size_t piece_bytes = kPieceBytes);
  // Waits until its streams have run dry. Rows and Transfers may outlive it.
  ~DeviceMemory() override;

  bool device() const override { return true; }
  bool rows_on_host() const override { return rows_on_host_; }
  // Before there are rows.
  void KeepRowsOnHost() { rows_on_host_ = true; }
  using Memory::Combine;
  // REQUIRES: at most Gpu::kMaxOutputs of `to`; host places are in rows of AllocateHost of this
  // class.
  std::shared_ptr<Transfer> Combine(const Layout& layout, std::size_t offset, std::size_t length,
                                    std::span<const Place> to, std::span<const Input> from,
                                    Weight factor) override;
  void Zero(std::byte* data, std::size_t bytes) override;
  void TakeFromCaller() override;
  void GiveToCaller() override;
  Status failure() const override;

  // kFailedPrecondition while a CUDA graph is captured from this stream: nothing has been done.
  Status CheckNotCaptured(Gpu::Stream stream) const;
  // The caller's stream from now on; null is the default stream.
  void SetCallerStream(Gpu::Stream stream);
  // Blocks, in the kernel, until the caller's stream has got to where it is now.
  Status WaitForCaller();

  // Frees memory that is no longer in use. Combine, Zero and Allocate* do this too; call it while
  // nothing else is called for long. Owners' destructors run in it.
  void Sweep() override;

  // For more work on the same device (plane.h).
  const std::shared_ptr<Gpu>& gpu() const;
  Gpu::Stream stream() const;
  // The table of this layout, whose tensors are on the device; made when it is first asked for, and
  // kept until some others were. Null after a failure.
  const Gpu::Table* TableOf(const Layout& layout);
  // Notes the first one that is not ok. Returns whether it was ok.
  bool Note(const Status& status);

 private:
  class Core;
  class Copying;
  explicit DeviceMemory(std::shared_ptr<Core> core);
  // After a failure without data; MakeHost's have data, which is not pinned.
  Row Make(MemoryUse use, std::size_t bytes) override;
  Row MakeHost(MemoryUse use, std::size_t bytes) override;

  // Rows and Transfers have it, too.
  std::shared_ptr<Core> core_;
  bool rows_on_host_ = false;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_DEVICE_MEMORY_H_
