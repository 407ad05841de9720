// The module's use of NCCL, against a fake that says what NCCL does not allow.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "tests/worker/cuda/fake_cuda.h"
#include "tests/worker/cuda/fake_nccl.h"
#include "worker/cuda/nccl.h"

namespace prd {
namespace {

using cuda::Nccl;
using cuda::NcclLibrary;
using testing::FakeNccl;

bool Within60s(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

FakeNccl* LoadFake() {
  setenv("PRD_NCCL_LIBRARY", PRD_FAKE_NCCL, 1);
  void* library = dlopen(PRD_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  const auto get = reinterpret_cast<testing::FakeNcclGet>(dlsym(library, "fake_nccl"));
  return get();
}

class NcclClassTest : public ::testing::Test {
 protected:
  void SetUp() override {
    *fake_ = FakeNccl();
    ASSERT_TRUE(NcclLibrary::Get().status.ok()) << NcclLibrary::Get().status.ToString();
    nccl_ = std::make_unique<Nccl>(0);
  }
  void TearDown() override {
    nccl_.reset();
    EXPECT_EQ(fake_->wrong, 0);
    EXPECT_EQ(fake_->comms, 0);
    EXPECT_EQ(fake_->operators, 0);
  }

  Gpu::Comm NewComm() {
    const Gpu::Comm comm = nccl_->CommInit(1, {}, 0);
    EXPECT_TRUE(Ready(comm));
    return comm;
  }
  // A communicator that is made, and waits for its other member.
  Gpu::Comm NewOfTwo() {
    const Gpu::Comm comm = nccl_->CommInit(2, {}, 0);
    nccl_->MakeUniqueId();
    EXPECT_TRUE(Within60s([&] { return nccl_->TakeUniqueId() != nullptr; })) << "comes after it";
    return comm;
  }
  bool Ended() {
    return Within60s([&] { return nccl_->aborting() == 0; });
  }
  bool Ready(Gpu::Comm comm) {
    return Within60s([&] {
      const auto busy = nccl_->CommBusy(comm);
      return busy.ok() && !*busy;
    });
  }
  float Reduced(Gpu::Comm comm, float value, std::optional<double> share) {
    float to = 0;
    std::optional<Weight> weight;
    if (share) weight = Weight{*share, static_cast<float>(*share)};
    EXPECT_TRUE(nccl_
                    ->AllReduce(comm, reinterpret_cast<std::byte*>(&value),
                                reinterpret_cast<std::byte*>(&to), 1, DType::kF32, weight, nullptr)
                    .ok());
    EXPECT_TRUE(Ready(comm));
    return to;
  }

  FakeNccl* fake_ = LoadFake();
  std::unique_ptr<Nccl> nccl_;
};

TEST_F(NcclClassTest, OperatorsAreKeptAndTheirNumberIsBounded) {
  fake_->busy = 2;  // one that goes too early would be found
  const Gpu::Comm comm = NewComm();
  for (int round = 0; round < 3; ++round) {
    for (int weight = 2; weight < 12; ++weight) ASSERT_EQ(Reduced(comm, 3, weight), 3.F * weight);
  }
  EXPECT_EQ(fake_->most_operators, 10) << "each is made once";
  for (int weight = 2; weight < 100; ++weight) ASSERT_EQ(Reduced(comm, 3, weight), 3.F * weight);
  EXPECT_EQ(fake_->most_operators, 16);
  const Gpu::Comm other = NewComm();
  EXPECT_EQ(Reduced(other, 3, std::nullopt), 3);
  EXPECT_EQ(fake_->operators, 16) << "the plain sum is NCCL's own";
  EXPECT_EQ(Reduced(other, 3, 1), 3);
  EXPECT_EQ(fake_->operators, 17) << "members with other weights go the same way";
  nccl_->CommAbort(other);
  nccl_->CommAbort(comm);
}

TEST_F(NcclClassTest, AWeightIsGivenInTheDtype) {
  const Gpu::Comm comm = NewComm();
  const std::uint16_t halves[2] = {0x3c00, 0x3f80};  // 1 in f16, and in bf16
  const DType dtypes[2] = {DType::kF16, DType::kBF16};
  const std::uint16_t quarters[2] = {0x3400, 0x3e80};
  for (int i = 0; i < 2; ++i) {
    std::uint16_t to = 0;
    ASSERT_TRUE(nccl_
                    ->AllReduce(comm, reinterpret_cast<const std::byte*>(&halves[i]),
                                reinterpret_cast<std::byte*>(&to), 1, dtypes[i],
                                Weight{0.25, 0.25F}, nullptr)
                    .ok());
    EXPECT_EQ(to, quarters[i]);
  }
  nccl_->CommAbort(comm);
}

TEST_F(NcclClassTest, WhatIsBusySaysSo) {
  fake_->busy = 5;
  const Gpu::Comm comm = nccl_->CommInit(1, {}, 0);
  EXPECT_TRUE(nccl_->CommBusy(comm).value());
  EXPECT_TRUE(Ready(comm));
  float value = 1;
  auto* data = reinterpret_cast<std::byte*>(&value);
  ASSERT_TRUE(nccl_->AllReduce(comm, data, data, 1, DType::kF32, Weight{1, 1}, nullptr).ok());
  EXPECT_TRUE(nccl_->CommBusy(comm).value());
  EXPECT_TRUE(Ready(comm));
  nccl_->CommAbort(comm);
}

TEST_F(NcclClassTest, AbortComesAfterTheMakingAndWaitsForNobody) {
  __atomic_store_n(&fake_->init_blocks, true, __ATOMIC_RELEASE);
  const Gpu::Comm first = nccl_->CommInit(1, {}, 0);
  const Gpu::Comm second = nccl_->CommInit(1, {}, 0);
  EXPECT_TRUE(nccl_->CommBusy(first).value());
  EXPECT_FALSE(
      nccl_->AllReduce(first, nullptr, nullptr, 0, DType::kF32, Weight{1, 1}, nullptr).ok());
  nccl_->CommAbort(second);
  nccl_->CommAbort(first);
  EXPECT_EQ(nccl_->aborting(), 2u);
  __atomic_store_n(&fake_->init_blocks, false, __ATOMIC_RELEASE);
  EXPECT_TRUE(Ended());
  EXPECT_LE(fake_->inits, 1) << "the second was given up before it was made";
  EXPECT_EQ(fake_->aborts + fake_->destroyed, fake_->inits);
}

// To free what one of them has may wait for what runs on another.
TEST_F(NcclClassTest, AbortsWaitForNoOther) {
  fake_->aborts_together = 3;
  for (int i = 0; i < 3; ++i) nccl_->CommAbort(NewOfTwo());
  EXPECT_TRUE(Ended());
  EXPECT_EQ(fake_->aborts, 3);
}

TEST_F(NcclClassTest, WhatIsThroughIsFinalized) {
  fake_->busy = 2;
  const Gpu::Comm used = NewComm();
  EXPECT_EQ(Reduced(used, 3, 0.5), 1.5F);
  for (const Gpu::Comm comm : {used, NewComm()}) nccl_->CommAbort(comm);
  EXPECT_TRUE(Ended());
  EXPECT_EQ(fake_->finalized, 2);
  EXPECT_EQ(fake_->destroyed, 2);
  EXPECT_EQ(fake_->aborts, 0);
}

TEST_F(NcclClassTest, WhatRunsIsAborted) {
  float value = 1;
  auto* data = reinterpret_cast<std::byte*>(&value);
  fake_->busy = 2;
  const Gpu::Comm asked = NewComm();  // a collective is not handed over yet
  ASSERT_TRUE(nccl_->AllReduce(asked, data, data, 1, DType::kF32, Weight{1, 1}, nullptr).ok());
  const Gpu::Comm running = NewComm();
  EXPECT_EQ(Reduced(running, 3, 1), 3);
  testing::FakeCudaRuns(true);
  for (const Gpu::Comm comm : {asked, running}) nccl_->CommAbort(comm);
  EXPECT_TRUE(Ended());
  testing::FakeCudaRuns(false);
  EXPECT_EQ(fake_->finalized, 0);
  EXPECT_EQ(fake_->aborts, 2);
}

TEST_F(NcclClassTest, WhatCannotBeFinalizedIsAborted) {
  fake_->finalize_hangs = true;
  nccl_->CommAbort(NewComm());
  EXPECT_TRUE(Ended());
  EXPECT_EQ(fake_->finalized, 1);
  EXPECT_EQ(fake_->aborts, 1);
}

TEST_F(NcclClassTest, OneThatCannotBeMadeFailsAndIsGivenUp) {
  const Gpu::Comm comm = nccl_->CommInit(2, {}, 7);
  EXPECT_TRUE(Within60s([&] { return !nccl_->CommBusy(comm).ok(); }));
  const Status status = nccl_->CommBusy(comm).status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("ncclCommInitRankConfig: an error of the fake"),
            std::string::npos);
  EXPECT_EQ(nccl_->AllReduce(comm, nullptr, nullptr, 0, DType::kF32, Weight{1, 1}, nullptr),
            status);
  nccl_->CommAbort(comm);
  EXPECT_TRUE(Ended());
  EXPECT_EQ(fake_->aborts, 0) << "there is none";
}

TEST_F(NcclClassTest, WhatWasAskedIsDoneBeforeItGoes) {
  for (int i = 0; i < 10; ++i) nccl_->CommAbort(nccl_->CommInit(2, {}, 0));
  nccl_->MakeUniqueId();
  nccl_.reset();
  EXPECT_EQ(fake_->comms, 0);
}

TEST_F(NcclClassTest, IdsComeOnce) {
  nccl_->MakeUniqueId();
  std::unique_ptr<Gpu::Id> id;
  EXPECT_TRUE(Within60s([&] { return (id = nccl_->TakeUniqueId()) != nullptr; }));
  EXPECT_TRUE(id->status.ok());
  EXPECT_NE(id->id, Gpu::UniqueId());
  EXPECT_EQ(nccl_->TakeUniqueId(), nullptr);
}

// The library is loaded once in a process, and so these are in processes of their own.

[[noreturn]] void ExitWithNcclsStatus() {
  std::fprintf(stderr, "%s", NcclLibrary::Get().status.ToString().c_str());
  std::exit(NcclLibrary::Get().status.code() == Code::kUnavailable ? 0 : 1);
}

class NcclLibraryDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NcclLibraryDeathTest, OneThatIsTooOldIsRefused) {
  EXPECT_EXIT(
      {
        LoadFake()->version = 22602;
        ExitWithNcclsStatus();
      },
      ::testing::ExitedWithCode(0), "it is NCCL 2.26.2, needed is 2.28.0 or newer");
}

TEST_F(NcclLibraryDeathTest, OneThatIsToldToBlockIsRefused) {
  EXPECT_EXIT(
      {
        LoadFake();
        setenv("NCCL_COMM_BLOCKING", "1", 1);
        ExitWithNcclsStatus();
      },
      ::testing::ExitedWithCode(0), "NCCL_COMM_BLOCKING=1 is set");
}

TEST_F(NcclLibraryDeathTest, OneThatIsNotThereIsNamed) {
  EXPECT_EXIT(
      {
        setenv("PRD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
        ExitWithNcclsStatus();
      },
      ::testing::ExitedWithCode(0),
      "NCCL \\(/nowhere/libnccl.so.2\\): /nowhere/libnccl.so.2: cannot open");
}

TEST_F(NcclLibraryDeathTest, ALibraryThatIsNotNcclIsNamed) {
  EXPECT_EXIT(
      {
        setenv("PRD_NCCL_LIBRARY", "libm.so.6", 1);
        ExitWithNcclsStatus();
      },
      ::testing::ExitedWithCode(0), "NCCL \\(libm.so.6\\): it has no ncclGetVersion");
}

// The one of this host, if it has one: everything that is looked for is in it.
TEST_F(NcclLibraryDeathTest, TheRealOneHasAllThatIsLookedFor) {
  void* real = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (real == nullptr) GTEST_SKIP() << "this host has no libnccl.so.2";
  dlclose(real);
  EXPECT_EXIT(
      {
        unsetenv("PRD_NCCL_LIBRARY");
        const NcclLibrary& nccl = NcclLibrary::Get();
        std::fprintf(stderr, "%s %s", nccl.status.ToString().c_str(), nccl.version.c_str());
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "^ok 2\\.|needed is");
}

}  // namespace
}  // namespace prd
