#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "worker/examples/cnn_cuda.h"

namespace example {
namespace {

constexpr unsigned kThreads = 128;  // per block
constexpr std::size_t kSlots = 2;
constexpr std::size_t kSlotBytes = 256 << 10;  // more than the largest batch's places take

template <typename K>
__global__ void ForEach(K kernel, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) kernel(i);
}

// CUDA's own text is the same for a driver that is too old.
bool NoDriver(cudaError_t error) {
  int driver = 0;
  return error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
         driver == 0;
}

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const char* why = NoDriver(error) ? "there is no NVIDIA driver" : cudaGetErrorString(error);
  throw std::runtime_error(std::string(what) + ": " + why);
}

class CudaDevice : public CnnDevice {
 public:
  explicit CudaDevice(int device) : device_(device) {
    try {
      Check(cudaSetDevice(device), name().c_str());
      // Not the default stream, which waits for all others and they for it.
      Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
      Check(cudaEventCreateWithFlags(&scored_, cudaEventDisableTiming), "cudaEventCreate");
      Check(cudaMallocHost(&score_, sizeof(cnn::Score)), "cudaMallocHost");
      for (Slot& slot : slots_) {
        Check(cudaMallocHost(&slot.data, kSlotBytes), "cudaMallocHost");
        Check(cudaEventCreateWithFlags(&slot.free, kWaitsInTheKernel), "cudaEventCreate");
      }
    } catch (...) {
      Free();
      throw;
    }
  }
  ~CudaDevice() override { Free(); }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return "cuda:" + std::to_string(device_); }
  void* stream() const override { return stream_; }

  void* Allocate(std::size_t bytes) override {
    void* block = nullptr;
    Check(cudaMalloc(&block, bytes), "cudaMalloc");
    blocks_.push_back(block);
    Check(cudaMemsetAsync(block, 0, bytes, stream_), "cudaMemset");
    return block;
  }

  void CopyIn(void* to, const void* from, std::size_t bytes) override {
    if (bytes > kSlotBytes) {  // the data, which come once
      Copy(to, from, bytes, cudaMemcpyHostToDevice);
      Check(cudaStreamSynchronize(stream_), "copy");
      return;
    }
    Slot& slot = slots_[next_slot_++ % kSlots];
    Check(cudaEventSynchronize(slot.free), "copy");
    std::memcpy(slot.data, from, bytes);
    Copy(to, slot.data, bytes, cudaMemcpyHostToDevice);
    Check(cudaEventRecord(slot.free, stream_), "cudaEventRecord");
  }

  void CopyOut(void* to, const void* from, std::size_t bytes) override {
    Copy(to, from, bytes, cudaMemcpyDeviceToHost);
    Check(cudaStreamSynchronize(stream_), "copy");
  }

  void Run(const cnn::Kernel& kernel) override {
    std::visit(
        [this](const auto& of) {
          const unsigned count = of.count();
          ForEach<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream_>>>(of, count);
        },
        kernel);
    Check(cudaGetLastError(), "kernel");
  }

  void AskScore(const cnn::Score* score) override {
    if (asked_) return;
    Copy(score_, score, sizeof(*score), cudaMemcpyDeviceToHost);
    Check(cudaEventRecord(scored_, stream_), "cudaEventRecord");
    asked_ = true;
  }

  std::optional<cnn::Score> TakeScore() override {
    if (!asked_) return std::nullopt;
    const cudaError_t state = cudaEventQuery(scored_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // else the next kernel's check would find it
      return std::nullopt;
    }
    Check(state, "cudaEventQuery");
    asked_ = false;
    return *score_;
  }

 private:
  static constexpr unsigned kWaitsInTheKernel = cudaEventDisableTiming | cudaEventBlockingSync;
  // Pinned memory on its way to the device until `free`.
  struct Slot {
    void* data = nullptr;
    cudaEvent_t free = nullptr;
  };

  void Copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    Check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "copy");
  }

  void Free() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (void* block : blocks_) cudaFree(block);
    for (const Slot& slot : slots_) {
      if (slot.data != nullptr) cudaFreeHost(slot.data);
      if (slot.free != nullptr) cudaEventDestroy(slot.free);
    }
    if (score_ != nullptr) cudaFreeHost(score_);
    if (scored_ != nullptr) cudaEventDestroy(scored_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
  std::array<Slot, kSlots> slots_;
  std::size_t next_slot_ = 0;
  cnn::Score* score_ = nullptr;  // pinned
  cudaEvent_t scored_ = nullptr;
  bool asked_ = false;
};

}  // namespace

std::unique_ptr<CnnDevice> MakeCudaDevice(int device) {
  return std::make_unique<CudaDevice>(device);
}

}  // namespace example
