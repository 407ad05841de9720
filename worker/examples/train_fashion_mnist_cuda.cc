// prd-train-cuda: one worker of a data-parallel training of Fashion-MNIST whose replica lives on a
// GPU, without a framework. trainer.cc is the part that concerns prd: it does not know where the
// replica is.
#include <cstdio>
#include <exception>
#include <limits>

#include "worker/examples/cnn.h"
#include "worker/examples/cnn_cuda.h"
#include "worker/examples/dataset.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

namespace {

class FashionMnist : public example::Learner {
 public:
  explicit FashionMnist(const example::FashionMnistCudaArgs& args)
      : args_(args.common),
        data_(example::LoadDataset(args_.data, "train")),
        cnn_(args.device < 0 ? example::MakeHostDevice() : example::MakeCudaDevice(args.device),
             args_.train.seed, example::MeanImage(data_), args_.train.batch),
        batch_(args_.train.batch) {}

  std::string Device() const override { return cnn_.device().name(); }
  void* Stream() const override { return cnn_.device().stream(); }
  std::vector<example::Array> Parameters() override { return cnn_.Parameters(); }
  std::vector<example::Array> Gradients() override { return cnn_.Gradients(); }
  std::vector<float> CopyParameters() override { return cnn_.CopyParameters(); }

  void TakePart(int rank, int workers) override {
    rank_ = rank;
    const std::uint64_t seed = args_.train.seed;
    data_ = example::TakeShard(data_, args_.sharding, rank, workers, seed);
    cnn_.SetData(data_);
    sampler_.emplace(data_.size(), seed * 1'000'003 + static_cast<std::uint64_t>(rank));
    data_ = {};  // the device has it
  }

  std::optional<double> ComputeGradients(const example::Interrupted& interrupted) override {
    for (std::size_t& index : batch_) index = sampler_->Next();
    if (!cnn_.ComputeGradients(batch_, interrupted)) return std::nullopt;
    const std::optional<example::cnn::Score> score = cnn_.LastScore();
    return score ? static_cast<double>(score->loss) : std::numeric_limits<double>::quiet_NaN();
  }

  void Apply(double learning_rate) override { cnn_.ApplySgd(learning_rate, args_.momentum); }

  std::optional<double> TestAccuracy() override {
    if (!args_.evaluate || rank_ != 0) return std::nullopt;
    return cnn_.Accuracy(example::LoadDataset(args_.data, "t10k"));
  }

 private:
  const example::FashionMnistArgs& args_;
  example::Dataset data_;
  example::Cnn cnn_;
  std::optional<example::Sampler> sampler_;
  std::vector<std::size_t> batch_;
  int rank_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  example::FashionMnistCudaArgs args;
  int exit_code = 0;
  if (!example::ParseFashionMnistCudaArgs(argc, argv, &args, &exit_code)) return exit_code;
  try {
    FashionMnist learner(args);
    return example::RunTrainer("prd-train-cuda", args.common.train, learner);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-train-cuda: %s\n", error.what());
    return 1;
  }
}
