// The module's memory of the device, where there are memory pools and where there are none.
#include "worker/cuda/device_pool.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/worker/cuda/fake_cuda.h"
#include "worker/cuda/cuda_calls.h"

namespace prd::cuda {
namespace {

class DevicePoolTest : public ::testing::TestWithParam<bool> {
 protected:
  ~DevicePoolTest() override { testing::FakeCudaHasPools(true); }
};

TEST_P(DevicePoolTest, GivesMemoryAndTakesItBack) {
  testing::FakeCudaHasPools(GetParam());
  std::size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  {
    DevicePool pool(0);
    ASSERT_TRUE(pool.Open().ok());
    for (int i = 0; i < 3; ++i) {
      const Result<std::byte*> data = pool.Malloc(1 << 20);
      ASSERT_TRUE(data.ok()) << data.status().ToString();
      std::memset(*data, 1, 1 << 20);
      pool.Free(*data);
    }
    EXPECT_EQ(pool.Malloc(total + 1).status().code(), Code::kResourceExhausted);
  }
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(after, before);
}

// Otherwise what it calls while another thread captures a CUDA graph would break that capture.
TEST(OnDeviceTest, TheThreadMayCallWhileAnotherOneCaptures) {
  const auto now = [] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    cudaStreamCaptureMode found = mode;
    EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    return found;
  };
  EXPECT_EQ(now(), cudaStreamCaptureModeGlobal);
  {
    const OnDevice on(0);
    EXPECT_EQ(now(), cudaStreamCaptureModeRelaxed);
    const OnDevice again(0);
    EXPECT_EQ(now(), cudaStreamCaptureModeRelaxed);
  }
  EXPECT_EQ(now(), cudaStreamCaptureModeGlobal);
}

INSTANTIATE_TEST_SUITE_P(WithPoolsAndWithout, DevicePoolTest, ::testing::Bool());

}  // namespace
}  // namespace prd::cuda
