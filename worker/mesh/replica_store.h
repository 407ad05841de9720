// The replica as the two threads of a session share it.
#ifndef PRD_WORKER_MESH_REPLICA_STORE_H_
#define PRD_WORKER_MESH_REPLICA_STORE_H_

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "common/base/ids.h"
#include "worker/mesh/layout.h"

namespace prd {

struct ReplicaStore {
  // Held by whoever writes the parameters or the fields below: the caller's thread around `apply`,
  // the background thread around a commit. Held together, they change together: who holds it sees
  // the replica between two steps.
  std::mutex mutex;
  // Written under the mutex; atomic so that the caller may ask for it at any time, in `apply` too.
  std::atomic<Iteration> iteration = 0;
  // The initial model as a row of bytes; empty when it is not kept.
  std::vector<std::byte> initial;

  // The memory is the caller's. Set once, before a mesh uses the store.
  Layout parameters;
  Layout gradients;  // empty when there are none
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_REPLICA_STORE_H_
