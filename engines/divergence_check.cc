#include "engines/divergence_check.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engines/words.h"

namespace prd {
namespace {

bool In(const std::vector<Rank>& ascending, Rank rank) {
  return std::binary_search(ascending.begin(), ascending.end(), rank);
}

}  // namespace

bool DivergenceCheck::Begin(Instant now, GroupKind kind, std::size_t members) {
  if (every_ns_ == 0 || kind != after_ || members < 2 || now < next_) return false;
  next_ = now + every_ns_;
  return true;
}

DivergenceCheck::Result DivergenceCheck::Compare(Instant now, GroupId group, Iteration iteration,
                                                 const std::vector<ReplicaDigest>& digests) {
  if (digests.size() < 2) return {};
  std::map<std::uint64_t, std::vector<Rank>> sides;
  std::vector<Rank> compared;
  for (const ReplicaDigest& digest : digests) {
    sides[digest.value].push_back(digest.rank);
    compared.push_back(digest.rank);
  }
  std::sort(compared.begin(), compared.end());
  std::vector<Rank> most;
  for (auto& [value, ranks] : sides) {
    std::sort(ranks.begin(), ranks.end());
    if (ranks.size() > most.size() || (ranks.size() == most.size() && ranks < most)) most = ranks;
  }
  Result result;
  for (const Rank rank : compared) {
    if (!In(most, rank)) result.differ.push_back(rank);
  }
  std::vector<Rank> all = result.differ;  // with those that were not compared now
  for (const Rank rank : divergence_.ranks) {
    if (!In(compared, rank)) all.push_back(rank);
  }
  std::sort(all.begin(), all.end());
  if (all == divergence_.ranks) return result;
  if (divergence_.ranks.empty()) {
    divergence_ = {.ranks = {}, .group = group, .iteration = iteration, .since = now};
  }
  const std::string since =
      GroupName(divergence_.group) + " (iteration " + std::to_string(divergence_.iteration) + ")";
  divergence_.ranks = all;
  result.change = ReplicasDiffer{
      .group = group,
      .iteration = iteration,
      .ranks = all,
      .reason = all.empty()
                    ? "all that were compared are equal; some were not since " + since
                    : words::Ranks(all) + (all.size() == 1 ? " has" : " have") +
                          " other parameters than " + words::Ranks(most) + ", since " + since +
                          "; optimizer state is copied with a model only if it is in "
                          "Replica::state"};
  return result;
}

std::optional<ReplicasDiffer> DivergenceCheck::Forget(Rank rank) {
  if (!Differs(rank)) return std::nullopt;
  std::erase(divergence_.ranks, rank);
  return ReplicasDiffer{.group = divergence_.group,
                        .iteration = divergence_.iteration,
                        .ranks = divergence_.ranks,
                        .reason = RankName(rank) + ", whose replica differed, is gone"};
}

bool DivergenceCheck::Differs(Rank rank) const { return In(divergence_.ranks, rank); }

std::string DivergenceCheck::Words(Instant now, Rank rank) const {
  if (!Differs(rank)) return {};
  return "; rank " + std::to_string(rank) +
         "'s parameters differ from those of most members since group " +
         std::to_string(divergence_.group) + " (" + words::Duration(now - divergence_.since) +
         " ago), and are equal again after the final average";
}

}  // namespace prd
