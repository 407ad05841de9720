// The stand-in as a module that PRD_CUDA_MODULE names. All Gpus of a process that are opened for
// the same device share it: memory of one is valid in the others.
//
// From the environment:
//   PRD_STANDIN_SEED=N              what runs next, of what may; 0, the default: in order
//   PRD_STANDIN_DELAY_US=N          before each operation
//   PRD_STANDIN_NO_NCCL=1           NCCL is not there
//   PRD_STANDIN_HANG_COLLECTIVES=1  none of this process ever ends
//   PRD_STANDIN_BUSY_POLLS=N        a communicator is busy for so long, new and at its first call
//   PRD_STANDIN_FAIL_MALLOC=N       the N-th allocation of the device finds no memory
//   PRD_STANDIN_FAIL_OPERATION=N    the N-th operation of the device fails, and all after it
// A problem ends the process, with a message.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "tests/standin/socket_hub.h"
#include "tests/standin/standin_gpu.h"

namespace prd::testing {
namespace {

constexpr int kDevices = 8;

std::uint64_t Setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::strtoull(value, nullptr, 10);
}

struct State {
  std::mutex mutex;
  std::shared_ptr<Problems> problems = std::make_shared<Problems>(true);
  std::shared_ptr<SocketHub> hub = std::make_shared<SocketHub>(problems);
  std::map<int, std::shared_ptr<StandInDevice>> devices;

  Result<std::shared_ptr<StandInDevice>> Device(int number) {
    if (number < 0 || number >= kDevices) {
      return Status(Code::kUnavailable, "the stand-in has no such device");
    }
    const std::lock_guard lock(mutex);
    std::shared_ptr<StandInDevice>& device = devices[number];
    if (device != nullptr) return device;
    Result<std::shared_ptr<StandInDevice>> made =
        StandInDevice::Create({.threaded = true,
                               .seed = Setting("PRD_STANDIN_SEED"),
                               .delay_us = static_cast<int>(Setting("PRD_STANDIN_DELAY_US")),
                               .find_races = false,
                               .problems = problems,
                               .others = nullptr});
    if (!made.ok()) return made.status();
    device = *made;
    if (const auto k = Setting("PRD_STANDIN_FAIL_MALLOC"); k != 0) device->FailMalloc(k);
    if (const auto k = Setting("PRD_STANDIN_FAIL_OPERATION"); k != 0) device->FailOperation(k);
    return device;
  }
};

// Never destroyed: its threads may run when the process ends.
State& TheState() {
  static State* const state = new State;
  return *state;
}

Result<Gpu*> Open(int device) {
  const Result<std::shared_ptr<StandInDevice>> on = TheState().Device(device);
  if (!on.ok()) return on.status();
  StandInOptions options;
  options.device = device;
  options.on = *on;
  if (Setting("PRD_STANDIN_NO_NCCL") == 0) options.hub = TheState().hub;
  options.busy_polls = static_cast<int>(Setting("PRD_STANDIN_BUSY_POLLS"));
  options.busy_polls_of_first_collective = options.busy_polls;
  auto* gpu = new StandInGpu(std::move(options));
  if (Setting("PRD_STANDIN_HANG_COLLECTIVES") != 0) gpu->HangCollectives();
  return gpu;
}

}  // namespace
}  // namespace prd::testing

extern "C" {

prd::Gpu* prd_gpu_open(int interface, const char* version, int device, char* error,
                       std::size_t error_bytes) {
  if (interface != prd::kGpuInterface || std::string(version) != PRD_VERSION) {
    std::snprintf(error, error_bytes, "the stand-in is of prd %s, interface %d", PRD_VERSION,
                  prd::kGpuInterface);
    return nullptr;
  }
  const prd::Result<prd::Gpu*> gpu = prd::testing::Open(device);
  if (gpu.ok()) return *gpu;
  std::snprintf(error, error_bytes, "%s", gpu.status().message().c_str());
  return nullptr;
}

// For a test's program that is built with prd_standin, to order faults. Null: there is none.
prd::testing::StandInDevice* prd_standin_device(int device) {
  const auto found = prd::testing::TheState().Device(device);
  return found.ok() ? found->get() : nullptr;
}

}  // extern "C"
