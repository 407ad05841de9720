// Communicators of one member, and of one whose other member never comes.
#include <cmath>
#include <string>

#include "common/base/prng.h"
#include "tests/gpu/gpu_test.h"
#include "tests/worker/numbers.h"

namespace prd::testing::nccl_test {
namespace {

constexpr std::chrono::seconds kLimit(60);

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_.nccl().ok()) GTEST_SKIP() << gpu_.nccl().ToString();
  }

  Gpu::UniqueId NewId() {
    gpu_.MakeUniqueId();
    std::unique_ptr<Gpu::Id> id;
    EXPECT_TRUE(Within(kLimit, [&] { return (id = gpu_.TakeUniqueId()) != nullptr; }));
    EXPECT_TRUE(id != nullptr && id->status.ok());
    return id == nullptr ? Gpu::UniqueId() : id->id;
  }

  Gpu::Comm NewComm() {
    const Gpu::Comm comm = gpu_.CommInit(1, NewId(), 0);
    EXPECT_TRUE(Ready(comm));
    return comm;
  }

  // Until what was asked is handed over; false if it failed.
  bool Ready(Gpu::Comm comm) {
    Result<bool> busy = true;
    const bool ended = Within(kLimit, [&] {
      busy = gpu_.CommBusy(comm);
      return !busy.ok() || !*busy;
    });
    EXPECT_TRUE(busy.ok()) << busy.status().ToString();
    return ended && busy.ok();
  }

  void Abort(Gpu::Comm comm) {
    gpu_.CommAbort(comm);
    EXPECT_TRUE(Within(kLimit, [&] { return gpu_.aborting() == 0; }));
  }

  Gpu& gpu_ = *TheGpu();
};

TEST_F(NcclTest, IdsAreMadeOnceAndDiffer) {
  const Gpu::UniqueId first = NewId();
  EXPECT_EQ(gpu_.TakeUniqueId(), nullptr);
  EXPECT_NE(first, NewId());
  EXPECT_NE(first, Gpu::UniqueId());
}

TEST_F(NcclTest, TheWeightIsInTheReduction) {
  OnStream stream(gpu_);
  const Gpu::Comm comm = NewComm();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    for (const double weight : {0.5, 1.0, 0.3, 0.0, -0.75}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " * " + std::to_string(weight));
      constexpr std::size_t kCount = 10'007;
      Bytes from(gpu_, kCount * DTypeSize(dtype)), to(gpu_, kCount * DTypeSize(dtype));
      Numbers numbers(dtype, kCount);
      Prng random(9);
      // A member of weight 0 brings zeros (worker/device/plane.h).
      for (std::size_t i = 0; weight != 0 && i < kCount; ++i) {
        numbers.Set(i, 8 * random.Unit() - 4);
      }
      std::memcpy(from.host(), numbers.tensor().data, from.size());
      ASSERT_OK(from.Put(stream));
      // Exact in the dtype, as the caller sees to.
      Numbers exact(dtype, 1);
      exact.Set(0, weight);
      const Weight share = {exact.Get(0), static_cast<float>(exact.Get(0))};
      ASSERT_OK(gpu_.AllReduce(comm, from.device(), to.device(), kCount, dtype, share, stream));
      ASSERT_TRUE(Ready(comm));
      ASSERT_OK(to.Get(stream));
      Numbers found(dtype, kCount);
      std::memcpy(found.tensor().data, to.host(), to.size());
      for (std::size_t i = 0; i < kCount; ++i) {
        const double expected = share.exact * numbers.Get(i);
        // The last term: products that are subnormal in f16.
        ASSERT_NEAR(found.Get(i), expected, Epsilon(dtype) * std::fabs(expected) + 0x1p-24) << i;
      }
      ASSERT_OK(gpu_.AllReduce(comm, from.device(), from.device(), kCount, dtype, share, stream));
      ASSERT_TRUE(Ready(comm));
      ASSERT_OK(from.Get(stream));
      EXPECT_EQ(std::memcmp(from.host(), to.host(), to.size()), 0) << "in place";
    }
  }
  Abort(comm);
}

// More weights than operators are kept, each used again.
TEST_F(NcclTest, ManyWeightsTakeTurns) {
  OnStream stream(gpu_);
  const Gpu::Comm comm = NewComm();
  Bytes from(gpu_, 4), to(gpu_, 4);
  const float three = 3;
  std::memcpy(from.host(), &three, 4);
  ASSERT_OK(from.Put(stream));
  for (int i = 0; i < 200; ++i) {
    const float weight = static_cast<float>(2 + (i * 7) % 40);
    ASSERT_OK(gpu_.AllReduce(comm, from.device(), to.device(), 1, DType::kF32,
                             Weight{weight, weight}, stream));
    ASSERT_TRUE(Ready(comm));
    ASSERT_OK(to.Get(stream));
    float found = 0;
    std::memcpy(&found, to.host(), 4);
    ASSERT_EQ(found, 3 * weight) << i;
  }
  Abort(comm);
}

// As the exchange way does, and a row of several dtypes.
TEST_F(NcclTest, GroupedCallsAreOne) {
  OnStream stream(gpu_);
  const Gpu::Comm comm = NewComm();
  Bytes from(gpu_, 2048), to(gpu_, 2048);
  for (std::size_t i = 0; i < 2048; ++i) from.host()[i] = static_cast<std::byte>(i % 59);
  ASSERT_OK(from.Put(stream));
  ASSERT_OK(gpu_.GroupStart());
  ASSERT_OK(
      gpu_.AllReduce(comm, from.device(), to.device(), 256, DType::kF32, Weight{1, 1}, stream));
  ASSERT_OK(gpu_.AllReduce(comm, from.device() + 1024, to.device() + 1024, 512, DType::kBF16,
                           Weight{1, 1}, stream));
  ASSERT_OK(gpu_.GroupEnd(comm));
  ASSERT_TRUE(Ready(comm));
  ASSERT_OK(to.Get(stream));
  EXPECT_EQ(std::memcmp(from.host(), to.host(), 2048), 0);
  Abort(comm);
}

TEST_F(NcclTest, WhatItSendsToItselfArrives) {
  if (gpu_.name().find("stand-in") != std::string::npos) GTEST_SKIP() << "the stand-in refuses it";
  OnStream stream(gpu_);
  const Gpu::Comm comm = NewComm();
  Bytes from(gpu_, 100'003), to(gpu_, 100'003);
  for (std::size_t i = 0; i < from.size(); ++i) from.host()[i] = static_cast<std::byte>(i % 251);
  ASSERT_OK(from.Put(stream));
  ASSERT_OK(gpu_.GroupStart());
  ASSERT_OK(gpu_.Send(comm, from.device(), from.size(), 0, stream));
  ASSERT_OK(gpu_.Receive(comm, to.device(), to.size(), 0, stream));
  ASSERT_OK(gpu_.GroupEnd(comm));
  ASSERT_TRUE(Ready(comm));
  ASSERT_OK(to.Get(stream));
  EXPECT_EQ(std::memcmp(from.host(), to.host(), from.size()), 0);
  Abort(comm);
}

TEST_F(NcclTest, OneWhoseMembersDoNotComeIsAborted) {
  const Gpu::Comm comm = gpu_.CommInit(2, NewId(), 0);
  const auto busy = gpu_.CommBusy(comm);
  ASSERT_TRUE(busy.ok()) << busy.status().ToString();
  EXPECT_TRUE(*busy);
  Abort(comm);
  // Given up before the thread has come to it.
  const Gpu::UniqueId id = NewId();
  gpu_.CommAbort(gpu_.CommInit(2, id, 0));
  EXPECT_TRUE(Within(kLimit, [&] { return gpu_.aborting() == 0; }));
  Abort(NewComm());
}

TEST_F(NcclTest, WrongArgumentsFailTheCommunicatorOnly) {
  if (gpu_.name().find("stand-in") != std::string::npos) GTEST_SKIP() << "the stand-in ends by it";
  const Gpu::Comm comm = gpu_.CommInit(2, NewId(), 5);
  Result<bool> busy = true;
  EXPECT_TRUE(Within(kLimit, [&] { return !(busy = gpu_.CommBusy(comm)).ok(); }));
  EXPECT_FALSE(busy.ok());
  Abort(comm);
  Abort(NewComm());
}

// What a communicator takes comes back.
TEST_F(NcclTest, MakingThemAgainDoesNotLeak) {
  Abort(NewComm());  // what NCCL keeps for the process
  const auto before = gpu_.FreeMemory();
  ASSERT_TRUE(before.ok());
  OnStream stream(gpu_);
  Bytes bytes(gpu_, 1 << 20);
  for (int i = 0; i < 20; ++i) {
    const Gpu::Comm comm = NewComm();
    ASSERT_OK(gpu_.AllReduce(comm, bytes.device(), bytes.device(), bytes.size() / 4, DType::kF32,
                             Weight{0.5, 0.5F}, stream));
    ASSERT_TRUE(Ready(comm));
    ASSERT_OK(stream.Wait());
    Abort(comm);
  }
  const auto after = gpu_.FreeMemory();
  ASSERT_TRUE(after.ok());
  constexpr std::size_t kSlack = std::size_t{64} << 20;
  EXPECT_GE(*after + kSlack, *before);
}

}  // namespace
}  // namespace prd::testing::nccl_test
