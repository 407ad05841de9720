// The common start of a run: which workers it waits for, whether it has been made, and whose
// parameters it takes. Pure; not thread safe.
#ifndef PRD_ENGINES_START_BARRIER_H_
#define PRD_ENGINES_START_BARRIER_H_

#include <optional>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/job_spec.h"

namespace prd {

// A first start that most members have not got, and that some of them could not copy, for they do
// not reach those that have it. Few would train while the others wait.
struct DoubtedStart {
  Iteration iteration = 0;
  Instant until;  // the links may work again until then
  void Archive(StateArchive& ar) { ar(iteration, until); }
};

class StartBarrier {
 public:
  // The start waits for this many workers. The first call counts.
  void Expect(int workers) {
    if (workers_ == 0) workers_ = workers;
  }
  void Make() { made_ = begun_ = true; }
  // No worker has a trained replica any more: those that are there make a new common start.
  void Undo() { made_ = false; }

  // How many workers must be there. A start in which trained workers return proceeds without
  // missing ones after start_grace_ms, since they may never come back.
  int Needed(Instant now, const JobSpec& spec, bool returns);
  // The same for the start of a run that continues another one, whose workers are awaited until
  // then. `awaits`: some of them have not come.
  int NeededAfterSwitch(Instant now, const JobSpec& spec, bool awaits, Instant until);
  void EndGrace() { grace_ends_.reset(); }

  void Doubt(const DoubtedStart& start) { doubted_ = start; }
  void EndDoubt() { doubted_.reset(); }
  const std::optional<DoubtedStart>& doubted() const { return doubted_; }

  int workers() const { return workers_; }  // 0 until known
  bool made() const { return made_; }
  bool begun() const { return begun_; }  // it has been made before, in this run
  const std::optional<Instant>& grace_ends() const { return grace_ends_; }

  void Archive(StateArchive& ar) { ar(workers_, made_, begun_, grace_ends_, doubted_); }

 private:
  int workers_ = 0;
  bool made_ = false;
  bool begun_ = false;
  std::optional<Instant> grace_ends_;  // a start of returning workers proceeds then
  std::optional<DoubtedStart> doubted_;
};

// A member of the common start.
struct Starter {
  bool returns = false;       // its replica has been trained
  bool former_model = false;  // its replica is the final average of the run before
};

// Fills in weights, iteration and reason. If all members are new, the start takes the lowest rank's
// parameters. Members that have trained before start from what they have learned: the final average
// of the run before, or the newest replica, or, where replicas differ by design, their average.
// `starters`, by member. `former`: the run before; kNoRun: none.
void WeighCommonStart(const Plan& plan, const std::vector<Starter>& starters, RunId former,
                      GroupFormed* form);

}  // namespace prd

#endif  // PRD_ENGINES_START_BARRIER_H_
