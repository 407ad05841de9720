#include "tools/prdbench/worker_memory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace prd::bench {
namespace {

// NCCL refuses several ranks on one GPU: it tells them apart by host and device, so each gets a
// host of its own, and the ways that need one host are closed: for checks only. So is NCCL's own
// watch over its processes (RAS), which would connect all of them. From 2.30 on there is a setting
// for it.
void ShareDevice(const std::string& nccl) {
  int major = 0;
  int minor = 0;
  const bool known = std::sscanf(nccl.c_str(), "%d.%d", &major, &minor) == 2;
  if (known && std::pair(major, minor) >= std::pair(2, 30)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    return;
  }
  setenv("NCCL_HOSTID", ("prdbench-" + std::to_string(getpid())).c_str(), 0);
  const std::pair<const char*, const char*> settings[] = {
      {"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"},   {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_RAS_ENABLE", "0"},
  };
  for (const auto& [name, value] : settings) setenv(name, value, 0);
}

}  // namespace

Instant Now() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

WorkerMemory::~WorkerMemory() {
  if (gpu_ == nullptr) return;
  if (event_ != nullptr) gpu_->DestroyEvent(event_);
  if (data_ != nullptr) gpu_->Free(data_);
  if (host_ != nullptr) gpu_->FreeHost(host_);
}

Status WorkerMemory::OpenDevice(int device, bool shared, int wake) {
  Result<std::shared_ptr<Gpu>> gpu = OpenGpu(device);
  if (!gpu.ok()) return gpu.status();
  gpu_ = std::move(*gpu);
  if (shared) ShareDevice(gpu_->nccl_version());
  Result<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::Create(gpu_, wake);
  if (!memory.ok()) return memory.status();
  owned_ = std::move(*memory);
  device_ = owned_.get();
  Result<Gpu::Event> event = gpu_->CreateEvent();
  if (!event.ok()) return event.status();
  event_ = *event;
  return Status::Ok();
}

std::unique_ptr<DeviceMemory> WorkerMemory::TakeStoreMemory() { return std::move(owned_); }

Status WorkerMemory::Allocate(const std::vector<std::pair<DType, std::size_t>>& tensors) {
  constexpr std::size_t kAlign = 256;
  for (const auto& [dtype, count] : tensors) {
    bytes_ += (count * DTypeSize(dtype) + kAlign - 1) / kAlign * kAlign;
  }
  if (gpu_ == nullptr) {
    own_.resize(bytes_);
    data_ = host_ = own_.data();
  } else {
    Result<std::byte*> data = gpu_->Malloc(bytes_);
    if (!data.ok()) return data.status();
    data_ = *data;
    Result<std::byte*> host = gpu_->MallocHost(bytes_);
    if (!host.ok()) return host.status();
    host_ = *host;
    std::memset(host_, 0, bytes_);  // the gaps count in a hash
  }
  std::size_t at = 0;
  for (const auto& [dtype, count] : tensors) {
    tensors_.push_back({data_ + at, count, dtype});
    at += (count * DTypeSize(dtype) + kAlign - 1) / kAlign * kAlign;
  }
  return Status::Ok();
}

std::vector<Tensor> WorkerMemory::First(std::size_t bytes) const {
  Tensor tensor = tensors_.at(0);
  tensor.count = std::min(tensor.count, bytes / DTypeSize(tensor.dtype));
  return {tensor};
}

Status WorkerMemory::Finish() {
  if (gpu_ == nullptr) return Status::Ok();
  PRD_RETURN_IF_ERROR(gpu_->Record(event_, stream()));
  PRD_RETURN_IF_ERROR(gpu_->Synchronize(event_));
  return device_->failure();
}

Status WorkerMemory::Fill(std::uint64_t seed, int rank) {
  for (const Tensor& tensor : tensors_) {
    std::byte* to = host_ + (static_cast<std::byte*>(tensor.data) - data_);
    for (std::size_t i = 0; i < tensor.count; ++i) {
      Store(tensor.dtype, to, i, ValueOf(seed, rank, tensor.dtype, i));
    }
  }
  if (gpu_ == nullptr) return Status::Ok();
  PRD_RETURN_IF_ERROR(gpu_->Copy(data_, host_, bytes_, stream()));
  return Finish();
}

Status WorkerMemory::ReadBack() {
  if (gpu_ == nullptr) return Status::Ok();
  PRD_RETURN_IF_ERROR(gpu_->Copy(host_, data_, bytes_, stream()));
  return Finish();
}

Result<std::string> WorkerMemory::Hash() {
  PRD_RETURN_IF_ERROR(ReadBack());
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 8 bytes at a time; sizes are multiples
  for (std::size_t at = 0; at < bytes_; at += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, host_ + at, sizeof word);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return std::to_string(hash);
}

Result<double> WorkerMemory::Worst(std::uint64_t seed, const std::vector<Share>& shares,
                                   const std::vector<Tensor>& tensors) {
  PRD_RETURN_IF_ERROR(ReadBack());
  double worst = 0;
  for (const Tensor& tensor : tensors) {
    const std::byte* sums = host_ + (static_cast<std::byte*>(tensor.data) - data_);
    worst = std::max(worst, WorstError(seed, shares, tensor.dtype, sums, tensor.count));
  }
  return worst;
}

Result<std::string> WorkerMemory::Free() const {
  if (gpu_ == nullptr) return Status(Code::kFailedPrecondition, "it has no device");
  const Result<std::size_t> free = gpu_->FreeMemory();
  if (!free.ok()) return free.status();
  return std::to_string(*free);
}

}  // namespace prd::bench
