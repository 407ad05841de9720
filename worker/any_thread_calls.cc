#include "worker/any_thread_calls.h"

namespace prd {

Status AnyThreadCalls::Stop(const std::string& reason) {
  const auto not_now = [](const char* why) { return Status(Code::kFailedPrecondition, why); };
  if (entrance_->forked()) {
    return not_now("this process was forked from the one that has the session");
  }
  if (!attached_) return not_now("Stop: call Attach first");
  if (!welcome().job_calls) {
    return not_now(
        "Stop: the controller is of an older version, which takes it from operators alone "
        "(prdctl end)");
  }
  background_->Stop(reason);
  return Status::Ok();
}

double AnyThreadCalls::clock() const {
  const int workers = this->workers();
  if (workers <= 0) return 0;
  const std::int64_t batch = background_->view().shares().batch();
  return batch > 0 ? static_cast<double>(progress().samples) / static_cast<double>(batch)
                   : static_cast<double>(progress().steps) / workers;
}

BatchShare AnyThreadCalls::share(int ahead) const {
  if (!in_job()) return {};
  const StepShares shares = background_->view().shares();
  const Welcome job = welcome();
  if (shares.batch() == 0) {  // the engine divides none: a batch of each worker's own
    if (options_->batch == 0) return {};
    std::int64_t own = std::max<std::int64_t>(options_->batch / std::max(job.workers, 1), 1);
    if (options_->max_share > 0) own = std::min(own, options_->max_share);
    return {.step = iteration() + 1 + ahead, .first = 0, .samples = own, .batch = 0};
  }
  std::uint32_t lead = lead_.load();
  const auto asked = static_cast<std::uint32_t>(std::max(ahead, 0));
  while (asked > lead && !lead_.compare_exchange_weak(lead, asked)) {
  }
  const StepShares::Piece piece =
      ahead > 0 ? shares.Ahead(iteration(), ahead) : shares.Next(iteration());
  return {
      .step = piece.step, .first = piece.first, .samples = piece.samples, .batch = shares.batch()};
}

bool AnyThreadCalls::needs_gradients() const {
  if (!in_job()) return false;
  const Welcome newest = welcome();
  return NeedsGradients(newest.plan) || newest.on_nonfinite == OnNonfinite::kDrop;
}

Progress AnyThreadCalls::progress() const {
  if (entrance_->forked()) return {};
  const SessionView::Progress now = background_->view().progress();
  return {.steps = now.job.trained.steps,
          .samples = now.job.trained.samples,
          .workers = now.job.workers,
          .goal_steps = now.goal.steps,
          .goal_samples = now.goal.samples,
          .done = now.job.done,
          .own_steps = now.own.steps,
          .own_samples = now.own.samples};
}

GroupTransports AnyThreadCalls::group_transports() const {
  return {.collective = background_->view().groups(Way::kCollective),
          .exchange = background_->view().groups(Way::kExchange),
          .staged = background_->view().groups(Way::kStaged)};
}

Iteration AnyThreadCalls::iteration() const {
  const Iteration early = early_;
  return early != kNotEarly ? early : background_->store()->iteration.load();
}

}  // namespace prd
