// What a peer copies, read where it stands until that changes.
#include "worker/mesh/copied_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "worker/memory/memory.h"

namespace prd::copied_rows_test {
namespace {

constexpr std::size_t kCount = 64;
constexpr std::uint64_t kBytes = kCount * sizeof(float);
constexpr auto kRow = static_cast<std::size_t>(CopiedRow::kParameters);

class CopiedRowsTest : public ::testing::Test {
 protected:
  CopiedRowsTest() {
    std::iota(values_.begin(), values_.end(), 1.f);
    rows_.SetStanding(CopiedRow::kParameters, Layout({{values_.data(), kCount, DType::kF32}}));
    rows_.AddReader();
  }
  // The values that stand in these bytes of the row.
  std::vector<float> Read(std::uint64_t offset, std::uint64_t length) {
    const SharedBytes bytes = rows_.Read(kRow, offset, length);
    std::vector<float> values(length / sizeof(float));
    std::memcpy(values.data(), bytes.data(), length);
    return values;
  }
  std::vector<float> From(float first, std::size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }

  std::vector<float> values_ = std::vector<float>(kCount);
  HostMemory memory_;
  bool full_ = false;
  std::vector<std::size_t> asked_;
  CopiedRows rows_{Buffers([this](std::size_t bytes) {
    asked_.push_back(bytes);
    if (full_) throw NoMemory(MemoryUse::kCopies, bytes);
    return memory_.AllocateHost(MemoryUse::kCopies, bytes);
  })};
};

TEST_F(CopiedRowsTest, WhatOneReaderHasReadIsNotCopied) {
  EXPECT_EQ(rows_.BytesOf(kRow), kBytes);
  EXPECT_EQ(Read(0, kBytes / 4), From(1, kCount / 4));
  EXPECT_TRUE(rows_.stands());
  rows_.CopyRest();
  EXPECT_FALSE(rows_.stands());
  values_.assign(kCount, -1);
  EXPECT_EQ(Read(kBytes / 4, kBytes / 4), From(1 + kCount / 4, kCount / 4));
  EXPECT_EQ(Read(kBytes / 2, kBytes / 2), From(1 + kCount / 2, kCount / 2));
  EXPECT_EQ(rows_.Ready(kRow), kBytes);
  EXPECT_EQ(asked_, (std::vector<std::size_t>{kBytes / 4, kBytes / 4 * 3}));
}

TEST_F(CopiedRowsTest, OfSeveralReadersOneMayBeSlow) {
  rows_.AddReader();
  EXPECT_EQ(Read(0, kBytes), From(1, kCount));
  rows_.CopyRest();
  values_.assign(kCount, -1);
  EXPECT_EQ(Read(0, kBytes), From(1, kCount));
}

TEST_F(CopiedRowsTest, AReaderThatHasAllLeavesNothingToCopy) {
  EXPECT_EQ(Read(0, kBytes), From(1, kCount));
  rows_.CopyRest();
  EXPECT_FALSE(rows_.lost());
  EXPECT_EQ(rows_.BytesOf(kRow), kBytes);
}

// It is the peer's copy that fails then.
TEST_F(CopiedRowsTest, WithoutMemoryTheRestIsLost) {
  EXPECT_EQ(Read(0, kBytes / 4), From(1, kCount / 4));
  full_ = true;
  rows_.CopyRest();
  EXPECT_TRUE(rows_.lost());
  EXPECT_FALSE(rows_.stands());
}

}  // namespace
}  // namespace prd::copied_rows_test
