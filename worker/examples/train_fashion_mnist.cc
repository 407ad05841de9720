// prd-train: one worker of a data-parallel training of Fashion-MNIST. trainer.cc is the part that
// concerns prd.
#include <algorithm>
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
        model_(args.model, args.train.seed, example::MeanImage(data_)) {}

  std::vector<example::Array> Parameters() override { return model_.Parameters(); }
  std::vector<example::Array> Gradients() override { return model_.Gradients(); }

  std::vector<example::Array> State() override {
    return args_.momentum == 0 ? std::vector<example::Array>() : model_.Velocity();
  }
  void TakePart(int rank, int workers, std::int64_t batch) override {
    rank_ = rank;
    if (batch > 0) {
      order_.emplace(data_.size(), args_.train.seed);
      sampler_.emplace(data_.size(), args_.train.seed);
      return;
    }
    // In place of the whole: many workers share a host.
    data_ = example::TakeShard(data_, args_.sharding, rank, workers, args_.train.seed);
    sampler_.emplace(data_.size(), args_.train.seed * 1'000'003 + static_cast<std::uint64_t>(rank));
  }

  std::optional<double> ComputeGradients(const example::Pass& pass,
                                         const example::Interrupted& interrupted) override {
    return model_.ComputeGradients(data_, Choose(pass), interrupted);
  }

  void Apply(double learning_rate) override { model_.ApplySgd(learning_rate, args_.momentum); }

  std::optional<double> TestAccuracy() override {
    if (!args_.evaluate || rank_ != 0) return std::nullopt;
    return model_.Accuracy(example::LoadDataset(args_.data, "t10k"));
  }

 private:
  // Examples of the pass. In a job that came to have a batch, or has none any more, they are random
  // ones of what the worker has.
  std::vector<std::size_t> Choose(const example::Pass& pass) {
    if (pass.batch > 0 && order_) return PartOfOrder(pass);
    std::vector<std::size_t> chosen(pass.batch > 0 ? static_cast<std::size_t>(pass.samples)
                                                   : args_.train.batch);
    for (std::size_t& index : chosen) index = sampler_->Next();
    return chosen;
  }

  // Under --shards labels each step's batch is sorted by label, so that a worker's samples have one
  // or two of them.
  std::vector<std::size_t> PartOfOrder(const example::Pass& pass) {
    if (args_.sharding == example::Sharding::kIid) {
      return order_->Part(pass.step, pass.first, pass.samples, pass.batch);
    }
    std::vector<std::size_t> all = order_->Part(pass.step, 0, pass.batch, pass.batch);
    std::stable_sort(all.begin(), all.end(), [this](std::size_t a, std::size_t b) {
      return data_.labels[a] < data_.labels[b];
    });
    const auto first = all.begin() + pass.first;
    return {first, first + pass.samples};
  }

  const example::FashionMnistArgs& args_;
  example::Dataset data_;
  example::Model model_;
  std::optional<example::Sampler> sampler_;
  std::optional<example::JobOrder> order_;  // where the job has a batch
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
