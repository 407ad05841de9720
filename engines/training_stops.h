// Workers that stop training, for a time (Pause) or for good (Finish), and that resume.
//
// A worker that pauses trains no more, for its engine, and stays: it keeps its replica, and the
// final average waits for it. Where all hold one model it comes back with the newest, elsewhere
// with its own. Not thread safe.
#ifndef PRD_ENGINES_TRAINING_STOPS_H_
#define PRD_ENGINES_TRAINING_STOPS_H_

#include <string>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "engines/operator_orders.h"
#include "engines/ready_queue.h"
#include "engines/run_context.h"
#include "engines/training_clock.h"

namespace prd {

class TrainingStops {
 public:
  TrainingStops(const RunContext& run, ReadyQueue* ready, const TrainingClock* clock,
                const OperatorOrders* orders)
      : run_(run), ready_(*ready), clock_(*clock), orders_(*orders) {}

  // The worker said Finish or Pause: none of its signals that wait is unanswered. Returns what is
  // wrong with that, or empty. A stop that comes too early is held (MemberSlot::stop_held).
  std::string OnStop(Rank rank, StopReason stop);
  // A held stop takes effect. Returns what is wrong; empty also if there is none.
  std::string TakeHeld(Rank rank);
  // Returns what is wrong, or empty.
  std::string OnResume(Rank rank);
  // The worker trains no more from now on: the engine hears so.
  void Stop(Rank rank, LeftReason why, const std::string& reason);

 private:
  const RunContext run_;
  ReadyQueue& ready_;
  const TrainingClock& clock_;
  const OperatorOrders& orders_;
};

}  // namespace prd

#endif  // PRD_ENGINES_TRAINING_STOPS_H_
