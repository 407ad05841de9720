// What a step costs one worker: t = scale * (fixed + samples), from computing times alone.
//
// Times of steps are noisy, have outliers, and change for good when another program comes to the
// host or leaves it. Three estimates answer to that:
// - The level is a mean over the last few hundred steps. The first five count by their median; a
//   later one counts as at most three deviations from the mean.
// - The deviation comes from differences of successive steps, which a lasting change leaves as they
//   are (von Neumann, Annals of Mathematical Statistics 12, 1941). It begins as if one step had
//   shown 10 %, so that two equal times do not look certain.
// - A lasting change is a run of the newest 3 to 16 steps which lie on one side of the expectation,
//   by more than the noise explains (the idea of the test: Page, Biometrika 41, 1954). Each step
//   makes up half of that bound at least; one of 8 and two of 16 need not. The estimate starts
//   again from these steps. In the test, no step counts for more than the median of the run: one
//   outlier is no change, nor are two.
//
// The fixed part (start of kernels, a part of the model that no sample needs) shows once a worker
// had different shares. Each share is a point (samples, mean time, weight). A line through the
// points gives both parts: weighted least squares of relative errors, with a weak prior on the last
// shape (fixed, in samples; 0 at first). The prior weighs more where times are noisier. A lasting
// change keeps the shape and drops the points. A point that had no step in the last 64 is dropped
// as well. The fixed part is at most four times what the largest share so far costs without it.
//
// Plain arithmetic and square roots only, which IEEE 754 defines to the bit (no logarithms, which
// differ from one C library to another). Not thread-safe.
#ifndef PRD_ENGINES_STEP_COST_H_
#define PRD_ENGINES_STEP_COST_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/archive.h"
#include "common/base/time.h"

namespace prd {

class StepCost {
 public:
  // One step of `samples` samples took `computing` ns. Values <= 0 are ignored; so is the first
  // step, which is slow for reasons of its own (caches, compilation, allocations).
  void Observe(std::int64_t samples, DurationNs computing);

  // Whether a step counts already.
  bool known() const { return measured_ > 0; }
  // Steps that count, since the last lasting change.
  std::int64_t measured() const { return measured_; }
  // The time of a step of so many samples, in ns. REQUIRES: known().
  double Expect(double samples) const { return scale_ * (fixed_ + samples); }
  double scale() const { return scale_; }  // ns for each sample; > 0 once known
  double fixed() const { return fixed_; }  // the fixed part, in samples; >= 0
  // The relative standard deviation of one step around the expectation.
  double deviation() const;
  // The relative standard error of the expectation at the present share.
  double error() const;
  // The largest share that the estimate has steps of.
  double most_measured() const;
  // Whether the newest observation has shown a lasting change.
  bool changed() const { return changed_; }

  void Archive(StateArchive& ar);

 private:
  struct Step {
    double samples = 0;
    double ns = 0;
    void Archive(StateArchive& ar) { ar(samples, ns); }
  };
  struct Point {
    double samples = 0;
    double ns = 0;              // mean
    double weight = 0;          // in steps
    std::int64_t newest = 0;    // the number of its newest step
    std::vector<double> first;  // its first times, until there are enough of them for a mean
    void Archive(StateArchive& ar) { ar(samples, ns, weight, newest, first); }
  };

  void LearnNoise(const Step& step);
  void AddToPoint(const Step& step);
  double Plausible(const Point& point, double ns) const;
  Point& PointOf(const Step& step);
  void DropOldPoints();
  void Fit();
  std::size_t NewestThatDiffer() const;
  bool Differ(std::size_t count, bool up) const;
  void BeginAgain(std::size_t count);
  double weight() const;

  std::int64_t seen_ = 0;      // all steps, the first one too
  std::int64_t measured_ = 0;  // steps of the present regime
  bool changed_ = false;
  double scale_ = 0;
  double fixed_ = 0;
  double prior_fixed_ = 0;
  double most_samples_ = 0;  // the largest share ever measured
  double noise_ = 0.01;      // the deviation, squared
  double noise_steps_ = 1;
  std::vector<Point> points_;
  std::deque<Step> newest_;  // the newest steps of the present regime, newest last
};

}  // namespace prd

#endif  // PRD_ENGINES_STEP_COST_H_
