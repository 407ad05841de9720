// Finds replicas that should be equal, and are not: now and then the members of a group tell
// digests of their parameters, and those that differ from the majority are remembered.
//
// Where replicas are equal by design, the comparison follows a training group; in a run that trains
// in rounds, an average, since replicas differ between averages. Pure; not thread safe.
#ifndef PRD_ENGINES_DIVERGENCE_CHECK_H_
#define PRD_ENGINES_DIVERGENCE_CHECK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"

namespace prd {

// Replicas that should be equal, and are not.
struct Divergence {
  std::vector<Rank> ranks;   // whose parameters are not those of most members, ascending
  GroupId group = kNoGroup;  // after which it was found first
  Iteration iteration = 0;   // of that group
  Instant since;
  void Archive(StateArchive& ar) { ar(ranks, group, iteration, since); }
};

struct ReplicaDigest {
  Rank rank = kNoRank;
  std::uint64_t value = 0;  // never 0
  void Archive(StateArchive& ar) { ar(rank, value); }
};

class DivergenceCheck {
 public:
  // every_ms: between two comparisons at least; 0: none.
  DivergenceCheck(const Plan& plan, std::uint32_t every_ms)
      : every_ns_(ReplicasAreEqual(plan) ? every_ms * kMillisecond : 0),
        after_(TrainsInRounds(plan) ? GroupKind::kAverage : GroupKind::kTrain) {}

  // Whether the members of this group, which forms now, tell digests after it. If so, the next
  // comparison is due every_ms later.
  bool Begin(Instant now, GroupKind kind, std::size_t members);

  struct Result {
    std::vector<Rank> differ;              // of those compared, ascending
    std::optional<ReplicasDiffer> change;  // to be recorded; nullopt: nothing has changed
  };
  // Members whose digest is not that of most of these members differ. Of two equal halves it is
  // the half without the lowest rank.
  Result Compare(Instant now, GroupId group, Iteration iteration,
                 const std::vector<ReplicaDigest>& digests);

  // The worker has gone. Returns what is to be recorded.
  std::optional<ReplicasDiffer> Forget(Rank rank);
  void Clear() { divergence_ = {}; }

  bool Differs(Rank rank) const;
  const Divergence& divergence() const { return divergence_; }
  // "; rank 2's parameters differ from those of most members ..."; empty: they do not.
  std::string Words(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) { ar(divergence_, next_); }

 private:
  const DurationNs every_ns_;  // 0: never
  const GroupKind after_;      // groups of this kind make replicas equal
  Divergence divergence_;
  Instant next_;  // replicas are compared after no group before this
};

}  // namespace prd

#endif  // PRD_ENGINES_DIVERGENCE_CHECK_H_
