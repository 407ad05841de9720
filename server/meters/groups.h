// Groups as people see them. RunView (run_view.h) puts them together from a run's records.
#ifndef PRD_SERVER_METERS_GROUPS_H_
#define PRD_SERVER_METERS_GROUPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/history.h"
#include "common/base/plan.h"

namespace prd::meters {

struct MemberRow {
  Rank rank = kNoRank;
  double weight = 0;        // 0 in a round: passive, it gets the sum and gives nothing
  bool passive = false;     // takes part on somebody else's account (GroupMember)
  Iteration iteration = 0;  // its own, at its ready signal
  // Its signal with which it waits, on the controller's clock; none in collectives, and for one who
  // takes part in a round while it computes, or passively. Not before the last round ended, or its
  // last group failed, if one did. Where groups form ahead it may come after the group.
  std::optional<Instant> ready;
  // For groups that form ahead: since when its training loop waits, and, if it did not as the group
  // formed, since when it had been computing then.
  std::optional<Instant> came, computing;
  DurationNs step_ns = 0;         // of the step before the signal
  std::uint32_t local_steps = 0;  // since its last round, by that signal
  std::optional<Outcome> outcome;
  std::optional<Instant> reported;  // as the controller heard it
  DurationNs wait_ns = 0;           // its own measures, once reported; none where passive
  DurationNs reduce_ns = 0;
  std::uint64_t bytes = 0;
  std::string detail;
  std::uint32_t included = 0;   // of its gradients, in the result of a round
  Rank fetched_from = kNoRank;  // whose result it has, or is to take, since the round failed for it
};

struct GroupRow {
  GroupId id = kNoGroup;
  GroupKind kind = GroupKind::kTrain;
  Instant formed;
  std::optional<Instant> ended;
  bool ok = false;
  Iteration iteration = 0;
  double initial_weight = 0;
  std::vector<MemberRow> members;  // in ring order
  std::string reason;
  std::string failure;
  bool conflict = false;  // as in GroupFormed
  // It is announced ahead, and starts once the training loops of all members wait.
  bool held = false;

  bool Has(Rank rank) const;
  // In a held group that has not ended: who computes still. Else nobody.
  std::vector<const MemberRow*> Missing() const;
  // As the controller knows it: when it was formed, or the last member of a held one came. None as
  // long as that is open, or if it ended before.
  std::optional<Instant> Started() const;
  // With a weight above 0.
  std::size_t Contributors() const;
  // Some member has the result: a round that lost a member may have ended so for all others.
  bool AnyResult() const;
  // "running", "waits" (for the missing), "ok", "partial" (a round whose result only those have who
  // are still there) or "failed".
  const char* State() const;
};

// A length that a worker says it measured, made possible: not negative and not over `most`.
inline DurationNs Possible(DurationNs said, DurationNs most) {
  return said < 0 ? 0 : said > most ? most : said;
}

// "train", "initial", "final", "round" or "average".
const char* KindName(GroupKind kind);

// Tells a step from a signal that repeats one, as after a failed reduction. Per worker.
class StepCounter {
 public:
  // True if this signal says that a step has ended.
  bool Ends(const Ready& ready) {
    // Rounds are one iteration to several steps: of local ones, or of gradients that came late.
    const bool is =
        ready.gradients > 0 || ready.iteration != iteration_ || ready.local_steps > local_steps_;
    iteration_ = ready.iteration;
    local_steps_ = ready.local_steps;
    return is;
  }

 private:
  Iteration iteration_ = -1;
  std::uint32_t local_steps_ = 0;
};

// How the run's workers go about their steps, by its engine. The default where this version of prd
// cannot read its config.
Plan PlanOf(const RunStarted& started);

struct GroupFilter {
  std::optional<Rank> rank;
  std::optional<GroupKind> kind;
  bool failed = false;
  std::optional<Instant> since;  // formed at this time or later
  bool Lets(const GroupRow& group) const;
};

}  // namespace prd::meters

#endif  // PRD_SERVER_METERS_GROUPS_H_
