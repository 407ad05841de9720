// The replica of one of prdbench's processes, in host memory or on a device: its tensors, what they
// are filled with, and how they are looked at.
#ifndef PRD_TOOLS_PRDBENCH_WORKER_MEMORY_H_
#define PRD_TOOLS_PRDBENCH_WORKER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "tools/prdbench/device_values.h"
#include "worker/device/device_memory.h"

namespace prd::bench {

Instant Now();

class WorkerMemory {
 public:
  WorkerMemory() = default;  // host memory
  ~WorkerMemory();

  // Opens the device, and tells NCCL, by the environment, if it is shared with other workers.
  // `wake`: an eventfd.
  Status OpenDevice(int device, bool shared, int wake);
  // For a ReplicaStore, which this then must outlive. Once.
  std::unique_ptr<DeviceMemory> TakeStoreMemory();

  Status Allocate(const std::vector<std::pair<DType, std::size_t>>& tensors);
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // The first bytes of the first tensor.
  std::vector<Tensor> First(std::size_t bytes) const;

  // These wait until they are done. The tensors become ValueOf's.
  Status Fill(std::uint64_t seed, int rank);
  Result<std::string> Hash();
  // WorstError over these, a part of tensors().
  Result<double> Worst(std::uint64_t seed, const std::vector<Share>& shares,
                       const std::vector<Tensor>& tensors);

  // The device's; null without one.
  Gpu* gpu() const { return gpu_.get(); }
  Gpu::Stream stream() const { return device_->stream(); }
  Result<std::string> Free() const;
  // All that is on the stream is done.
  Status Finish();

 private:
  Status ReadBack();

  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<DeviceMemory> owned_;  // until it is the store's
  DeviceMemory* device_ = nullptr;
  Gpu::Event event_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* data_ = nullptr;   // of all tensors
  std::byte* host_ = nullptr;   // pinned, to fill and look at them; of host memory, data_
  std::vector<std::byte> own_;  // data_ of host memory
  std::vector<Tensor> tensors_;
};

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_WORKER_MEMORY_H_
