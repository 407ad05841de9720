#include "engines/step_cost.h"

#include <algorithm>
#include <cmath>

namespace prd {
namespace {

constexpr double kWindow = 300;      // steps in the mean
constexpr double kNoiseWindow = 64;  // steps in the deviation
constexpr double kLeastDeviation = 0.005;
constexpr double kClip = 3;          // deviations by which a step may differ from the mean
constexpr double kLeastClip = 0.03;  // the same as a part of the mean
constexpr std::size_t kFirst = 5;    // steps that count by their median
constexpr double kSameShare = 0.03;  // shares that differ by less are one point
constexpr std::size_t kMostPoints = 6;
constexpr std::int64_t kPointAge = 64;
constexpr double kShapeDeviation = 0.3;  // of the prior on the shape, as a part of a step's time
constexpr double kMostFixed = 4;         // times the largest share
constexpr std::size_t kRuns[] = {3, 4, 5, 6, 7, 8, 12, 16};  // steps that show a lasting change
constexpr std::size_t kMostRun = 16;
constexpr std::size_t kMostMisfits = 8;  // a run of so many may have one step on the other side
constexpr double kSurprise = 4.25;       // deviations of a mean that noise does not explain
constexpr double kLeastChange = 0.03;
constexpr double kLeastPart = 0.5;  // of the change, in each step of a run

double LowerMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

bool SameShare(double a, double b) { return std::abs(a - b) <= kSameShare * std::max(a, b); }

}  // namespace

double StepCost::deviation() const { return std::max(std::sqrt(noise_), kLeastDeviation); }

double StepCost::weight() const {
  double sum = 0;
  for (const Point& point : points_) sum += point.weight;
  return sum;
}

double StepCost::error() const {
  const double steps = std::max(weight(), 1.0);
  const double of_median = steps <= static_cast<double>(kFirst) ? 1.25 : 1;
  return of_median * deviation() / std::sqrt(steps);
}

void StepCost::Observe(std::int64_t samples, DurationNs computing) {
  if (samples <= 0 || computing <= 0) return;
  changed_ = false;
  if (++seen_ == 1) return;
  const Step step{static_cast<double>(samples), static_cast<double>(computing)};
  LearnNoise(step);
  most_samples_ = std::max(most_samples_, step.samples);
  newest_.push_back(step);
  if (newest_.size() > kMostRun) newest_.pop_front();
  ++measured_;
  AddToPoint(step);
  DropOldPoints();
  Fit();
  if (const std::size_t count = NewestThatDiffer(); count > 0) BeginAgain(count);
}

// Half the squared difference of two successive steps of one share, relative to their mean.
void StepCost::LearnNoise(const Step& step) {
  if (newest_.empty() || !SameShare(newest_.back().samples, step.samples)) return;
  const double before = newest_.back().ns * Expect(step.samples) / Expect(newest_.back().samples);
  const double difference = 2 * (step.ns - before) / (step.ns + before);
  const double square = std::min(difference * difference / 2, kClip * kClip * noise_);
  noise_steps_ = std::min(noise_steps_ + 1, kNoiseWindow);
  noise_ += (square - noise_) / noise_steps_;
  noise_ = std::max(noise_, kLeastDeviation * kLeastDeviation);
}

StepCost::Point& StepCost::PointOf(const Step& step) {
  for (Point& point : points_) {
    if (SameShare(point.samples, step.samples)) return point;
  }
  points_.push_back({step.samples, 0, 0, 0, {}});
  return points_.back();
}

// With any fixed part the time of a share is between that of the heaviest other point and the
// proportional one. The few first times of a point are held to that, so that an outlier is no
// shape.
double StepCost::Plausible(const Point& point, double ns) const {
  const Point* other = nullptr;
  for (const Point& each : points_) {
    if (&each != &point && (other == nullptr || each.weight > other->weight)) other = &each;
  }
  if (other == nullptr || other->weight < point.weight) return ns;
  const double ratio = point.samples / other->samples;
  const double most = 1 + std::max(kClip * deviation(), kLeastClip);
  return std::clamp(ns, other->ns * std::min(1.0, ratio) / most,
                    other->ns * std::max(1.0, ratio) * most);
}

void StepCost::AddToPoint(const Step& step) {
  Point& point = PointOf(step);
  point.newest = seen_;
  const double ns = scale_ > 0 ? step.ns * Expect(point.samples) / Expect(step.samples) : step.ns;
  point.weight += 1;
  if (point.weight <= 1 || !point.first.empty()) {
    point.first.push_back(Plausible(point, ns));
    point.ns = LowerMedian(point.first);
    if (point.first.size() == kFirst) point.first.clear();
  } else {
    const double most = std::max(kClip * deviation(), kLeastClip);
    const double counted = std::clamp(ns, point.ns / (1 + most), point.ns * (1 + most));
    point.ns += (counted - point.ns) / point.weight;
  }
  const double all = weight();
  if (all <= kWindow) return;
  for (Point& each : points_) each.weight *= kWindow / all;
}

// The shape that the points have shown stays as the prior.
void StepCost::DropOldPoints() {
  const auto oldest = [this] {
    return std::min_element(points_.begin(), points_.end(),
                            [](const Point& a, const Point& b) { return a.newest < b.newest; });
  };
  while (points_.size() > kMostPoints || oldest()->newest + kPointAge < seen_) {
    points_.erase(oldest());
    prior_fixed_ = fixed_;
  }
}

// Samples and times are relative to their means here, so that the sums are of one magnitude.
void StepCost::Fit() {
  double steps = 0, mean_samples = 0, mean_ns = 0;
  for (const Point& point : points_) {
    steps += point.weight;
    mean_samples += point.weight * point.samples;
    mean_ns += point.weight * point.ns;
  }
  mean_samples /= steps;
  mean_ns /= steps;
  const double prior_weight = noise_ / (kShapeDeviation * kShapeDeviation);
  double a11 = prior_weight, a12 = 0, a22 = 0;
  double b1 = prior_weight * prior_fixed_ / (prior_fixed_ + mean_samples), b2 = 0;
  for (const Point& point : points_) {
    const double x = point.samples / mean_samples, y = point.ns / mean_ns;
    const double w = point.weight / (y * y);
    a11 += w, a12 += w * x, a22 += w * x * x;
    b1 += w * y, b2 += w * x * y;
  }
  const double constant = b1 * a22 - b2 * a12, slope = b2 * a11 - b1 * a12;
  const double most = kMostFixed * most_samples_ / mean_samples;
  const double fixed = constant <= 0 ? 0 : slope * most <= constant ? most : constant / slope;
  double of_time = 0, of_samples = 0;
  for (const Point& point : points_) {
    const double x = fixed + point.samples / mean_samples, y = point.ns / mean_ns;
    of_time += point.weight * x / y;
    of_samples += point.weight * x * x / (y * y);
  }
  fixed_ = fixed * mean_samples;
  scale_ = of_time / of_samples * mean_ns / mean_samples;
}

std::size_t StepCost::NewestThatDiffer() const {
  for (const std::size_t count : kRuns) {
    if (count > newest_.size()) break;
    if (measured_ < static_cast<std::int64_t>(count) + 2) break;
    if (Differ(count, true) || Differ(count, false)) return count;
  }
  return 0;
}

bool StepCost::Differ(std::size_t count, bool up) const {
  const double steps = static_cast<double>(count);
  const double older = std::max(weight() - steps, 1.0);
  const double noise = kSurprise * deviation() * std::sqrt(1 / steps + 1 / older);
  const double bound = std::max(noise + noise * noise / 2, kLeastChange);  // about exp(noise) - 1
  std::vector<double> factors;  // by which each step differs, upwards or downwards
  std::size_t misfits = 0;
  for (std::size_t i = newest_.size() - count; i < newest_.size(); ++i) {
    const double ratio = newest_[i].ns / Expect(newest_[i].samples);
    factors.push_back(up ? ratio : 1 / ratio);
    if (factors.back() - 1 <= kLeastPart * bound && ++misfits * kMostMisfits > count) return false;
  }
  const double median = LowerMedian(factors);
  double sum = 0;
  for (const double factor : factors) sum += std::min(factor, median);
  return sum / steps - 1 > bound;
}

void StepCost::BeginAgain(std::size_t count) {
  changed_ = true;
  prior_fixed_ = fixed_;
  points_.clear();
  newest_.erase(newest_.begin(), newest_.end() - static_cast<std::ptrdiff_t>(count));
  measured_ = static_cast<std::int64_t>(count);
  for (const Step& step : newest_) AddToPoint(step);
  Fit();
}

double StepCost::most_measured() const {
  double most = 0;
  for (const Point& point : points_) most = std::max(most, point.samples);
  return most;
}

void StepCost::Archive(StateArchive& ar) {
  ar(seen_, measured_, changed_, scale_, fixed_, prior_fixed_, most_samples_, noise_, noise_steps_,
     points_, newest_);
  const bool sane = measured_ >= 0 && std::isfinite(scale_) && std::isfinite(fixed_) &&
                    fixed_ >= 0 && noise_ > 0 &&
                    (measured_ == 0 || (scale_ > 0 && !points_.empty()));
  if (!sane) ar.Fail();
}

}  // namespace prd
