#include "tests/integration/toy_model.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "worker/device/gpu.h"

namespace {

class HostModel : public ToyModel {
 public:
  HostModel(std::size_t size, float first, Velocity kind)
      : kind_(kind), parameters_(size, first), gradient_(size), velocity_(size) {}

  prd::Replica replica() override {
    prd::Replica replica;
    replica.parameters = {{parameters_.data(), parameters_.size(), prd::DType::kF32}};
    replica.gradients = {{gradient_.data(), gradient_.size(), prd::DType::kF32}};
    if (kind_ == Velocity::kState) {
      replica.state = {{velocity_.data(), velocity_.size(), prd::DType::kF32}};
    }
    return replica;
  }
  void ComputeGradient(float target) override {
    for (std::size_t i = 0; i < gradient_.size(); ++i) gradient_[i] = parameters_[i] - target;
  }
  void Apply() override {
    const float momentum = kind_ == Velocity::kNone ? 0.F : 0.9F;
    for (std::size_t i = 0; i < gradient_.size(); ++i) {
      velocity_[i] = momentum * velocity_[i] + gradient_[i];
      parameters_[i] -= 0.1F * velocity_[i];
    }
  }
  std::vector<float> Parameters() override { return parameters_; }

 private:
  const Velocity kind_;
  std::vector<float> parameters_, gradient_, velocity_;
};

class DeviceModel : public ToyModel {
 public:
  DeviceModel(std::unique_ptr<prd::Gpu> gpu, std::string device, std::size_t size, float first)
      : gpu_(std::move(gpu)), device_(std::move(device)), size_(size) {
    parameters_ = gpu_->Malloc(bytes()).value();
    gradient_ = gpu_->Malloc(bytes()).value();
    pinned_ = gpu_->MallocHost(bytes()).value();
    stream_ = gpu_->CreateStream().value();
    copied_ = gpu_->CreateEvent().value();
    const prd::Tensor whole{parameters_, size_, prd::DType::kF32};
    table_ = gpu_->MakeTable(prd::Layout({whole})).value();
    Send(std::vector<float>(size_, first), parameters_);
  }
  ~DeviceModel() override {
    gpu_->DestroyStream(stream_);
    gpu_->DestroyEvent(copied_);
    table_.reset();
    gpu_->Free(parameters_);
    gpu_->Free(gradient_);
    gpu_->FreeHost(pinned_);
  }

  prd::Replica replica() override {
    prd::Replica replica;
    replica.device = device_;
    replica.stream = stream_;
    replica.parameters = {{parameters_, size_, prd::DType::kF32}};
    replica.gradients = {{gradient_, size_, prd::DType::kF32}};
    return replica;
  }
  void ComputeGradient(float target) override {
    std::vector<float> values = Parameters();
    for (float& value : values) value -= target;
    Send(values, gradient_);
  }
  void Apply() override {
    const prd::Gpu::Input from[] = {{nullptr, {1, 1}}, {gradient_, {-0.1, -0.1F}}};
    std::byte* const to[] = {nullptr};
    Must(gpu_->Launch({.table = table_.get(), .length = bytes(), .to = to, .from = from}, stream_));
  }
  std::vector<float> Parameters() override {
    Must(gpu_->Copy(pinned_, parameters_, bytes(), stream_));
    WaitForCopy();
    std::vector<float> values(size_);
    std::memcpy(values.data(), pinned_, bytes());
    return values;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(float); }
  static void Must(const prd::Status& status) {
    if (!status.ok()) std::abort();
  }
  void WaitForCopy() {
    Must(gpu_->Record(copied_, stream_));
    Must(gpu_->Synchronize(copied_));
  }
  void Send(const std::vector<float>& values, std::byte* to) {
    std::memcpy(pinned_, values.data(), bytes());
    Must(gpu_->Copy(to, pinned_, bytes(), stream_));
    WaitForCopy();
  }

  std::unique_ptr<prd::Gpu> gpu_;
  std::string device_;
  std::size_t size_;
  std::byte* parameters_ = nullptr;
  std::byte* gradient_ = nullptr;
  std::byte* pinned_ = nullptr;
  prd::Gpu::Stream stream_ = nullptr;
  prd::Gpu::Event copied_ = nullptr;
  std::shared_ptr<prd::Gpu::Table> table_;
};

}  // namespace

std::unique_ptr<ToyModel> MakeHostModel(std::size_t size, float first, Velocity velocity) {
  return std::make_unique<HostModel>(size, first, velocity);
}

std::unique_ptr<ToyModel> MakeDeviceModel(const std::string& device, std::size_t size, float first,
                                          std::string* error) {
  const char* path = std::getenv("PRD_CUDA_MODULE");
  void* module = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    *error = path == nullptr ? "PRD_CUDA_MODULE is not set" : dlerror();
    return nullptr;
  }
  const auto open = reinterpret_cast<prd::GpuOpen>(dlsym(module, "prd_gpu_open"));
  char text[256] = "";
  const int number = std::atoi(device.c_str() + device.find(':') + 1);
  std::unique_ptr<prd::Gpu> gpu(open(prd::kGpuInterface, PRD_VERSION, number, text, sizeof text));
  *error = text;
  if (gpu == nullptr) return nullptr;
  return std::make_unique<DeviceModel>(std::move(gpu), device, size, first);
}
