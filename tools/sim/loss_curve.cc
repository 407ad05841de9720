#include "tools/sim/loss_curve.h"

namespace prd::sim {

bool LossCurve::Evaluate(std::uint64_t updates) {
  const TrainingPart& training = world_->workload.training;
  world_->queue.Push(world_->now + FromMs(training.evaluate_ms), EventKind::kEvaluate);
  std::vector<double> mean;
  double live = 0;
  for (std::uint32_t i = 0; i < workers_->size(); ++i) {
    using enum SimWorker::Phase;
    const Replica& replica = world_->replicas[i];
    const SimWorker::Phase phase = (*workers_)[i].phase();
    const bool there = phase == kComputing || phase == kStepping || phase == kPaused ||
                       phase == kFinishing || phase == kDone;
    if (!there || replica.x.empty()) continue;
    mean.resize(replica.x.size(), 0.0);
    for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += replica.x[j];
    ++live;
  }
  if (live == 0) return false;
  for (double& value : mean) value /= live;
  curve_.push_back({.at = world_->now, .updates = updates, .loss = objective_->Loss(mean)});
  const bool met = training.target_loss > 0 && curve_.back().loss <= training.target_loss;
  if (target_ || !met) return false;
  target_ = curve_.back();
  return true;
}

}  // namespace prd::sim
