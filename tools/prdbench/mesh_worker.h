// One process that reduces on command: the worker library's data plane over its own sockets, with a
// replica in host memory or on a device.
#ifndef PRD_TOOLS_PRDBENCH_MESH_WORKER_H_
#define PRD_TOOLS_PRDBENCH_MESH_WORKER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "prd/session.h"
#include "worker/device/communicators.h"
#include "worker/device/plane.h"

namespace prd::bench {

struct MeshWorkerOptions {
  int rank = 0;
  std::string host;                                    // workers of one host talk over ipc
  std::vector<std::pair<DType, std::size_t>> tensors;  // dtype and elements
  std::optional<int> device;
  bool shares_device = false;  // with other workers, which NCCL has to be told
  DurationNs timeout = 10 * kSecond;
  MeshSecurity mesh_security = MeshSecurity::kNone;
  Communicators::Options communicators;
  std::size_t window_bytes = DevicePlane::kWindowBytes;
};

// Says "INCARNATION KEY ENDPOINT..", then About its device (device_line.h; [] without one); obeys
// `in` until it ends, a command a line, and answers on `out`, a line each. What goes wrong is
// answered in words. SHARES are "RANK:WEIGHT ..", times ns of the monotonic clock, WAY is staged,
// exchange or collective.
//   peer RANK INCARNATION HOST KEY ENDPOINT..   where to find a member; not answered
//   reduce KIND GROUP BYTES SHARES          the first BYTES of the parameters; "START END WAY"
//   verified KIND GROUP SEED TENSOR SHARES  this tensor, or all of them (-1), filled, reduced and
//                                           compared: "START END WAY WORST HASH" (device_values.h)
//   running                                 "yes" while a reduction runs, or "no"
//   hash                                    of the parameters
//   counters                                of its communicators: "MADE BROKEN GIVEN-UP HERE"
//   free                                    bytes of the device
//   comm-id                                 makes a unique id, in hex
//   comm-init RANKS RANK ID                 a communicator of its own: "START END"
//   comm-abort                              "ok" once it is gone
//   plain BYTES                             ncclAllReduce of the parameters' first BYTES, in place,
//                                           on that of the last reduction, whose way was
//                                           collective, or else on its own: "START END"
// Returns the exit code.
int RunMeshWorker(const MeshWorkerOptions& options, int in, int out);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_MESH_WORKER_H_
