#include "worker/core/step_protocol.h"

#include "worker/core/group_protocol.h"
#include "worker/core/neighbour_protocol.h"
#include "worker/core/overlap_protocol.h"
#include "worker/core/round_protocol.h"
#include "worker/core/session_flow.h"
#include "worker/core/store_protocol.h"

namespace prd {

std::unique_ptr<StepProtocol> MakeStepProtocol(const Plan& plan, SessionFlow& core) {
  if (HasNeighbours(plan)) return std::make_unique<NeighbourProtocol>(core);
  if (HasStore(plan)) return std::make_unique<StoreProtocol>(core);
  if (TrainsInRounds(plan)) return std::make_unique<RoundProtocol>(core);
  if (DecouplesSteps(plan)) return std::make_unique<OverlapProtocol>(core);
  return std::make_unique<GroupProtocol>(core);
}

bool StepProtocol::OnReplica(bool, Actions*) {
  since_signal_ = 0;
  return true;
}

void StepProtocol::OnStep(const Ready& ready, std::int64_t) {
  core().step_.ready = ready;
  core().step_.ready_at = core().now_;
}

void StepProtocol::OnStepEnds() {
  if (!core().step_.discard && since_signal_ >= StepsPerSignal(core().plan())) since_signal_ = 0;
}

bool StepProtocol::Synchronises() {
  return core().step_.discard || ++since_signal_ >= StepsPerSignal(core().plan());
}

void StepProtocol::OnAdoptResult(const Adopt& adopt, Actions* out) {
  if (core().aim() == Aim::kLeave) return;
  core().RefuseCopy(GroupName(adopt.result) + " is not one that failed here", out);
}

void StepProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (!std::holds_alternative<Schedule>(body) || core().aim() == Aim::kLeave) return;
  core().Over(Status(Code::kDataLoss, "the controller set a schedule, but the job's plan has none"),
              out);
}

void StepProtocol::OnRequest(Incarnation, Request request, const PeerItem&, Actions* out) {
  out->push_back(Refuse{request});
}

}  // namespace prd
