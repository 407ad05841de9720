// The decisions of an engine. Each decision carries its reason in words. The log, the history,
// prdctl and the tests show these words.
#ifndef PRD_ENGINES_EFFECTS_H_
#define PRD_ENGINES_EFFECTS_H_

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"

namespace prd {

// These workers reduce together once, now. Members are joined and in no other running group.
//   kTrain    answers a waiting signal of each member. DrawnAhead: members need no signal yet, and
//             passive members get no answer. Weights are >= 0; with initial_weight they sum to 1.
//   kRound    has all joined workers as members. A contributor has a weight, the others 0; weights
//             sum to 1 at most. Answers the signals up to the round's iteration.
//   kAverage  has all joined workers as members, with equal weights. Their signals wait, and stay
//             unanswered.
struct FormGroup {
  // Taken from *next_group; with DrawnAhead, when the group was drawn. A worker's groups form in
  // ascending order of ids.
  GroupId id = kNoGroup;
  GroupKind kind = GroupKind::kTrain;
  std::vector<GroupShare> members;  // in ring order, no rank twice
  Iteration iteration = 0;          // where members continue after success
  double initial_weight = 0;        // share of the initial model (GroupPlan::keep_initial)
  std::string reason;
  bool conflict = false;  // as in GroupFormed (common/base/history.h)
  void Archive(StateArchive& ar) {
    ar(id, kind, members, iteration, initial_weight, reason, conflict);
  }
  friend bool operator==(const FormGroup&, const FormGroup&) = default;
};

// Answers a worker's signal without a group, by QueryReply (Payload::kChange, DrawnAhead,
// HasNeighbours, HasStore).
struct Answer {
  Rank rank = kNoRank;
  bool ready = false;  // the worker's next signal waits for a group; false: the worker trains on
  std::string reason;
  // HasNeighbours, HasStore: where the worker goes on; at or beyond the signal's iteration.
  Iteration next = 0;
  std::uint32_t workers = 0;  // HasStore: workers that train now
  friend bool operator==(const Answer&, const Answer&) = default;
};

// The worker's work comes too late. What the worker computes or has signalled is dropped, and the
// worker copies the newest replica. The worker is joined and in no running group. It signals again,
// with the new replica's iteration, once it has computed on that replica. If no worker has a newer
// replica, the job lets this worker join anew instead: LeftEvent, JoinedEvent with the worker's own
// iteration, and its signal if there is one.
struct CatchUp {
  Rank rank = kNoRank;
  Iteration iteration = 0;  // of the worker's replica before
  std::string reason;
  friend bool operator==(const CatchUp&, const CatchUp&) = default;
};

// FollowsSchedule: all joined workers draw their groups themselves, from slot 0 on. The ids `first`
// to `first` + kScheduleSpan - 1 are taken from *next_group (common/base/static_schedule.h).
struct SetSchedule {
  GroupId first = kNoGroup;
  std::vector<Rank> members;        // ascending
  std::vector<std::int32_t> hosts;  // by member
  std::string reason;
  friend bool operator==(const SetSchedule&, const SetSchedule&) = default;
};

// NeighboursSet, PlacementSet and PlacementOpened (common/base/history.h) are records that are sent
// as they are: a worker's neighbours (HasNeighbours), and where the shards are (HasStore). The
// workers in them are joined, or hold shards.

// In the order of decision. The daemon makes all effects durable before it sends any.
using Effect = std::variant<FormGroup, Answer, CatchUp, SetSchedule, NeighboursSet, PlacementSet,
                            PlacementOpened>;
using Effects = std::vector<Effect>;

inline std::vector<FormGroup> GroupsOf(std::span<const Effect> effects) {
  std::vector<FormGroup> groups;
  for (const Effect& effect : effects) {
    if (const auto* form = std::get_if<FormGroup>(&effect)) groups.push_back(*form);
  }
  return groups;
}

}  // namespace prd

#endif  // PRD_ENGINES_EFFECTS_H_
