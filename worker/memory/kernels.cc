// Built with -O3 and without contraction (CMakeLists.txt): the loops are written to be vectorised.
#include "worker/memory/kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>

#if defined(__x86_64__) && !defined(__clang__)  // which may not know f16c by that name
#include <immintrin.h>
#endif

namespace prd {
namespace {

// Elements at any address.
typedef float Float __attribute__((aligned(1), may_alias));
typedef double Double __attribute__((aligned(1), may_alias));
typedef std::uint16_t Half __attribute__((aligned(1), may_alias));
typedef std::uint64_t Word __attribute__((aligned(1), may_alias));

// A page of the system.
constexpr std::size_t kZeroBlock = 4096;

bool IsZeroBlock(const std::byte* data, std::size_t bytes) {
  const std::size_t words = bytes / sizeof(Word);
  if (words > 0 && *reinterpret_cast<const Word*>(data) != 0) return false;
  Word any = 0;
  for (std::size_t i = 0; i < words; ++i) any |= reinterpret_cast<const Word*>(data)[i];
  for (std::size_t i = words * sizeof(Word); i < bytes; ++i) any |= static_cast<Word>(data[i]);
  return any == 0;
}

float FromBf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t ToBf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

float FromF16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) {  // infinity and NaN (made quiet, as the hardware does)
    const std::uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | quiet);
  }
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // zero and subnormal
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

std::uint16_t ToF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t rest = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (rest > 0x7f800000u) {
    half = 0x7e00u | ((rest >> 13) & 0x3ffu);
  } else if (rest >= 0x477ff000u) {  // rounds to more than the largest
    half = 0x7c00u;
  } else if (rest < 0x38800000u) {  // a subnormal half: the sum rounds at its last place
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  } else {
    half = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

void ScaleF32(Float* dst, const Float* src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = src[i] * weight;
}

void AddF32(Float* __restrict acc, const Float* __restrict src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) acc[i] += src[i] * weight;
}

void ScaleF64(Double* dst, const Double* src, std::size_t count, double weight) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = src[i] * weight;
}

void AddF64(Double* __restrict acc, const Double* __restrict src, std::size_t count,
            double weight) {
  for (std::size_t i = 0; i < count; ++i) acc[i] += src[i] * weight;
}

void ScaleBf16(Half* dst, const Half* src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = ToBf16(FromBf16(src[i]) * weight);
}

void AddBf16(Half* __restrict acc, const Half* __restrict src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) {
    acc[i] = ToBf16(FromBf16(acc[i]) + FromBf16(src[i]) * weight);
  }
}

void ScaleF16(Half* dst, const Half* src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) dst[i] = ToF16(FromF16(src[i]) * weight);
}

void AddF16(Half* __restrict acc, const Half* __restrict src, std::size_t count, float weight) {
  for (std::size_t i = 0; i < count; ++i) {
    acc[i] = ToF16(FromF16(acc[i]) + FromF16(src[i]) * weight);
  }
}

#if defined(__x86_64__) && !defined(__clang__)  // which may not know f16c by that name
// The same with the processor's conversions, eight at a time; bit for bit the same results.
bool HasF16c() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx,f16c"))) void ScaleF16c(Half* dst, const Half* src, std::size_t count,
                                                   float weight) {
  const __m256 factor = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(src + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(dst + i),
                     _mm256_cvtps_ph(_mm256_mul_ps(x, factor), _MM_FROUND_TO_NEAREST_INT));
  }
  ScaleF16(dst + i, src + i, count - i, weight);
}

__attribute__((target("avx,f16c"))) void AddF16c(Half* acc, const Half* src, std::size_t count,
                                                 float weight) {
  const __m256 factor = _mm256_set1_ps(weight);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(src + i)));
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(acc + i)));
    _mm_storeu_si128(
        reinterpret_cast<__m128i_u*>(acc + i),
        _mm256_cvtps_ph(_mm256_add_ps(a, _mm256_mul_ps(x, factor)), _MM_FROUND_TO_NEAREST_INT));
  }
  AddF16(acc + i, src + i, count - i, weight);
}
#else
bool HasF16c() { return false; }
void ScaleF16c(Half* dst, const Half* src, std::size_t count, float weight) {
  ScaleF16(dst, src, count, weight);
}
void AddF16c(Half* acc, const Half* src, std::size_t count, float weight) {
  AddF16(acc, src, count, weight);
}
#endif

float RoundTo(DType dtype, float value) {
  if (dtype == DType::kF16) return FromF16(ToF16(value));
  if (dtype == DType::kBF16) return FromBf16(ToBf16(value));
  return value;
}

}  // namespace

std::vector<Weight> RoundWeights(const std::vector<double>& weights) {
  return RoundWeights(weights, DType::kF32);
}

std::vector<Weight> RoundWeights(const std::vector<double>& weights, DType dtype) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::vector<Weight> rounded(weights.size());
  double carry = 0;  // what rounding has taken off so far; the smaller weights have finer steps
  for (const std::size_t i : order) {
    if (weights[i] == 0) break;
    const double wanted = weights[i] + carry;
    rounded[i] = {weights[i], RoundTo(dtype, static_cast<float>(wanted))};
    carry = wanted - static_cast<double>(rounded[i].single);
  }
  return rounded;
}

void Scale(DType dtype, void* dst, const void* src, std::size_t bytes, Weight weight) {
  if (weight.exact == 0) {
    std::memset(dst, 0, bytes);
    return;
  }
  if (weight.exact == 1) {
    if (dst != src) std::memcpy(dst, src, bytes);
    return;
  }
  const std::size_t count = bytes / DTypeSize(dtype);
  switch (dtype) {
    case DType::kF32:
      return ScaleF32(static_cast<Float*>(dst), static_cast<const Float*>(src), count,
                      weight.single);
    case DType::kF64:
      return ScaleF64(static_cast<Double*>(dst), static_cast<const Double*>(src), count,
                      weight.exact);
    case DType::kF16:
      return (HasF16c() ? ScaleF16c : ScaleF16)(
          static_cast<Half*>(dst), static_cast<const Half*>(src), count, weight.single);
    case DType::kBF16:
      return ScaleBf16(static_cast<Half*>(dst), static_cast<const Half*>(src), count,
                       weight.single);
  }
}

void AddScaled(DType dtype, void* acc, const void* src, std::size_t bytes, Weight weight) {
  if (weight.exact == 0) return;
  const std::size_t count = bytes / DTypeSize(dtype);
  switch (dtype) {
    case DType::kF32:
      return AddF32(static_cast<Float*>(acc), static_cast<const Float*>(src), count, weight.single);
    case DType::kF64:
      return AddF64(static_cast<Double*>(acc), static_cast<const Double*>(src), count,
                    weight.exact);
    case DType::kF16:
      return (HasF16c() ? AddF16c : AddF16)(static_cast<Half*>(acc), static_cast<const Half*>(src),
                                            count, weight.single);
    case DType::kBF16:
      return AddBf16(static_cast<Half*>(acc), static_cast<const Half*>(src), count, weight.single);
  }
}

bool IsZero(const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at < bytes; at += kZeroBlock) {
    if (!IsZeroBlock(from + at, std::min(kZeroBlock, bytes - at))) return false;
  }
  return true;
}

void ZeroOver(void* dst, std::size_t bytes) {
  auto* const to = static_cast<std::byte*>(dst);
  for (std::size_t at = 0; at < bytes; at += kZeroBlock) {
    const std::size_t block = std::min(kZeroBlock, bytes - at);
    if (!IsZeroBlock(to + at, block)) std::memset(to + at, 0, block);
  }
}

}  // namespace prd
