// The arithmetic of a reduction on raw memory, one call per run of elements of one dtype.
//
// The same inputs, weights and order give the same bits on every machine: no contraction into fused
// multiply-add, one order per element, round to nearest even. f16 and bf16 are widened to f32, and
// rounded back after every addition.
//
// `acc`, `dst` and `src` may be misaligned; `bytes` is a multiple of the element size.
#ifndef PRD_WORKER_MEMORY_KERNELS_H_
#define PRD_WORKER_MEMORY_KERNELS_H_

#include <cstddef>
#include <vector>

#include "prd/session.h"

namespace prd {

// A share: exact for f64, and as a float for the other dtypes.
struct Weight {
  double exact = 0;
  float single = 0;
};

// One weight alone.
inline Weight WeightOf(double weight) { return {weight, static_cast<float>(weight)}; }

// Rounds weights so that the floats have the same sum as the weights, if that sum is a float: three
// times 1/3 as a float is more than 1, and would let parameters grow a little in every group. Zeros
// stay zeros.
std::vector<Weight> RoundWeights(const std::vector<double>& weights);
// The same for arithmetic in the dtype itself (NCCL): `single` is a number of f16 or bf16. A weight
// that is too small for the dtype may become 0.
std::vector<Weight> RoundWeights(const std::vector<double>& weights, DType dtype);

// dst = weight * src; weight 0 gives zeros whatever src holds. dst may be src, and may not overlap
// it otherwise.
void Scale(DType dtype, void* dst, const void* src, std::size_t bytes, Weight weight);

// acc += weight * src; weight 0 does not change acc, whatever src holds. No overlap.
void AddScaled(DType dtype, void* acc, const void* src, std::size_t bytes, Weight weight);

// Whether all bytes are 0.
bool IsZero(const void* data, std::size_t bytes);

// dst = 0. What is zeros already is not written: pages that the system has yet to make stay unmade.
void ZeroOver(void* dst, std::size_t bytes);

}  // namespace prd

#endif  // PRD_WORKER_MEMORY_KERNELS_H_
