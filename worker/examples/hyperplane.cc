#include "worker/examples/hyperplane.h"

#include <algorithm>
#include <array>

#include "worker/examples/random_bits.h"

namespace example {
namespace {

constexpr std::uint64_t kCoefficients = 0;  // their stream
constexpr std::size_t kPerDraw = 4;         // numbers from one draw of 64 bits
constexpr std::size_t kLanes = 16;  // sums side by side, which the compiler makes vectors of

// Uniform with mean 0 and variance 1, by the low 16 bits: the variance of 2^16 equal steps is
// 2^32 / 12 of a step's square.
float Uniform(std::uint64_t bits) {
  constexpr float kStep = 3.4641016F / 65536.0F;
  return (static_cast<float>(static_cast<std::int32_t>(bits & 0xffffU)) - 32767.5F) * kStep;
}

void Fill(std::uint64_t key, std::size_t count, float* to) {
  for (std::size_t draw = 0; draw < count / kPerDraw; ++draw) {
    const std::uint64_t bits = Mix64(key + draw);
    for (std::size_t i = 0; i < kPerDraw; ++i) to[draw * kPerDraw + i] = Uniform(bits >> (16 * i));
  }
}

float Dot(const float* a, const float* b, std::size_t count) {
  std::array<float, kLanes> sums{};
  for (std::size_t i = 0; i < count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

void AddScaled(float scale, const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) to[i + lane] += scale * from[i + lane];
  }
}

}  // namespace

HyperplaneData::HyperplaneData(std::size_t dimensions, std::uint64_t seed)
    : seed_(seed), coefficients_(dimensions) {
  Fill(Mix64(Mix64(seed) + kCoefficients), dimensions, coefficients_.data());
  constexpr float kToOne = 1 / 1.7320508F;  // variance 1 reaches from -sqrt(3) to sqrt(3)
  for (float& coefficient : coefficients_) coefficient *= kToOne;
}

float HyperplaneData::Draw(std::uint64_t stream, std::uint64_t number, float* x) const {
  const std::uint64_t key = Mix64(Mix64(Mix64(seed_) + stream) + number);
  const std::size_t dimensions = coefficients_.size();
  Fill(key, dimensions, x);
  const float noise = Uniform(Mix64(key + dimensions / kPerDraw));
  return Dot(coefficients_.data(), x, dimensions) +
         static_cast<float>(kHyperplaneDeviation) * noise;
}

Hyperplane::Hyperplane(std::size_t dimensions, std::uint64_t seed)
    : data_(dimensions, seed),
      parameters_(dimensions + 1),
      gradients_(dimensions + 1),
      x_(dimensions) {}

std::optional<double> Hyperplane::ComputeGradients(std::uint64_t stream, std::uint64_t first,
                                                   std::size_t count,
                                                   const Interrupted& interrupted) {
  std::fill(gradients_.begin(), gradients_.end(), 0.0F);
  double squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (interrupted()) return std::nullopt;
    const double error = DrawError(stream, first + i);
    squares += error * error;
    const auto scale = static_cast<float>(2 * error / static_cast<double>(count));
    AddScaled(scale, x_.data(), gradients_.data(), x_.size());
    gradients_.back() += scale;
  }
  return squares / static_cast<double>(count);
}

double Hyperplane::Loss(std::uint64_t stream, std::size_t count) {
  double squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double error = DrawError(stream, i);
    squares += error * error;
  }
  return squares / static_cast<double>(count);
}

void Hyperplane::Apply(double learning_rate) {
  const auto rate = static_cast<float>(learning_rate);
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] -= rate * gradients_[i];
}

double Hyperplane::DrawError(std::uint64_t stream, std::uint64_t number) {
  const float y = data_.Draw(stream, number, x_.data());
  return static_cast<double>(Dot(parameters_.data(), x_.data(), x_.size())) +
         static_cast<double>(parameters_.back()) - static_cast<double>(y);
}

}  // namespace example
