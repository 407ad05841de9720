// The CNN on a GPU beside the same one on the processor. Where there is no GPU, it is skipped.
#include "worker/examples/cnn_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/worker/examples/model_check.h"

namespace example {
namespace {

constexpr std::size_t kExamples = 1000;
constexpr std::size_t kBatch = 96;

class CnnCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::unique_ptr<CnnDevice> device;
    try {
      device = MakeCudaDevice(0);
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
    gpu_ = std::make_unique<Cnn>(std::move(device), 3, MeanImage(data_), kBatch);
    gpu_->SetData(data_);
    host_.SetData(data_);
  }

  void Steps(Cnn* cnn, int count) {
    Sampler sampler(kExamples, 5);
    std::vector<std::size_t> batch(kBatch);
    for (int step = 0; step < count; ++step) {
      for (std::size_t& index : batch) index = sampler.Next();
      ASSERT_TRUE(cnn->ComputeGradients(batch, kNever));
      cnn->ApplySgd(0.05, 0.9);
    }
  }

  const Dataset data_ = RandomData(kExamples);
  Cnn host_{MakeHostDevice(), 3, MeanImage(data_), kBatch};
  std::unique_ptr<Cnn> gpu_;
};

TEST_F(CnnCudaTest, StepsAsTheProcessorDoes) {
  EXPECT_EQ(gpu_->CopyParameters(), host_.CopyParameters());
  Steps(gpu_.get(), 1);
  Steps(&host_, 1);
  ExpectNear(gpu_->CopyGradients(), host_.CopyGradients(), 1e-4);
  ASSERT_TRUE(gpu_->LastScore().has_value());
  EXPECT_NEAR(gpu_->LastScore()->loss, host_.LastScore()->loss, 1e-4);
  Steps(gpu_.get(), 9);
  Steps(&host_, 9);
  // An activation that is zero but for rounding is cut off by one ReLU and not by the other.
  ExpectNear(gpu_->CopyParameters(), host_.CopyParameters(), 1e-2);
  EXPECT_NEAR(gpu_->Accuracy(data_), host_.Accuracy(data_), 0.01);
}

TEST_F(CnnCudaTest, TheSameStepsGiveTheSameBits) {
  Cnn again(MakeCudaDevice(0), 3, MeanImage(data_), kBatch);
  again.SetData(data_);
  Steps(gpu_.get(), 40);
  Steps(&again, 40);
  EXPECT_EQ(gpu_->CopyParameters(), again.CopyParameters());
}

}  // namespace
}  // namespace example
