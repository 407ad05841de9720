// How a run is tied to others of its job: the run that it continues, and the run in which the job
// goes on after a switch of the engine or of other settings.
//
// A run that is switched ends as if its training were over. Each worker ends the step that it is
// in, and does what Finish does: gradients that are owed are reduced, results are applied, shards
// are read. Then the workers take the final average, hear that their incarnations are over, and say
// Hello to the next run. The common start of that run takes the average. So no step is lost, and
// none counts twice, whatever the engines are.
//
// Pure; not thread safe.
#ifndef PRD_ENGINES_RUN_SWITCH_H_
#define PRD_ENGINES_RUN_SWITCH_H_

#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd {

// The run is about to end, and the job to go on in another one.
struct SwitchOrder {
  std::string spec;     // of the next run
  RunId next = kNoRun;  // its number
  std::string by;       // the operator, and why
  Instant since;
  void Archive(StateArchive& ar) { ar(spec, next, by, since); }
};

class RunSwitch {
 public:
  // The run before is `former`. Its workers are awaited until then.
  void TakeOver(const FormerRun& former, Instant until);
  // A worker holds this rank now: no other one is awaited under it.
  void Arrive(Rank rank);

  void Begin(SwitchOrder to) { switching_ = std::move(to); }
  // This run has ended for the next one.
  void End(FormerRun next) { next_ = std::move(next); }

  const std::optional<SwitchOrder>& switching() const { return switching_; }
  const FormerRun& next() const { return next_; }      // known once this run has ended for it
  const FormerRun& former() const { return former_; }  // not known: this run continues none
  Instant awaits_until() const { return awaits_until_; }
  // Workers of the run before have not come yet, and the common start waits for them.
  bool Awaits(Instant now) const;
  std::vector<Rank> Awaited() const;
  // The worker of the run before under this rank had its final average.
  bool HadModel(Rank rank) const;

  // "the job goes on in run 8, by alice, 2 s ago". REQUIRES: switching().
  std::string Words(Instant now) const;

  void Archive(StateArchive& ar) { ar(switching_, next_, former_, awaits_until_); }

 private:
  std::optional<SwitchOrder> switching_;
  FormerRun next_;
  FormerRun former_;
  Instant awaits_until_;
};

}  // namespace prd

#endif  // PRD_ENGINES_RUN_SWITCH_H_
