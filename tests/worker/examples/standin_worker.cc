// prd-train-cuda's training on the stand-in for CUDA and NCCL (tests/standin): a program of the
// tests, one worker of a job, with the stand-in's module in PRD_CUDA_MODULE. It shows that replica,
// kernels and session are ordered by their streams as they must be, and proves nothing about GPUs.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/standin/device.h"
#include "worker/device/gpu.h"
#include "worker/examples/cnn_learner.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

namespace {

using prd::testing::StandInDevice;

void Check(const prd::Status& status) {
  if (!status.ok()) throw std::runtime_error("stand-in: " + status.ToString());
}

template <typename T>
T Value(prd::Result<T> result) {
  Check(result.status());
  return *result;
}

// The module that the session loads, too.
void* Module() {
  const char* path = std::getenv("PRD_CUDA_MODULE");
  void* module = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw std::runtime_error("PRD_CUDA_MODULE names no stand-in");
  return module;
}

template <typename F>
F Find(void* module, const char* name) {
  const auto found = reinterpret_cast<F>(dlsym(module, name));
  if (found == nullptr) throw std::runtime_error(std::string("the stand-in has no ") + name);
  return found;
}

// What a kernel writes of that which the session uses, too.
template <typename K>
const void* Written(const K&) {
  return nullptr;
}
const void* Written(const example::cnn::LinearGradients& kernel) { return kernel.gradients; }
const void* Written(const example::cnn::SumParts& kernel) { return kernel.sums; }
const void* Written(const example::cnn::SgdStep& kernel) { return kernel.parameters; }

class StandInCnnDevice : public example::CnnDevice {
 public:
  explicit StandInCnnDevice(int number) : number_(number) {
    void* module = Module();
    char error[256] = "";
    gpu_.reset(Find<prd::GpuOpen>(module, "prd_gpu_open")(prd::kGpuInterface, PRD_VERSION, number,
                                                          error, sizeof(error)));
    if (gpu_ == nullptr) throw std::runtime_error(error);
    device_ = Find<StandInDevice* (*)(int)>(module, "prd_standin_device")(number);
    enqueue_ = Find<decltype(enqueue_)>(module, "prd_standin_enqueue");
    stream_ = Value(gpu_->CreateStream());
    event_ = Value(gpu_->CreateEvent());
  }
  ~StandInCnnDevice() override {
    gpu_->DestroyEvent(event_);
    gpu_->DestroyStream(stream_);
    for (std::byte* block : blocks_) gpu_->Free(block);
  }

  std::string name() const override { return "cuda:" + std::to_string(number_); }
  void* stream() const override { return stream_; }

  void* Allocate(std::size_t bytes) override {
    blocks_.push_back(Value(gpu_->Malloc(bytes)));
    Check(gpu_->Zero(blocks_.back(), bytes, stream_));
    return blocks_.back();
  }

  void CopyIn(void* to, const void* from, std::size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(from);
    std::byte* resolved = Resolve(to, bytes);
    const std::vector<std::byte> copy(begin, begin + bytes);
    Enqueue("copy in", [copy, resolved] { std::memcpy(resolved, copy.data(), copy.size()); },
            {{to, bytes, true}});
  }

  void CopyOut(void* to, const void* from, std::size_t bytes) override {
    std::byte* resolved = Resolve(from, bytes);
    Enqueue("copy out", [=] { std::memcpy(to, resolved, bytes); }, {{from, bytes, false}});
    Check(gpu_->Record(event_, stream_));
    Check(gpu_->Synchronize(event_));
  }

  void Run(const example::cnn::Kernel& kernel) override {
    std::visit([this](const auto& of) { RunOn(of); }, kernel);
  }

  // At once: the order of reading it is for a GPU to show.
  void AskScore(const example::cnn::Score* score) override {
    asked_.emplace();
    CopyOut(&*asked_, score, sizeof(*score));
  }
  std::optional<example::cnn::Score> TakeScore() override {
    return std::exchange(asked_, std::nullopt);
  }

 private:
  std::byte* Resolve(const void* data, std::size_t bytes) {
    return Value(device_->Operand("the trainer's", data, bytes, StandInDevice::Place::kDevice));
  }

  void Enqueue(const char* what, std::function<void()> run, std::vector<prd::testing::Use> uses) {
    StandInDevice::Operation operation{what, nullptr, std::move(run), std::move(uses)};
    if (!enqueue_(number_, stream_, &operation)) throw std::runtime_error("stand-in: refused");
  }

  // A kernel's operands are those of its words that are addresses of the device; of each its first
  // element tells of races.
  template <typename K>
  void RunOn(K kernel) {
    std::vector<prd::testing::Use> uses;
    const void* written = Written(kernel);
    auto* bytes = reinterpret_cast<unsigned char*>(&kernel);
    for (std::size_t at = 0; at + sizeof(void*) <= sizeof(K); at += alignof(void*)) {
      void* word = nullptr;
      std::memcpy(&word, bytes + at, sizeof(word));
      if (device_->KindOf(word, 1) != prd::testing::Arena::Kind::kDevice) continue;
      uses.push_back({word, sizeof(float), word == written});
      word = Resolve(word, 1);
      std::memcpy(bytes + at, &word, sizeof(word));
    }
    const unsigned count = kernel.count();
    const auto run = [kernel, count] {
      for (unsigned i = 0; i < count; ++i) kernel(i);
    };
    Enqueue("kernel", run, std::move(uses));
  }

  const int number_;
  std::unique_ptr<prd::Gpu> gpu_;
  StandInDevice* device_ = nullptr;
  bool (*enqueue_)(int, void*, StandInDevice::Operation*) = nullptr;
  prd::Gpu::Stream stream_ = nullptr;
  prd::Gpu::Event event_ = nullptr;
  std::vector<std::byte*> blocks_;
  std::optional<example::cnn::Score> asked_;
};

}  // namespace

int main(int argc, char** argv) {
  example::FashionMnistCudaArgs args;
  int exit_code = 0;
  if (!example::ParseFashionMnistCudaArgs(argc, argv, &args, &exit_code)) return exit_code;
  try {
    std::unique_ptr<example::CnnDevice> device = example::MakeHostDevice();
    if (args.device >= 0) device = std::make_unique<StandInCnnDevice>(args.device);
    example::CnnLearner learner(args.common, std::move(device));
    return example::RunTrainer("stand-in worker", args.common.train, learner);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stand-in worker: %s\n", error.what());
    return 1;
  }
}
