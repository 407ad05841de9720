// A step says Ready, and ends with the group that answers: gradients, parameters, or the change of
// the parameters over several steps.
//
// Where the plan AsksBeforeGroups, a Ready is also the state query of ESync (Algorithm 1, line 8):
// the controller answers "not yet", and the worker makes another local step, until a group is due.
#ifndef PRD_WORKER_CORE_GROUP_STEPPING_H_
#define PRD_WORKER_CORE_GROUP_STEPPING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "worker/core/step_protocol.h"

namespace prd {

class GroupProtocol : public StepProtocol {
 public:
  using StepProtocol::StepProtocol;

  void OnHello() override;
  bool OnReplica(bool copied, Actions* out) override;
  void OnStep(const Ready& ready, std::int64_t taken) override;
  void StartStep(Actions* out) override;
  void OnStepEnds() override;
  void Continue(Actions* out) override;
  void SignalAgain(Actions* out) override;
  bool IsAwaited() const override { return stop_requested_; }
  bool EndsWithReduction() const override;
  void OnTrained(Outcome outcome, const std::string& detail, Actions* out) override;
  void OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) override;
  void OnAcked(Actions* out) override;
  void OnMessage(const ControllerBody& body, Actions* out) override;

 private:
  void BeginRound();
  void Ask(Actions* out);
  void OnReply(const QueryReply& reply, Actions* out);

  std::uint32_t local_steps_ = 0;  // since the last group, under plans that reduce changes
  std::optional<Ready> asked_;     // the last Ready of this round
  bool stop_requested_ = false;    // AcknowledgesLate: the next signal waits for the round's group
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_GROUP_STEPPING_H_
