#include "tools/sim/objective.h"

#include <algorithm>
#include <cmath>

#include "tools/sim/step_times.h"

namespace prd::sim {
namespace {

class Quadratic final : public Objective {
 public:
  Quadratic(const TrainingPart& training, std::size_t workers, std::uint64_t seed)
      : noise_(training.noise) {
    Prng prng(seed ^ 0x9u);
    const auto dimensions = static_cast<std::size_t>(training.dimensions);
    mean_.assign(dimensions, 0);
    for (std::size_t j = 0; j < dimensions; ++j) {
      const double place =
          dimensions > 1 ? static_cast<double>(j) / static_cast<double>(dimensions - 1) : 1;
      curvature_.push_back(std::pow(10, place - 1));
      start_.push_back(3 * Normal(&prng));
    }
    for (std::size_t i = 0; i < workers; ++i) {
      std::vector<double>& minimum = minima_.emplace_back();
      for (std::size_t j = 0; j < dimensions; ++j) {
        minimum.push_back(training.skew * Normal(&prng));
        mean_[j] += minimum[j] / static_cast<double>(workers);
      }
    }
  }

  std::vector<double> Start() const override { return start_; }

  void Gradient(std::uint32_t worker, std::span<const double> x, Prng* prng,
                std::vector<double>* gradient) const override {
    const std::vector<double>& minimum = minima_[worker % minima_.size()];
    for (std::size_t j = 0; j < x.size(); ++j) {
      (*gradient)[j] = curvature_[j] * (x[j] - minimum[j]) + noise_ * Normal(prng);
    }
  }

  double Loss(std::span<const double> x) const override {
    double loss = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      loss += 0.5 * curvature_[j] * (x[j] - mean_[j]) * (x[j] - mean_[j]);
    }
    return loss;
  }

 private:
  const double noise_;
  std::vector<double> curvature_, start_, mean_;
  std::vector<std::vector<double>> minima_;  // by worker
};

class Logistic final : public Objective {
 public:
  Logistic(const TrainingPart& training, std::size_t workers, std::uint64_t seed)
      : dimensions_(static_cast<std::size_t>(training.dimensions)),
        batch_(training.batch),
        shards_(workers) {
    MakeExamples(static_cast<std::size_t>(training.examples), seed);
    Deal(training.skew, seed);
    least_ = 0;
    least_ = Least();
  }

  std::vector<double> Start() const override { return std::vector<double>(dimensions_, 0.0); }

  void Gradient(std::uint32_t worker, std::span<const double> x, Prng* prng,
                std::vector<double>* gradient) const override {
    const std::vector<std::size_t>& shard = shards_[worker % shards_.size()];
    for (std::size_t j = 0; j < dimensions_; ++j) (*gradient)[j] = kRidge * x[j];
    for (std::int64_t i = 0; i < batch_; ++i) {
      AddGradient(shard[prng->Below(shard.size())], x, 1.0 / static_cast<double>(batch_),
                  gradient->data());
    }
  }

  double Loss(std::span<const double> x) const override {
    double loss = 0;
    for (std::size_t e = 0; e < labels_.size(); ++e) {
      loss += std::log1p(std::exp(-Margin(e, x))) / static_cast<double>(labels_.size());
    }
    for (const double value : x) loss += kRidge / 2 * value * value;
    return loss - least_;
  }

 private:
  static constexpr double kRidge = 1e-3;

  void MakeExamples(std::size_t examples, std::uint64_t seed) {
    Prng prng(seed ^ 0x10915u);
    std::vector<double> truth(dimensions_);
    for (double& value : truth) value = Normal(&prng);
    for (std::size_t e = 0; e < examples; ++e) {
      double score = Normal(&prng);  // some examples are on the wrong side
      for (std::size_t j = 0; j < dimensions_; ++j) {
        features_.push_back(Normal(&prng));
        score += truth[j] * features_.back();
      }
      labels_.push_back(score > 0 ? 1 : -1);
    }
  }

  void Deal(double skew, std::uint64_t seed) {
    Prng prng(seed ^ 0xdea1u);
    std::vector<std::size_t> sorted;
    std::size_t next = 0;
    for (std::size_t e = 0; e < labels_.size(); ++e) {
      if (prng.Unit() < skew) {
        sorted.push_back(e);
      } else {
        shards_[next++ % shards_.size()].push_back(e);
      }
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [this](std::size_t a, std::size_t b) { return labels_[a] < labels_[b]; });
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      shards_[i * shards_.size() / sorted.size()].push_back(sorted[i]);
    }
    for (std::vector<std::size_t>& shard : shards_) {
      if (shard.empty()) shard.push_back(prng.Below(labels_.size()));
    }
  }

  double Margin(std::size_t example, std::span<const double> x) const {
    double score = 0;
    for (std::size_t j = 0; j < dimensions_; ++j)
      score += x[j] * features_[example * dimensions_ + j];
    return score * labels_[example];
  }

  void AddGradient(std::size_t example, std::span<const double> x, double share,
                   double* gradient) const {
    const double slope = -labels_[example] / (1 + std::exp(Margin(example, x)));
    for (std::size_t j = 0; j < dimensions_; ++j) {
      gradient[j] += share * slope * features_[example * dimensions_ + j];
    }
  }

  // By full gradients; good to far below what stochastic ones reach.
  double Least() const {
    std::vector<double> x(dimensions_, 0.0);
    std::vector<double> gradient(dimensions_);
    const double share = 1.0 / static_cast<double>(labels_.size());
    double step = 4;
    double loss = Loss(x);
    for (int i = 0; i < 300 && step > 1e-3; ++i) {
      for (std::size_t j = 0; j < dimensions_; ++j) gradient[j] = kRidge * x[j];
      for (std::size_t e = 0; e < labels_.size(); ++e) AddGradient(e, x, share, gradient.data());
      std::vector<double> next = x;
      for (std::size_t j = 0; j < dimensions_; ++j) next[j] -= step * gradient[j];
      const double found = Loss(next);
      if (found < loss) {
        x = next;
        loss = found;
      } else {
        step /= 2;
      }
    }
    return loss;
  }

  const std::size_t dimensions_;
  const std::int64_t batch_;
  std::vector<double> features_;                  // row by row
  std::vector<double> labels_;                    // -1 or 1
  std::vector<std::vector<std::size_t>> shards_;  // examples by worker
  double least_ = 0;
};

class Toy final : public Objective {
 public:
  explicit Toy(std::size_t numbers) : numbers_(numbers) {}
  std::vector<double> Start() const override { return std::vector<double>(numbers_, 0.0); }
  void Gradient(std::uint32_t, std::span<const double>, Prng* prng,
                std::vector<double>* gradient) const override {
    for (double& value : *gradient) value = prng->Unit();
  }
  double Loss(std::span<const double>) const override { return 0; }

 private:
  const std::size_t numbers_;
};

}  // namespace

std::unique_ptr<Objective> MakeToy(std::size_t numbers) { return std::make_unique<Toy>(numbers); }

std::unique_ptr<Objective> MakeObjective(const TrainingPart& training, std::int64_t workers,
                                         std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(workers);
  switch (training.objective) {
    case TrainingPart::Objective::kNone:
      return nullptr;
    case TrainingPart::Objective::kQuadratic:
      return std::make_unique<Quadratic>(training, count, seed);
    case TrainingPart::Objective::kLogistic:
      return std::make_unique<Logistic>(training, count, seed);
  }
  return nullptr;
}

}  // namespace prd::sim
