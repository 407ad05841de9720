// How workers get a replica and begin, or go on, to train in a run that has made its common start:
// late workers, workers that resume after a pause, and workers that have fallen behind.
// Not thread safe.
#ifndef PRD_ENGINES_JOINERS_H_
#define PRD_ENGINES_JOINERS_H_

#include <string>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "engines/batch_shares.h"
#include "engines/group_table.h"
#include "engines/held_groups.h"
#include "engines/ready_queue.h"
#include "engines/replica_copies.h"
#include "engines/run_context.h"
#include "engines/start_barrier.h"

namespace prd {

class Joiners {
 public:
  Joiners(const RunContext& run, ReadyQueue* ready, ReplicaCopies* copies, StartBarrier* start,
          const GroupTable* groups, const HeldGroups* held, const BatchShares* shares)
      : run_(run),
        ready_(*ready),
        copies_(*copies),
        start_(*start),
        groups_(*groups),
        held_(*held),
        shares_(*shares) {}

  // What became of an order to copy a replica. REQUIRES: the worker copies one.
  void EndCopy(Rank rank, const Adopted& adopted);
  // Orders copies whose wait is over. Joiners and stranded workers are left to Admit and
  // HelpStranded.
  void RetryCopies();
  // Lets late workers copy the replica of one that trains. If no worker has a trained replica any
  // more, those that are there make a new common start.
  void Admit();
  // Workers that need not copy first go on with their own replicas; those that are back are told.
  // `switching`: they come back to the next run.
  void AdmitResuming(bool switching);
  // Stranded workers copy from any that has a replica now. One that reaches none of these is no
  // member until it does, so that the others train on. If none is left that might get a replica,
  // they wait for a common start.
  void HelpStranded();
  // Workers that were to catch up while no worker had a newer replica join anew with their own. The
  // engine has had no event of them since.
  void Rejoin();

 private:
  bool NothingRuns() const { return groups_.all().empty() && held_.empty(); }
  void Fail(Rank rank, Rank source);
  // Others have lost the replica that this worker's came from, and make another one of that number.
  bool Forks(Rank rank) const;
  void Part(Rank rank);
  void LeaveOlderBehind();

  const RunContext run_;
  ReadyQueue& ready_;
  ReplicaCopies& copies_;
  StartBarrier& start_;
  const GroupTable& groups_;
  const HeldGroups& held_;
  const BatchShares& shares_;
};

}  // namespace prd

#endif  // PRD_ENGINES_JOINERS_H_
