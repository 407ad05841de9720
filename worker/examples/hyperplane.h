// Hyperplane regression, the smallest task of eager-SGD's experiments (Li et al., PPoPP 2020,
// section 6.2.1): y = a.x + noise in 8,192 dimensions, learned by one linear layer of 8,193
// parameters. Plain C++; nothing is stored but the parameters.
#ifndef PRD_WORKER_EXAMPLES_HYPERPLANE_H_
#define PRD_WORKER_EXAMPLES_HYPERPLANE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/examples/pace.h"

namespace example {

constexpr std::size_t kHyperplaneDimensions = 8192;
// The noise's deviation; the paper does not say what it took. Its square is the loss of a perfect
// model.
constexpr double kHyperplaneDeviation = 2;
// The part of the stream that is held out: the validation loss is over it.
constexpr std::size_t kHeldOutExamples = 4096;

// Examples, drawn when they are asked for: the one of a number in a stream is always the same.
class HyperplaneData {
 public:
  static constexpr std::uint64_t kHeldOut = 1;  // the stream that no worker learns from
  static constexpr std::uint64_t StreamOf(int rank) { return 2 + static_cast<std::uint64_t>(rank); }

  // The coefficients are uniform in [-1, 1) and follow from the seed.
  // REQUIRES: dimensions is a multiple of 16.
  HyperplaneData(std::size_t dimensions, std::uint64_t seed);

  const std::vector<float>& coefficients() const { return coefficients_; }

  // Fills x (its dimensions, each uniform with mean 0 and variance 1) and returns y.
  float Draw(std::uint64_t stream, std::uint64_t number, float* x) const;

 private:
  const std::uint64_t seed_;
  std::vector<float> coefficients_;
};

// The model with its gradients. One thread at a time.
class Hyperplane {
 public:
  Hyperplane(std::size_t dimensions, std::uint64_t seed);

  // A coefficient per dimension, and the constant term; all 0 to begin with.
  std::vector<float>& parameters() { return parameters_; }
  std::vector<float>& gradients() { return gradients_; }
  const HyperplaneData& data() const { return data_; }

  // Fills the gradients with those of the mean squared error over `count` examples from number
  // `first`, which is returned; or nothing, with undefined gradients, if interrupted.
  std::optional<double> ComputeGradients(std::uint64_t stream, std::uint64_t first,
                                         std::size_t count, const Interrupted& interrupted);
  // The mean squared error over the first `count` examples of a stream.
  double Loss(std::uint64_t stream, std::size_t count);
  // parameters -= learning_rate * gradients.
  void Apply(double learning_rate);

 private:
  // The model's answer for x_ less y, of an example that is drawn into x_.
  double DrawError(std::uint64_t stream, std::uint64_t number);

  const HyperplaneData data_;
  std::vector<float> parameters_;
  std::vector<float> gradients_;
  std::vector<float> x_;
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_HYPERPLANE_H_
