// What an engine decides. Each decision carries its reason in words, which the log, the history,
// prdctl and the tests share.
#ifndef PRD_ENGINES_EFFECTS_H_
#define PRD_ENGINES_EFFECTS_H_

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/history.h"
#include "common/base/ids.h"

namespace prd {

// These workers reduce together once, now. Members are joined and in no other running group. Of a
// kTrain group they have a ready signal that waits, which this answers (DrawnAhead: they need none
// yet, and for passive members it answers none); weights are >= 0 and sum to 1 with initial_weight.
// Of a kRound, all joined workers are members; a contributor has weight
// 1/members, the others 0; it answers the signals up to its iteration. Of a kAverage, all joined
// workers are members with equal weights, and wait with a signal that stays unanswered.
struct FormGroup {
  // Taken from *next_group; DrawnAhead: when it was drawn. A worker's groups form in ascending
  // order.
  GroupId id = kNoGroup;
  GroupKind kind = GroupKind::kTrain;
  std::vector<GroupShare> members;  // in ring order, no rank twice
  Iteration iteration = 0;          // where members continue after success
  double initial_weight = 0;        // share of the initial model (GroupPlan::keep_initial)
  std::string reason;
  bool conflict = false;  // as in GroupFormed (common/base/history.h)
  friend bool operator==(const FormGroup&, const FormGroup&) = default;
};

// Answers a worker's signal without a group (Payload::kChange, DrawnAhead, NeighbourPlan,
// StorePlan: QueryReply).
struct Answer {
  Rank rank = kNoRank;
  bool ready = false;  // its next signal waits for a group; else it goes on locally
  std::string reason;
  // NeighbourPlan, StorePlan: where it goes on; at or beyond the signal's iteration.
  Iteration next = 0;
  std::uint32_t workers = 0;  // StorePlan: that train now
  friend bool operator==(const Answer&, const Answer&) = default;
};

// What the worker computes, or has signalled, comes too late: it is dropped, and the worker copies
// the newest replica. It is joined and in no running group. It signals again, with that replica's
// iteration, once it has computed on it. When nobody has a newer one than its own, the job lets it
// join anew instead: LeftEvent, JoinedEvent with its own iteration, and its signal if it has one.
struct CatchUp {
  Rank rank = kNoRank;
  Iteration iteration = 0;  // that its model had
  std::string reason;
  friend bool operator==(const CatchUp&, const CatchUp&) = default;
};

// FollowsSchedule: all joined workers draw their groups themselves, from slot 0 on. The span of ids
// is taken from *next_group: first to first + kScheduleSpan - 1 (common/base/static_schedule.h).
struct SetSchedule {
  GroupId first = kNoGroup;
  std::vector<Rank> members;        // ascending
  std::vector<std::int32_t> hosts;  // by member
  std::string reason;
  friend bool operator==(const SetSchedule&, const SetSchedule&) = default;
};

// Besides, records that are sent as they are: with whom a worker exchanges updates (NeighbourPlan),
// and where the shards are (StorePlan). Those whom they name are joined, or hold shards.

// In the order of decision. The shell makes all of them durable before it sends any.
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
