// Digests of bits, and the search for values that are not finite.
#include "worker/memory/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "common/base/prng.h"
#include "tests/worker/numbers.h"
#include "worker/memory/meanwhile.h"
#include "worker/memory/memory.h"

namespace prd::digest_test {
namespace {

using testing::Numbers;

std::vector<std::byte> SomeBytes(Prng* random, std::size_t bytes) {
  std::vector<std::byte> some(bytes);
  for (std::byte& byte : some) byte = static_cast<std::byte>(random->Below(256));
  return some;
}

std::uint64_t DigestOf(const std::vector<std::byte>& bytes) {
  Digest digest;
  digest.Add(bytes.data(), bytes.size());
  return digest.End();
}

TEST(DigestTest, IsTheSameHoweverTheBytesAreCut) {
  Prng random(1);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::byte> bytes = SomeBytes(&random, random.Below(700));
    Digest cut;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t length = std::min<std::size_t>(random.Below(150), bytes.size() - at);
      cut.Add(bytes.data() + at, length);
      at += length;
    }
    EXPECT_EQ(cut.End(), DigestOf(bytes)) << bytes.size();
  }
}

TEST(DigestTest, DiffersWhereBitsDo) {
  Prng random(2);
  for (const std::size_t size : {2, 8, 64, 66, 640, 1000}) {
    std::vector<std::byte> bytes = SomeBytes(&random, size);
    std::set<std::uint64_t> digests = {DigestOf(bytes)};
    std::size_t all = 1;
    for (std::size_t bit = 0; bit < 8 * size; ++bit, ++all) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      digests.insert(DigestOf(bytes));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    // The signs of two numbers, wherever they are.
    for (std::size_t a = 3; a < size; a += 4) {
      for (std::size_t b = a + 4; b < size; b += 4, ++all) {
        bytes[a] ^= std::byte{0x80};
        bytes[b] ^= std::byte{0x80};
        digests.insert(DigestOf(bytes));
        bytes[a] ^= std::byte{0x80};
        bytes[b] ^= std::byte{0x80};
      }
    }
    for (int more = 1; more <= 200; ++more, ++all) {  // zeros at the end
      bytes.push_back(std::byte{0});
      digests.insert(DigestOf(bytes));
    }
    EXPECT_EQ(digests.size(), all);
    EXPECT_FALSE(digests.contains(0));
  }
}

TEST(DigestTest, IsOfTheRowWhereverItIs) {
  Prng random(3);
  const std::vector<std::byte> some = SomeBytes(&random, 8 * 40);
  std::vector<std::byte> halves(some.begin(), some.end()), whole = halves;
  const Layout one({{whole.data(), 40, DType::kF64}});
  const Layout two({{halves.data(), 13, DType::kF64},
                    {halves.data() + 13 * 8, 0, DType::kF32},
                    {halves.data() + 13 * 8, 27, DType::kF64}});
  HostMemory memory;
  EXPECT_EQ(memory.DigestOf(one), memory.DigestOf(two));
  halves[100] ^= std::byte{1};
  EXPECT_NE(memory.DigestOf(one), memory.DigestOf(two));
}

// Between the parts of one operation, and on no other thread.
TEST(MeanwhileTest, IsDoneAfterEvery8MiB) {
  HostMemory memory;
  constexpr std::size_t kElements = 5 * Meanwhile::kBytes / sizeof(float) / 2;
  std::vector<float> from(kElements, 1), to(kElements);
  const Layout layout({{from.data(), kElements, DType::kF32}});
  const auto copy = [&] {
    memory.Combine(layout, Memory::In(reinterpret_cast<std::byte*>(to.data())),
                   {{Memory::Tensors()}});
  };
  std::vector<float> last;
  {
    const Meanwhile meanwhile([&] {
      const auto done = std::find(to.begin(), to.end(), 0.f) - to.begin();
      last.push_back(static_cast<float>(done) * sizeof(float) / Meanwhile::kBytes);
    });
    copy();
    std::thread(copy).join();
  }
  copy();
  EXPECT_EQ(last, (std::vector<float>{1, 2}));
}

class FirstNonfiniteTest : public ::testing::TestWithParam<DType> {};

TEST_P(FirstNonfiniteTest, FindsTheFirstAndNothingElse) {
  const DType dtype = GetParam();
  const bool half = dtype == DType::kF16;
  const double largest = half                   ? 65504
                         : dtype == DType::kF64 ? std::numeric_limits<double>::max()
                                                : 3.3895313892515355e38;
  const double smallest = half ? 0x1p-24 : dtype == DType::kF64 ? 0x1p-1074 : 0x1p-133;
  const double finite[] = {0, -0.0, 1, -1, largest, -largest, smallest, -smallest, 0.1};
  const double others[] = {INFINITY, -INFINITY, NAN, -NAN};
  const std::size_t size = DTypeSize(dtype);
  for (const std::size_t count : {1, 7, 64, 1000, 5000}) {
    std::vector<std::byte> bytes(count * size + 1);
    std::byte* const data = bytes.data() + 1;  // not aligned
    const auto set = [&](std::size_t i, double value) {
      testing::Encode(dtype, value, data + i * size);
    };
    for (std::size_t i = 0; i < count; ++i) set(i, finite[i % std::size(finite)]);
    EXPECT_EQ(FirstNonfinite(dtype, data, count * size), std::nullopt);
    for (std::size_t i = count; i-- > 0;) {
      set(i, others[i % std::size(others)]);
      if (i % 97 == 0 || count < 100) {
        ASSERT_EQ(FirstNonfinite(dtype, data, count * size), i) << count;
      }
    }
  }
  EXPECT_EQ(FirstNonfinite(dtype, nullptr, 0), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(DTypes, FirstNonfiniteTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kF16, DType::kBF16));

TEST(FirstNonfiniteTest, NamesTheTensorAsTheCallerHasThem) {
  Numbers f32(DType::kF32, 5), none(DType::kF32, 0), f64(DType::kF64, 3), bf16(DType::kBF16, 4);
  for (Numbers* numbers : {&f32, &f64, &bf16}) {
    for (std::size_t i = 0; i < numbers->size(); ++i) numbers->Set(i, 1);
  }
  const Layout layout({f32.tensor(), none.tensor(), f64.tensor(), bf16.tensor()});
  HostMemory memory;
  EXPECT_EQ(memory.FirstNonfinite(layout), std::nullopt);
  bf16.Set(3, NAN);
  EXPECT_EQ(memory.FirstNonfinite(layout), (Layout::Element{3, 3}));
  f32.Set(2, INFINITY);
  EXPECT_EQ(memory.FirstNonfinite(layout), (Layout::Element{0, 2}));
  f64.Set(0, NAN);  // f64 comes first in the row
  EXPECT_EQ(memory.FirstNonfinite(layout), (Layout::Element{2, 0}));
}

}  // namespace
}  // namespace prd::digest_test
