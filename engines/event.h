// What an engine is told. Every event concerns workers by rank; the job around the engine
// (engines/job.h) has already checked that ranks, groups and iterations make sense.
#ifndef PRD_ENGINES_EVENT_H_
#define PRD_ENGINES_EVENT_H_

#include <string>
#include <variant>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

// A worker begins to train at this iteration, its replica being that of a running one (or the
// job's common start). `host` is equal for workers that share a host.
struct JoinedEvent {
  Rank rank = kNoRank;
  Iteration iteration = 0;
  std::string host;
};

// A ready signal. The worker is joined, and has no other signal with `waiting` unanswered; unless
// the plan TrainsInRounds or is DrawnAhead, it is in no running group. After
// a kTrain group that failed for it, the worker signals again with the same iteration.
// (DrawnAhead: not; its signal stands until a FinishedEvent with ok of a group that it was not
// passive in, or an Answer.) (Where a round must be committed by all or none, the job repairs
// members that missed a round which others have before their next signal gets here.) `owed` counts
// the worker's gradients in no round yet, as far as the controller knows.
struct ReadyEvent {
  Rank rank = kNoRank;
  Ready ready;
  std::uint32_t owed = 0;  // TrainsInRounds
};

// A member has reported on a group that this engine formed.
struct FinishedEvent {
  Rank rank = kNoRank;
  GroupId group = kNoGroup;
  bool ok = false;         // the result is in this member's replica
  std::uint32_t owed = 0;  // kRound: its gradients in no round now
};

// Every member has reported or is gone: the group no longer exists. Comes after the reports, once.
struct EndedEvent {
  GroupId group = kNoGroup;
  // kTrain of parameters, and kAverage: every member has the result. Other kTrain groups: a
  // member that is still there has it, and those for whom it failed now copy its replica. kRound:
  // every member that is still there has it (the job has repaired those for whom it had failed).
  // False, for these two: nobody has it.
  bool ok = false;
};

// StorePlan: the shards that the worker owns under this placement are complete, here and on
// their other holders. The placement may have been superseded.
struct PlacedEvent {
  Rank rank = kNoRank;
  std::uint64_t epoch = 0;
};

// The worker trains no more: forget its signal. StorePlan: one that has finished goes on
// holding shards; when it is gone, this comes again, with another reason. Running groups it was in
// are aborted by the job; their other members still report Finished, after this.
struct LeftEvent {
  Rank rank = kNoRank;
  LeftReason why = LeftReason::kLeft;
};

// now >= NextDeadline().
struct DeadlineEvent {};

using Event = std::variant<JoinedEvent, ReadyEvent, FinishedEvent, EndedEvent, LeftEvent,
                           DeadlineEvent, PlacedEvent>;

}  // namespace prd

#endif  // PRD_ENGINES_EVENT_H_
