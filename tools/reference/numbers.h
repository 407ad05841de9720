// Elements of any dtype as values, converted one at a time by code of its own: slow and plain, for
// what checks the library's arithmetic.
#ifndef PRD_TOOLS_REFERENCE_NUMBERS_H_
#define PRD_TOOLS_REFERENCE_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "prd/replica.h"

namespace prd::reference {

// The distance from 1 to the next number.
inline double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-23;
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
  }
  return 0;
}

// Rounds to `fraction` bits, ties to even, with exponents from `lowest` on; then encodes. By
// arithmetic, not by bits: slow and plain.
inline std::uint16_t EncodeHalf(double value, int fraction, int bias) {
  const int exponent_bits = 15 - fraction;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const std::uint16_t top = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction);
  if (std::isnan(value)) return static_cast<std::uint16_t>(top | 1 << (fraction - 1));
  const double size = std::fabs(value);
  if (size == 0) return sign;
  if (std::isinf(size)) return static_cast<std::uint16_t>(sign | top);
  const int lowest = 1 - bias;
  const int exponent = std::max(std::ilogb(size), lowest);
  const double steps = std::nearbyint(std::ldexp(size, fraction - exponent));
  const double bits =
      steps + std::ldexp(exponent - lowest, fraction);  // a carry moves the exponent
  if (bits >= top) return static_cast<std::uint16_t>(sign | top);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(bits));
}

inline double DecodeHalf(std::uint16_t bits, int fraction, int bias) {
  const int exponent = (bits & 0x7fff) >> fraction;
  const int mantissa = bits & ((1 << fraction) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << (15 - fraction)) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - fraction);
  return sign * std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

// One element of the dtype, at an address of any alignment.
template <typename T>
T Load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}
inline double Decode(DType dtype, const void* data) {
  switch (dtype) {
    case DType::kF32:
      return Load<float>(data);
    case DType::kF64:
      return Load<double>(data);
    case DType::kF16:
      return DecodeHalf(Load<std::uint16_t>(data), 10, 15);
    case DType::kBF16:
      return DecodeHalf(Load<std::uint16_t>(data), 7, 127);
  }
  return 0;
}
template <typename T>
void Store(T value, void* data) {
  std::memcpy(data, &value, sizeof value);
}
inline void Encode(DType dtype, double value, void* data) {
  switch (dtype) {
    case DType::kF32:
      return Store(static_cast<float>(value), data);
    case DType::kF64:
      return Store(value, data);
    case DType::kF16:
      return Store(EncodeHalf(value, 10, 15), data);
    case DType::kBF16:
      return Store(EncodeHalf(value, 7, 127), data);
  }
}

}  // namespace prd::reference

#endif  // PRD_TOOLS_REFERENCE_NUMBERS_H_
