#include "worker/examples/cnn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/examples/model_check.h"
#include "worker/examples/model.h"

namespace example {
namespace {

constexpr std::size_t kExamples = 40;

std::vector<std::size_t> FirstOf(std::size_t count, std::size_t every) {
  std::vector<std::size_t> batch(count);
  for (std::size_t i = 0; i < count; ++i) batch[i] = i * every;
  return batch;
}

// The same parameters in the kernels' CNN and in libtorch's.
class CnnTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBatch = 16;

  CnnTest() {
    ComputeOnOneThread();
    cnn_.SetData(data_);
    model_.SetParameters(cnn_.CopyParameters());
  }

  std::vector<float> ModelGradients() {
    std::vector<float> values;
    for (const Array& array : model_.Gradients()) {
      values.insert(values.end(), array.data, array.data + array.count);
    }
    return values;
  }

  const Dataset data_ = RandomData(kExamples);
  Cnn cnn_{MakeHostDevice(), 7, MeanImage(data_), kBatch};
  Model model_{"cnn", 1, MeanImage(data_)};
};

TEST_F(CnnTest, HasTheArraysOfLibtorchsInTheirOrder) {
  const std::vector<Array> arrays = cnn_.Parameters();
  const std::vector<Array> expected = model_.Parameters();
  ASSERT_EQ(arrays.size(), expected.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) EXPECT_EQ(arrays[i].count, expected[i].count);
  EXPECT_EQ(cnn::kParameters, model_.ParameterCount());
}

TEST_F(CnnTest, BeginsWithAsWidelyDrawnParametersAsLibtorchs) {
  Model drawn("cnn", 3, MeanImage(data_));
  const std::vector<Array> theirs = drawn.Parameters();
  const std::vector<Array> ours = cnn_.Parameters();
  const auto largest = [](const Array& of) {
    float value = 0;
    for (std::size_t k = 0; k < of.count; ++k) value = std::max(value, std::abs(of.data[k]));
    return value;
  };
  for (std::size_t i = 0; i < ours.size(); ++i) {
    // Both stay within the bound, and of 8 numbers or more one reaches half of it, nearly always.
    EXPECT_LT(largest(ours[i]), 2 * largest(theirs[i])) << i;
    EXPECT_GT(largest(ours[i]), largest(theirs[i]) / 2) << i;
  }
  EXPECT_NE(Cnn(MakeHostDevice(), 8, MeanImage(data_), 1).CopyParameters(), cnn_.CopyParameters());
  EXPECT_EQ(Cnn(MakeHostDevice(), 7, MeanImage(data_), 1).CopyParameters(), cnn_.CopyParameters());
}

TEST_F(CnnTest, LossAndGradientsAreThoseOfLibtorch) {
  const std::vector<std::size_t> batch = FirstOf(kBatch, 2);
  const std::optional<double> loss = model_.ComputeGradients(data_, batch, kNever);
  ASSERT_TRUE(cnn_.ComputeGradients(batch, kNever));
  ExpectNear(cnn_.CopyGradients(), ModelGradients(), 1e-4);
  ASSERT_TRUE(cnn_.LastScore().has_value());
  EXPECT_NEAR(cnn_.LastScore()->loss, *loss, 1e-5);
}

TEST_F(CnnTest, StepsWithMomentumEndWhereThoseOfLibtorchDo) {
  for (std::size_t step = 0; step < 8; ++step) {
    const std::vector<std::size_t> batch = FirstOf(kBatch, 1 + step % 2);
    model_.ComputeGradients(data_, batch, kNever);
    model_.ApplySgd(0.05, 0.9);
    ASSERT_TRUE(cnn_.ComputeGradients(batch, kNever));
    cnn_.ApplySgd(0.05, 0.9);
  }
  ExpectNear(cnn_.CopyParameters(), model_.CopyParameters(), 1e-3);
}

TEST_F(CnnTest, ItsVelocityIsThatOfLibtorch) {
  std::vector<float> found, expected;
  for (std::size_t step = 0; step < 3; ++step) {
    const std::vector<std::size_t> batch = FirstOf(kBatch, 1 + step % 2);
    model_.ComputeGradients(data_, batch, kNever);
    model_.ApplySgd(0.05, 0.9);
    ASSERT_TRUE(cnn_.ComputeGradients(batch, kNever));
    cnn_.ApplySgd(0.05, 0.9);
  }
  for (const Array& array : cnn_.Velocity()) {
    found.insert(found.end(), array.data, array.data + array.count);
  }
  for (const Array& array : model_.Velocity()) {
    expected.insert(expected.end(), array.data, array.data + array.count);
  }
  ExpectNear(found, expected, 1e-3);
}

TEST_F(CnnTest, AccuracyIsThatOfLibtorchAlsoWhereABatchIsNotFull) {
  static_assert(kExamples % kBatch != 0);
  EXPECT_DOUBLE_EQ(cnn_.Accuracy(data_), model_.Accuracy(data_));
}

TEST_F(CnnTest, IsAskedBeforeEveryLayer) {
  int asked = 0;
  ASSERT_TRUE(cnn_.ComputeGradients(FirstOf(kBatch, 1), [&] { return ++asked < 0; }));
  const std::vector<float> gradients = cnn_.CopyGradients();
  const int all = asked;
  EXPECT_GE(all, 9);
  for (int last = 1; last <= all; ++last) {
    asked = 0;
    EXPECT_FALSE(cnn_.ComputeGradients(FirstOf(kBatch, 1), [&] { return ++asked == last; }));
    EXPECT_EQ(asked, last);
  }
  ASSERT_TRUE(cnn_.ComputeGradients(FirstOf(kBatch, 1), kNever));
  EXPECT_EQ(cnn_.CopyGradients(), gradients);  // to the bit
}

TEST_F(CnnTest, TellsTheScoreOfAStepInSome) {
  EXPECT_FALSE(cnn_.LastScore().has_value());
  std::vector<float> losses;
  for (int step = 0; step < 2 * Cnn::kScoreEvery; ++step) {
    ASSERT_TRUE(cnn_.ComputeGradients(FirstOf(kBatch, 1), kNever));
    cnn_.ApplySgd(0.01, 0);
    losses.push_back(cnn_.LastScore()->loss);
  }
  for (int step = 0; step < Cnn::kScoreEvery; ++step) {
    const auto at = static_cast<std::size_t>(step);
    EXPECT_EQ(losses[at], losses[0]);
    EXPECT_EQ(losses[at + Cnn::kScoreEvery], losses[Cnn::kScoreEvery]);
  }
  EXPECT_LT(losses[Cnn::kScoreEvery], losses[0]);
}

TEST(CnnLearningTest, LearnsFashionMnist) {
  const Dataset train = LoadDataset("/usr/share/datasets/fashion-mnist", "train");
  const Dataset test = LoadDataset("/usr/share/datasets/fashion-mnist", "t10k");
  Cnn cnn(MakeHostDevice(), 1, MeanImage(train), 32);
  cnn.SetData(train);
  Sampler sampler(train.size(), 1);
  std::vector<std::size_t> batch(32);
  for (int step = 0; step < 600; ++step) {
    for (std::size_t& index : batch) index = sampler.Next();
    ASSERT_TRUE(cnn.ComputeGradients(batch, kNever));
    cnn.ApplySgd(0.02, 0.9);
  }
  EXPECT_GT(cnn.Accuracy(test), 0.8);
}

}  // namespace
}  // namespace example
