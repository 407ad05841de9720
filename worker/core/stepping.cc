#include "worker/core/stepping.h"

#include "worker/core/group_stepping.h"
#include "worker/core/neighbour_stepping.h"
#include "worker/core/overlap_stepping.h"
#include "worker/core/round_stepping.h"
#include "worker/core/session_flow.h"
#include "worker/core/store_stepping.h"

namespace prd {

std::unique_ptr<Stepping> MakeStepping(const Plan& plan, SessionFlow& core) {
  if (HasNeighbours(plan)) return std::make_unique<NeighbourStepping>(core);
  if (HasStore(plan)) return std::make_unique<StoreStepping>(core);
  if (TrainsInRounds(plan)) return std::make_unique<RoundStepping>(core);
  if (DecouplesSteps(plan)) return std::make_unique<OverlapStepping>(core);
  return std::make_unique<GroupStepping>(core);
}

bool Stepping::OnReplica(bool, Actions*) {
  since_signal_ = 0;
  return true;
}

void Stepping::OnStep(const Ready& ready, std::int64_t) {
  core().ready_ = ready;
  core().ready_at_ = core().now_;
}

void Stepping::OnStepEnds() {
  if (!core().discard_ && since_signal_ >= StepsPerSignal(core().plan())) since_signal_ = 0;
}

bool Stepping::Synchronises() {
  return core().discard_ || ++since_signal_ >= StepsPerSignal(core().plan());
}

void Stepping::OnAdoptResult(const Adopt& adopt, Actions* out) {
  if (core().call_ == SessionFlow::Call::kLeave) return;
  core().RefuseResult(GroupName(adopt.result) + " is not one that failed here", out);
}

void Stepping::OnMessage(const ControllerBody& body, Actions* out) {
  if (!std::holds_alternative<Schedule>(body) || core().call_ == SessionFlow::Call::kLeave) return;
  core().Over(Status(Code::kDataLoss, "the controller set a schedule, but the job's plan has none"),
              out);
}

void Stepping::OnRequest(Incarnation, Request request, const PeerItem&, Actions* out) {
  out->push_back(Refuse{request});
}

}  // namespace prd
