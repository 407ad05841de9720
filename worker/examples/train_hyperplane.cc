// prd-train-hyperplane: one worker of a data-parallel hyperplane regression. trainer.cc is the part
// that concerns prd.
#include <cstdio>
#include <exception>

#include "worker/examples/hyperplane.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

namespace {

class HyperplaneLearner : public example::Learner {
 public:
  explicit HyperplaneLearner(const example::TrainArgs& args)
      : batch_(args.batch), model_(example::kHyperplaneDimensions, args.seed) {}

  std::vector<example::Array> Parameters() override { return {ArrayOf(model_.parameters())}; }
  std::vector<example::Array> Gradients() override { return {ArrayOf(model_.gradients())}; }

  void TakePart(int rank, int /*workers*/, std::int64_t /*batch*/) override {
    stream_ = example::HyperplaneData::StreamOf(rank);
  }

  std::optional<double> ComputeGradients(const example::Pass& pass,
                                         const example::Interrupted& interrupted) override {
    if (pass.batch > 0) {
      const std::int64_t number = (pass.step - 1) * pass.batch + pass.first;
      return model_.ComputeGradients(example::HyperplaneData::StreamOf(0),
                                     static_cast<std::uint64_t>(number),
                                     static_cast<std::size_t>(pass.samples), interrupted);
    }
    const std::uint64_t first = next_;
    next_ += batch_;
    return model_.ComputeGradients(stream_, first, batch_, interrupted);
  }

  void Apply(double learning_rate) override { model_.Apply(learning_rate); }

  std::optional<double> ValidationLoss() override {
    return model_.Loss(example::HyperplaneData::kHeldOut, example::kHeldOutExamples);
  }

 private:
  static example::Array ArrayOf(std::vector<float>& values) {
    return {values.data(), values.size()};
  }

  const std::size_t batch_;
  example::Hyperplane model_;
  std::uint64_t stream_ = 0;
  std::uint64_t next_ = 0;  // the next example's number in the stream
};

}  // namespace

int main(int argc, char** argv) {
  // The batch is the paper's 2,048 among 8 workers. A worker that steps on 256 examples alone, as
  // under engines that average models, diverges from a rate of 0.03 on: dimensions / batch = 32.
  example::TrainArgs args{.batch = 256, .learning_rate = 0.02};
  int exit_code = 0;
  if (!example::ParseHyperplaneArgs(argc, argv, &args, &exit_code)) return exit_code;
  try {
    HyperplaneLearner learner(args);
    return example::RunTrainer("prd-train-hyperplane", args, learner);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-train-hyperplane: %s\n", error.what());
    return 1;
  }
}
