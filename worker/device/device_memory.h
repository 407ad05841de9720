// A replica in the memory of a device.
//
// All of this class's work runs on one stream of its own, in the order in which it is asked for.
// The caller's stream and this one are ordered by events: TakeFromCaller makes this one wait for
// what the caller has enqueued, GiveToCaller makes the caller's wait for what is here. Neither
// waits on the processor, and the device is never synchronised.
//
// Combine with host operands goes through pinned memory and two more streams, in pieces: while one
// is copied in, the one before is combined, and the one before that is copied out; its bytes are
// Transfer::ready() then, and the eventfd tells.
//
// Threads: as Memory; the mutexes of those who call it (replica_store.h) keep calls apart.
#ifndef PRD_WORKER_DEVICE_DEVICE_MEMORY_H_
#define PRD_WORKER_DEVICE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "worker/device/gpu.h"
#include "worker/memory/memory.h"

namespace prd {

class DeviceMemory : public Memory {
 public:
  // Of host operands, so much at a time, and this many of them on their way.
  static constexpr std::size_t kPieceBytes = 4 << 20;
  static constexpr std::size_t kPieces = 4;

  // `wake`: an eventfd, or -1. `piece_bytes`: a multiple of 8.
  static Result<std::unique_ptr<DeviceMemory>> Create(std::shared_ptr<Gpu> gpu, int wake,
                                                      std::size_t piece_bytes = kPieceBytes);
  ~DeviceMemory() override;  // waits until its streams have run dry

  bool device() const override { return true; }
  Row Allocate(std::size_t bytes) override;
  Row AllocateHost(std::size_t bytes) override;
  using Memory::Combine;
  std::shared_ptr<Transfer> Combine(const Layout& layout, std::size_t offset, std::size_t length,
                                    std::span<const Place> to, std::span<const Input> from,
                                    Weight factor) override;
  void Zero(std::byte* data, std::size_t bytes) override;
  void TakeFromCaller() override;
  void GiveToCaller() override;
  Status failure() const override;

  // The caller's stream from now on; null is the default stream.
  void SetCallerStream(Gpu::Stream stream) { caller_ = stream; }
  // Blocks, in the kernel, until the caller's stream has got to where it is now.
  Status WaitForCaller();

  // For who puts more on the same device (plane.h).
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
  Gpu::Stream stream() const { return stream_; }
  // Of this layout; made when it is first asked for, and kept. Null after a failure.
  const Gpu::Table* TableOf(const Layout& layout);
  // Notes the first one that is not ok. Returns whether it was ok.
  bool Note(const Status& status);

 private:
  // (the implementation's own)
  std::shared_ptr<Gpu> gpu_;
  Gpu::Stream stream_ = nullptr;
  Gpu::Stream caller_ = nullptr;
};

}  // namespace prd

#endif  // PRD_WORKER_DEVICE_DEVICE_MEMORY_H_
