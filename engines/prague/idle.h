// The workers whose group buffers are empty, by how many groups they have requested: a division
// takes those that are not slow, and must not look at the slow ones one by one (they may be many).
#ifndef PRD_ENGINES_PRAGUE_IDLE_H_
#define PRD_ENGINES_PRAGUE_IDLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/base/archive.h"
#include "common/base/check.h"
#include "common/base/ids.h"

namespace prd {

class IdleWorkers {
 public:
  // `requests` is the worker's c_w (section 5.3), here and below.
  void Add(Rank rank, std::int64_t requests) {
    const auto index = static_cast<std::size_t>(rank);
    if (index >= at_.size()) at_.resize(index + 1, kNowhere);
    std::vector<Rank>& bucket = by_requests_[requests];
    at_[index] = bucket.size();
    bucket.push_back(rank);
    ++size_;
  }

  // REQUIRES: it was added with so many requests.
  void Remove(Rank rank, std::int64_t requests) {
    const auto found = by_requests_.find(requests);
    PRD_CHECK(found != by_requests_.end());
    std::vector<Rank>& bucket = found->second;
    const std::size_t at = at_[static_cast<std::size_t>(rank)];
    PRD_CHECK(at < bucket.size() && bucket[at] == rank);
    bucket[at] = bucket.back();
    at_[static_cast<std::size_t>(bucket[at])] = at;
    at_[static_cast<std::size_t>(rank)] = kNowhere;
    bucket.pop_back();
    if (bucket.empty()) by_requests_.erase(found);
    --size_;
  }

  // Takes all with more requests than this out. O(taken).
  std::vector<Rank> TakeAbove(std::int64_t requests) {
    std::vector<Rank> taken;
    const auto first = by_requests_.upper_bound(requests);
    for (auto it = first; it != by_requests_.end(); ++it) {
      taken.insert(taken.end(), it->second.begin(), it->second.end());
    }
    by_requests_.erase(first, by_requests_.end());
    for (const Rank rank : taken) at_[static_cast<std::size_t>(rank)] = kNowhere;
    size_ -= taken.size();
    return taken;
  }

  bool Has(Rank rank) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < at_.size() && at_[index] != kNowhere;
  }
  std::size_t size() const { return size_; }

  // A few, those with the fewest requests first.
  std::vector<Rank> First(std::size_t most) const {
    std::vector<Rank> first;
    for (const auto& [requests, ranks] : by_requests_) {
      for (const Rank rank : ranks) {
        if (first.size() == most) return first;
        first.push_back(rank);
      }
    }
    return first;
  }

  const std::map<std::int64_t, std::vector<Rank>>& by_requests() const { return by_requests_; }

  // Loading fails for ranks of `end` or above, or twice.
  void Archive(StateArchive& ar, std::size_t end) {
    ar(by_requests_);
    if (ar.saving()) return;
    at_.assign(end, kNowhere);
    size_ = 0;
    for (const auto& [requests, ranks] : by_requests_) {
      if (ranks.empty()) return ar.Fail();
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto index = static_cast<std::size_t>(ranks[i]);
        if (ranks[i] < 0 || index >= end || at_[index] != kNowhere) return ar.Fail();
        at_[index] = i;
        ++size_;
      }
    }
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  std::map<std::int64_t, std::vector<Rank>> by_requests_;  // no bucket is empty
  std::vector<std::size_t> at_;                            // by rank: where in its bucket (derived)
  std::size_t size_ = 0;                                   // (derived)
};

}  // namespace prd

#endif  // PRD_ENGINES_PRAGUE_IDLE_H_
