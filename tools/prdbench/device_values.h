// Values that processes agree on without telling each other, and what their weighted sum is.
#ifndef PRD_TOOLS_PRDBENCH_DEVICE_VALUES_H_
#define PRD_TOOLS_PRDBENCH_DEVICE_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "prd/session.h"

namespace prd::bench {

// Element i of the worker `rank` in the drawing `seed`: in (-1, 1), and exact in the dtype (8 bits
// for bf16, 11 for f16, 24 for the others).
double ValueOf(std::uint64_t seed, int rank, DType dtype, std::size_t i);

// Reads host memory: any bits but NaN and infinity; f16 and bf16 by code of its own.
double Load(DType dtype, const std::byte* data, std::size_t i);
// REQUIRES: exact in the dtype, and 0 or not subnormal.
void Store(DType dtype, std::byte* data, std::size_t i, double value);

struct Share {
  int rank = 0;
  double weight = 0;
};

// How far a sum in the dtype may be from that in float64, in roundings to the dtype: P + 2 of
// `sizes`, the sum of |weight * value| (a product and an addition each), and 2 of `values`, the sum
// of |value| times the largest weight (weights are rounded so that all add up: a small one takes up
// what a large one lost); and as many of the smallest number that there is.
double Bound(DType dtype, std::size_t members, double sizes, double values);

// The largest |sum - sum in float64| of these elements, in bounds: 1 or less is right.
double WorstError(std::uint64_t seed, const std::vector<Share>& shares, DType dtype,
                  const std::byte* sums, std::size_t count);

}  // namespace prd::bench

#endif  // PRD_TOOLS_PRDBENCH_DEVICE_VALUES_H_
