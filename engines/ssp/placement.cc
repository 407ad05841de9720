#include "engines/ssp/placement.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

namespace prd {

namespace {

// What each member has, and who has least.
class Loads {
 public:
  explicit Loads(const std::vector<Rank>& members) : members_(members), loads_(members.size()) {
    for (std::size_t i = 0; i < members.size(); ++i) least_.emplace(0, i);
  }

  std::size_t Of(Rank rank) const { return loads_[IndexOf(rank)]; }
  void Add(Rank rank, int by) {
    const std::size_t index = IndexOf(rank);
    least_.erase({loads_[index], index});
    loads_[index] += static_cast<std::size_t>(static_cast<std::ptrdiff_t>(by));
    least_.emplace(loads_[index], index);
  }
  std::size_t Lowest() const { return least_.begin()->first; }
  std::size_t Highest() const { return least_.rbegin()->first; }
  // The one with least, of those whom `fits` takes; kNoRank: none. Looks at few, as few do not fit.
  template <typename Fits>
  Rank Least(const Fits& fits) const {
    for (const auto& [load, index] : least_) {
      if (fits(members_[index])) return members_[index];
    }
    return kNoRank;
  }
  // The one with most.
  Rank Most() const { return members_[least_.rbegin()->second]; }

 private:
  std::size_t IndexOf(Rank rank) const {
    return static_cast<std::size_t>(std::lower_bound(members_.begin(), members_.end(), rank) -
                                    members_.begin());
  }
  const std::vector<Rank>& members_;
  std::vector<std::size_t> loads_;
  std::set<std::pair<std::size_t, std::size_t>> least_;  // load, index
};

// By member, how many it may have: `total` shared out evenly, the odd ones to those with most now.
std::vector<std::size_t> Quotas(const std::vector<Rank>& members, const Loads& now,
                                std::size_t total) {
  std::vector<std::size_t> quotas(members.size(), total / members.size());
  std::vector<std::pair<std::size_t, std::size_t>> most;  // by load, descending
  for (std::size_t i = 0; i < members.size(); ++i) most.emplace_back(~now.Of(members[i]), i);
  std::sort(most.begin(), most.end());
  for (std::size_t i = 0; i < total % members.size(); ++i) ++quotas[most[i].second];
  return quotas;
}

// Each shard's owner.
std::vector<Rank> Owners(const std::vector<ShardState>& shards, const std::vector<Rank>& members) {
  Loads before(members);
  for (const ShardState& shard : shards) {
    if (shard.owner != kNoRank) before.Add(shard.owner, 1);
  }
  const std::vector<std::size_t> quotas = Quotas(members, before, shards.size());
  Loads loads(members);
  const auto has_room = [&](Rank rank) {
    const auto at = std::lower_bound(members.begin(), members.end(), rank);
    return loads.Of(rank) < quotas[static_cast<std::size_t>(at - members.begin())];
  };
  std::vector<Rank> owners(shards.size(), kNoRank);
  const auto give = [&](std::size_t shard, Rank rank) {
    owners[shard] = rank;
    loads.Add(rank, 1);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].owner != kNoRank && has_room(shards[i].owner)) give(i, shards[i].owner);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (owners[i] != kNoRank) continue;
    for (const Rank rank : shards[i].complete) {
      if (owners[i] == kNoRank && has_room(rank)) give(i, rank);
    }
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (owners[i] == kNoRank) give(i, loads.Least(has_room));
  }
  return owners;
}

// Moves copies from who holds most to who holds least, until all are even or it cannot be.
void Even(std::vector<ShardPlace>* places, Loads* loads) {
  bool moved = true;
  while (moved && loads->Highest() > loads->Lowest() + 1) {
    moved = false;
    const Rank most = loads->Most();
    const Rank least = loads->Least([](Rank) { return true; });
    for (ShardPlace& place : *places) {
      const auto from = std::find(place.holders.begin(), place.holders.end(), most);
      if (from == place.holders.end() || place.owner == least) continue;
      if (Contains(place.holders, least)) continue;
      *from = least;
      loads->Add(most, -1);
      loads->Add(least, 1);
      moved = true;
      break;
    }
  }
}

void AddHolders(const std::vector<ShardState>& shards, const std::vector<Rank>& members,
                std::size_t replicas, std::vector<ShardPlace>* places) {
  const std::size_t most = (shards.size() * replicas + members.size() - 1) / members.size();
  Loads loads(members);
  const auto add = [&](ShardPlace* place, Rank rank, bool bounded) {
    const bool full = place->holders.size() >= replicas || (bounded && loads.Of(rank) >= most);
    if (full || rank == place->owner || Contains(place->holders, rank)) return;
    place->holders.push_back(rank);
    loads.Add(rank, 1);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Rank rank : shards[i].holders) add(&(*places)[i], rank, true);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Rank rank : shards[i].complete) add(&(*places)[i], rank, true);
  }
  for (ShardPlace& place : *places) {
    while (place.holders.size() < replicas) {
      const Rank rank = loads.Least(
          [&](Rank other) { return other != place.owner && !Contains(place.holders, other); });
      add(&place, rank, false);
    }
  }
  Even(places, &loads);
  for (ShardPlace& place : *places) std::sort(place.holders.begin(), place.holders.end());
}

}  // namespace

std::vector<ShardPlace> PlaceShards(const std::vector<ShardState>& shards,
                                    const std::vector<Rank>& members, std::size_t replicas) {
  const std::vector<Rank> owners = Owners(shards, members);
  std::vector<ShardPlace> places(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::vector<Rank>& complete = shards[i].complete;
    places[i].owner = owners[i];
    if (Contains(complete, owners[i])) {
      places[i].source = owners[i];
    } else if (!complete.empty()) {
      places[i].source = complete.front();
    }
  }
  AddHolders(shards, members, std::min(replicas, members.size() - 1), &places);
  return places;
}

}  // namespace prd
