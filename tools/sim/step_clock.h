// What a worker's time goes to: the pass that it computes, on its device, and the slices of
// computing, waiting and reducing (stats.h) that its time consists of.
#ifndef PRD_TOOLS_SIM_STEP_CLOCK_H_
#define PRD_TOOLS_SIM_STEP_CLOCK_H_

#include <cstdint>

#include "common/base/time.h"
#include "tools/sim/worker_parts.h"

namespace prd::sim {

class StepClock {
 public:
  void Init(WorkerParts* parts, std::uint32_t worker) {
    parts_ = parts;
    worker_ = worker;
  }

  // The training loop goes on to something else: what was scheduled for the turn before is void.
  void Turn() { ++turn_; }
  std::uint64_t turn() const { return turn_; }  // over all the worker's lives

  // A pass over so many samples begins to be computed; 0: a whole step.
  void BeginPass(std::int64_t samples);
  // It is computed no more. `first`: it is the step's first one.
  void EndPass(bool first);
  Instant pass_begun() const { return pass_begun_; }
  // The training loop calls Step. Gives how long the pass has taken, as the worker tells it.
  DurationNs Ready();
  // Schedules the next time that the pass looks at Session::Interrupted.
  void PollSoon() const;

  // What the worker has done since the slice before.
  void Sliced(Slice::Kind kind) { SlicedUntil(kind, parts_->world->now); }
  void SlicedUntil(Slice::Kind kind, Instant end);

 private:
  void Schedule() const;

  WorkerParts* parts_ = nullptr;
  std::uint32_t worker_ = 0;
  Instant begun_;  // the slice in progress
  Instant pass_begun_;
  DurationNs computed_ = 0;  // in all passes of the step
  Instant ready_at_;         // the training loop has called Step
  std::uint64_t turn_ = 0;
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_STEP_CLOCK_H_
