// A copied replica that replaces the one here as it comes, cut anywhere, in host memory or on the
// stand-in of a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "common/base/prng.h"
#include "tests/worker/mesh_devices.h"
#include "worker/mesh/fetch.h"

namespace prd::testing {
namespace {

class IncomingReplicaTest : public ::testing::TestWithParam<bool> {
 protected:
  // Frames of this row's first bytes, of so many each. The first error, if there is one.
  Status Receive(CopiedRow row, std::size_t cut, std::size_t until) {
    const auto& bytes = rows_[static_cast<std::size_t>(row)];
    FrameHeader header{.kind = FrameKind::kChunk, .stage = static_cast<std::uint32_t>(row)};
    for (header.offset = 0; header.offset < until; header.offset += cut) {
      const std::size_t length = std::min(cut, bytes.size() - header.offset);
      PRD_RETURN_IF_ERROR(
          replica_.OnFrame(header, SharedBytes(bytes.data() + header.offset, length)));
      if (GetParam()) worker_.gpu->device().Advance();  // it is as fast as what comes
    }
    return Status::Ok();
  }
  Status ReceiveInfo() {
    info_ = {.iteration = 7, .inbox_rounds = 2, .inbox_iteration = 9};
    for (std::size_t row = 0; row < kCopiedRows; ++row) {
      const bool of_gradients = row == static_cast<std::size_t>(CopiedRow::kInbox);
      if (row == static_cast<std::size_t>(CopiedRow::kKept)) continue;
      rows_[row].resize((of_gradients ? store_.gradients : store_.parameters).bytes());
      for (std::byte& byte : rows_[row]) byte = static_cast<std::byte>(prng_.Below(256));
      info_.bytes[row] = rows_[row].size();
    }
    return replica_.OnFrame({.kind = FrameKind::kReplica}, SharedBytes(&info_, sizeof info_));
  }
  std::vector<std::byte> Read(const Layout& layout, const Memory::Place& from) {
    if (GetParam()) worker_.gpu->device().Advance();
    std::vector<std::byte> row(layout.bytes());
    for (const Layout::Piece& piece : layout.pieces()) {
      const std::byte* const at = from.data == nullptr ? piece.data : from.data + piece.begin;
      const std::size_t length = piece.end - piece.begin;
      const std::vector<std::byte> bytes =
          GetParam() ? worker_.gpu->Read(at, length) : std::vector<std::byte>(at, at + length);
      std::copy(bytes.begin(), bytes.end(), row.begin() + static_cast<std::ptrdiff_t>(piece.begin));
    }
    return row;
  }

  static constexpr Plan kPlan{
      .by = GroupPlan{.payload = Payload::kGradients, .any_time = true, .keep_initial = true}};
  PlacedWorker worker_{
      {.shapes = {{DType::kF32, 1'500'001}, {DType::kBF16, 777}, {DType::kF64, 300'001}},
       .plan = kPlan,
       .device = GetParam()}};
  ReplicaStore& store_ = worker_.store();
  IncomingReplica replica_{&store_, kPlan, {.in_place = true}};
  ReplicaInfo info_;
  std::array<std::vector<std::byte>, kCopiedRows> rows_;
  Prng prng_{5};
};

TEST_P(IncomingReplicaTest, LandsAsItComes) {
  ASSERT_TRUE(ReceiveInfo().ok());
  EXPECT_FALSE(store_.torn);
  ASSERT_TRUE(Receive(CopiedRow::kParameters, 1'000'003, rows_[0].size()).ok());
  EXPECT_TRUE(store_.torn);
  EXPECT_EQ(store_.Whole().code(), Code::kDataLoss);
  EXPECT_EQ(Read(store_.parameters, Memory::Tensors()), rows_[0]);
  ASSERT_TRUE(Receive(CopiedRow::kInitial, 4 << 20, rows_[1].size()).ok());
  EXPECT_FALSE(replica_.Complete());
  ASSERT_TRUE(Receive(CopiedRow::kInbox, 12'345, rows_[2].size()).ok());
  ASSERT_TRUE(replica_.Complete());
  {
    const std::lock_guard lock(store_.mutex);
    EXPECT_EQ(replica_.Commit(), 9);
  }
  EXPECT_TRUE(store_.Whole().ok());
  EXPECT_EQ(store_.iteration, 7);
  EXPECT_EQ(store_.inbox.rounds, 2);
  EXPECT_EQ(Read(store_.parameters, Memory::Tensors()), rows_[0]);
  EXPECT_EQ(Read(store_.parameters, Memory::In(store_.initial.data())), rows_[1]);
  EXPECT_EQ(Read(store_.gradients, Memory::In(store_.inbox.row.data())), rows_[2]);
  for (const MemoryHeld& held : store_.memory->meter()->Uses()) {
    if (held.use != "copies") continue;
    EXPECT_LE(held.host_peak, GetParam() ? 9 << 20 : 0);
  }
}

TEST_P(IncomingReplicaTest, RowsComeOneAfterAnother) {
  ASSERT_TRUE(ReceiveInfo().ok());
  EXPECT_EQ(Receive(CopiedRow::kInitial, 4096, 4096).code(), Code::kDataLoss);
  ASSERT_TRUE(Receive(CopiedRow::kParameters, 4096, 8192).ok());
  EXPECT_EQ(Receive(CopiedRow::kInbox, 4096, 4096).code(), Code::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(Mesh, IncomingReplicaTest, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Device" : "Host"; });

}  // namespace
}  // namespace prd::testing
