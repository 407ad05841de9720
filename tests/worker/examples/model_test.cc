#include "worker/examples/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/examples/model_check.h"

namespace example {
namespace {

constexpr std::size_t kExamples = 8;

std::vector<std::size_t> All() {
  std::vector<std::size_t> batch(kExamples);
  std::iota(batch.begin(), batch.end(), 0U);
  return batch;
}

class ModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  ModelTest() : model_(GetParam(), 1, MeanImage(data_)) { ComputeOnOneThread(); }

  double Loss() { return *model_.ComputeGradients(data_, All(), kNever); }

  const Dataset data_ = RandomData(kExamples);
  Model model_;
};

// Layer by layer, as the gradients are computed, gives the gradients of the whole.
TEST_P(ModelTest, GradientIsThatOfFiniteDifferences) {
  Loss();
  // Each array's own direction of steepest ascent: its slope is the gradient's length.
  std::vector<std::vector<float>> gradients;
  for (const Array& array : model_.Gradients()) {
    gradients.emplace_back(array.data, array.data + array.count);
  }
  const std::vector<Array> parameters = model_.Parameters();
  ASSERT_EQ(parameters.size(), gradients.size());
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    double square = 0;
    for (const float g : gradients[k]) square += static_cast<double>(g) * static_cast<double>(g);
    ASSERT_GT(square, 0) << k;
    const std::vector<float> at(parameters[k].data, parameters[k].data + parameters[k].count);
    const double step = 0.01 / std::sqrt(square);
    const auto loss_at = [&](double by) {
      for (std::size_t i = 0; i < at.size(); ++i) {
        parameters[k].data[i] = at[i] + static_cast<float>(by) * gradients[k][i];
      }
      return Loss();
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
    loss_at(0);
    // Not nearer, for the kinks of ReLU.
    EXPECT_NEAR(slope / square, 1, 0.1) << k;
  }
}

TEST_P(ModelTest, IsAskedBeforeEveryLayerAndGivesNoLossOnceInterrupted) {
  int asked = 0;
  const auto count = [&] {
    ++asked;
    return false;
  };
  ASSERT_TRUE(model_.ComputeGradients(data_, All(), count).has_value());
  const int all = asked;
  EXPECT_GE(all, 7);  // both models: four layers or more forwards, three backwards
  for (int last = 1; last <= all; ++last) {
    asked = 0;
    const auto stop = [&] { return ++asked == last; };
    EXPECT_FALSE(model_.ComputeGradients(data_, All(), stop).has_value());
    EXPECT_EQ(asked, last);
  }
  // What was left half done is forgotten.
  const double loss = Loss();
  EXPECT_EQ(Loss(), loss);
}

TEST_P(ModelTest, ApplyGoesDownTheGradient) {
  const double before = Loss();
  model_.ApplySgd(0.01, 0);
  EXPECT_LT(Loss(), before);
}

// The state that a worker gives to prd is what its steps use, from the first one on.
TEST_P(ModelTest, ApplyGoesOnWithTheVelocityThatItIsGiven) {
  const std::vector<Array> velocity = model_.Velocity();
  const std::vector<Array> parameters = model_.Parameters();
  ASSERT_EQ(velocity.size(), parameters.size());
  for (std::size_t k = 0; k < velocity.size(); ++k) {
    ASSERT_EQ(velocity[k].count, parameters[k].count);
    std::fill_n(velocity[k].data, velocity[k].count, 2.0F);
  }
  const std::vector<float> before = model_.CopyParameters();
  for (const Array& gradient : model_.Gradients()) {
    std::fill_n(gradient.data, gradient.count, 1.0F);
  }
  model_.ApplySgd(0.5, 0.9);
  const std::vector<float> after = model_.CopyParameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(after[i], before[i] - 0.5F * 2.8F, 1e-5);
  }
  EXPECT_FLOAT_EQ(model_.Velocity()[0].data[0], 2.8F);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelTest, ::testing::Values("mlp", "cnn"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace example
