// The small CNN as kernels: each a value that says what it reads and writes, and computes one
// element of it. The host runs them in loops (cnn.cc), a GPU as a thread for each element
// (cnn_cuda.cu); so what is tested on the one is what runs on the other.
//
//   images 28x28 -> Convolution1, ReLU -> 8x12x12 -> Convolution2, ReLU -> 16x5x5 -> linear -> 10
//
// Arrays are row by row: [example][channel][y][x], and weights as PyTorch has them. No element is
// written by two threads, and sums are in a fixed order: the same input gives the same bits on the
// same device.
#ifndef PRD_WORKER_EXAMPLES_CNN_KERNELS_H_
#define PRD_WORKER_EXAMPLES_CNN_KERNELS_H_

#include <cmath>
#include <cstdint>
#include <variant>

#if defined(__CUDACC__)
#define PRD_EXAMPLE_ELEMENT __host__ __device__
#else
#define PRD_EXAMPLE_ELEMENT
#endif

namespace example::cnn {

// Without padding, and with a stride of 2.
template <unsigned in_channels, unsigned in_side, unsigned out_channels, unsigned kernel>
struct Convolution {
  static constexpr unsigned kInChannels = in_channels;
  static constexpr unsigned kInSide = in_side;
  static constexpr unsigned kIn = in_channels * in_side * in_side;
  static constexpr unsigned kOutChannels = out_channels;
  static constexpr unsigned kOutSide = (in_side - kernel) / 2 + 1;
  static constexpr unsigned kOutArea = kOutSide * kOutSide;
  static constexpr unsigned kOut = out_channels * kOutArea;
  static constexpr unsigned kKernel = kernel;
  static constexpr unsigned kFanIn = in_channels * kernel * kernel;
  static constexpr unsigned kWeights = out_channels * kFanIn;
  static constexpr unsigned kParameters = kWeights + out_channels;  // the biases follow
};
using Convolution1 = Convolution<1, 28, 8, 5>;
using Convolution2 = Convolution<8, Convolution1::kOutSide, 16, 3>;

inline constexpr unsigned kImage = Convolution1::kIn;
inline constexpr unsigned kHidden = Convolution2::kOut;
inline constexpr unsigned kAnswers = 10;
inline constexpr unsigned kLinearWeights = kAnswers * kHidden;
inline constexpr unsigned kLinearParameters = kLinearWeights + kAnswers;
inline constexpr unsigned kParameters =
    Convolution1::kParameters + Convolution2::kParameters + kLinearParameters;

// The batch's images, less the mean image and over the pixels' deviation.
struct ReadInput {
  unsigned batch;
  const std::uint8_t* images;
  const std::uint32_t* examples;  // which images
  const float* mean;
  float deviation;
  float* input;

  unsigned count() const { return batch * kImage; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const unsigned pixel = i % kImage;
    const std::size_t image = examples[i / kImage];
    input[i] = (static_cast<float>(images[image * kImage + pixel]) - mean[pixel]) / deviation;
  }
};

// out = max(0, convolution(in) + bias).
template <typename Conv>
struct ConvolutionForward {
  unsigned batch;
  const float* in;
  const float* weights;
  float* out;

  unsigned count() const { return batch * Conv::kOut; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const unsigned x = 2 * (i % Conv::kOutSide);
    const unsigned y = 2 * (i / Conv::kOutSide % Conv::kOutSide);
    const unsigned channel = i / Conv::kOutArea % Conv::kOutChannels;
    const float* image = in + i / Conv::kOut * Conv::kIn;
    const float* weight = weights + channel * Conv::kFanIn;
    float sum = weights[Conv::kWeights + channel];
    for (unsigned c = 0; c < Conv::kInChannels; ++c) {
      for (unsigned ky = 0; ky < Conv::kKernel; ++ky) {
        const float* row = image + (c * Conv::kInSide + y + ky) * Conv::kInSide + x;
        for (unsigned kx = 0; kx < Conv::kKernel; ++kx) sum += row[kx] * *weight++;
      }
    }
    out[i] = sum > 0 ? sum : 0;
  }
};

// One example's part of the gradients of a convolution's weights and biases:
// parts[example][parameter].
template <typename Conv>
struct ConvolutionParts {
  unsigned batch;
  const float* in;
  const float* out_gradient;  // before the ReLU
  float* parts;

  unsigned count() const { return batch * Conv::kParameters; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const unsigned parameter = i % Conv::kParameters;
    const unsigned example = i / Conv::kParameters;
    const float* gradients = out_gradient + example * Conv::kOut;
    parts[i] = parameter < Conv::kWeights
                   ? OfWeight(parameter, in + example * Conv::kIn, gradients)
                   : OfBias(gradients + (parameter - Conv::kWeights) * Conv::kOutArea);
  }

 private:
  PRD_EXAMPLE_ELEMENT float OfWeight(unsigned weight, const float* image,
                                     const float* gradients) const {
    const unsigned kx = weight % Conv::kKernel;
    const unsigned ky = weight / Conv::kKernel % Conv::kKernel;
    const unsigned in_channel = weight / (Conv::kKernel * Conv::kKernel) % Conv::kInChannels;
    const float* gradient = gradients + weight / Conv::kFanIn * Conv::kOutArea;
    const float* corner = image + (in_channel * Conv::kInSide + ky) * Conv::kInSide + kx;
    float sum = 0;
    for (unsigned y = 0; y < Conv::kOutSide; ++y) {
      const float* row = corner + 2 * y * Conv::kInSide;
      for (unsigned x = 0; x < Conv::kOutSide; ++x) sum += row[2 * x] * *gradient++;
    }
    return sum;
  }
  PRD_EXAMPLE_ELEMENT float OfBias(const float* gradient) const {
    float sum = 0;
    for (unsigned i = 0; i < Conv::kOutArea; ++i) sum += gradient[i];
    return sum;
  }
};

// The gradient of a convolution's input, before the ReLU that the input came from.
template <typename Conv>
struct ConvolutionBackward {
  unsigned batch;
  const float* in;  // after that ReLU
  const float* weights;
  const float* out_gradient;
  float* in_gradient;

  unsigned count() const { return batch * Conv::kIn; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const unsigned x = i % Conv::kInSide;
    const unsigned y = i / Conv::kInSide % Conv::kInSide;
    const unsigned in_channel = i / (Conv::kInSide * Conv::kInSide) % Conv::kInChannels;
    const float* gradients = out_gradient + i / Conv::kIn * Conv::kOut;
    float sum = 0;
    // Outputs see this input at the kernel's places of its own parity alone.
    for (unsigned ky = y % 2; ky < Conv::kKernel && ky <= y; ky += 2) {
      const unsigned out_y = (y - ky) / 2;
      if (out_y >= Conv::kOutSide) continue;
      for (unsigned kx = x % 2; kx < Conv::kKernel && kx <= x; kx += 2) {
        const unsigned out_x = (x - kx) / 2;
        if (out_x >= Conv::kOutSide) continue;
        const float* gradient = gradients + out_y * Conv::kOutSide + out_x;
        const float* weight = weights + (in_channel * Conv::kKernel + ky) * Conv::kKernel + kx;
        for (unsigned c = 0; c < Conv::kOutChannels; ++c) {
          sum += gradient[c * Conv::kOutArea] * weight[c * Conv::kFanIn];
        }
      }
    }
    in_gradient[i] = in[i] > 0 ? sum : 0;
  }
};

// sums[parameter] = the sum of the examples' parts.
struct SumParts {
  unsigned batch;
  unsigned parameters;
  const float* parts;
  float* sums;

  unsigned count() const { return parameters; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    float sum = 0;
    for (unsigned b = 0; b < batch; ++b) sum += parts[b * parameters + i];
    sums[i] = sum;
  }
};

// answers = weights * hidden + biases.
struct LinearForward {
  unsigned batch;
  const float* hidden;
  const float* weights;
  float* answers;

  unsigned count() const { return batch * kAnswers; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const float* in = hidden + i / kAnswers * kHidden;
    const float* weight = weights + i % kAnswers * kHidden;
    float sum = weights[kLinearWeights + i % kAnswers];
    for (unsigned k = 0; k < kHidden; ++k) sum += weight[k] * in[k];
    answers[i] = sum;
  }
};

// For each example: its cross-entropy, whether the highest answer is the right one (1 or 0), and
// the gradient of the batch's mean cross-entropy, in place of the answers.
struct CrossEntropy {
  unsigned batch;
  const std::uint8_t* labels;
  const std::uint32_t* examples;
  float* answers;
  float* losses;
  float* right;

  unsigned count() const { return batch; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    float* answer = answers + i * kAnswers;
    const unsigned label = labels[examples[i]];
    unsigned best = 0;
    for (unsigned k = 1; k < kAnswers; ++k) best = answer[k] > answer[best] ? k : best;
    const float most = answer[best];
    const float of_label = answer[label] - most;
    float sum = 0;
    for (unsigned k = 0; k < kAnswers; ++k) {
      answer[k] = std::exp(answer[k] - most);
      sum += answer[k];
    }
    const float scale = 1 / (sum * static_cast<float>(batch));
    for (unsigned k = 0; k < kAnswers; ++k) answer[k] *= scale;
    answer[label] -= 1 / static_cast<float>(batch);
    losses[i] = std::log(sum) - of_label;
    right[i] = best == label ? 1 : 0;
  }
};

// The mean of the losses, and how many answers are right: one element.
struct Score {
  float loss;
  float right;
};
struct SumScore {
  unsigned batch;
  const float* losses;
  const float* right;
  Score* score;

  unsigned count() const { return 1; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned) const {
    Score sum{0, 0};
    for (unsigned b = 0; b < batch; ++b) {
      sum.loss += losses[b];
      sum.right += right[b];
    }
    sum.loss /= static_cast<float>(batch);
    *score = sum;
  }
};

// The gradients of the linear layer's weights and biases.
struct LinearGradients {
  unsigned batch;
  const float* hidden;
  const float* answer_gradient;
  float* gradients;

  unsigned count() const { return kLinearParameters; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    float sum = 0;
    if (i < kLinearWeights) {
      const unsigned answer = i / kHidden;
      const unsigned in = i % kHidden;
      for (unsigned b = 0; b < batch; ++b) {
        sum += answer_gradient[b * kAnswers + answer] * hidden[b * kHidden + in];
      }
    } else {
      for (unsigned b = 0; b < batch; ++b) {
        sum += answer_gradient[b * kAnswers + i - kLinearWeights];
      }
    }
    gradients[i] = sum;
  }
};

// The gradient of the linear layer's input, before the ReLU that it came from.
struct LinearBackward {
  unsigned batch;
  const float* hidden;
  const float* weights;
  const float* answer_gradient;
  float* hidden_gradient;

  unsigned count() const { return batch * kHidden; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const float* gradient = answer_gradient + i / kHidden * kAnswers;
    const float* weight = weights + i % kHidden;
    float sum = 0;
    for (unsigned k = 0; k < kAnswers; ++k) sum += gradient[k] * weight[k * kHidden];
    hidden_gradient[i] = hidden[i] > 0 ? sum : 0;
  }
};

// velocity = momentum * velocity + gradient; parameter -= learning_rate * velocity.
struct SgdStep {
  float learning_rate;
  float momentum;
  const float* gradients;
  float* velocity;
  float* parameters;

  unsigned count() const { return kParameters; }
  PRD_EXAMPLE_ELEMENT void operator()(unsigned i) const {
    const float step = momentum == 0 ? gradients[i] : momentum * velocity[i] + gradients[i];
    velocity[i] = step;
    parameters[i] -= learning_rate * step;
  }
};

using Kernel =
    std::variant<ReadInput, ConvolutionForward<Convolution1>, ConvolutionForward<Convolution2>,
                 LinearForward, CrossEntropy, SumScore, LinearGradients, LinearBackward,
                 ConvolutionParts<Convolution2>, ConvolutionBackward<Convolution2>,
                 ConvolutionParts<Convolution1>, SumParts, SgdStep>;

}  // namespace example::cnn

#endif  // PRD_WORKER_EXAMPLES_CNN_KERNELS_H_
