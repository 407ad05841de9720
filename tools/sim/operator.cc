#include "tools/sim/operator.h"

#include <vector>

#include "engines/draw.h"

namespace prd::sim {

void Operator::Forgot() {
  const bool pauses = world_->workload.faults.operator_pauses_per_s > 0;
  if (pauses && !resumes()) resumes_at_ = world_->now;
}

void Operator::Act(double share) {
  const Workload& workload = world_->workload;
  const FaultsPart& faults = workload.faults;
  const std::size_t workers = world_->replicas.size();
  const auto any = [&] { return static_cast<std::uint32_t>(world_->dice.Below(workers)); };
  OperatorActed act{.by = "user 0"};
  if (world_->Rolled(faults.evictions_per_s * share)) {
    act.verb = OperatorVerb::kEvict;
    act.rank = static_cast<Rank>(any());
    (void)controller_->Act(act).ok();
    act.rank = kNoRank;
  }
  if (world_->Rolled(faults.drains_per_s * share)) {
    act.verb = OperatorVerb::kDrain;
    act.host = "h" + std::to_string(world_->HostOf(any()));
    (void)controller_->Act(act).ok();
    act.host.clear();
  }
  if (world_->Rolled(faults.operator_ends_per_s * share)) {
    act.verb = OperatorVerb::kEnd;
    (void)controller_->Act(act).ok();
  }
  if (world_->Rolled(faults.operator_pauses_per_s * share)) {
    act.verb = OperatorVerb::kPause;
    const Code code = controller_->Act(act).code();
    if (code == Code::kOk || code == Code::kUnavailable) {  // it may be recorded all the same
      resumes_at_ = world_->now + FromMs(faults.operator_pause_ms * world_->dice.Unit());
      world_->Disturbed(resumes_at_);
    }
  }
  if (world_->Rolled(faults.switches_per_s * share)) {
    const std::vector<EngineOptions> all = AllEngines();
    Switch(EngineText(Draw(all[world_->dice.Below(all.size())], &world_->dice,
                           static_cast<int>(workers), workload.job.workers)));
  }
  if (faults.switch_at_ms > 0 && world_->now.ns >= FromMs(faults.switch_at_ms) && !switched_) {
    switched_ = Switch(faults.switch_to);
  }
  if (resumes_at_.ns == 0 || world_->now < resumes_at_) return;
  act.verb = OperatorVerb::kResume;
  world_->Disturbed(world_->now);
  // Another run, or one that has been ended, is not paused.
  if (controller_->Act(act).code() != Code::kUnavailable) resumes_at_ = {};
}

bool Operator::Switch(const std::string& engine) {
  const OperatorActed act{.verb = OperatorVerb::kSwitch, .by = "user 0", .spec = engine};
  return controller_->Act(act).ok();
}

}  // namespace prd::sim
