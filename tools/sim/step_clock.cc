#include "tools/sim/step_clock.h"

#include <algorithm>
#include <utility>

namespace prd::sim {

void StepClock::BeginPass(std::int64_t samples) {
  begun_ = pass_begun_ = parts_->world->now;
  Turn();
  DurationNs work = parts_->times->Next(worker_, begun_);
  if (samples > 0) work = parts_->times->Of(work, samples);
  parts_->changed.clear();
  parts_->devices->Begin(begun_, worker_, work, &parts_->changed);
  Schedule();
}

void StepClock::EndPass(bool first) {
  World* world = parts_->world;
  if (world->frozen_until[worker_] <= pass_begun_) {
    computed_ = (first ? 0 : computed_) + (world->now - pass_begun_);
    world->longest_step = std::max(world->longest_step, computed_);
  }
  parts_->changed.clear();
  parts_->devices->End(world->now, worker_, &parts_->changed);
  Schedule();
}

// When those finish whose device has another load now.
void StepClock::Schedule() const {
  for (const Devices::Finish& finish : parts_->changed) {
    parts_->world->queue.Push(finish.at, EventKind::kStepDone, finish.worker, finish.ticket);
  }
}

DurationNs StepClock::Ready() {
  const Instant now = parts_->world->now;
  const Instant ready = std::exchange(ready_at_, now);
  return now - (parts_->mutation == Mutation::kWaitingComputes ? ready : pass_begun_);
}

void StepClock::PollSoon() const {
  World* world = parts_->world;
  const DurationNs every = FromMs(world->workload.compute.poll_ms);
  if (every <= 0) return;
  const DurationNs polls = (world->now - pass_begun_) / every + 1;
  world->queue.Push(pass_begun_ + polls * every, EventKind::kPoll, worker_, turn_);
}

void StepClock::SlicedUntil(Slice::Kind kind, Instant end) {
  parts_->stats->AddSlice(worker_, kind, begun_, end);
  begun_ = end;
}

}  // namespace prd::sim
