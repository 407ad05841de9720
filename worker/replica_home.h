// Where a session's replica is to live: host memory, or a device and what reduces there.
#ifndef PRD_WORKER_REPLICA_HOME_H_
#define PRD_WORKER_REPLICA_HOME_H_

#include <memory>
#include <vector>

#include "prd/session.h"
#include "worker/device/device_memory.h"
#include "worker/device/plane.h"
#include "worker/memory/memory.h"

namespace prd {

struct ReplicaHome {
  std::unique_ptr<Memory> memory;
  DeviceMemory* device = nullptr;      // what `memory` is, if it is one
  std::unique_ptr<DevicePlane> plane;  // null: no device; goes before the memory
};

// Opens the replica's device and checks that its tensors are there. `wake`: the session's eventfd.
// kInvalidArgument, and OpenGpu's errors.
Result<ReplicaHome> OpenHome(const Replica& replica, int wake, const SessionOptions& options);

// Whether these tensors are there; null: in host memory. kInvalidArgument names one that is not.
Status CheckPlaces(const DeviceMemory* device, const std::vector<Tensor>& tensors,
                   const char* which);

}  // namespace prd

#endif  // PRD_WORKER_REPLICA_HOME_H_
