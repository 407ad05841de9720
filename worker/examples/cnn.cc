#include "worker/examples/cnn.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "worker/examples/random_bits.h"

namespace example {
namespace {

using cnn::Convolution1;
using cnn::Convolution2;
using cnn::Kernel;

static_assert(cnn::kImage == kPixels && cnn::kAnswers == kClasses);

constexpr float kDeviation = 90.0F;  // of the training set's pixels

// Where the layers' parameters begin.
constexpr std::size_t kOf2 = Convolution1::kParameters;
constexpr std::size_t kOfLinear = kOf2 + Convolution2::kParameters;

class HostDevice : public CnnDevice {
 public:
  std::string name() const override { return "cpu"; }
  void* stream() const override { return nullptr; }

  void* Allocate(std::size_t bytes) override {
    blocks_.emplace_back((bytes + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    return blocks_.back().data();
  }
  void CopyIn(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void CopyOut(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void Run(const Kernel& kernel) override {
    std::visit(
        [](const auto& of) {
          const unsigned count = of.count();
          for (unsigned i = 0; i < count; ++i) of(i);
        },
        kernel);
  }
  void AskScore(const cnn::Score* score) override {
    if (!asked_) asked_ = *score;
  }
  std::optional<cnn::Score> TakeScore() override { return std::exchange(asked_, std::nullopt); }

 private:
  std::vector<std::vector<std::uint64_t>> blocks_;  // aligned for whatever they hold
  std::optional<cnn::Score> asked_;
};

void DrawUniform(std::uint64_t seed, unsigned fan_in, std::size_t first, std::size_t end,
                 std::vector<float>* values) {
  const float bound = 1 / std::sqrt(static_cast<float>(fan_in));
  for (std::size_t i = first; i < end; ++i) {
    // 24 bits: what a float holds.
    const auto bits = static_cast<float>(Mix64(Mix64(seed) + i) >> 40U);
    (*values)[i] = bound * (bits / 8388608.0F - 1);
  }
}

std::vector<float> InitialParameters(std::uint64_t seed) {
  std::vector<float> values(cnn::kParameters);
  DrawUniform(seed, Convolution1::kFanIn, 0, kOf2, &values);
  DrawUniform(seed, Convolution2::kFanIn, kOf2, kOfLinear, &values);
  DrawUniform(seed, cnn::kHidden, kOfLinear, cnn::kParameters, &values);
  return values;
}

}  // namespace

std::unique_ptr<CnnDevice> MakeHostDevice() { return std::make_unique<HostDevice>(); }

Cnn::Cnn(std::unique_ptr<CnnDevice> device, std::uint64_t seed,
         const std::vector<float>& mean_image, std::size_t batch)
    : device_(std::move(device)),
      batch_(static_cast<unsigned>(batch)),
      parameters_(Allocate<float>(cnn::kParameters)),
      gradients_(Allocate<float>(cnn::kParameters)),
      velocity_(Allocate<float>(cnn::kParameters)),
      mean_image_(Allocate<float>(cnn::kImage)),
      examples_(Allocate<std::uint32_t>(batch)),
      input_(Allocate<float>(batch * cnn::kImage)),
      convolved1_(Allocate<float>(batch * Convolution1::kOut)),
      convolved2_(Allocate<float>(batch * Convolution2::kOut)),
      answers_(Allocate<float>(batch * cnn::kAnswers)),
      losses_(Allocate<float>(batch)),
      right_(Allocate<float>(batch)),
      score_(Allocate<cnn::Score>(1)),
      convolved1_gradient_(Allocate<float>(batch * Convolution1::kOut)),
      convolved2_gradient_(Allocate<float>(batch * Convolution2::kOut)),
      parts1_(Allocate<float>(batch * Convolution1::kParameters)),
      parts2_(Allocate<float>(batch * Convolution2::kParameters)) {
  SetParameters(InitialParameters(seed));
  device_->CopyIn(mean_image_, mean_image.data(), cnn::kImage * sizeof(float));
}

std::vector<Array> Cnn::Arrays(float* first) const {
  std::vector<Array> arrays;
  for (const unsigned count :
       {Convolution1::kWeights, Convolution1::kOutChannels, Convolution2::kWeights,
        Convolution2::kOutChannels, cnn::kLinearWeights, cnn::kAnswers}) {
    arrays.push_back({first, count});
    first += count;
  }
  return arrays;
}

void Cnn::CopyIn(const Dataset& set, std::size_t first, std::size_t count, Data* data) {
  if (data->capacity < count) {
    *data = {Allocate<std::uint8_t>(count * kPixels), Allocate<std::uint8_t>(count), count};
  }
  device_->CopyIn(data->images, set.images.data() + first * kPixels, count * kPixels);
  device_->CopyIn(data->labels, set.labels.data() + first, count);
}

void Cnn::SetData(const Dataset& set) { CopyIn(set, 0, set.size(), &training_); }

std::vector<Kernel> Cnn::Forward(const Data& data, unsigned batch) const {
  return {
      cnn::ReadInput{batch, data.images, examples_, mean_image_, kDeviation, input_},
      cnn::ConvolutionForward<Convolution1>{batch, input_, parameters_, convolved1_},
      cnn::ConvolutionForward<Convolution2>{batch, convolved1_, parameters_ + kOf2, convolved2_},
      cnn::LinearForward{batch, convolved2_, parameters_ + kOfLinear, answers_},
      cnn::CrossEntropy{batch, data.labels, examples_, answers_, losses_, right_},
  };
}

std::vector<Kernel> Cnn::Backward() const {
  return {
      cnn::LinearGradients{batch_, convolved2_, answers_, gradients_ + kOfLinear},
      cnn::LinearBackward{batch_, convolved2_, parameters_ + kOfLinear, answers_,
                          convolved2_gradient_},
      cnn::ConvolutionParts<Convolution2>{batch_, convolved1_, convolved2_gradient_, parts2_},
      cnn::SumParts{batch_, Convolution2::kParameters, parts2_, gradients_ + kOf2},
      cnn::ConvolutionBackward<Convolution2>{batch_, convolved1_, parameters_ + kOf2,
                                             convolved2_gradient_, convolved1_gradient_},
      cnn::ConvolutionParts<Convolution1>{batch_, input_, convolved1_gradient_, parts1_},
      cnn::SumParts{batch_, Convolution1::kParameters, parts1_, gradients_},
  };
}

bool Cnn::ComputeGradients(const std::vector<std::size_t>& batch, const Interrupted& interrupted) {
  const std::vector<std::uint32_t> examples(batch.begin(), batch.end());
  device_->CopyIn(examples_, examples.data(), examples.size() * sizeof(std::uint32_t));
  for (const auto& kernels : {Forward(training_, batch_), Backward()}) {
    for (const Kernel& kernel : kernels) {
      if (interrupted()) return false;
      device_->Run(kernel);
    }
  }
  if (until_score_-- == 0) {
    until_score_ = kScoreEvery - 1;
    device_->Run(cnn::SumScore{batch_, losses_, right_, score_});
    device_->AskScore(score_);
  }
  return true;
}

std::optional<cnn::Score> Cnn::LastScore() {
  if (const std::optional<cnn::Score> score = device_->TakeScore()) last_score_ = score;
  return last_score_;
}

void Cnn::ApplySgd(double learning_rate, double momentum) {
  device_->Run(cnn::SgdStep{static_cast<float>(learning_rate), static_cast<float>(momentum),
                            gradients_, velocity_, parameters_});
}

std::vector<float> Cnn::CopyParameters() {
  std::vector<float> values(cnn::kParameters);
  device_->CopyOut(values.data(), parameters_, values.size() * sizeof(float));
  return values;
}

void Cnn::SetParameters(const std::vector<float>& values) {
  device_->CopyIn(parameters_, values.data(), cnn::kParameters * sizeof(float));
}

std::vector<float> Cnn::CopyGradients() {
  std::vector<float> values(cnn::kParameters);
  device_->CopyOut(values.data(), gradients_, values.size() * sizeof(float));
  return values;
}

double Cnn::Accuracy(const Dataset& set) {
  std::vector<std::uint32_t> examples(batch_);
  std::iota(examples.begin(), examples.end(), 0U);
  device_->CopyIn(examples_, examples.data(), batch_ * sizeof(std::uint32_t));
  double right = 0;
  for (std::size_t first = 0; first < set.size(); first += batch_) {
    const std::size_t count = std::min<std::size_t>(batch_, set.size() - first);
    CopyIn(set, first, count, &test_);
    const auto batch = static_cast<unsigned>(count);
    for (const Kernel& kernel : Forward(test_, batch)) device_->Run(kernel);
    device_->Run(cnn::SumScore{batch, losses_, right_, score_});
    cnn::Score score{};
    device_->CopyOut(&score, score_, sizeof(score));
    right += static_cast<double>(score.right);
  }
  return right / static_cast<double>(set.size());
}

}  // namespace example
