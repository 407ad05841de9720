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
      : store_(store), buffers_([store](std::size_t bytes) {
          return store->memory->AllocateHost(MemoryUse::kMean, bytes);
        }) {}

  // Begins anew, with this worker's own: what a peer that copies the replica now would get.
  // `own_parameters`: replicas are equal but for averaged state, of which alone the mean is made.
  void Begin(bool own_parameters = false);
  // A row in host memory, as long as the parameters.
  void Add(const Buffer& replica);
  // The mean, as a row of ReplicaStore::parameters, or of ReplicaStore::trained: without state that
  // is averaged. Once.
  std::shared_ptr<Buffer> Take(bool with_state = false);
  // Other memory is used from now on.
  void Forget();

 private:
  // Calls for each type's parameters: where they are in a row of all, in one of parameters alone,
  // and how many bytes there are.
  template <typename Each>
  void EachTrained(Each each) const;

  ReplicaStore* store_;
  Buffers buffers_;
  std::shared_ptr<Buffer> mean_;
  std::shared_ptr<Buffer> own_;  // if `own_parameters`
  std::size_t replicas_ = 0;     // in the mean
};

}  // namespace prd

#endif  // PRD_WORKER_REPLICA_MEAN_H_
