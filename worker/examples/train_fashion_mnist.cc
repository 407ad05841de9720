// prd-train: one worker of a data-parallel training of Fashion-MNIST. trainer.cc is the part that
// concerns prd.
#include <cstdio>
#include <exception>

#include "worker/examples/dataset.h"
#include "worker/examples/model.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

namespace {

class FashionMnist : public example::Learner {
 public:
  explicit FashionMnist(const example::FashionMnistArgs& args)
      : args_(args),
        data_(example::LoadDataset(args.data, "train")),
        model_(args.model, args.train.seed, example::MeanImage(data_)),
        batch_(args.train.batch) {}

  std::vector<example::Array> Parameters() override { return model_.Parameters(); }
  std::vector<example::Array> Gradients() override { return model_.Gradients(); }

  std::vector<example::Array> State() override {
    return args_.momentum == 0 ? std::vector<example::Array>() : model_.Velocity();
  }
  void TakePart(int rank, int workers) override {
    rank_ = rank;
    // In place of the whole: many workers share a host.
    data_ = example::TakeShard(data_, args_.sharding, rank, workers, args_.train.seed);
    sampler_.emplace(data_.size(), args_.train.seed * 1'000'003 + static_cast<std::uint64_t>(rank));
  }

  std::optional<double> ComputeGradients(const example::Interrupted& interrupted) override {
    for (std::size_t& index : batch_) index = sampler_->Next();
    return model_.ComputeGradients(data_, batch_, interrupted);
  }

  void Apply(double learning_rate) override { model_.ApplySgd(learning_rate, args_.momentum); }

  std::optional<double> TestAccuracy() override {
    if (!args_.evaluate || rank_ != 0) return std::nullopt;
    return model_.Accuracy(example::LoadDataset(args_.data, "t10k"));
  }

 private:
  const example::FashionMnistArgs& args_;
  example::Dataset data_;
  example::Model model_;
  std::optional<example::Sampler> sampler_;
  std::vector<std::size_t> batch_;
  int rank_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  example::FashionMnistArgs args;
  int exit_code = 0;
  if (!example::ParseFashionMnistArgs(argc, argv, &args, &exit_code)) return exit_code;
  try {
    example::ComputeOnOneThread();
    FashionMnist learner(args);
    return example::RunTrainer("prd-train", args.train, learner);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-train: %s\n", error.what());
    return 1;
  }
}
