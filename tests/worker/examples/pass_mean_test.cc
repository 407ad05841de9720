#include "worker/examples/pass_mean.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "worker/examples/hyperplane.h"

namespace example::pass_mean_test {
namespace {

constexpr std::size_t kDimensions = 32;
const Interrupted kNever = [] { return false; };

// Gradients of the first 24 samples of a stream, in passes of these lengths.
std::vector<float> InPasses(PassMean* mean, const std::vector<std::int64_t>& passes) {
  Hyperplane model(kDimensions, 1);
  const std::vector<Array> gradients = {{model.gradients().data(), model.gradients().size()}};
  std::uint64_t first = 0;
  for (const std::int64_t samples : passes) {
    model.ComputeGradients(2, first, static_cast<std::size_t>(samples), kNever);
    mean->Add(gradients, samples);
    mean->Keep(gradients);
    std::fill(model.gradients().begin(), model.gradients().end(), -1.0F);  // Keep has a copy
    first += static_cast<std::uint64_t>(samples);
  }
  model.ComputeGradients(2, first, 24 - first, kNever);
  mean->Add(gradients, static_cast<std::int64_t>(24 - first));
  mean->Restart();
  return model.gradients();
}

TEST(PassMeanTest, UnequalPassesGiveTheMeanOverAllSamples) {
  PassMean mean;
  const std::vector<float> whole = InPasses(&mean, {});
  for (const std::vector<std::int64_t>& passes :
       {std::vector<std::int64_t>{8}, {1}, {23}, {3, 13, 1}, {8, 8}}) {
    const std::vector<float> passed = InPasses(&mean, passes);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(passed[i], whole[i], 1e-4);
  }
}

TEST(PassMeanTest, OnePassStaysAsItIs) {
  PassMean mean;
  std::vector<float> values = {1.1F, 2.2F};
  const std::vector<Array> gradients = {{values.data(), 1}, {values.data() + 1, 1}};
  mean.Add(gradients, 7);
  EXPECT_EQ(values, (std::vector<float>{1.1F, 2.2F}));
  mean.Restart();
  values = {3, 4};
  mean.Add(gradients, 1);
  EXPECT_EQ(values, (std::vector<float>{3, 4}));
}

}  // namespace
}  // namespace example::pass_mean_test
