#include "worker/examples/hyperplane.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/worker/examples/model_check.h"

namespace example::hyperplane_test {
namespace {

constexpr std::size_t kDimensions = 64;
constexpr double kPerfect = kHyperplaneDeviation * kHyperplaneDeviation;

TEST(HyperplaneTest, AnExampleIsTheSameWhoeverDrawsIt) {
  const HyperplaneData one(kDimensions, 3);
  const HyperplaneData same(kDimensions, 3);
  const HyperplaneData other(kDimensions, 4);
  EXPECT_EQ(one.coefficients(), same.coefficients());
  EXPECT_NE(one.coefficients(), other.coefficients());
  std::vector<float> x(kDimensions), again(kDimensions);
  const float y = one.Draw(HyperplaneData::StreamOf(0), 7, x.data());
  EXPECT_EQ(same.Draw(HyperplaneData::StreamOf(0), 7, again.data()), y);
  EXPECT_EQ(x, again);
  for (const auto& [stream, number] :
       {std::pair{HyperplaneData::StreamOf(1), 7}, std::pair{HyperplaneData::StreamOf(0), 8},
        std::pair{HyperplaneData::kHeldOut, 7}}) {
    one.Draw(stream, static_cast<std::uint64_t>(number), again.data());
    EXPECT_NE(x, again);
  }
}

TEST(HyperplaneTest, XHasMeanZeroAndVarianceOneAndTheNoiseItsOwn) {
  constexpr int kExamples = 20'000;
  const HyperplaneData data(kDimensions, 1);
  std::vector<float> x(kDimensions);
  double sum = 0, squares = 0, product = 0, noises = 0, noise_squares = 0;
  for (int i = 0; i < kExamples; ++i) {
    double noise = data.Draw(HyperplaneData::StreamOf(0), static_cast<std::uint64_t>(i), x.data());
    for (std::size_t j = 0; j < kDimensions; ++j) {
      noise -= static_cast<double>(data.coefficients()[j]) * static_cast<double>(x[j]);
    }
    noises += noise;
    noise_squares += noise * noise;
    sum += static_cast<double>(x[5]);
    squares += static_cast<double>(x[5]) * static_cast<double>(x[5]);
    product += static_cast<double>(x[5]) * static_cast<double>(x[6]);
  }
  // Means of 20,000: their standard deviations are 0.007 times the value's own.
  EXPECT_NEAR(sum / kExamples, 0, 0.04);
  EXPECT_NEAR(squares / kExamples, 1, 0.04);
  EXPECT_NEAR(product / kExamples, 0, 0.04);
  EXPECT_NEAR(noises / kExamples, 0, 0.08);
  EXPECT_NEAR(noise_squares / kExamples, kPerfect, 0.16);
}

TEST(HyperplaneTest, GradientIsThatOfFiniteDifferences) {
  constexpr std::size_t kCount = 32;
  Hyperplane model(kDimensions, 1);
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    model.parameters()[i] = 0.1F * static_cast<float>(i % 7) - 0.3F;
  }
  const std::uint64_t stream = HyperplaneData::kHeldOut;
  const auto loss = model.ComputeGradients(stream, 0, kCount, kNever);
  ASSERT_TRUE(loss.has_value());
  EXPECT_NEAR(*loss, model.Loss(stream, kCount), 1e-9 * *loss);
  const std::vector<float> gradients = model.gradients();
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{17}, kDimensions}) {
    // The loss is a square, so that the difference over both sides is exact but for rounding.
    const float at = model.parameters()[i];
    model.parameters()[i] = at + 0.5F;
    const double above = model.Loss(stream, kCount);
    model.parameters()[i] = at - 0.5F;
    const double below = model.Loss(stream, kCount);
    model.parameters()[i] = at;
    EXPECT_NEAR(static_cast<double>(gradients[i]), above - below, 1e-3 * *loss) << i;
  }
}

TEST(HyperplaneTest, AnInterruptedBatchGivesNoLoss) {
  Hyperplane model(kDimensions, 1);
  int asked = 0;
  EXPECT_FALSE(model.ComputeGradients(2, 0, 32, [&] { return ++asked == 5; }).has_value());
  EXPECT_EQ(asked, 5);
}

// An eighth of the paper's 8,192 dimensions and 2,048 examples a step, whose ratio decides how fast
// it goes; the learning rate is the program's.
TEST(HyperplaneTest, ConvergesToTheNoise) {
  constexpr std::size_t kEighth = kHyperplaneDimensions / 8;
  constexpr std::size_t kBatch = 256;
  Hyperplane model(kEighth, 1);
  const auto held_out = [&] { return model.Loss(HyperplaneData::kHeldOut, kHeldOutExamples); };
  // Coefficients uniform in [-1, 1): 8192 / 3.
  EXPECT_NEAR(held_out(), static_cast<double>(kEighth) / 3, 60);
  for (std::uint64_t step = 0; step < 150; ++step) {
    ASSERT_TRUE(model.ComputeGradients(HyperplaneData::StreamOf(0), step * kBatch, kBatch, kNever)
                    .has_value());
    model.Apply(0.02);
  }
  const double loss = held_out();
  EXPECT_LT(loss, kPerfect + 0.7);
  EXPECT_GT(loss, kPerfect - 0.3);
}

}  // namespace
}  // namespace example::hyperplane_test
