// The events that an engine gets. They name workers by rank. The job around the engine
// (engines/run.h) has checked ranks, groups and iterations before.
#ifndef PRD_ENGINES_EVENT_H_
#define PRD_ENGINES_EVENT_H_

#include <string>
#include <variant>

#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

// A worker begins to train at this iteration. Its replica is the job's common start, a copy of a
// running worker's, or the one that it had when it paused. `host` is equal for workers that share a
// host.
struct JoinedEvent {
  Rank rank = kNoRank;
  Iteration iteration = 0;
  std::string host;
  // The newest replica of a worker that trains, this one included, as far as the controller knows:
  // also what one has copied that has not signalled since.
  Iteration newest = 0;
};

// A ready signal. The worker is joined, and no other signal of it with `waiting` is unanswered. The
// worker is in no running group, except under plans that TrainsInRounds or are DrawnAhead. After a
// kTrain group that failed for the worker, the worker signals again with the same iteration. With
// DrawnAhead the signal stands instead, until a QueryAnswered, or a FinishedEvent with ok of a
// group in which the worker was not passive. Where all or none must commit a round, the job first
// repairs members that missed the round, and passes their next signal on after that. `owed` counts
// the worker's gradients that are in no round yet, as far as the controller knows.
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

// Every member has reported or is gone: the group no longer exists. Comes once, after the reports.
struct EndedEvent {
  GroupId group = kNoGroup;
  // True means, by kind of group:
  //   kTrain of parameters, kAverage: every member has the result.
  //   other kTrain: a member that is still there has the result, and the members for whom the group
  //                 failed now copy its replica. False: no member has it.
  //   kRound:       every member that is still there has the result; the job has repaired those for
  //                 whom the group had failed. False: no member has it.
  bool ok = false;
};

// HasStore: the shards that the worker owns under this placement are complete, on the worker
// and on their other holders. A newer placement may have replaced this one.
struct PlacedEvent {
  Rank rank = kNoRank;
  std::uint64_t epoch = 0;
};

// The worker trains no more, and its signal is void. HasStore: a worker that pauses or has finished
// goes on holding shards; when it is gone, this event comes again, with another reason. A worker
// that pauses may come back: JoinedEvent. Of running groups with a worker that is gone, and of
// groups that wait for the training loop of one that pauses, the job aborts all; their other
// members report Finished after this event.
struct LeftEvent {
  Rank rank = kNoRank;
  LeftReason why = LeftReason::kLeft;
};
// It goes on as a worker of the job that does not train.
inline bool StaysInJob(LeftReason why) {
  return why == LeftReason::kFinished || why == LeftReason::kPaused;
}

// The link between two joined workers was found broken, or works again. When a worker joins, all
// its links work. An engine that chooses who is in a group puts no such two into one; but for a
// worker whose links are all broken, which trains in a group of its own.
struct LinkEvent {
  Rank a = kNoRank;  // a < b
  Rank b = kNoRank;
  bool works = false;
};

// The time that NextDeadline gave has come.
struct DeadlineEvent {};

using Event = std::variant<JoinedEvent, ReadyEvent, FinishedEvent, EndedEvent, LeftEvent,
                           DeadlineEvent, PlacedEvent, LinkEvent>;

}  // namespace prd

#endif  // PRD_ENGINES_EVENT_H_
