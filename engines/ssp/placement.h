// Where the shards go: who owns each, and who has copies. Pure, and of few moves.
#ifndef PRD_ENGINES_SSP_PLACEMENT_H_
#define PRD_ENGINES_SSP_PLACEMENT_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"

namespace prd {

inline bool Contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// What there is of a shard.
struct ShardState {
  Rank owner = kNoRank;        // under the newest placement; kNoRank: there was none, or it is gone
  std::vector<Rank> holders;   // the same; none that is gone
  std::vector<Rank> complete;  // who have all of its newest state, the best source first
  void Archive(StateArchive& ar) { ar(owner, holders, complete); }
  friend bool operator==(const ShardState&, const ShardState&) = default;
};

// Every member owns as many shards as any other, or one fewer. A shard stays with its owner as far
// as that allows; else it goes to one that has it complete, if there is one with room. Each has
// `replicas` holders besides, or all other members where they are fewer: of those it has as many as
// stay even, then its former owner and others who have it complete, then who holds least.
//
// REQUIRES: members ascend and are not empty; all ranks in `shards` are members.
std::vector<ShardPlace> PlaceShards(const std::vector<ShardState>& shards,
                                    const std::vector<Rank>& members, std::size_t replicas);

}  // namespace prd

#endif  // PRD_ENGINES_SSP_PLACEMENT_H_
