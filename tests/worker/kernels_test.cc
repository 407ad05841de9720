// The arithmetic against conversions that are slow and plain, over every 16-bit value.
#include "worker/memory/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/prng.h"
#include "tests/worker/numbers.h"

namespace prd::kernels_test {
namespace {

using testing::DecodeHalf;
using testing::EncodeHalf;

struct Format {
  DType dtype;
  int fraction;
  int bias;
};
constexpr Format kFormats[] = {{DType::kF16, 10, 15}, {DType::kBF16, 7, 127}};

Weight One(double weight) { return {weight, static_cast<float>(weight)}; }

std::vector<std::uint16_t> AllValues() {
  std::vector<std::uint16_t> all(65'536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

void ExpectSame(std::uint16_t found, double expected, const Format& format, std::size_t i) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(DecodeHalf(found, format.fraction, format.bias))) << i;
  } else {
    EXPECT_EQ(found, EncodeHalf(expected, format.fraction, format.bias)) << i;
  }
}

TEST(KernelsTest, ZerosAreFoundAndMadeAtAnyPlaceAndSize) {
  for (const std::size_t begin : {0, 1, 3}) {
    for (const std::size_t size : {0, 1, 7, 8, 9, 4095, 4096, 4097, 12'301}) {
      std::vector<unsigned char> bytes(begin + size + 1, 1);
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end() - 1, 0);
      EXPECT_TRUE(IsZero(bytes.data() + begin, size)) << begin << " " << size;
      for (std::size_t at = 0; at < size; at += 1 + size / 50) {
        bytes[begin + at] = 0x80;
        EXPECT_FALSE(IsZero(bytes.data() + begin, size)) << begin << " " << size << " " << at;
        ZeroOver(bytes.data() + begin, size);
        EXPECT_TRUE(IsZero(bytes.data() + begin, size)) << begin << " " << size << " " << at;
      }
      EXPECT_EQ(bytes.back(), 1);
      EXPECT_EQ(bytes[begin == 0 ? bytes.size() - 1 : begin - 1], 1);
    }
  }
}

TEST(KernelsTest, ScalesEvery16BitValue) {
  const std::vector<std::uint16_t> all = AllValues();
  for (const Format& format : kFormats) {
    for (const double weight : {0.5, 0.3, 0.001, 3.0}) {
      std::vector<std::uint16_t> result(all.size());
      Scale(format.dtype, result.data(), all.data(), all.size() * 2, One(weight));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float value = static_cast<float>(DecodeHalf(all[i], format.fraction, format.bias));
        ExpectSame(result[i], value * static_cast<float>(weight), format, i);
      }
    }
  }
}

TEST(KernelsTest, AddsTo16BitValues) {
  const std::vector<std::uint16_t> all = AllValues();
  Prng random(7);
  for (const Format& format : kFormats) {
    std::vector<std::uint16_t> acc(all.size());
    for (std::uint16_t& value : acc) value = static_cast<std::uint16_t>(random.Next());
    const std::vector<std::uint16_t> before = acc;
    AddScaled(format.dtype, acc.data(), all.data(), all.size() * 2, One(0.3));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float a = static_cast<float>(DecodeHalf(before[i], format.fraction, format.bias));
      const float b = static_cast<float>(DecodeHalf(all[i], format.fraction, format.bias));
      ExpectSame(acc[i], a + b * 0.3f, format, i);
    }
  }
}

// The tail of a run and misaligned messages go the same way as the rest.
TEST(KernelsTest, AnyAlignmentAndLengthGivesTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    testing::Numbers source(dtype, 200);
    Prng random(9);
    for (std::size_t i = 0; i < source.size(); ++i) source.Set(i, random.Unit() - 0.5);
    const std::size_t size = DTypeSize(dtype);
    const auto* src = static_cast<const std::byte*>(source.tensor().data);
    std::vector<std::byte> whole(200 * size);
    Scale(dtype, whole.data(), src, whole.size(), One(0.7));
    AddScaled(dtype, whole.data(), src, whole.size(), One(0.1));
    for (const std::size_t shift : {1, 2, 3, 5}) {
      for (const std::size_t count : {0, 1, 7, 8, 9, 31, 200}) {
        std::vector<std::byte> buffer(count * size + shift + 8, std::byte{0x5a});
        Scale(dtype, buffer.data() + shift, src, count * size, One(0.7));
        AddScaled(dtype, buffer.data() + shift, src, count * size, One(0.1));
        EXPECT_EQ(std::memcmp(buffer.data() + shift, whole.data(), count * size), 0);
        EXPECT_EQ(buffer[shift + count * size], std::byte{0x5a}) << "wrote past the end";
      }
    }
  }
}

TEST(KernelsTest, WeightZeroAndOneAreExact) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    testing::Numbers source(dtype, 20);
    for (std::size_t i = 0; i < source.size(); ++i) source.Set(i, i % 2 == 0 ? NAN : 0.1 * i);
    testing::Numbers result(dtype, 20);
    const std::size_t bytes = 20 * DTypeSize(dtype);
    Scale(dtype, result.tensor().data, source.tensor().data, bytes, One(1));
    EXPECT_TRUE(result == source);
    Scale(dtype, result.tensor().data, source.tensor().data, bytes, One(0));
    EXPECT_TRUE(result == testing::Numbers(dtype, 20));
    AddScaled(dtype, result.tensor().data, source.tensor().data, bytes, One(0));
    EXPECT_TRUE(result == testing::Numbers(dtype, 20));
  }
}

TEST(KernelsTest, RoundedWeightsKeepTheirSum) {
  Prng random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> weights(1 + random.Below(12));
    double sum = 0;
    for (double& weight : weights) {
      weight = trial % 3 == 0 ? 1 : random.Unit() * (random.Below(4) == 0 ? 1e-3 : 1);
      if (random.Below(5) == 0) weight = 0;
      sum += weight;
    }
    if (sum == 0) continue;
    for (double& weight : weights) weight /= sum;
    const std::vector<Weight> rounded = RoundWeights(weights);
    double total = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(rounded[i].exact, weights[i]);
      EXPECT_NEAR(rounded[i].single, weights[i], 1e-7);
      EXPECT_EQ(rounded[i].single == 0, weights[i] == 0);
      total += rounded[i].single;
    }
    EXPECT_NEAR(total, 1, 1e-14);
  }
}

// What a 16-bit dtype multiplies by is one of its own numbers, and the sum is still 1.
TEST(KernelsTest, WeightsRoundedForADTypeAreItsNumbers) {
  Prng random(5);
  for (const Format& format : kFormats) {
    for (int trial = 0; trial < 2000; ++trial) {
      std::vector<double> weights(1 + random.Below(8));
      double sum = 0;
      for (double& weight : weights) sum += weight = trial % 3 == 0 ? 1 : 0.05 + random.Unit();
      for (double& weight : weights) weight /= sum;
      double total = 0;
      for (const Weight& weight : RoundWeights(weights, format.dtype)) {
        const std::uint16_t bits = EncodeHalf(weight.single, format.fraction, format.bias);
        EXPECT_EQ(DecodeHalf(bits, format.fraction, format.bias), weight.single);
        total += weight.single;
      }
      EXPECT_EQ(total, 1);
    }
  }
  const std::vector<Weight> same = RoundWeights({0.3, 0.3, 0.4}, DType::kF64);
  EXPECT_EQ(same[0].exact, 0.3);
}

}  // namespace
}  // namespace prd::kernels_test
