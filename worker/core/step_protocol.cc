#include "worker/core/step_protocol.h"

#include "worker/core/group_protocol.h"
#include "worker/core/neighbour_protocol.h"
#include "worker/core/overlap_protocol.h"
#include "worker/core/round_protocol.h"
#include "worker/core/store_protocol.h"

namespace prd {

std::unique_ptr<StepProtocol> MakeStepProtocol(const Plan& plan, StepContext& ctx) {
  if (HasNeighbours(plan)) return std::make_unique<NeighbourProtocol>(ctx);
  if (HasStore(plan)) return std::make_unique<StoreProtocol>(ctx);
  if (TrainsInRounds(plan)) return std::make_unique<RoundProtocol>(ctx);
  if (DecouplesSteps(plan)) return std::make_unique<OverlapProtocol>(ctx);
  return std::make_unique<GroupProtocol>(ctx);
}

bool StepProtocol::OnReplica(bool, Actions*) {
  since_signal_ = 0;
  return true;
}

void StepProtocol::OnStep(const Ready& ready, std::int64_t) {
  ctx().step.ready = ready;
  ctx().step.ready_at = ctx().now;
}

void StepProtocol::OnStepEnds() {
  if (!ctx().step.discard && since_signal_ >= StepsPerSignal(ctx().plan())) since_signal_ = 0;
}

bool StepProtocol::Synchronises() {
  return ctx().step.discard || ++since_signal_ >= StepsPerSignal(ctx().plan());
}

void StepProtocol::OnAdoptResult(const Adopt& adopt, Actions* out) {
  if (ctx().aim() == Aim::kLeave) return;
  ctx().RefuseCopy(GroupName(adopt.result) + " is not one that failed here", out);
}

void StepProtocol::OnMessage(const ControllerBody& body, Actions* out) {
  if (!std::holds_alternative<Schedule>(body) || ctx().aim() == Aim::kLeave) return;
  ctx().Over(Status(Code::kDataLoss, "the controller set a schedule, but the job's plan has none"),
             out);
}

void StepProtocol::OnRequest(Incarnation, Request request, const PeerItem&, Actions* out) {
  out->push_back(Refuse{request});
}

}  // namespace prd
