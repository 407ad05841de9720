// Shares of workers by the samples in their batches.
#ifndef PRD_ENGINES_SAMPLES_H_
#define PRD_ENGINES_SAMPLES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace prd {

// As an engine keeps them: more than this in one batch count as this many, so that no sum of them
// overflows. 0: the worker did not tell any.
inline std::uint32_t StoredSamples(std::int64_t samples) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(samples, 0, kMost));
}

// Gives each worker its share: in proportion to its samples, or, if that is not asked for or a
// worker did not tell any, an equal one. First Add every worker, then ask.
class SampleShares {
 public:
  explicit SampleShares(bool by_samples) : by_samples_(by_samples) {}

  // A count need not be whole: a mean of several batches.
  void Add(double samples) {
    ++workers_;
    total_ += samples;
    by_samples_ = by_samples_ && samples > 0;
  }

  // REQUIRES: a worker was added.
  bool by_samples() const { return by_samples_; }
  // The weight of a worker that was added with so many samples.
  double Of(double samples) const {
    return by_samples_ ? samples / total_ : 1.0 / static_cast<double>(workers_);
  }
  // For a group's reason.
  const char* Words() const { return by_samples_ ? "; weights by samples" : ""; }

 private:
  bool by_samples_;
  std::int64_t workers_ = 0;
  double total_ = 0;
};

}  // namespace prd

#endif  // PRD_ENGINES_SAMPLES_H_
