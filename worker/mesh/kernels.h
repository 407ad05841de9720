// The arithmetic of a reduction on raw memory, one call per run of elements of one dtype.
//
// Sums are exact in this sense: the same inputs, weights and order give the same bits on every
// machine (no contraction into fused multiply-add, one order per element, round to nearest even).
// f32 multiplies by the weight as a sum of two floats, so that weights that are no floats (1/3) do
// not shrink or grow the parameters by a rounding error that repeats at every group. f64 is plain.
// f16 and bf16 are widened to f32, and rounded back after every addition.
//
// `acc`, `dst` and `src` may be misaligned; `bytes` is a multiple of the element size.
#ifndef PRD_WORKER_MESH_KERNELS_H_
#define PRD_WORKER_MESH_KERNELS_H_

#include <cstddef>

#include "prd/session.h"

namespace prd {

// dst = weight * src; weight 0 gives zeros whatever src holds. dst may be src, and may not overlap
// it otherwise.
void Scale(DType dtype, void* dst, const void* src, std::size_t bytes, double weight);

// acc += weight * src; weight 0 leaves acc as it is, whatever src holds. No overlap.
void AddScaled(DType dtype, void* acc, const void* src, std::size_t bytes, double weight);

}  // namespace prd

#endif  // PRD_WORKER_MESH_KERNELS_H_
