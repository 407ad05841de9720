// What a training program gives the worker library: one model replica, as tensors in the caller's
// memory, and the function that applies gradients to them.
#ifndef PRD_REPLICA_H_
#define PRD_REPLICA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace prd {

enum class DType : std::uint8_t { kF32 = 0, kF64 = 1, kF16 = 2, kBF16 = 3 };

// Bytes of one element: 4, 8, 2, 2. 0 for a value that is no DType.
constexpr std::size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF64:
      return 8;
    case DType::kF16:
    case DType::kBF16:
      return 2;
  }
  return 0;
}

// A contiguous array of `count` elements in the memory of the replica's device, aligned to the
// element size. The caller owns the memory and keeps it in place until the Session is destroyed.
struct Tensor {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kF32;
};

// One model replica. Number, order, sizes and dtypes of the tensors are equal on all workers of a
// job; devices may differ.
struct Replica {
  // Where all tensors are. "" or "cpu": host memory. "cuda:N", or "cuda" for the first: memory of
  // that device, as cudaMalloc gives it. A session uses at most one device.
  std::string device;
  // The cudaStream_t on which `apply` and the caller enqueue their work; null is the default
  // stream. A call takes effect after the work that was enqueued before the call, and before the
  // work that is enqueued after it (worker/device/README.md).
  void* stream = nullptr;
  std::vector<Tensor> parameters;
  // As many tensors as there are parameters, of the same sizes and dtypes. Or none: Attach then
  // fails if the job's engine reduces gradients.
  std::vector<Tensor> gradients;
  // Applies the gradients to the parameters: the local optimiser step. Step calls `apply`, and
  // Finish does while results are left to apply, both on the caller's thread. One call of `apply`
  // may stand for several reductions. If `apply` throws, the worker leaves the job, and the
  // exception leaves Step or Finish. The background thread may have to wait for `apply`, so it has
  // to take a small part of the lease (lease_ms in the config).
  std::function<void()> apply;
};

}  // namespace prd

#endif  // PRD_REPLICA_H_
