#include "tools/sim/dialogue.h"

#include <string>
#include <utility>
#include <variant>

#include "engines/violation.h"
#include "tools/sim/names.h"

namespace prd::sim {

bool Dialogue::Says(const WorkerEnvelope& envelope) {
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) OnHello(*hello);
  const auto* adopted = std::get_if<Adopted>(&envelope.body);
  if (adopted != nullptr && adopted->ok) world_->replicas[worker_].told = adopted->iteration;
  if (!std::holds_alternative<Ready>(envelope.body) || envelope.seq <= said_) return false;
  if (signal_ == 0) since_signal_ = 1;
  signal_ = said_ = envelope.seq;
  return true;
}

// What it brings is its parameters: whatever else there was is given up. From a store it tells the
// clock that it was let to, whose shards it may not have read.
void Dialogue::OnHello(const Hello& hello) {
  Replica& replica = world_->replicas[worker_];
  former_ = world_->runs.NumberOf({.high = hello.former.high});
  replica.told = hello.iteration;
  const bool first = !std::exchange(greeted_, true);
  if (!first || !replica.trained || HasStore(world_->runs.PlanOf(former_))) return;
  if (hello.iteration == replica.iteration) return;
  throw Violation("told", WorkerName(worker_) + " says Hello with iteration " +
                              std::to_string(hello.iteration) + ", and its parameters are of " +
                              std::to_string(replica.iteration));
}

bool Dialogue::Hears(const ControllerEnvelope& envelope, Incarnation self) {
  if (std::holds_alternative<QueryReply>(envelope.body)) Answered();
  if (envelope.incarnation != self || envelope.seq != heard_ + 1) return false;
  ++heard_;
  return true;
}

void Dialogue::CheckRunAhead(const Plan& plan) const {
  if (!AveragesInBackground(plan) || FollowsSchedule(plan) || signal_ == 0) return;
  const auto length = static_cast<std::int64_t>(StepsPerSignal(plan));
  const std::int64_t due = 1 + (since_signal_ - 1) / length;
  if (due <= static_cast<std::int64_t>(RunAhead(plan))) return;
  throw Violation("run-ahead", WorkerName(worker_) + " goes on with step " + std::to_string(due) +
                                   " of a signal that stands, where " +
                                   std::to_string(RunAhead(plan)) + " are allowed");
}

}  // namespace prd::sim
