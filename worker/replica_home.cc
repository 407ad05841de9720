#include "worker/replica_home.h"

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/device/gpu.h"

namespace prd {
namespace {

// `gpu`: where they are to be; null: the host.
template <typename T>  // Tensor, StateTensor
Status CheckTensors(const Gpu* gpu, const std::vector<T>& tensors, const char* which) {
  const HostPointers host;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].count == 0) continue;
    const void* data = tensors[i].data;
    const Status status = gpu != nullptr ? gpu->CheckPointer(data) : host.Check(data);
    if (status.ok()) continue;
    return Status(Code::kInvalidArgument,
                  std::string(which) + "[" + std::to_string(i) + "]: " + status.message());
  }
  return Status::Ok();
}

Status CheckReplica(const Gpu* gpu, const Replica& replica) {
  PRD_RETURN_IF_ERROR(CheckTensors(gpu, replica.parameters, "parameters"));
  PRD_RETURN_IF_ERROR(CheckTensors(gpu, replica.gradients, "gradients"));
  return CheckTensors(gpu, replica.state, "state");
}

}  // namespace

Status CheckPlaces(const DeviceMemory* device, const std::vector<Tensor>& tensors,
                   const char* which) {
  return CheckTensors(device == nullptr ? nullptr : device->gpu().get(), tensors, which);
}

Result<ReplicaHome> OpenHome(const Replica& replica, int wake, const SessionOptions& options) {
  const Result<std::optional<int>> device = ParseDevice(replica.device);
  if (!device.ok()) return device.status();
  ReplicaHome home;
  if (!device->has_value()) {
    PRD_RETURN_IF_ERROR(CheckReplica(nullptr, replica));
    home.memory = std::make_unique<HostMemory>();
    return home;
  }
  Result<std::shared_ptr<Gpu>> gpu = OpenGpu(**device);
  if (!gpu.ok()) return gpu.status();
  PRD_RETURN_IF_ERROR(CheckReplica(gpu->get(), replica));
  Result<std::unique_ptr<DeviceMemory>> memory = DeviceMemory::Create(*gpu, wake);
  if (!memory.ok()) return memory.status();
  home.device = memory->get();
  home.memory = std::move(memory).value();
  if (options.rows_on_host) home.device->KeepRowsOnHost();
  home.device->SetCallerStream(replica.stream);
  DevicePlane::Options plane_options{
      .communicators = {.limit = static_cast<std::size_t>(options.max_communicators)}};
  if (options.reduce_timeout.count() != 0) {
    plane_options.timeout = std::chrono::nanoseconds(options.reduce_timeout).count();
  }
  Result<std::unique_ptr<DevicePlane>> plane =
      DevicePlane::Create(home.device, wake, plane_options);
  if (!plane.ok()) return plane.status();
  home.plane = std::move(plane).value();
  return home;
}

}  // namespace prd
