// The models of the example, and how bytes of the dataset become their input. The only files of the
// example that know PyTorch.
#ifndef PRD_WORKER_EXAMPLES_MODEL_H_
#define PRD_WORKER_EXAMPLES_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/examples/dataset.h"
#include "worker/examples/pace.h"
#include "worker/examples/trainer.h"

namespace example {

// One replica with its gradients and plain SGD. One thread at a time.
class Model {
 public:
  // kind: "mlp" (784-128-10, 101,770 parameters) or "cnn" (two convolutions and a linear layer,
  // 5,386 parameters). Random numbers for the initial parameters come from `seed`. mean_image: of
  // the training set (MeanImage), subtracted from every input. Throws std::runtime_error for an
  // unknown kind.
  Model(const std::string& kind, std::uint64_t seed, std::vector<float> mean_image);
  ~Model();

  std::vector<Array> Parameters();
  std::vector<Array> Gradients();  // as Parameters
  std::vector<Array> Velocity();   // as Parameters: what momentum keeps of earlier gradients

  // Fills the gradients with those of the mean cross-entropy over the batch, which is returned; or
  // nothing, with undefined gradients, if interrupted, which is asked before every layer, forwards
  // and backwards.
  std::optional<double> ComputeGradients(const Dataset& set, const std::vector<std::size_t>& batch,
                                         const Interrupted& interrupted);
  // parameters -= learning_rate * gradients; with momentum, of their running sum.
  void ApplySgd(double learning_rate, double momentum);

  std::size_t ParameterCount();
  std::vector<float> CopyParameters();
  void SetParameters(const std::vector<float>& values);  // REQUIRES: ParameterCount() of them
  // The share of right answers, 0 to 1.
  double Accuracy(const Dataset& set);

 private:
  struct Net;
  std::unique_ptr<Net> net_;
};

// The whole process computes on the calling thread only: workers outnumber cores.
void ComputeOnOneThread();

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_MODEL_H_
