// The kernels, as plain functions over plain structs: what nvcc compiles includes nothing of the
// rest of prd.
#ifndef PRD_WORKER_CUDA_COMBINE_H_
#define PRD_WORKER_CUDA_COMBINE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace prd::cuda {

constexpr int kMaxInputs = 8;
constexpr int kMaxOutputs = 2;
// A block takes so much of a tensor. Enough for 4 loads of 16 bytes by each thread, and little
// enough that a row of 2 MiB keeps all multiprocessors of an H100 busy.
constexpr std::uint32_t kChunkBytes = 16 << 10;

// A part of one tensor.
struct Chunk {
  std::uint64_t begin;  // in the row
  std::byte* data;      // in the tensor
  std::uint32_t bytes;  // not 0, at most kChunkBytes
  std::uint16_t dtype;  // of prd::DType
  bool first, last;     // of its tensor
};

// factor * (sum of weight * from), over [begin, end) of the row; zeros without inputs. An operand
// is what is at `begin`, or null for the tensors.
struct Combine {
  const Chunk* chunks;  // of the device: those that the range touches
  std::uint32_t chunk_count;
  std::uint64_t begin, end;
  std::byte* to[kMaxOutputs];
  bool second;  // whether to[1] is written
  int inputs;
  const std::byte* from[kMaxInputs];
  double exact[kMaxInputs];  // the weights, of f64
  float single[kMaxInputs];  // and of the other dtypes
  bool first_one;            // the first weight is exactly 1
  double exact_factor;
  float single_factor;
  bool factor_one;
  const std::uint32_t* skip;  // null, or of the device: nothing is written unless it is 0
};

// Threads: any, each with the device that is current in it.

// Loads the kernels; fails where the device cannot run them.
cudaError_t PrepareKernels();
// `aligned`: every operand to the size of its elements.
cudaError_t LaunchCombine(const Combine& combine, bool aligned, cudaStream_t stream);
// *word = *flag, *said = *flag + 1.
cudaError_t LaunchDecide(const std::uint32_t* flag, std::uint32_t* word, std::uint32_t* said,
                         cudaStream_t stream);

}  // namespace prd::cuda

#endif  // PRD_WORKER_CUDA_COMBINE_H_
