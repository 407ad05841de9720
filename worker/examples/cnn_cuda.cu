#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "worker/examples/cnn_cuda.h"

namespace example {
namespace {

constexpr unsigned kThreads = 128;  // per block

template <typename K>
__global__ void ForEach(K kernel, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) kernel(i);
}

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

class CudaDevice : public CnnDevice {
 public:
  explicit CudaDevice(int device) : device_(device) {
    try {
      Check(cudaSetDevice(device), "cudaSetDevice");
      // Not the default stream, which waits for all others and they for it.
      Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
      Check(cudaEventCreateWithFlags(&scored_, cudaEventDisableTiming), "cudaEventCreate");
      Check(cudaMallocHost(&score_, sizeof(cnn::Score)), "cudaMallocHost");
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

  // From memory that is not pinned: the runtime has copied it when it returns.
  void CopyIn(void* to, const void* from, std::size_t bytes) override {
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
  }

  void CopyOut(void* to, const void* from, std::size_t bytes) override {
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "copy from the device");
    Check(cudaStreamSynchronize(stream_), "copy from the device");
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
    Check(cudaMemcpyAsync(score_, score, sizeof(*score), cudaMemcpyDeviceToHost, stream_),
          "copy from the device");
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
  void Free() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (void* block : blocks_) cudaFree(block);
    if (score_ != nullptr) cudaFreeHost(score_);
    if (scored_ != nullptr) cudaEventDestroy(scored_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
  cnn::Score* score_ = nullptr;  // pinned
  cudaEvent_t scored_ = nullptr;
  bool asked_ = false;
};

}  // namespace

std::unique_ptr<CnnDevice> MakeCudaDevice(int device) {
  return std::make_unique<CudaDevice>(device);
}

}  // namespace example
