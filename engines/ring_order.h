// The order of a group's members around the ring: by host, then by rank, so that neighbours on one
// host are adjacent and each host's boundary is crossed once. Hosts count in the order in which
// they first appeared.
#ifndef PRD_ENGINES_RING_ORDER_H_
#define PRD_ENGINES_RING_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/archive.h"
#include "common/base/history.h"
#include "common/base/ids.h"

namespace prd {

// Compares ranks, or shares by their rank, in ring order. host_of(rank): the number of its host.
template <typename HostOf>
auto InRingOrder(HostOf host_of) {
  struct RankOf {
    Rank operator()(Rank rank) const { return rank; }
    Rank operator()(const GroupShare& share) const { return share.rank; }
  };
  return [host_of](const auto& a, const auto& b) {
    const Rank rank_a = RankOf()(a);
    const Rank rank_b = RankOf()(b);
    const std::int32_t host_a = host_of(rank_a);
    const std::int32_t host_b = host_of(rank_b);
    return host_a != host_b ? host_a < host_b : rank_a < rank_b;
  };
}

// Small numbers for host names; a number is free again when the last worker of its host has gone.
class HostTable {
 public:
  // The number of this host, which has one worker more.
  std::int32_t Add(const std::string& name) {
    const auto known = by_name_.find(name);
    if (known != by_name_.end()) {
      ++hosts_[known->second].workers;
      return static_cast<std::int32_t>(known->second);
    }
    std::size_t number = hosts_.size();
    if (free_.empty()) {
      hosts_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
    }
    hosts_[number] = {name, 1};
    by_name_.emplace(name, number);
    return static_cast<std::int32_t>(number);
  }

  // One worker of this host has gone. REQUIRES: Has(host).
  void Remove(std::int32_t host) {
    const auto number = static_cast<std::size_t>(host);
    if (--hosts_[number].workers > 0) return;
    by_name_.erase(hosts_[number].name);
    hosts_[number].name.clear();
    free_.push_back(number);
  }

  bool Has(std::int32_t host) const {
    return host >= 0 && static_cast<std::size_t>(host) < hosts_.size() &&
           hosts_[static_cast<std::size_t>(host)].workers > 0;
  }

  void Archive(StateArchive& ar) {
    ar(hosts_, free_);
    if (ar.saving()) return;
    by_name_.clear();
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      if (hosts_[i].workers > 0 && !by_name_.emplace(hosts_[i].name, i).second) ar.Fail();
    }
    for (const std::size_t number : free_) {
      if (number >= hosts_.size() || hosts_[number].workers > 0) ar.Fail();
    }
  }

 private:
  struct Host {
    std::string name;
    std::int64_t workers = 0;
    void Archive(StateArchive& ar) { ar(name, workers); }
  };
  std::vector<Host> hosts_;                     // by number
  std::vector<std::size_t> free_;               // numbers without a worker
  std::map<std::string, std::size_t> by_name_;  // derived
};

}  // namespace prd

#endif  // PRD_ENGINES_RING_ORDER_H_
