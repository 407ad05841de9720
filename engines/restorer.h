// Runs restored from the history. Such a run takes no input until each of its workers has been
// heard in this life of the controller, or is gone: what a worker then says that it has received
// and sent proves whether the history has lost its end. Not thread safe.
#ifndef PRD_ENGINES_RESTORER_H_
#define PRD_ENGINES_RESTORER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/history.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/run.h"

namespace prd {

// What a job goes on with in another run (Run::switching).
struct NextRun {
  std::string spec;
  std::int64_t wall_ns = 0;
  FormerRun former;
};
// REQUIRES: job.next() is not null.
NextRun NextRunOf(const Run& run, Instant now);

class Restorer {
 public:
  // The run waits for all workers that are there. REQUIRES: it was restored just now.
  void Add(const Run& run);
  void Remove(RunId run) { runs_.erase(run); }

  // The run waits for a worker, for this one.
  bool Waits(RunId run) const;
  bool WaitsFor(RunId run, Rank rank) const;
  // The worker's message proves that the history has lost its end. REQUIRES: the run waits for it.
  bool ProvesLoss(const Run& run, Rank rank, const WorkerEnvelope& envelope) const;
  // The worker has been heard, or is gone.
  void EndWait(RunId run, Rank rank);

  // Keeps a message while its run waits. A message too many is dropped, and comes again.
  void Hold(const WorkerEnvelope& envelope);
  // What was held, once the run waits no more.
  std::vector<WorkerEnvelope> TakeHeld(RunId run);

  // Runs that are to follow others, and were not in the history as far as it was restored: the last
  // batch was torn between two runs. A run that is restored later is none of them.
  void AddNextRun(RunId run, NextRun next) { next_runs_[run] = std::move(next); }
  bool has_next_runs() const { return !next_runs_.empty(); }
  void RemoveNextRun(RunId run) { next_runs_.erase(run); }
  std::map<RunId, NextRun> TakeNextRuns() { return std::exchange(next_runs_, {}); }

 private:
  struct Waiting {
    std::map<Rank, Seq> unheard;  // to what the history has as sent to the worker
    std::vector<WorkerEnvelope> held;
  };
  std::map<RunId, Waiting> runs_;
  std::map<RunId, NextRun> next_runs_;
};

}  // namespace prd

#endif  // PRD_ENGINES_RESTORER_H_
