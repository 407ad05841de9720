// The group that runs beside the call in progress: the newest kRound announced here, or the kTrain
// that runs in the background. Pure; a part of SessionCore.
#ifndef PRD_WORKER_CORE_BACKGROUND_GROUP_H_
#define PRD_WORKER_CORE_BACKGROUND_GROUP_H_

#include <cstdint>
#include <utility>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/core/actions.h"

namespace prd {

class BackgroundGroup {
 public:
  // ---- the group ----

  // Takes the place of the one before. `contributed`: the outbox is part of it.
  void Begin(Instant now, Group group, bool contributed) {
    state_ = State::kReduce;
    group_ = std::move(group);
    contributed_ = contributed;
    at_ = now;
    bytes_ = 0;
  }
  // Its reduction, or the copy of its result, is through.
  void End(Instant now, std::uint64_t sent_bytes = 0) {
    bytes_ = sent_bytes;
    since_step_.sent_bytes += sent_bytes;
    since_step_.reduced += now - at_;
  }
  // Its result is not here, but others may have it.
  void Fail() { state_ = State::kFailed; }
  // The result is copied from a peer.
  void BeginFetch(Instant now) {
    state_ = State::kFetch;
    at_ = now;
  }
  // Nothing more is known of it, or is to be done.
  void Forget() { state_ = State::kNone; }
  // Calls off what runs. No result follows.
  void Drop(Actions* out) {
    if (reduces()) out->push_back(CancelReduce{});
    if (fetches()) out->push_back(CancelFetch{});
    Forget();
  }

  bool is_open() const { return state_ != State::kNone; }
  bool is(GroupId id) const { return is_open() && group_.id == id; }
  bool reduces() const { return state_ == State::kReduce; }
  bool failed() const { return state_ == State::kFailed; }
  bool fetches() const { return state_ == State::kFetch; }
  bool runs() const { return reduces() || fetches(); }

  // The newest group, also once it is forgotten.
  const Group& group() const { return group_; }
  bool contributed() const { return contributed_; }
  Instant at() const { return at_; }  // when its reduction, or the copy, began
  std::uint64_t bytes() const { return bytes_; }

  // ---- the outcome of steps ----

  void CountAttempt() { ++since_step_.attempts; }
  // Moves what groups have cost since the last step to the outcome of the one that ends.
  void MoveCosts(StepOutcome* step) {
    const Costs costs = std::exchange(since_step_, {});
    step->attempts += costs.attempts;
    step->sent_bytes += costs.sent_bytes;
    step->reduced += costs.reduced;
  }

 private:
  enum class State : std::uint8_t { kNone, kReduce, kFailed, kFetch };
  struct Costs {
    int attempts = 0;
    std::uint64_t sent_bytes = 0;
    DurationNs reduced = 0;
  };

  State state_ = State::kNone;
  Group group_;
  bool contributed_ = false;
  Instant at_;
  std::uint64_t bytes_ = 0;
  Costs since_step_;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_BACKGROUND_GROUP_H_
