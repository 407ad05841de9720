// Carries out what a run's engine decides: records it, and tells the workers. Not thread safe.
#ifndef PRD_ENGINES_ANNOUNCER_H_
#define PRD_ENGINES_ANNOUNCER_H_

#include "engines/effects.h"
#include "engines/held_groups.h"
#include "engines/ready_queue.h"
#include "engines/replica_copies.h"
#include "engines/run_context.h"

namespace prd {

class Announcer {
 public:
  Announcer(const RunContext& run, ReadyQueue* ready, ReplicaCopies* copies, HeldGroups* held)
      : run_(run), ready_(*ready), copies_(*copies), held_(*held) {}

  void Announce(Effect effect);

 private:
  void Announce(GroupFormed form);
  void Announce(QueryAnswered answer);
  void Announce(UpdateDropped late);
  void Announce(ScheduleSet set);
  void Announce(NeighboursSet set);
  void Announce(PlacementSet set);
  void Announce(PlacementOpened opened);

  const RunContext run_;
  ReadyQueue& ready_;
  ReplicaCopies& copies_;
  HeldGroups& held_;
};

}  // namespace prd

#endif  // PRD_ENGINES_ANNOUNCER_H_
