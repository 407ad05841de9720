// What every part of a run is given: the run's settings, its output, its workers, and the few
// things that a part asks of the run as a whole.
#ifndef PRD_ENGINES_RUN_CONTEXT_H_
#define PRD_ENGINES_RUN_CONTEXT_H_

#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/engine.h"
#include "engines/event.h"
#include "engines/job_spec.h"
#include "engines/roster.h"
#include "engines/run_journal.h"

namespace prd {

// Acts that concern more than one part.
class RunActions {
 public:
  // Gives the engine an event, and carries out what it decides.
  virtual void ToEngine(const Event& event) = 0;
  // The worker's ready signal, if there is one and nothing holds it back, goes to the engine.
  virtual void DeliverReady(Rank rank) = 0;
  // The worker trains from this iteration on.
  virtual void Activate(Rank rank, Iteration iteration, const std::string& reason) = 0;
  // The worker is gone. Groups that it was in fail.
  virtual void Remove(Rank rank, LeftReason why, const std::string& reason) = 0;
  // A stop that was held (MemberSlot::stop_held) takes effect, if there is one.
  virtual void TakeHeldStop(Rank rank) = 0;
  // Workers that wait to join copy a replica now, if any can.
  virtual void AdmitJoiners() = 0;
  // The initial group has ended: these of its members have its result, these do not.
  virtual void EndCommonStart(Iteration iteration, const std::vector<Rank>& ok,
                              const std::vector<Rank>& failed) = 0;
  // Why the worker waits, or what it did last.
  virtual std::string Explain(Instant now, Rank rank) const = 0;

 protected:
  ~RunActions() = default;
};

struct RunContext {
  const JobSpec& spec;
  const Plan& plan;
  const Engine::Joining joining;
  RunJournal& log;
  Roster& roster;
  RunActions& run;

  Instant now() const { return log.now(); }
  // Groups of this kind must be committed by all members or by none.
  bool AllOrNone(GroupKind kind) const {
    if (kind == GroupKind::kRound || kind == GroupKind::kAverage) return false;
    return kind != GroupKind::kTrain || prd::AllOrNone(plan);
  }
  // Ends an incarnation that cannot train on from its replica. It comes back as another one, with a
  // whole replica.
  void LeaveBehind(Rank rank, const std::string& why) const {
    roster.Refuse(rank, Code::kAborted, why);
    run.Remove(rank, LeftReason::kEvicted, why);
  }
};

// The engine forms groups of this kind, and gets their events.
inline bool OfEngine(GroupKind kind) {
  return kind != GroupKind::kInitial && kind != GroupKind::kFinal;
}

}  // namespace prd

#endif  // PRD_ENGINES_RUN_CONTEXT_H_
