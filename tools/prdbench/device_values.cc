#include "tools/prdbench/device_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace prd::bench {
namespace {

struct Form {
  int fraction;  // bits behind the point
  int lowest;    // exponent of the smallest number that is not subnormal
};

Form FormOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {23, -126};
    case DType::kF64:
      return {52, -1022};
    case DType::kF16:
      return {10, -14};
    case DType::kBF16:
      return {7, -126};
  }
  return {0, 0};
}

// REQUIRES: f16 or bf16.
int ExponentBits(const Form& form) { return 15 - form.fraction; }

template <typename T>
T At(const std::byte* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof value, sizeof value);
  return value;
}

template <typename T>
void Put(std::byte* data, std::size_t i, T value) {
  std::memcpy(data + i * sizeof value, &value, sizeof value);
}

std::uint64_t Mix(std::uint64_t x) {  // SplitMix64's output function (Steele et al., OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

double ValueOf(std::uint64_t seed, int rank, DType dtype, std::size_t i) {
  const std::uint64_t bits =
      Mix(Mix(seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank)) +
          static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u);
  const int kept = std::min(FormOf(dtype).fraction + 1, 24);
  const std::uint64_t size = bits >> (64 - kept);
  return std::ldexp(static_cast<double>(size), -kept) * ((bits & 1) != 0 ? -1 : 1);
}

double Load(DType dtype, const std::byte* data, std::size_t i) {
  if (dtype == DType::kF32) return At<float>(data, i);
  if (dtype == DType::kF64) return At<double>(data, i);
  const Form form = FormOf(dtype);
  const int bits = At<std::uint16_t>(data, i);
  const int exponent = (bits & 0x7fff) >> form.fraction;
  const int fraction = bits & ((1 << form.fraction) - 1);
  if (exponent == (1 << ExponentBits(form)) - 1) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, form.lowest - form.fraction)
                                    : std::ldexp(fraction + (1 << form.fraction),
                                                 exponent - 1 + form.lowest - form.fraction);
  return (bits & 0x8000) != 0 ? -size : size;
}

void Store(DType dtype, std::byte* data, std::size_t i, double value) {
  if (dtype == DType::kF32) return Put(data, i, static_cast<float>(value));
  if (dtype == DType::kF64) return Put(data, i, value);
  const Form form = FormOf(dtype);
  int bits = std::signbit(value) ? 0x8000 : 0;
  if (value != 0) {
    const int exponent = std::ilogb(value);
    const double fraction = std::ldexp(std::fabs(value), form.fraction - exponent);
    bits |= (exponent - form.lowest + 1) << form.fraction;
    bits |= static_cast<int>(fraction) & ((1 << form.fraction) - 1);
  }
  Put(data, i, static_cast<std::uint16_t>(bits));
}

double Bound(DType dtype, std::size_t members, double sizes, double values) {
  const Form form = FormOf(dtype);
  const double roundings = static_cast<double>(members) + 2;
  const double smallest = std::ldexp(1.0, form.lowest - form.fraction);
  return std::ldexp(roundings * sizes + 2 * values, -form.fraction - 1) +
         (roundings + 2) * smallest / 2;
}

double WorstError(std::uint64_t seed, const std::vector<Share>& shares, DType dtype,
                  const std::byte* sums, std::size_t count) {
  double worst = 0;
  double largest = 0;
  for (const Share& share : shares) largest = std::max(largest, share.weight);
  for (std::size_t i = 0; i < count; ++i) {
    long double exact = 0;  // f64 is compared with what has more bits
    double sizes = 0;
    double values = 0;
    for (const Share& share : shares) {
      if (share.weight == 0) continue;
      const double value = ValueOf(seed, share.rank, dtype, i);
      const long double product = static_cast<long double>(share.weight) * value;
      exact += product;
      values += largest * std::fabs(value);
      sizes += static_cast<double>(std::fabs(product));
    }
    const double error = static_cast<double>(std::fabs(Load(dtype, sums, i) - exact));
    const double bound = Bound(dtype, shares.size(), sizes, values);
    if (!(error / bound <= worst)) worst = error / bound;  // a NaN is the worst, and stays
    if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace prd::bench
