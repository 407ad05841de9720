// The mean of several replicas' parameters, one after another (Session::Average).
#ifndef PRD_WORKER_REPLICA_MEAN_H_
#define PRD_WORKER_REPLICA_MEAN_H_

#include <cstddef>
#include <memory>

#include "worker/memory/buffers.h"
#include "worker/mesh/replica_store.h"

namespace prd {

// Kept in host memory, in the tensors' own types: after k replicas, mean = mean * (k - 1) / k +
// replica / k. So a replica more, or one that was left out, needs no other weights, and no sum
// grows out of a small type's range. The background thread's, while the caller waits in Average.
class ReplicaMean {
 public:
  explicit ReplicaMean(ReplicaStore* store)
      : store_(store),
        buffers_([store](std::size_t bytes) { return store->memory->AllocateHost(bytes); }) {}

  // Begins anew, with this worker's own: what a peer that copies the replica now would get.
  void Begin();
  // A row in host memory, as long as the parameters.
  void Add(const Buffer& replica);
  // The mean, as a row of ReplicaStore::trained: without state that is averaged. Once.
  std::shared_ptr<Buffer> Take();
  // Other memory is used from now on.
  void Forget();

 private:
  ReplicaStore* store_;
  Buffers buffers_;
  std::shared_ptr<Buffer> mean_;
  std::size_t replicas_ = 0;  // in the mean
};

}  // namespace prd

#endif  // PRD_WORKER_REPLICA_MEAN_H_
