// The decisions of an engine: records of the history (common/base/history.h), as the engine emits
// them. Each carries its reason in words, which the log, the history, prdctl and the tests show.
//
// GroupFormed: these workers reduce together once, now. Members are joined and in no other running
// group. The id is taken from *next_group (DrawnAhead: when the group was drawn); a worker's groups
// form in ascending order of ids.
//   kTrain    answers a waiting signal of each member. DrawnAhead: members need no signal yet, and
//             passive members get no answer. Weights are >= 0; with initial_weight they sum to 1.
//   kRound    has all joined workers as members. A contributor has a weight, the others 0; weights
//             sum to 1 at most. Answers the signals up to the round's iteration.
//   kAverage  has all joined workers as members, with equal weights. Signals stay unanswered.
// QueryAnswered: answers a signal without a group (Payload::kChange, DrawnAhead, HasNeighbours,
// HasStore). The job fills in what the signal says: iteration and local_steps.
// UpdateDropped: what a worker in no group has computed or signalled comes too late. The worker
// copies the newest replica, computes on it and signals again. If no worker has a newer replica,
// the job lets it join anew: LeftEvent, JoinedEvent, and its signal if there is one.
// ScheduleSet (FollowsSchedule): all joined workers draw their groups themselves from slot 0 on.
// The ids from `first` on, kScheduleSpan of them, are taken from *next_group.
// NeighboursSet (HasNeighbours), PlacementSet and PlacementOpened (HasStore): the workers in them
// are joined, or hold shards.
#ifndef PRD_ENGINES_EFFECTS_H_
#define PRD_ENGINES_EFFECTS_H_

#include <span>
#include <variant>
#include <vector>

#include "common/base/history.h"
#include "common/base/variant.h"

namespace prd {

// In the order of decision. The daemon makes all effects durable before it sends any.
struct Effect : std::variant<GroupFormed, QueryAnswered, UpdateDropped, ScheduleSet, NeighboursSet,
                             PlacementSet, PlacementOpened> {
  PRD_DECLARE_VARIANT(Effect)
};
using Effects = std::vector<Effect>;

inline std::vector<GroupFormed> GroupsOf(std::span<const Effect> effects) {
  std::vector<GroupFormed> groups;
  for (const Effect& effect : effects) {
    if (const auto* formed = std::get_if<GroupFormed>(&effect)) groups.push_back(*formed);
  }
  return groups;
}

}  // namespace prd

#endif  // PRD_ENGINES_EFFECTS_H_
