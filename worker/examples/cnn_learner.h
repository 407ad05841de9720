// Fashion-MNIST, learned by the CNN on a device.
#ifndef PRD_WORKER_EXAMPLES_CNN_LEARNER_H_
#define PRD_WORKER_EXAMPLES_CNN_LEARNER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/examples/cnn.h"
#include "worker/examples/dataset.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

namespace example {

class CnnLearner : public Learner {
 public:
  // Uses all arguments but the model.
  CnnLearner(const FashionMnistArgs& args, std::unique_ptr<CnnDevice> device);

  std::string Device() const override { return cnn_.device().name(); }
  void* Stream() const override { return cnn_.device().stream(); }
  std::vector<Array> Parameters() override { return cnn_.Parameters(); }
  std::vector<Array> Gradients() override { return cnn_.Gradients(); }
  std::vector<Array> State() override {
    return args_.momentum == 0 ? std::vector<Array>() : cnn_.Velocity();
  }
  std::vector<float> CopyParameters() override { return cnn_.CopyParameters(); }
  void TakePart(int rank, int workers, std::int64_t batch) override;
  // Its device has memory for one size of batch.
  bool TakesShares() const override { return false; }
  std::optional<double> ComputeGradients(const Pass& pass, const Interrupted& interrupted) override;
  void Apply(double learning_rate) override { cnn_.ApplySgd(learning_rate, args_.momentum); }
  std::optional<double> TestAccuracy() override;

 private:
  const FashionMnistArgs args_;
  Dataset data_;  // until the device has its part
  Cnn cnn_;
  std::optional<Sampler> sampler_;
  std::vector<std::size_t> batch_;
  int rank_ = -1;
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_CNN_LEARNER_H_
