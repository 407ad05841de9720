// The contract of a consistency engine: who synchronises with whom, when, and with which weights.
//
// An engine is pure: values in, effects out. It reads no clock, starts no thread and touches no
// file, socket, environment or log. Its random bits come from a seed in its options. Not thread
// safe: one caller at a time.
//
// Iterations. A worker starts at iteration 0, or at its source's. What it counts from there follows
// from the plan (common/base/plan.h):
//   CountsLocalSteps: the local optimiser steps of the replica. Ready.iteration is the count after
//     the local update. A group's `iteration` is where its members continue counting; of groups
//     DrawnAhead it has no meaning, and members keep their own count.
//   CountsRounds: the number of the newest round that is in the replica. Ready.iteration is that
//     + 1, the round at which the worker arrives. A group's `iteration` is its round.
//   Other plans of gradients: the steps that all made together. Ready.iteration is the number of
//     the step whose gradient is offered (count + 1). Members have that count once the group has
//     succeeded and `apply` has run.
//   HasNeighbours: the iteration that the worker has entered. Ready.iteration is the next, which it
//     asks to enter.
//   HasStore: the worker's clock, that is the updates that it has made and was let go on after.
//     Ready.iteration is that + 1.
#ifndef PRD_ENGINES_ENGINE_H_
#define PRD_ENGINES_ENGINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "engines/effects.h"
#include "engines/event.h"

namespace prd {

class Engine {
 public:
  virtual ~Engine() = default;

  // What the worker library does at each step under this engine.
  virtual Plan plan() const = 0;

  // How a worker joins a job that runs already.
  enum class Joining : std::uint8_t {
    kAnytime,  // it copies the newest replica of a running peer, and then joins
    kBarrier,  // it joins at once, between two rounds; it signals once it has copied a replica
    kPause,    // between two rounds it copies, then joins; all signals are held back meanwhile
  };
  virtual Joining joining() const { return Joining::kAnytime; }

  // What becomes of a batch that is divided among the workers (batch_shares.h).
  enum class Batches : std::uint8_t {
    kNone,   // gradients are not reduced, or not weighed by samples
    kParts,  // a step may go on without a worker's share
    kWhole,  // every joined worker's share is in every step
  };
  virtual Batches batches() const { return Batches::kNone; }

  // Applies one event and appends the decisions it leads to. Pure: the same state, now and event
  // give the same effects. Group ids are taken from *next_group (use it, then increment it).
  // REQUIRES: now does not decrease.
  virtual void Step(Instant now, const Event& event, GroupId* next_group, Effects* out) = 0;

  // When Step wants a DeadlineEvent, if nothing happens before.
  virtual std::optional<Instant> NextDeadline() const = 0;

  // Why this worker's signal has no group yet: "waiting: 2 of 3 ready; ..." Empty when no signal of
  // the worker is waiting. DrawnAhead: also for a worker in a group whose other members have not
  // come yet. FollowsSchedule, HasNeighbours, HasStore: for every joined worker that does more
  // than compute.
  virtual std::string Explain(Instant now, Rank rank) const = 0;

  // A group that is drawn and not formed yet. It has its id, and takes its turn by that id.
  struct Drawn {
    GroupId id = kNoGroup;
    std::vector<GroupShare> members;
    // A member has asked for the group, which waits for the groups before it. False: no member has
    // asked yet (Prague's group buffer).
    bool pending = false;
    std::string reason;
  };
  // DrawnAhead: all of them, by ascending id. For display; costs O(groups).
  virtual std::vector<Drawn> DrawnGroups() const { return {}; }

  // Whether a joined worker, or one that holds shards, can leave now without taking with it what
  // nobody else has. kLater: once the engine has moved it. kNever: it is nowhere else.
  enum class Leaving : std::uint8_t { kNow, kLater, kNever };
  virtual Leaving leaving(Rank) const { return Leaving::kNow; }

  // The whole state without the options, for snapshots and to compare a replay (archive.h).
  virtual void Archive(StateArchive& ar) = 0;
};

}  // namespace prd

#endif  // PRD_ENGINES_ENGINE_H_
