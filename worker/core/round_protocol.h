// Gradients are reduced in rounds (GroupKind::kRound) that run beside the training loop: they start
// at once, whatever the loop does, `apply` included.
//
// A step gives its gradient to the outbox, waits for a round if there is no result yet, and applies
// what there is. A round that this worker contributes to takes all of the outbox, or, if nobody has
// its result in the end, nothing. So no gradient may be added while that is open.
#ifndef PRD_WORKER_CORE_ROUND_STEPPING_H_
#define PRD_WORKER_CORE_ROUND_STEPPING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "worker/core/step_protocol.h"

namespace prd {

class RoundProtocol : public StepProtocol {
 public:
  using StepProtocol::StepProtocol;

  void OnHello() override;
  bool OnReplica(bool copied, Actions* out) override;
  void OnAveraged() override;
  void OnStep(const Ready& ready, std::int64_t taken) override;
  void StartStep(Actions* out) override;
  void OnCallEnds(Actions* out) override;
  void Continue(Actions* out) override;
  bool DelaysFinal(Actions* out) override;
  std::string Check(const Group& group) const override;
  bool OnGroup(const Group& group, Actions* out) override;
  void OnTrained(Outcome, const std::string&, Actions*) override {}  // has no such groups
  void OnBesideThrough(Outcome outcome, const std::string& detail, Actions* out) override;
  void OnApplied(Iteration iteration, std::int64_t rounds, Actions* out) override;
  void OnAdoptResult(const Adopt& adopt, Actions* out) override;
  void OnResultFetched(const Status& status, Actions* out) override;

 private:
  bool GaveToRound() const;
  std::uint32_t HaveResult();
  void OnStepArrived(Actions* out);
  void ApplyRounds(Actions* out);

  // Rounds are known by their iteration; StepState::iteration is that of the newest one that
  // `apply` has seen.
  Iteration newest_ = 0;                // round whose result is here
  bool unapplied_ = false;              // the inbox is not empty, as far as is known here
  std::uint32_t owed_ = 0;              // gradients in the outbox
  Group last_round_;                    // the newest one whose result is here
  bool arrival_due_ = false;            // the step in progress has not deposited and signalled yet
  bool deposited_ = false;              // the step in progress has deposited
  std::optional<Iteration> own_round_;  // its gradient is in this one
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_ROUND_STEPPING_H_
