// Replicas that are to be equal, beside what the history says of them, where faults make them
// differ (elsewhere the data plane's law replicas-agree holds).
//
//   difference-told      replicas that differ after each group, while all groups succeed, are
//                        reported after the first that begins check_replicas_ms later, at the
//                        latest
//   difference-true      what is reported to differ then does
//   difference-repaired  with on_divergence = "repair" no replicas differ for longer than three
//                        times that, while all groups succeed and nothing makes them differ anew.
//                        A worker that was told to copy a replica before that one was reported
//                        may make them differ anew
#ifndef PRD_TOOLS_SIM_REPLICA_BOOK_H_
#define PRD_TOOLS_SIM_REPLICA_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/history.h"
#include "tools/sim/world.h"

namespace prd::sim {

class ReplicaBook {
 public:
  explicit ReplicaBook(const World* world);

  // Whether faults make replicas differ that are to be equal.
  static bool Differ(const FaultsPart& faults) {
    return faults.flips > 0 || faults.state_not_told != 0;
  }

  // A record has become durable; `run` by its number (run_table.h). Throws Violation.
  void Seen(RunId run, const Record& record);
  // A member of a group has its result, and this digest then.
  void Applied(RunId run, GroupId group, std::uint64_t digest);
  // A fault has changed a replica.
  void Flipped() { differ_ = {}; }

 private:
  struct Formed {
    Instant at;
    std::vector<Rank> members;
  };

  void OnEnded(const GroupEnded& ended);
  void OnReported(const ReplicasDiffer& differ);
  bool Told(Rank rank) const;

  const World* world_;
  bool may_differ_;  // faults make replicas differ, and are looked for
  bool on_ = false;  // the same, in this run
  const DurationNs every_;
  RunId run_ = kNoRun;
  std::map<GroupId, std::vector<std::uint64_t>> digests_;
  std::map<GroupId, Formed> formed_;
  struct Span {  // of groups that all succeeded and left replicas that differ: when they formed
    std::optional<Instant> from;
    Instant to;
  };
  Span untold_, differ_;
  std::vector<Rank> told_;  // who differ, as the history says
  // By taker: the source of a copy that was ordered before that source was reported, until a group
  // with the taker leaves equal replicas.
  std::map<Rank, Rank> copies_;
  bool last_equal_ = false;  // the newest group that has ended left equal replicas
};

}  // namespace prd::sim

#endif  // PRD_TOOLS_SIM_REPLICA_BOOK_H_
