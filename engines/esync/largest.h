// The largest of one number per rank, found at once, and kept at little cost: a tournament in which
// a change is played again only as far up as it changes who wins.
#ifndef PRD_ENGINES_ESYNC_LARGEST_H_
#define PRD_ENGINES_ESYNC_LARGEST_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/ids.h"

namespace prd {

class Largest {
 public:
  // The number of a rank that has none.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();

  // The rank with the largest number, the lowest such rank; kNoRank when none has one.
  Rank rank() const { return value() == kNone ? kNoRank : winners_[1]; }
  std::int64_t value() const { return values_.empty() ? kNone : values_[Index(winners_[1])]; }

  // REQUIRES: rank >= 0.
  void Set(Rank rank, std::int64_t value) {
    if (Index(rank) >= values_.size()) Grow(Index(rank) + 1);
    if (values_[Index(rank)] == value) return;
    values_[Index(rank)] = value;
    for (std::size_t node = (values_.size() + Index(rank)) / 2; node >= 1; node /= 2) {
      const Rank winner = Winner(node);
      // Another one's win over this rank, or without it, holds further up as it did before.
      if (winner == winners_[node] && winner != rank) return;
      winners_[node] = winner;
    }
  }

 private:
  static std::size_t Index(Rank rank) { return static_cast<std::size_t>(rank); }

  Rank Winner(std::size_t node) const {
    const Rank left = winners_[2 * node];  // the lower ranks
    const Rank right = winners_[2 * node + 1];
    return values_[Index(left)] >= values_[Index(right)] ? left : right;
  }

  void Grow(std::size_t ranks) {
    std::size_t size = 2;
    while (size < ranks) size *= 2;
    values_.resize(size, kNone);
    winners_.resize(2 * size);
    for (std::size_t i = 0; i < size; ++i) winners_[size + i] = static_cast<Rank>(i);
    for (std::size_t node = size - 1; node >= 1; --node) winners_[node] = Winner(node);
  }

  std::vector<std::int64_t> values_;  // by rank; their number is 0 or a power of two
  std::vector<Rank> winners_;         // a heap: the leaves are the ranks, the root is at 1
};

}  // namespace prd

#endif  // PRD_ENGINES_ESYNC_LARGEST_H_
