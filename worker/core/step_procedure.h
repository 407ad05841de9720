// What a step does to its replica outside of SessionCore: the local work before the core hears of
// the step, and what the core wants of the caller in the middle of a call (ApplyNow). The library
// and the simulator do both with this class, each with a replica of its own. An object is for one
// step or one duty:
//
//   if (const std::optional<Iteration> at = procedure.Begin(&replica)) RunApply(*at);
//   procedure.End(&replica);
//
// `apply` may take as long as it likes. If it fails, End is not called. Pure, and a value: it keeps
// no pointer to the replica. Not thread safe.
#ifndef PRD_WORKER_CORE_STEP_PROCEDURE_H_
#define PRD_WORKER_CORE_STEP_PROCEDURE_H_

#include <cstdint>
#include <optional>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/plan.h"
#include "worker/core/actions.h"

namespace prd {

// The caller's. From Begin to End nobody else changes it.
class StepReplica {
 public:
  virtual Iteration iteration() const = 0;
  // Adds the inbox to the parameters and its gain to the iteration, and empties it. Returns its
  // rounds; 0: it was empty, or is not for the parameters. kNotNow: it stays until the group that
  // runs beside the call is over.
  static constexpr std::int64_t kNotNow = -1;
  virtual std::int64_t AddInbox() = 0;
  struct Inbox {
    std::int64_t rounds = 0;
    Iteration iteration = 0;  // of the replica, with these rounds
  };
  // Moves the inbox into the gradients and empties it. No rounds: it was empty.
  virtual Inbox TakeInbox() = 0;
  virtual std::uint64_t Digest() const = 0;  // of the parameters

 protected:
  ~StepReplica() = default;
};

class StepProcedure {
 public:
  // A step's local work. `discard` as in SessionCore::Step: `apply` does not run. An inbox of
  // changes is added in any case.
  StepProcedure(const Plan& plan, bool discard)
      : counts_(CountsLocalSteps(plan)), applies_(AppliesFirst(plan) && !discard), adds_(counts_) {}
  explicit StepProcedure(const ApplyNow& duty)
      : applies_(duty.what != ApplyNow::What::kInboxOfChanges),
        adds_(!applies_),
        takes_(duty.what == ApplyNow::What::kInboxOfGradients),
        digests_(duty.digest),
        at_(duty.iteration),
        rounds_(1) {}

  // Neither Begin nor End does anything.
  bool idle() const { return !applies_ && !adds_; }
  // The iteration that the replica has once `apply` has run; nullopt: `apply` does not run.
  std::optional<Iteration> Begin(StepReplica* replica) {
    if (takes_) {
      const StepReplica::Inbox inbox = replica->TakeInbox();
      rounds_ = inbox.rounds;
      applies_ = rounds_ > 0;
      at_ = inbox.iteration;
    }
    if (!applies_) return std::nullopt;
    return at_ ? *at_ : replica->iteration() + (counts_ ? 1 : 0);
  }
  void End(StepReplica* replica) {
    if (adds_) rounds_ = replica->AddInbox();
    if (applies_ && digests_) digest_ = replica->Digest();
  }

  // The results that the replica got, for SessionCore::Step and Applied; or kNotNow.
  std::int64_t rounds() const { return rounds_; }
  std::uint64_t digest() const { return digest_; }  // 0: not asked for
  // What a step says after its local work, with the replica at this iteration. The caller adds what
  // it has measured.
  Ready ReadyAt(Iteration iteration) const { return {.iteration = iteration + (counts_ ? 0 : 1)}; }

 private:
  bool counts_ = false;  // the iteration counts local steps
  bool applies_ = false;
  bool adds_ = false;   // the inbox, to the parameters
  bool takes_ = false;  // the inbox, as gradients
  bool digests_ = false;
  std::optional<Iteration> at_;  // that the core has said
  std::int64_t rounds_ = 0;
  std::uint64_t digest_ = 0;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_STEP_PROCEDURE_H_
