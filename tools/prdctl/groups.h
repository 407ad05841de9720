// Groups as people see them, put together from a run's records one by one.
#ifndef PRD_TOOLS_PRDCTL_GROUPS_H_
#define PRD_TOOLS_PRDCTL_GROUPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/history.h"

namespace prd::ctl {

struct MemberRow {
  Rank rank = kNoRank;
  double weight = 0;
  Iteration iteration = 0;       // its own, at its ready signal
  std::optional<Instant> ready;  // of its signal, on the controller's clock; none in collectives
  DurationNs step_ns = 0;        // of the step before the signal
  std::optional<Outcome> outcome;
  std::optional<Instant> reported;  // as the controller heard it
  DurationNs wait_ns = 0;           // its own measures, once reported
  DurationNs reduce_ns = 0;
  std::uint64_t bytes = 0;
  std::string detail;
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

  bool Has(Rank rank) const;
  // "running", "ok" or "failed".
  const char* State() const { return !ended ? "running" : ok ? "ok" : "failed"; }
};

// A length that a worker says it measured, made possible: not negative and not over `most`.
inline DurationNs Possible(DurationNs said, DurationNs most) {
  return said < 0 ? 0 : said > most ? most : said;
}

// "train", "initial" or "final".
const char* KindName(GroupKind kind);

// Follows a run. Memory is that of the groups that run now, not of the history.
class GroupTracker {
 public:
  struct Change {
    const GroupRow* formed = nullptr;  // by this record, or null; valid until the next Add
    std::optional<GroupRow> ended;     // by this record
  };
  // Records in order, from the run's first.
  Change Add(const Record& record);

  const std::map<GroupId, GroupRow>& running() const { return running_; }

 private:
  struct Signal {
    Instant at;
    Ready ready;
  };
  void OnForm(const Record& record, const GroupFormed& formed);
  void OnReport(Instant now, Rank rank, const Finished& finished);

  Instant start_;
  std::map<GroupId, GroupRow> running_;
  std::map<Rank, Signal> signals_;  // not yet answered by a group
};

struct GroupFilter {
  std::optional<Rank> rank;
  std::optional<GroupKind> kind;
  bool failed = false;
  std::optional<Instant> since;  // formed at this time or later
  bool Lets(const GroupRow& group) const;
};

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_GROUPS_H_
