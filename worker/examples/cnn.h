// The example's CNN without a framework, as it would be on a GPU: all that it has, the data
// included, stays in the memory of one device, and all that it computes is enqueued on one stream
// there. The parameters are those of `prd-train --model cnn`, in the same order.
#ifndef PRD_WORKER_EXAMPLES_CNN_H_
#define PRD_WORKER_EXAMPLES_CNN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/examples/cnn_kernels.h"
#include "worker/examples/dataset.h"
#include "worker/examples/pace.h"
#include "worker/examples/trainer.h"

namespace example {

// A device with one stream. What it gives is its own, and valid as long as it is. All methods throw
// std::runtime_error for what the device refuses. One thread at a time.
class CnnDevice {
 public:
  virtual ~CnnDevice() = default;

  // As prd::Replica has them.
  virtual std::string name() const = 0;
  virtual void* stream() const = 0;

  // Memory of the device, all zeros, for good.
  virtual void* Allocate(std::size_t bytes) = 0;
  // Enqueues; `from` is the caller's again on return.
  virtual void CopyIn(void* to, const void* from, std::size_t bytes) = 0;
  // Blocks until the stream is there.
  virtual void CopyOut(void* to, const void* from, std::size_t bytes) = 0;
  // Enqueues each element of the kernel.
  virtual void Run(const cnn::Kernel& kernel) = 0;

  // Asks for a score when the stream is there, without waiting for it; an earlier one that is not
  // taken yet is kept, and this one is not asked for.
  virtual void AskScore(const cnn::Score* score) = 0;
  // That was asked for, once, as soon as it is there.
  virtual std::optional<cnn::Score> TakeScore() = 0;
};

// The processor, in plain loops.
std::unique_ptr<CnnDevice> MakeHostDevice();

// One replica with its gradients and SGD. One thread at a time.
class Cnn {
 public:
  // Each parameter is drawn as PyTorch draws it: uniform within 1 over the square root of its
  // layer's inputs. mean_image: of the training set (MeanImage). batch: examples per step.
  Cnn(std::unique_ptr<CnnDevice> device, std::uint64_t seed, const std::vector<float>& mean_image,
      std::size_t batch);

  const CnnDevice& device() const { return *device_; }
  std::vector<Array> Parameters() const { return Arrays(parameters_); }
  std::vector<Array> Gradients() const { return Arrays(gradients_); }
  // What momentum keeps of earlier gradients.
  std::vector<Array> Velocity() const { return Arrays(velocity_); }

  // What ComputeGradients takes its batches from, in place of what was.
  void SetData(const Dataset& set);
  // Enqueues the gradients of the mean cross-entropy over the batch (places in the data, as many
  // as the batch has). False, with undefined gradients, if interrupted, which is asked before every
  // layer. The score of a step in kScoreEvery is read back meanwhile (LastScore).
  bool ComputeGradients(const std::vector<std::size_t>& batch, const Interrupted& interrupted);
  // The last step whose score is here: its loss, and how many of its batch were right. Nothing
  // before the first.
  std::optional<cnn::Score> LastScore();
  // Enqueues parameters -= learning_rate * gradients; with momentum, of their running sum.
  void ApplySgd(double learning_rate, double momentum);

  std::vector<float> CopyParameters();                   // blocks until they are there
  void SetParameters(const std::vector<float>& values);  // REQUIRES: cnn::kParameters of them
  std::vector<float> CopyGradients();
  // The share of right answers, 0 to 1. Blocks.
  double Accuracy(const Dataset& set);

  static constexpr int kScoreEvery = 10;

 private:
  // Images and labels on the device.
  struct Data {
    std::uint8_t* images = nullptr;
    std::uint8_t* labels = nullptr;
    std::size_t capacity = 0;  // examples
  };

  template <typename T>
  T* Allocate(std::size_t count) {
    return static_cast<T*>(device_->Allocate(count * sizeof(T)));
  }
  std::vector<Array> Arrays(float* first) const;
  void CopyIn(const Dataset& set, std::size_t first, std::size_t count, Data* data);
  std::vector<cnn::Kernel> Forward(const Data& data, unsigned batch) const;
  std::vector<cnn::Kernel> Backward() const;

  const std::unique_ptr<CnnDevice> device_;
  const unsigned batch_;
  int until_score_ = 0;
  std::optional<cnn::Score> last_score_;
  Data training_;
  Data test_;

  // On the device. The first three: as kParameters are laid out.
  float* const parameters_;
  float* const gradients_;
  float* const velocity_;
  float* const mean_image_;
  std::uint32_t* const examples_;
  float* const input_;
  float* const convolved1_;
  float* const convolved2_;
  float* const answers_;  // their gradient after CrossEntropy
  float* const losses_;
  float* const right_;
  cnn::Score* const score_;
  float* const convolved1_gradient_;
  float* const convolved2_gradient_;
  float* const parts1_;
  float* const parts2_;
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_CNN_H_
