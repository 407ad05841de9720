#include "worker/examples/cnn_learner.h"

#include <limits>
#include <utility>

namespace example {

CnnLearner::CnnLearner(const FashionMnistArgs& args, std::unique_ptr<CnnDevice> device)
    : args_(args),
      data_(LoadDataset(args_.data, "train")),
      cnn_(std::move(device), args_.train.seed, MeanImage(data_), args_.train.batch),
      batch_(args_.train.batch) {}

void CnnLearner::TakePart(int rank, int workers, std::int64_t /*batch*/) {
  rank_ = rank;
  const std::uint64_t seed = args_.train.seed;
  const Dataset part = TakeShard(data_, args_.sharding, rank, workers, seed);
  data_ = {};
  cnn_.SetData(part);
  sampler_.emplace(part.size(), seed * 1'000'003 + static_cast<std::uint64_t>(rank));
}

std::optional<double> CnnLearner::ComputeGradients(const Pass& /*pass*/,
                                                   const Interrupted& interrupted) {
  for (std::size_t& index : batch_) index = sampler_->Next();
  if (!cnn_.ComputeGradients(batch_, interrupted)) return std::nullopt;
  const std::optional<cnn::Score> score = cnn_.LastScore();
  return score ? static_cast<double>(score->loss) : std::numeric_limits<double>::quiet_NaN();
}

std::optional<double> CnnLearner::TestAccuracy() {
  if (!args_.evaluate || rank_ != 0) return std::nullopt;
  return cnn_.Accuracy(LoadDataset(args_.data, "t10k"));
}

}  // namespace example
