#include "worker/examples/model.h"

#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace example {
namespace {

constexpr float kDeviation = 90.0F;  // of the training set's pixels
constexpr std::size_t kEvaluationBatch = 1000;

struct Batch {
  torch::Tensor input;
  torch::Tensor label;
};

// `at(i)` is the example at place i of the batch.
template <typename At>
Batch MakeBatch(const Dataset& set, const std::vector<float>& mean, std::size_t size, At at) {
  const auto rows = static_cast<std::int64_t>(size);
  Batch batch{torch::empty({rows, 1, kSide, kSide}), torch::empty({rows}, torch::kInt64)};
  float* input = batch.input.data_ptr<float>();
  std::int64_t* label = batch.label.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t example = at(i);
    const std::uint8_t* image = set.images.data() + example * kPixels;
    for (std::size_t p = 0; p < kPixels; ++p) {
      *input++ = (static_cast<float>(image[p]) - mean[p]) / kDeviation;
    }
    label[i] = set.labels[example];
  }
  return batch;
}

torch::nn::Sequential MakeNet(const std::string& kind) {
  namespace nn = torch::nn;
  if (kind == "mlp") {
    return nn::Sequential(nn::Flatten(), nn::Linear(kPixels, 128), nn::ReLU(),
                          nn::Linear(128, kClasses));
  }
  if (kind == "cnn") {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 5).stride(2)), nn::ReLU(),
                          nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2)), nn::ReLU(),
                          nn::Flatten(), nn::Linear(16 * 5 * 5, kClasses));
  }
  throw std::runtime_error("model: found '" + kind + "', allowed is mlp or cnn");
}

Array ArrayOf(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

struct Model::Net {
  torch::nn::Sequential layers{nullptr};
  std::vector<float> mean_image;
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> velocity;  // empty until it is asked for, or used
  void MakeVelocity() {
    if (!velocity.empty()) return;
    for (const torch::Tensor& p : parameters) velocity.push_back(torch::zeros_like(p));
  }
};

Model::Model(const std::string& kind, std::uint64_t seed, std::vector<float> mean_image)
    : net_(std::make_unique<Net>()) {
  net_->mean_image = std::move(mean_image);
  torch::manual_seed(seed);
  net_->layers = MakeNet(kind);
  net_->parameters = net_->layers->parameters();
  // A gradient that is there already is added to in place, so its address never changes.
  for (torch::Tensor& p : net_->parameters) p.mutable_grad() = torch::zeros_like(p);
}

Model::~Model() = default;

std::vector<Array> Model::Parameters() {
  std::vector<Array> arrays;
  for (const torch::Tensor& p : net_->parameters) arrays.push_back(ArrayOf(p));
  return arrays;
}

std::vector<Array> Model::Gradients() {
  std::vector<Array> arrays;
  for (const torch::Tensor& p : net_->parameters) arrays.push_back(ArrayOf(p.grad()));
  return arrays;
}

std::vector<Array> Model::Velocity() {
  net_->MakeVelocity();
  std::vector<Array> arrays;
  for (const torch::Tensor& v : net_->velocity) arrays.push_back(ArrayOf(v));
  return arrays;
}

std::optional<double> Model::ComputeGradients(const Dataset& set,
                                              const std::vector<std::size_t>& batch,
                                              const Interrupted& interrupted) {
  const Batch examples =
      MakeBatch(set, net_->mean_image, batch.size(), [&](std::size_t i) { return batch[i]; });
  for (torch::Tensor& p : net_->parameters) p.mutable_grad().zero_();
  // Each layer is a graph of its own, so that the way back can be left between two of them.
  std::vector<torch::Tensor> inputs, outputs;
  torch::Tensor at = examples.input;
  for (torch::nn::AnyModule& layer : *net_->layers) {
    if (interrupted()) return std::nullopt;
    inputs.push_back(at.detach().requires_grad_(at.requires_grad()));
    outputs.push_back(layer.forward(inputs.back()));
    at = outputs.back();
  }
  const torch::Tensor answer = at.detach().requires_grad_();
  const torch::Tensor loss = torch::nn::functional::cross_entropy(answer, examples.label);
  loss.backward();
  torch::Tensor gradient = answer.grad();
  for (std::size_t i = outputs.size(); i-- > 0 && outputs[i].requires_grad();) {
    if (interrupted()) return std::nullopt;
    outputs[i].backward(gradient);
    gradient = inputs[i].grad();
  }
  return loss.item<double>();
}

void Model::ApplySgd(double learning_rate, double momentum) {
  const torch::NoGradGuard no_grad;
  if (momentum != 0) net_->MakeVelocity();
  for (std::size_t i = 0; i < net_->parameters.size(); ++i) {
    torch::Tensor& p = net_->parameters[i];
    if (momentum == 0) {
      p.sub_(p.grad(), learning_rate);
    } else {
      net_->velocity[i].mul_(momentum).add_(p.grad());
      p.sub_(net_->velocity[i], learning_rate);
    }
  }
}

std::size_t Model::ParameterCount() {
  std::size_t count = 0;
  for (const Array& array : Parameters()) count += array.count;
  return count;
}

std::vector<float> Model::CopyParameters() {
  std::vector<float> values;
  values.reserve(ParameterCount());
  for (const Array& array : Parameters()) {
    values.insert(values.end(), array.data, array.data + array.count);
  }
  return values;
}

void Model::SetParameters(const std::vector<float>& values) {
  const float* from = values.data();
  for (const Array& array : Parameters()) {
    std::copy_n(from, array.count, array.data);
    from += array.count;
  }
}

double Model::Accuracy(const Dataset& set) {
  const torch::NoGradGuard no_grad;
  std::int64_t right = 0;
  for (std::size_t first = 0; first < set.size(); first += kEvaluationBatch) {
    const std::size_t size = std::min(kEvaluationBatch, set.size() - first);
    const Batch batch =
        MakeBatch(set, net_->mean_image, size, [&](std::size_t i) { return first + i; });
    const torch::Tensor answer = net_->layers->forward(batch.input).argmax(1);
    right += answer.eq(batch.label).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(set.size());
}

void ComputeOnOneThread() { torch::set_num_threads(1); }

}  // namespace example
