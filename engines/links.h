// Links between workers that are broken: two workers that live and do not reach each other.
#ifndef PRD_ENGINES_LINKS_H_
#define PRD_ENGINES_LINKS_H_

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/archive.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace prd {

// The pairs whose link is broken. Of most jobs there is none, most of the time. Pure; not thread
// safe.
class BrokenLinks {
 public:
  bool empty() const { return pairs_.empty(); }
  std::size_t size() const { return pairs_.size() / 2; }
  bool Has(Rank a, Rank b) const { return !pairs_.empty() && pairs_.contains({a, b}); }
  bool HasAny(Rank rank) const {
    if (pairs_.empty()) return false;
    const auto first = pairs_.lower_bound({rank, kLowest});
    return first != pairs_.end() && first->first == rank;
  }
  // Whom this worker does not reach, ascending.
  std::vector<Rank> Of(Rank rank) const {
    std::vector<Rank> others;
    for (auto it = pairs_.lower_bound({rank, kLowest}); it != pairs_.end() && it->first == rank;
         ++it) {
      others.push_back(it->second);
    }
    return others;
  }
  // This worker reaches all of these; itself may be one of them.
  bool Reaches(Rank rank, const std::vector<Rank>& ranks) const {
    if (!HasAny(rank)) return true;
    for (const Rank other : ranks) {
      if (pairs_.contains({rank, other})) return false;
    }
    return true;
  }
  // A pair of these does not reach each other; the first such.
  std::optional<std::pair<Rank, Rank>> Among(const std::vector<Rank>& ranks) const {
    if (pairs_.empty()) return std::nullopt;
    const std::set<Rank> all(ranks.begin(), ranks.end());
    for (const auto& [a, b] : pairs_) {
      if (all.contains(a) && all.contains(b)) return std::pair(a, b);
    }
    return std::nullopt;
  }

  void Set(Rank a, Rank b, bool works) {
    for (const auto& pair : {std::pair(a, b), std::pair(b, a)}) {
      works ? pairs_.erase(pair) : pairs_.insert(pair).second;
    }
  }
  // The worker has gone.
  void Forget(Rank rank) {
    for (const Rank other : Of(rank)) Set(rank, other, true);
  }

  void Archive(StateArchive& ar) {
    ar(pairs_);
    if (ar.saving()) return;
    for (const auto& [a, b] : pairs_) {
      if (a < 0 || a == b || !pairs_.contains({b, a})) return ar.Fail();
    }
  }

 private:
  static constexpr Rank kLowest = std::numeric_limits<Rank>::min();
  std::set<std::pair<Rank, Rank>> pairs_;  // each both ways
};

// A broken link, as a job keeps it.
struct BrokenLink {
  Rank asks = kNoRank;  // of the two, the one that probes the other
  Instant since;
  std::string reason;
  void Archive(StateArchive& ar) { ar(asks, since, reason); }
};

// These ranks in such an order that each reaches the next one, and the last the first; nearly the
// order given. Empty: there is none, or none was found (few links work). O(ranks) for each broken
// pair that is adjacent. REQUIRES: ranks are distinct, and
// not empty.
std::vector<Rank> RingAround(std::vector<Rank> ranks, const BrokenLinks& broken);

// Those of the ranks whose links are in the way: without them a ring goes around the others, and
// these are more than half. Hosts go as a whole, the one with broken links to the most others
// first; on one host, workers do. Empty: there is no such choice. `hosts`: of the ranks.
// REQUIRES: as RingAround.
std::vector<Rank> FewInTheWay(const std::vector<Rank>& ranks, const std::vector<std::string>& hosts,
                              const BrokenLinks& broken);

}  // namespace prd

#endif  // PRD_ENGINES_LINKS_H_
