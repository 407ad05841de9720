// The mean of numbers that the workers of a run give (Session::Mean).
//
// A worker that waits for the mean has paused: nobody trains less for it. A round ends once all
// workers that train or pause have given their numbers. A worker that leaves, is lost or is evicted
// before takes its numbers along. A worker that joins takes part in the open round when it gives
// some. In the run that follows a switch the round goes on. Not thread safe.
#ifndef PRD_ENGINES_NUMBER_CALLS_H_
#define PRD_ENGINES_NUMBER_CALLS_H_

#include <string>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/number_rounds.h"
#include "engines/operator_orders.h"
#include "engines/run_context.h"
#include "engines/run_switch.h"

namespace prd {

class NumberCalls {
 public:
  NumberCalls(const RunContext& run, const OperatorOrders* orders, const RunSwitch* to)
      : run_(run), orders_(*orders), switch_(*to) {}

  void TakeOver(const FormerRun& former) {
    rounds_ = NumberRounds(former.numbers.given, former.numbers.averaged);
  }
  // Returns what is wrong with the message, or empty.
  std::string Give(Rank rank, const GiveNumbers& numbers);
  // The worker has gone.
  void Forget(Rank rank) { rounds_.Forget(rank); }
  // Ends the open round if all have given their numbers. REQUIRES: the common start has been made.
  void EndRound();

  const NumberRounds& rounds() const { return rounds_; }
  // Says for whom the worker waits. REQUIRES: it has given numbers in the open round.
  std::string Words(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) { ar(rounds_); }

 private:
  bool Gives(Rank rank) const;

  const RunContext run_;
  const OperatorOrders& orders_;
  const RunSwitch& switch_;
  NumberRounds rounds_;
};

}  // namespace prd

#endif  // PRD_ENGINES_NUMBER_CALLS_H_
