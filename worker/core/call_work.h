// The data plane's place for the call in progress: the reduction or copy that runs for it, or the
// `apply` that follows; and the group or copy that waits until the caller is in a call. Pure; a
// part of SessionCore.
#ifndef PRD_WORKER_CORE_CALL_WORK_H_
#define PRD_WORKER_CORE_CALL_WORK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/plan.h"
#include "common/base/time.h"
#include "worker/core/actions.h"

namespace prd {

class CallWork {
 public:
  using Held = std::variant<Group, Adopt>;

  // ---- what waits ----

  void Hold(Held held) { held_ = std::move(held); }
  bool holds() const { return held_.has_value(); }
  const Group* held_group() const { return held_ ? std::get_if<Group>(&*held_) : nullptr; }
  bool holds_copy() const { return holds() && held_group() == nullptr; }
  Held TakeHeld();  // REQUIRES: holds()
  void DropHeld() { held_.reset(); }

  // ---- what runs ----

  // Begin what is said. REQUIRES: idle().
  void Reduce(Instant now, Group group, const Reduced& what, bool in_place, Actions* out);
  void Fetch(const GroupMember& source, bool in_place, Actions* out);
  // The caller applies, or adds, what is not a group's result: no report follows.
  void Apply(ApplyNow::What what, Iteration iteration, Actions* out);
  // The caller applies the group's result, which is in the gradients.
  void ApplyResult(Actions* out);

  // The reduction is through. `digest` as in SessionCore::OnReduced.
  void OnReduced(std::uint64_t sent_bytes, std::uint64_t digest);
  void OnApplied(std::uint64_t digest);
  // What runs is over.
  void End() { state_ = State::kNone; }
  // Calls off a reduction or copy. No result follows. An `apply` goes on.
  void Cancel(Actions* out);
  // The same, and what is applied now is no group's result any more.
  void Drop(Actions* out);

  // The device alone decides whether the group's result is committed. REQUIRES: reduces().
  void HandOver();
  bool handed_over() const { return decides_ != Decides::kHere; }
  // Asks the device not to commit it; OnReduced tells whether it has. REQUIRES: handed_over().
  void GiveUp(const std::string& reason, Actions* out);
  bool given_up() const { return decides_ == Decides::kGivenUp; }

  bool idle() const { return state_ == State::kNone; }
  bool reduces() const { return state_ == State::kReduce; }
  bool applies() const { return state_ == State::kApply; }
  bool fetches() const { return state_ == State::kFetch; }
  bool reduces(GroupId id) const { return reduces() && group_.id == id; }
  // A group runs, or waits.
  bool has_group() const { return reduces() || held_group() != nullptr; }

  // The newest group that was begun; id kNoGroup where what is applied is no group's.
  const Group& group() const { return group_; }
  Instant at() const { return at_; }       // when it began
  Rank source() const { return source_; }  // REQUIRES: fetches()
  // The report that the group is through. `waited`: for it to form.
  Finished Report(Instant now, Outcome outcome, const std::string& detail, DurationNs waited) const;

 private:
  enum class State : std::uint8_t { kNone, kReduce, kApply, kFetch };
  // The side that decides what becomes of a kReduce: the data plane and the core, or since HandOver
  // the device alone; kGivenUp: of one that the controller has called off.
  enum class Decides : std::uint8_t { kHere, kDevice, kGivenUp };

  std::optional<Held> held_;
  State state_ = State::kNone;
  Decides decides_ = Decides::kHere;
  Group group_;
  Instant at_;
  std::uint64_t bytes_ = 0;
  std::uint64_t digest_ = 0;
  Rank source_ = kNoRank;
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_CALL_WORK_H_
