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

// A tensor of the replica that has no gradient: an optimiser's momentum, or the running statistics
// of batch normalisation. As a Tensor; and:
struct StateTensor {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kF32;
  // True: whatever averages parameters averages this tensor with them, Finish included. Right for
  // running statistics. False: the tensor is copied where a replica is copied, and never averaged
  // (but see Replica::state). Right for momentum and other state of an optimiser.
  bool average = false;
};

// What was trained: steps that were not discarded, and the samples in them as far as they were
// told.
struct TrainingCount {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
};

// One model replica. Number, order, sizes and dtypes of the tensors are equal on all workers of a
// job, and so is StateTensor::average; devices may differ. No two tensors share memory: it would be
// averaged twice.
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
  // fails if the job's engine reduces gradients, unless they come later.
  std::vector<Tensor> gradients;
  // State that belongs to the parameters. A worker whose parameters become a copy of a peer's gets
  // the peer's state with them: at the common start, when it joins a running job, after its lease
  // ran out, after a group that failed here, and where the engine goes on without a step (`backup`,
  // `esync`). Without that, the optimisers of replicas that are meant to be equal go apart for
  // good.
  //
  // Session reads and writes state inside its calls alone. Between calls it is the caller's: a
  // forward pass may write running statistics. What the caller writes there counts from the next
  // call on. `apply` reads and writes state as well.
  //
  // A peer that copies state which is not averaged may have to wait until this worker is in a call,
  // unless `state_in_apply`.
  // Where a run begins with the average of several workers' models, that state is averaged once,
  // too.
  std::vector<StateTensor> state;
  // True: state that is not averaged changes in `apply` alone, and in the session's calls. Peers
  // may then copy it at any time, and never wait for a call. Needed where a program has several
  // sessions and takes turns: a peer that waits for a call of the one may keep it in a call of the
  // other.
  bool state_in_apply = false;
  // Applies the gradients to the parameters: the local optimiser step. Step calls `apply`, and
  // Pause, Resume, Mean, Average and Finish do while results are left to apply, all on the caller's
  // thread. One call of `apply` may stand for several reductions. If `apply` throws, the worker
  // leaves the job, and the exception leaves that call. The background thread may have to wait for
  // `apply`, so it has to take a small part of the lease (lease_ms in the config).
  std::function<void()> apply;
  // For a replica from a checkpoint: what this worker had trained, and what all workers had
  // (Session::progress() then). StepResult::steps and progress() go on from there.
  TrainingCount trained;
  TrainingCount job_trained;
  // True: Attach succeeds without gradients under every engine. Once the engine is known, and
  // Session::needs_gradients says so, Session::SetGradients gives them.
  bool gradients_later = false;
  // What else the model is: text that is equal on all workers of a job. The names and layouts of
  // the tensors, for example, where these might differ without a difference in sizes.
  std::string model_tag;
};

}  // namespace prd

#endif  // PRD_REPLICA_H_
