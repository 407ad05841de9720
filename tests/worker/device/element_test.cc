// The arithmetic of the CUDA kernels, as the host's compiler sees it, against kernels.h. What
// differs on a device is the conversions of the hardware alone: prd-gpu-test holds those to the
// same.
#include "worker/cuda/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/prng.h"
#include "worker/memory/kernels.h"

namespace prd {
namespace {

using cuda::BF16;
using cuda::F16;
using cuda::F32;
using cuda::F64;

constexpr double kWeights[] = {1, 0.5, 1.0 / 3, -0.1, 3.7, 1e-3, 0x1p-14, 100};

Weight One(double weight) { return {weight, static_cast<float>(weight)}; }

template <typename T>
typename T::Wide WideOf(Weight weight) {
  if constexpr (sizeof(typename T::Wide) == sizeof(double)) {
    return weight.exact;
  } else {
    return weight.single;
  }
}

// NaNs are equal, whatever they carry.
template <typename T>
bool Same(typename T::Raw a, typename T::Raw b) {
  if (std::isnan(T::Widen(a)) || std::isnan(T::Widen(b))) {
    return std::isnan(T::Widen(a)) && std::isnan(T::Widen(b));
  }
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

template <typename T>
void ExpectFirstIsScale(DType dtype, const std::vector<typename T::Raw>& values) {
  std::vector<typename T::Raw> expected(values.size());
  for (const double weight : kWeights) {
    const Weight share = One(weight);
    Scale(dtype, expected.data(), values.data(), values.size() * sizeof(expected[0]), share);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!Same<T>(cuda::First<T>(values[i], WideOf<T>(share), weight == 1), expected[i])) ++wrong;
      if (!Same<T>(cuda::Last<T>(values[i], WideOf<T>(share), weight == 1), expected[i])) ++wrong;
    }
    EXPECT_EQ(wrong, 0u) << "weight " << weight;
  }
}

template <typename T>
void ExpectNextIsAddScaled(DType dtype, const std::vector<typename T::Raw>& sums,
                           const std::vector<typename T::Raw>& inputs) {
  for (const double weight : kWeights) {
    const Weight share = One(weight);
    std::vector<typename T::Raw> expected = sums;
    AddScaled(dtype, expected.data(), inputs.data(), inputs.size() * sizeof(expected[0]), share);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!Same<T>(cuda::Next<T>(sums[i], inputs[i], WideOf<T>(share)), expected[i])) ++wrong;
    }
    EXPECT_EQ(wrong, 0u) << "weight " << weight;
  }
}

// Every value of 16 bits, by itself, and beside values of every kind.
template <typename T>
void ExpectHalfSame(DType dtype) {
  std::vector<std::uint16_t> all(65'536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  ExpectFirstIsScale<T>(dtype, all);
  const std::uint16_t others[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x1234, 0x3555,
                                  0x3c00, 0xbc01, 0x4248, 0x7bff, 0x7c00, 0xfbff, 0x7f80};
  for (const std::uint16_t other : others) {
    const std::vector<std::uint16_t> same(all.size(), other);
    ExpectNextIsAddScaled<T>(dtype, all, same);
    ExpectNextIsAddScaled<T>(dtype, same, all);
  }
}

TEST(ElementTest, EveryF16IsAsTheHostHasIt) { ExpectHalfSame<F16>(DType::kF16); }
TEST(ElementTest, EveryBf16IsAsTheHostHasIt) { ExpectHalfSame<BF16>(DType::kBF16); }

// Bits at random: numbers of every size, infinities and NaNs.
template <typename T, typename Bits>
void ExpectWordsSame(DType dtype) {
  Prng random(7);
  std::vector<typename T::Raw> sums, inputs;
  for (int i = 0; i < 100'000; ++i) {
    sums.push_back(cuda::BitCast<typename T::Raw>(static_cast<Bits>(random.Next())));
    inputs.push_back(cuda::BitCast<typename T::Raw>(static_cast<Bits>(random.Next())));
  }
  ExpectFirstIsScale<T>(dtype, inputs);
  ExpectNextIsAddScaled<T>(dtype, sums, inputs);
}

TEST(ElementTest, F32IsAsTheHostHasIt) { ExpectWordsSame<F32, std::uint32_t>(DType::kF32); }
TEST(ElementTest, F64IsAsTheHostHasIt) { ExpectWordsSame<F64, std::uint64_t>(DType::kF64); }

}  // namespace
}  // namespace prd
