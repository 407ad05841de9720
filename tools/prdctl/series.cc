#include "tools/prdctl/series.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

// To six digits.
double Rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(scale) ? std::round(value * scale) / scale : value;
}

}  // namespace

// ---- steps and losses over time ----

void StepSeries::Add(DurationNs at, std::uint64_t steps, const Losses& losses) {
  if (at < 0) return;
  while (static_cast<std::size_t>(at / width_) >= kBuckets) {
    std::vector<Bucket> wider((buckets_.size() + 1) / 2);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      wider[i / 2].steps += buckets_[i].steps;
      wider[i / 2].losses += buckets_[i].losses;
      wider[i / 2].loss_sum += buckets_[i].loss_sum;
    }
    buckets_ = std::move(wider);
    width_ *= 2;
  }
  const auto at_bucket = static_cast<std::size_t>(at / width_);
  if (at_bucket >= buckets_.size()) buckets_.resize(at_bucket + 1);
  Bucket& bucket = buckets_[at_bucket];
  bucket.steps += steps;
  bucket.losses += losses.count;
  bucket.loss_sum += losses.count * losses.mean;
}

Json StepSeries::ToJson() const {
  Json steps = Json::array(), means = Json::array();
  bool any = false;
  for (const Bucket& bucket : buckets_) {
    steps.push_back(bucket.steps);
    any = any || bucket.losses > 0;
    means.push_back(bucket.losses > 0 ? Json(Rounded(bucket.loss_sum / bucket.losses)) : nullptr);
  }
  Json json = {{"width_s", Seconds(width_)}, {"steps", std::move(steps)}};
  if (any) json["loss"] = std::move(means);
  return json;
}

// ---- who met whom ----

void Meetings::Widen() {
  std::array<double, kSide * kSide> wider{};
  for (std::size_t a = 0; a < kSide; ++a) {
    for (std::size_t b = 0; b < kSide; ++b) wider[a / 2 * kSide + b / 2] += At(a, b);
  }
  fields_ = wider;
  scale_ *= 2;
  side_ = (side_ + 1) / 2;
}

void Meetings::Add(Rank a, Rank b, double weight) {
  if (a < 0 || b < 0) return;
  const auto one = static_cast<std::size_t>(a), other = static_cast<std::size_t>(b);
  while (std::max(one, other) / scale_ >= kSide) Widen();
  side_ = std::max(side_, std::max(one, other) / scale_ + 1);
  fields_[one / scale_ * kSide + other / scale_] += weight;
}

}  // namespace prd::ctl
