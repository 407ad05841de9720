// Which peers this worker cannot reach, and when it tells the controller. Pure; a part of
// SessionCore.
#ifndef PRD_WORKER_CORE_UNREACHABLE_PEERS_H_
#define PRD_WORKER_CORE_UNREACHABLE_PEERS_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/core/actions.h"

namespace prd {

class UnreachablePeers {
 public:
  // A reduction has ended. `ranks`: members that could not be reached.
  void OnReduced(GroupId group, bool ok, std::vector<Rank> ranks) {
    failed_ = ok ? kNoGroup : group;
    ranks_ = std::move(ranks);
  }
  // The next run begins. Its groups have the same numbers.
  void Clear() {
    OnReduced(kNoGroup, true, {});
    reported_.clear();
  }

  // Names the members in a report that this group has failed, if it was the last one to fail.
  void Complete(Finished* finished) const {
    if (finished->outcome != Outcome::kFailed) return;
    if (finished->group != kNoGroup && finished->group == failed_) finished->unreachable = ranks_;
  }
  // A report without a group, for groups and exchanges that are not reported. What fails is tried
  // again at once, so a rank is named once a second at most; nullopt where none is due.
  std::optional<Finished> Report(Instant now, const std::vector<Rank>& ranks) {
    Finished report{.group = kNoGroup, .outcome = Outcome::kFailed};
    for (const Rank rank : ranks) {
      const auto [it, fresh] = reported_.try_emplace(rank, now);
      if (!fresh && now - it->second < kSecond) continue;
      it->second = now;
      report.unreachable.push_back(rank);
    }
    if (report.unreachable.empty()) return std::nullopt;
    return report;
  }
  // The same, of the members that this group could not reach.
  std::optional<Finished> ReportGroup(Instant now, GroupId group) {
    if (group != failed_) return std::nullopt;
    return Report(now, ranks_);
  }

  // ---- probes: whether links to peers are back ----

  // The controller wants these asked, instead of those before.
  void Probe(const SharedList<GroupMember>& targets, Actions* out) {
    probes_ = !targets.empty();
    out->push_back(ProbePeers{targets});
  }
  void StopProbing(Actions* out) {
    if (std::exchange(probes_, false)) out->push_back(ProbePeers{});
  }

 private:
  GroupId failed_ = kNoGroup;         // the last group that failed on the data plane
  std::vector<Rank> ranks_;           // its members that could not be reached
  bool probes_ = false;               // the newest ones had targets
  std::map<Rank, Instant> reported_;  // without a group, and when last
};

}  // namespace prd

#endif  // PRD_WORKER_CORE_UNREACHABLE_PEERS_H_
