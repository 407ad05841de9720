// The broken links of a run: pairs of workers that live and do not reach each other, with the
// reason, and with the worker of the two that probes the other until it answers.
//
// Pure; not thread safe.
#ifndef PRD_ENGINES_LINK_TABLE_H_
#define PRD_ENGINES_LINK_TABLE_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "engines/links.h"

namespace prd {

class LinkTable {
 public:
  // The lower rank first.
  using Pair = std::pair<Rank, Rank>;

  // `asks` does not reach `other`, and probes it from now on. REQUIRES: the link works.
  void Break(Rank asks, Rank other, Instant now, const std::string& reason);
  // REQUIRES: the link is broken.
  void Mend(Rank a, Rank b);
  // Forgets the links of a worker that has gone. Returns the workers that probed it.
  std::vector<Rank> Forget(Rank rank);
  void Clear();

  // The worker is left behind, since most others do not reach it. Whoever has its rank next reaches
  // nobody until a probe says so, and holds up nobody meanwhile.
  void LeaveApart(Rank rank) { apart_.insert(rank); }
  bool Apart(Rank rank) const { return apart_.contains(rank); }
  void Rejoin(Rank rank) { apart_.erase(rank); }

  // The peer that `asks` has probed for longest, if it probes as many as it may. So a worker that
  // names many costs no more than its own place.
  std::optional<Rank> OldestInExcess(Rank asks) const;
  // Whether `asks` probes `other`.
  bool Probes(Rank asks, Rank other) const;
  // The ranks that this worker probes, ascending.
  std::vector<Rank> ProbedBy(Rank asks) const;

  const BrokenLinks& broken() const { return broken_; }
  const std::map<Pair, BrokenLink>& all() const { return all_; }

  // "the link between ranks 0 and 2 is broken for 3.1 s (REASON)". REQUIRES: it is broken.
  std::string Words(Instant now, Rank a, Rank b) const;
  // The same of each broken link of the worker, each after "; ". Empty: all its links work.
  std::string WordsOf(Instant now, Rank rank) const;

  void Archive(StateArchive& ar) { ar(all_, apart_); }
  // After a load: false if the links do not fit the workers. `present(rank)`: it is in the run.
  template <typename Present>
  bool Restore(Present present) {
    broken_ = {};
    for (const auto& [pair, link] : all_) {
      const auto [a, b] = pair;
      if (a >= b || !present(a) || !present(b) || (link.asks != a && link.asks != b)) return false;
      broken_.Set(a, b, false);
    }
    return true;
  }

 private:
  const BrokenLink& At(Rank a, Rank b) const;

  std::map<Pair, BrokenLink> all_;
  std::set<Rank> apart_;
  BrokenLinks broken_;  // the same pairs (derived)
};

// Gives the group an order in which each member reaches the next one, and says so in its reason.
// False, and nothing changes: there is none. *ring_only: some members do not reach each other.
bool ArrangeAsRing(const BrokenLinks& broken, GroupFormed* form, bool* ring_only);

// The members of the group, in its order.
std::vector<Rank> RanksOf(const GroupFormed& form);

}  // namespace prd

#endif  // PRD_ENGINES_LINK_TABLE_H_
