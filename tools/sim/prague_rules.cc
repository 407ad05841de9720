#include "tools/sim/prague_rules.h"

#include <algorithm>

#include "tools/sim/violation.h"

namespace prd::sim {
namespace {

std::string Name(Rank rank) { return "rank " + std::to_string(rank); }

std::vector<Rank> RanksOf(const std::vector<GroupShare>& members) {
  std::vector<Rank> ranks;
  for (const GroupShare& share : members) ranks.push_back(share.rank);
  return ranks;
}

}  // namespace

std::string PragueRules::HostOf(Rank rank) const {
  if (options_.workers_per_host > 0) return std::to_string(rank / options_.workers_per_host);
  return workers_.at(rank).host;
}

std::set<Rank> PragueRules::Idle() const {
  std::set<Rank> idle;
  for (const auto& [rank, worker] : workers_) idle.insert(rank);
  for (const auto& [id, group] : undone_) {
    for (const Rank rank : group.members) idle.erase(rank);
  }
  return idle;
}

void PragueRules::Apply(const Event& event) {
  asks_.reset();
  if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
    workers_[joined->rank] = {.requests = most_, .host = joined->host};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&event)) {
    asks_ = ready->rank;
    most_ = std::max(most_, ++workers_.at(ready->rank).requests);
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    const auto group = undone_.find(finished->group);
    if (group != undone_.end()) std::erase(group->second.members, finished->rank);
  } else if (const auto* left = std::get_if<LeftEvent>(&event)) {
    workers_.erase(left->rank);
    std::erase_if(undone_, [&](const auto& entry) {
      const std::vector<Rank>& members = entry.second.members;
      return !entry.second.formed &&
             std::find(members.begin(), members.end(), left->rank) != members.end();
    });
    for (auto& [id, group] : undone_) std::erase(group.members, left->rank);
  }
  std::erase_if(undone_, [](const auto& entry) { return entry.second.members.empty(); });
}

void PragueRules::Check(Instant, const Event& event, std::span<const Effect> effects,
                        std::int64_t joined) {
  Apply(event);
  served_ = false;
  formed_.clear();
  for (const Effect& effect : effects) {
    served_ = served_ || std::holds_alternative<Answer>(effect);
    const auto* group = std::get_if<FormGroup>(&effect);
    if (group == nullptr) continue;
    formed_.push_back(*group);
    if (options_.generator == PragueOptions::Generator::kStatic) {
      throw Violation("no-groups", "group " + std::to_string(group->id) + " beside the schedule");
    }
    if (options_.generator == PragueOptions::Generator::kRandom) CheckRandom(*group, joined);
  }
  unseen_ = unseen_ || joined > kMostWatched;
}

// Drawn among those who were there then, of whom nobody has left.
void PragueRules::CheckRandom(const FormGroup& group, std::int64_t joined) const {
  const auto size = static_cast<std::int64_t>(group.members.size());
  const auto active = std::count_if(group.members.begin(), group.members.end(),
                                    [](const GroupShare& share) { return !share.passive; });
  if (size <= std::min<std::int64_t>(options_.group_size, joined) && active == 1) return;
  throw Violation("group-size", "group " + std::to_string(group.id) + " has " +
                                    std::to_string(size) + " members of " + std::to_string(joined) +
                                    " workers, " + std::to_string(active) + " not passive");
}

void PragueRules::CheckDrawn(std::span<const Engine::Drawn> drawn) {
  if (unseen_) return;
  const std::set<Rank> idle = Idle();
  std::map<GroupId, std::vector<Rank>> fresh;
  for (const FormGroup& group : formed_) {
    if (group.id > newest_) {
      fresh[group.id] = RanksOf(group.members);
    } else {
      undone_.at(group.id).formed = true;
    }
  }
  for (const Engine::Drawn& group : drawn) {
    if (group.id > newest_) fresh[group.id] = RanksOf(group.members);
  }
  Groups groups;
  for (const auto& [id, ranks] : fresh) groups.push_back(ranks);
  if (options_.generator == PragueOptions::Generator::kSmart) {
    for (const std::vector<Rank>& group : groups) {
      for (const Rank rank : group) {
        if (idle.contains(rank)) continue;
        throw Violation("division", Name(rank) + " is divided, and in a group that is not done");
      }
    }
    if (asks_) CheckRequest(*asks_, idle, groups);
  }
  for (const auto& [id, ranks] : fresh) {
    const bool formed = std::any_of(formed_.begin(), formed_.end(),
                                    [&](const FormGroup& group) { return group.id == id; });
    undone_[id] = {.members = ranks, .formed = formed};
    newest_ = id;
  }
}

void PragueRules::CheckRequest(Rank rank, const std::set<Rank>& idle, const Groups& groups) const {
  if (served_ || !idle.contains(rank)) {
    if (groups.empty()) return;
    throw Violation("division", Name(rank) + (served_ ? " is served" : " has a group") +
                                    ", and its request draws one");
  }
  std::set<Rank> divided;
  for (const Rank other : idle) {
    const std::int64_t fewer = workers_.at(rank).requests - workers_.at(other).requests;
    if (fewer < options_.slowdown_threshold) divided.insert(other);
  }
  for (const std::vector<Rank>& group : groups) {
    for (const Rank member : group) {
      if (divided.contains(member)) continue;
      throw Violation("slow-worker",
                      Name(rank) + " has requested " + std::to_string(workers_.at(rank).requests) +
                          " groups, and is divided with " + Name(member) + ", which has " +
                          std::to_string(workers_.at(member).requests));
    }
  }
  std::set<std::string> hosts;
  for (const Rank member : divided) hosts.insert(HostOf(member));
  if (options_.inter_intra && hosts.size() > 1) return CheckPhases(divided, groups);
  CheckDivision(divided, groups);
}

void PragueRules::CheckDivision(const std::set<Rank>& divided, const Groups& groups) const {
  std::multiset<Rank> seen;
  std::size_t least = divided.size();
  std::size_t most = 0;
  for (const std::vector<Rank>& group : groups) {
    seen.insert(group.begin(), group.end());
    least = std::min(least, group.size());
    most = std::max(most, group.size());
  }
  const std::size_t due =
      std::max<std::size_t>(1, divided.size() / static_cast<std::size_t>(options_.group_size));
  if (std::equal(seen.begin(), seen.end(), divided.begin(), divided.end()) &&
      groups.size() == due && most - least <= 1) {
    return;
  }
  throw Violation("division", std::to_string(divided.size()) + " idle workers are divided into " +
                                  std::to_string(groups.size()) + " groups of " +
                                  std::to_string(least) + " to " + std::to_string(most) + ", " +
                                  std::to_string(seen.size()) + " members in all");
}

// The groups of the second phase come last: then everybody's last one is all of its host, but for
// who is there alone.
void PragueRules::CheckPhases(const std::set<Rank>& divided, const Groups& groups) const {
  std::map<std::string, std::set<Rank>> hosts;
  for (const Rank rank : divided) hosts[HostOf(rank)].insert(rank);
  std::map<Rank, std::vector<std::set<Rank>>> of;
  for (const std::vector<Rank>& group : groups) {
    for (const Rank rank : group) of[rank].emplace_back(group.begin(), group.end());
  }
  for (const Rank rank : divided) {
    const std::set<Rank>& locals = hosts.at(HostOf(rank));
    const std::vector<std::set<Rank>>& own = of[rank];
    const std::size_t intra = locals.size() > 1 ? 1 : 0;
    if (own.empty() || own.size() > 1 + intra || (intra > 0 && own.back() != locals)) {
      throw Violation("division", Name(rank) + " is in " + std::to_string(own.size()) +
                                      " groups, of which the last is not all of its host");
    }
    if (own.size() == intra) continue;
    std::map<std::string, int> members;
    for (const Rank member : own.front()) ++members[HostOf(member)];
    const bool heads = std::all_of(members.begin(), members.end(),
                                   [](const auto& host) { return host.second == 1; });
    if (members.size() > 1 && !heads) {
      throw Violation("division", Name(rank) + " is in a group across hosts with two of one");
    }
  }
}

void PragueRules::Archive(StateArchive& ar) { ar(workers_, undone_, newest_, most_, unseen_); }

}  // namespace prd::sim
