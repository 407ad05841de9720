#include "tests/engines/prague_model.h"

#include <algorithm>
#include <cmath>

namespace prd {

namespace {

template <typename Members>
std::set<Rank> RanksOf(const Members& members) {
  std::set<Rank> ranks;
  for (const GroupShare& member : members) ranks.insert(member.rank);
  return ranks;
}

// Sizes of a division of n into groups of `size`: floor(n / size) groups that differ by at most
// one.
bool EvenSizes(const std::vector<std::size_t>& sizes, std::size_t n, std::size_t size) {
  if (sizes.size() != std::max<std::size_t>(1, n / size)) return false;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  return *most - *least <= 1;
}

}  // namespace

bool PragueModel::InGroup(Rank rank) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [rank](const auto& entry) { return entry.second.undone.contains(rank); });
}

std::set<Rank> PragueModel::Idle() const {
  std::set<Rank> idle;
  for (const auto& [rank, worker] : workers_) {
    if (!InGroup(rank)) idle.insert(rank);
  }
  return idle;
}

std::string PragueModel::ApplyFinished(const FinishedEvent& finished) {
  const auto found = groups_.find(finished.group);
  if (found == groups_.end() || found->second.undone.erase(finished.rank) == 0) return "no group";
  Worker& worker = workers_[finished.rank];
  const bool passive = !Smart() && found->second.caller != finished.rank;
  if (found->second.undone.empty()) groups_.erase(found);
  if (passive) return "";
  if (!finished.ok) {
    worker.failing.insert(finished.group);
  } else if (worker.waiting) {
    worker.waiting = false;
  } else {
    ++worker.served;
  }
  return "";
}

void PragueModel::ApplyLeft(const LeftEvent& left) {
  workers_.erase(left.rank);
  for (auto it = groups_.begin(); it != groups_.end();) {
    const bool with = it->second.undone.erase(left.rank) > 0;
    const bool gone = (with && !it->second.formed) || it->second.undone.empty();
    it = gone ? groups_.erase(it) : std::next(it);
  }
}

std::string PragueModel::Apply(const Applied& applied) {
  bool answered = false;
  bool due = false;
  for (const Effect& effect : applied.effects) {
    answered = answered || std::holds_alternative<Answer>(effect);
  }
  if (const auto* joined = std::get_if<JoinedEvent>(&applied.event)) {
    const auto number = static_cast<std::int32_t>(host_numbers_.size());
    const int size = options_.workers_per_host;
    const std::string host = size > 0 ? std::to_string(joined->rank / size) : joined->host;
    workers_[joined->rank] = {.host = host_numbers_.emplace(host, number).first->second,
                              .requests = most_requests_};
  } else if (const auto* ready = std::get_if<ReadyEvent>(&applied.event)) {
    Worker& worker = workers_[ready->rank];
    most_requests_ = std::max(most_requests_, ++worker.requests);
    due = worker.served > 0;
    worker.served -= due ? 1 : 0;
    worker.waiting = !due;
    served_ += due ? 1 : 0;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&applied.event)) {
    if (auto wrong = ApplyFinished(*finished); !wrong.empty()) return wrong;
  } else if (const auto* ended = std::get_if<EndedEvent>(&applied.event)) {
    for (auto& [rank, worker] : workers_) worker.failing.erase(ended->group);
  } else if (const auto* left = std::get_if<LeftEvent>(&applied.event)) {
    ApplyLeft(*left);
  }
  return answered == due ? "" : "a request is answered that is not served, or the other way round";
}

std::string PragueModel::Collect(const Applied& applied, std::map<GroupId, Group>* fresh) {
  std::map<GroupId, Group> undrawn = groups_;
  const auto see = [&](GroupId id, const std::vector<GroupShare>& shares) -> std::string {
    const std::set<Rank> ranks = RanksOf(shares);
    if (ranks.size() != shares.size()) return "a member twice";
    const auto known = groups_.find(id);
    undrawn.erase(id);
    if (known != groups_.end()) return known->second.undone == ranks ? "" : "a group has changed";
    Group& group = (*fresh)[id];
    group.undone = ranks;
    for (const GroupShare& share : shares) {
      group.members.push_back(share.rank);
      if (std::abs(share.weight * static_cast<double>(shares.size()) - 1) > 1e-12) return "weight";
      if (Smart() && share.passive) return "a passive member of a division";
      if (Smart() || share.passive) continue;
      if (group.caller != kNoRank) return "two callers";
      group.caller = share.rank;
    }
    return "";
  };
  for (const FormGroup& form : GroupsOf(applied.effects)) {
    if (auto wrong = see(form.id, form.members); !wrong.empty()) return wrong;
  }
  for (const Engine::Drawn& drawn : engine_->DrawnGroups()) {
    if (auto wrong = see(drawn.id, drawn.members); !wrong.empty()) return wrong;
    if (drawn.reason.empty()) return "a drawn group without a reason";
  }
  for (const auto& [id, group] : undrawn) {
    if (!group.formed) return "group " + std::to_string(id) + " has vanished";
  }
  return "";
}

std::string PragueModel::CheckRandom(const Applied&, const std::map<GroupId, Group>& fresh) {
  const std::size_t size = std::min(static_cast<std::size_t>(options_.group_size), workers_.size());
  for (const auto& [id, group] : fresh) {
    if (group.members.size() != size) return "a random group of another size";
    for (const Rank rank : group.members) {
      if (!workers_.contains(rank)) return "a random group with one who is not there";
    }
    bool conflict = false;
    for (const auto& [earlier, other] : groups_) {
      if (other.undone.contains(group.caller) && other.caller == group.caller) {
        return "two groups at once for one caller";
      }
      for (const Rank rank : group.members) {
        conflict = conflict || (other.undone.contains(rank) && other.caller != group.caller);
      }
    }
    conflict_[id] = conflict;
    conflicts_ += conflict ? 1 : 0;
    groups_[id] = group;
  }
  return "";
}

// Section 5.2.
std::string PragueModel::CheckPhases(const std::map<GroupId, Group>& fresh,
                                     const std::map<std::int32_t, std::set<Rank>>& hosts) {
  const auto size = static_cast<std::size_t>(options_.group_size);
  ++in_two_phases_;
  std::map<Rank, int> count;
  std::map<std::int32_t, std::vector<std::size_t>> locals;  // groups of phase one within a host
  std::vector<std::size_t> heads;
  std::set<Rank> are_heads;
  std::set<std::int32_t> have_intra;
  for (const auto& [id, group] : fresh) {
    const std::int32_t host = workers_[group.members.front()].host;
    std::set<std::int32_t> spans;
    for (const Rank rank : group.members) {
      spans.insert(workers_[rank].host);
      if (++count[rank] > 2) return "three groups of a division for one worker";
    }
    if (group.members.size() < 2) return "alone in a phase";
    if (spans.size() > 1) {
      if (spans.size() != group.members.size()) return "two heads of one host";
      are_heads.insert(group.members.begin(), group.members.end());
      heads.push_back(group.members.size());
    } else if (group.undone == hosts.at(host)) {
      if (!have_intra.insert(host).second) return "two intra groups of a host";
    } else {
      if (have_intra.contains(host)) return "intra before inter";
      locals[host].push_back(group.members.size());
    }
  }
  if (are_heads.size() != hosts.size() || !EvenSizes(heads, hosts.size(), size)) return "heads";
  for (const auto& [host, ranks] : hosts) {
    if (have_intra.contains(host) != (ranks.size() > 1)) return "a host without its intra group";
    const std::size_t others = ranks.size() - 1;
    const bool divided = others > 1;
    if (locals.contains(host) != divided) return "the others of a host are not divided";
    if (divided && !EvenSizes(locals[host], others, size)) return "uneven groups within a host";
  }
  return "";
}

std::string PragueModel::CheckDivision(const Applied& applied,
                                       const std::map<GroupId, Group>& fresh,
                                       const std::set<Rank>& idle) {
  std::map<Rank, int> count;
  for (const auto& [id, group] : fresh) {
    for (const Rank rank : group.members) {
      ++count[rank];
      if (!idle.contains(rank)) return "a division of one who was in a group";
    }
    conflict_[id] = false;
    groups_[id] = group;
  }
  const auto* ready = std::get_if<ReadyEvent>(&applied.event);
  if (ready == nullptr) return "";
  // One division, unless its request is served already.
  if (!workers_[ready->rank].waiting || !idle.contains(ready->rank)) {
    return fresh.empty() ? "" : "a division that nobody asked for";
  }
  ++divisions_;
  const std::int64_t requests = workers_[ready->rank].requests;
  std::map<std::int32_t, std::set<Rank>> hosts;
  std::size_t n = 0;
  for (const Rank rank : idle) {
    const bool slow = requests - workers_[rank].requests >= options_.slowdown_threshold;
    if (slow == count.contains(rank)) return "a division of other workers than it should be";
    if (slow) continue;
    ++n;
    hosts[workers_[rank].host].insert(rank);
  }
  excluded_ += n < idle.size() ? 1 : 0;
  if (options_.inter_intra && hosts.size() > 1) return CheckPhases(fresh, hosts);
  std::vector<std::size_t> sizes;
  for (const auto& [id, group] : fresh) sizes.push_back(group.members.size());
  const auto once = [](const auto& entry) { return entry.second == 1; };
  if (!std::all_of(count.begin(), count.end(), once)) return "a division is no partition";
  return EvenSizes(sizes, n, static_cast<std::size_t>(options_.group_size)) ? "" : "uneven groups";
}

// A group runs as soon as no earlier undone one has a member of it, and not before.
std::string PragueModel::CheckFormed(const Applied& applied) {
  for (const FormGroup& form : GroupsOf(applied.effects)) {
    groups_[form.id].formed = true;
    if (form.conflict != conflict_[form.id]) return "conflict is said wrongly";
    conflict_.erase(form.id);
    redraws_ += form.reason.find("again") != std::string::npos ? 1 : 0;
  }
  std::set<Rank> held;
  for (const auto& [id, group] : groups_) {
    const bool free = std::none_of(group.undone.begin(), group.undone.end(),
                                   [&](Rank rank) { return held.contains(rank); });
    if (free != group.formed) {
      return "group " + std::to_string(id) + (free ? " could run" : " runs too early");
    }
    held.insert(group.undone.begin(), group.undone.end());
  }
  for (const Engine::Drawn& drawn : engine_->DrawnGroups()) {
    bool asked = false;
    for (const GroupShare& share : drawn.members) {
      const auto first = std::find_if(groups_.begin(), groups_.end(), [&](const auto& entry) {
        const bool answers = Smart() || entry.second.caller == share.rank;
        return answers && entry.second.undone.contains(share.rank);
      });
      const bool next = first != groups_.end() && first->first == drawn.id;
      asked = asked || (next && workers_[share.rank].waiting);
    }
    if (drawn.pending != asked) return "pending is said wrongly";
  }
  return "";
}

std::string PragueModel::CheckNobodyForgotten(Instant now) const {
  for (const auto& [rank, worker] : workers_) {
    const bool own = std::any_of(groups_.begin(), groups_.end(), [&, r = rank](const auto& entry) {
      return entry.second.undone.contains(r) && (Smart() || entry.second.caller == r);
    });
    if (worker.waiting && !own && worker.failing.empty()) {
      return "rank " + std::to_string(rank) + " waits for nothing";
    }
    if (worker.waiting == engine_->Explain(now, rank).empty()) return "no reason to wait, or one";
  }
  return "";
}

std::string PragueModel::Check(const Applied& applied) {
  if (auto wrong = Apply(applied); !wrong.empty()) return wrong;
  const std::set<Rank> idle = Idle();
  std::map<GroupId, Group> fresh;
  if (auto wrong = Collect(applied, &fresh); !wrong.empty()) return wrong;
  std::string wrong = Smart() ? CheckDivision(applied, fresh, idle) : CheckRandom(applied, fresh);
  if (wrong.empty()) wrong = CheckFormed(applied);
  return wrong.empty() ? CheckNobodyForgotten(applied.now) : wrong;
}

}  // namespace prd
