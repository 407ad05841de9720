// The gradients of a step that a worker computes in several passes (prd::StepResult::partial).
#ifndef PRD_WORKER_EXAMPLES_PASS_MEAN_H_
#define PRD_WORKER_EXAMPLES_PASS_MEAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/examples/trainer.h"

namespace example {

// Keeps the mean over the samples of the passes so far. The sum of two passes' gradients would not
// do: each is a mean already, and the passes may have had unequal numbers of samples.
class PassMean {
 public:
  // `gradients` are those of a pass of so many samples, in host memory: makes them the mean over
  // all passes of the step. REQUIRES: samples > 0, arrays of the same sizes in each call.
  void Add(const std::vector<Array>& gradients, std::int64_t samples) {
    const double all = static_cast<double>(samples_ + samples);
    const auto old_part = static_cast<float>(static_cast<double>(samples_) / all);
    const auto new_part = static_cast<float>(static_cast<double>(samples) / all);
    samples_ += samples;
    std::size_t at = 0;
    for (std::size_t a = 0; samples_ > samples && a < gradients.size(); ++a) {
      for (std::size_t i = 0; i < gradients[a].count; ++i, ++at) {
        float& value = gradients[a].data[i];
        value = mean_[at] * old_part + value * new_part;
      }
    }
  }
  // The step goes on: what the gradients are now counts in the next Add.
  void Keep(const std::vector<Array>& gradients) {
    mean_.clear();
    for (const Array& array : gradients) {
      mean_.insert(mean_.end(), array.data, array.data + array.count);
    }
  }
  // The step is over, or its passes count for nothing.
  void Restart() { samples_ = 0; }

 private:
  std::int64_t samples_ = 0;  // of the passes so far
  std::vector<float> mean_;   // before the newest one
};

}  // namespace example

#endif  // PRD_WORKER_EXAMPLES_PASS_MEAN_H_
